"""`optcli loadtest --find-limit` and `--calibrate`: how much a server can do, and how it computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optcli.cli import options
from optcli.errors import UsageError


@dataclass(frozen=True)
class SearchOptions:
    """What is looked for, beside whether the promise is kept."""

    find_limit: bool = options.option(
        "--find-limit", is_flag=True, help="Raise the rate until the promise breaks."
    )
    calibrate: bool = options.option(
        "--calibrate",
        is_flag=True,
        help="First measure call times by batch size and the time beside the model, and store both.",
    )
    calibration: Path | None = options.option(
        "--calibration",
        type=options.OUT_FILE,
        metavar="FILE",
        help="The file of the calibration.  [default: calibration.json in the bundle]",
    )


def require_no_search(search: SearchOptions) -> None:
    """Raise `UsageError` for what only one server can be asked for."""
    for option, given in (("--find-limit", search.find_limit), ("--calibrate", search.calibrate)):
        if given:
            raise UsageError("it is for one server", place=option, hint="name one server alone")
