"""The request to a profiling process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.artifact import Artifact
from optcli.data import DataSettings
from optcli.results import ArtifactSummary
from optcli.settings import TensorSpec
from optcli.settings.postprocess import PostprocessSettings


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """An artifact, its runner, what to feed and where the Chrome trace goes.

    `variant`, `recipe` and `summary` are repeated in the profile. `data` are the settings of a role,
    with paths relative to `folder`; None: random inputs. `postprocess` is what follows the model.
    """

    variant: str
    recipe: str
    summary: ArtifactSummary
    artifact: Artifact
    runner: str
    options: dict[str, Any]
    inputs: tuple[TensorSpec, ...]
    batch_size: int
    trace: Path
    seed: int = 0
    data: DataSettings | None = None
    folder: Path = Path()
    postprocess: PostprocessSettings | None = None
