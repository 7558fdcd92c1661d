"""The libraries that bring operators which a network calls: imported by name, and no other is.

An artifact's facts say which it needs (`imports`). Facts can come from elsewhere, with a baseline or a
copied folder, so only the libraries that our own passes and sources name are imported.
"""

from __future__ import annotations

from collections.abc import Iterable

from optcli.errors import TrustError
from optcli.models.formats.exported import QUANTIZED
from optcli.workers import libraries

NAMES = frozenset({QUANTIZED, "torchao.quantization", "torchvision", "timm"})


def bring(names: Iterable[object]) -> None:
    """Import libraries of operators. Raises `TrustError` for any other module, ImportError as ever."""
    for name in names:
        if not isinstance(name, str) or name not in NAMES:
            raise TrustError(
                f"the artifact wants {str(name)[:80]!r} to be imported, which brings no operators",
                hint=f"known are {', '.join(sorted(NAMES))}: build the artifact again",
            )
        libraries.bring_in([name])
