"""Programs from elsewhere that a machine is asked to open: only where it can confine workers."""

from __future__ import annotations

from optcli.artifact import SCANNED, Artifact
from optcli.workers import confinement


def require_confinement(format: str, place: str, *, trust: bool) -> None:
    """Raise `TrustError` for a program from elsewhere where this system cannot confine workers."""
    if format in SCANNED and not trust:
        confinement.require_whole(place)


def require_confinement_of(artifact: Artifact) -> None:
    """The same for an artifact that a machine is asked to open."""
    if artifact.foreign:
        require_confinement(artifact.format, str(artifact.path), trust=artifact.trusted)
