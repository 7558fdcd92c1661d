"""Which variant of one report is which of another."""

from __future__ import annotations

from optcli.report.changes import machines
from optcli.results import Report, VariantReport


def match(old: Report, new: Report) -> list[tuple[str, str]]:
    """Pairs of (name after, name before), in the order of the report after."""
    before = {name: name for name in new.variants if name in old.variants}
    left = {name: earlier for name, earlier in old.variants.items() if name not in before}
    for name, variant in new.variants.items():
        if name in before or variant.artifact is None:
            continue
        twin = next((former for former, earlier in left.items() if same(earlier, variant)), None)
        if twin is not None:
            before[name] = twin
            del left[twin]
    return [(name, before[name]) for name in new.variants if name in before]


def same(one: VariantReport, other: VariantReport) -> bool:
    """Whether two variants are the same artifact in the same runner with the same settings.

    By what made it or by what is in its files: another version of a pass may have made the same ones.
    """
    if one.artifact is None or other.artifact is None:
        return False
    digests = {one.artifact.digest, other.artifact.digest}
    same_files = None not in digests and len(digests) == 1
    if one.artifact.key != other.artifact.key and not same_files:
        return False
    return machines.requested(one) == machines.requested(other)
