"""Reports of several devices compared: each device with itself."""

from __future__ import annotations

from optcli.report.changes.comparing import compare
from optcli.report.changes.model import Comparison
from optcli.results import Report


def compare_devices(before: tuple[str, Report], after: tuple[str, Report]) -> list[Comparison]:
    """A comparison for each device that both reports have; of the first ones, where they share none.

    Devices go by their names in the recipe. Labels say which device it is, where there are several.
    """
    theirs = {each.device: each for each in after[1].by_device}
    pairs = [(mine, theirs[mine.device]) for mine in before[1].by_device if mine.device in theirs]
    if not pairs:
        pairs = [(before[1].by_device[0], after[1].by_device[0])]

    def labelled(label: str, report: Report) -> str:
        return f"{label} on {report.device}" if len(pairs) > 1 else label

    return [
        compare((labelled(before[0], one), one), (labelled(after[0], other), other))
        for one, other in pairs
    ]
