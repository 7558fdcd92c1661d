"""Changes of what a candidate is judged by, in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from optcli.report import wording
from optcli.results.gate import Change, ChangeKind, Choice, GatedVariant, GateReport, Unversioned

_MOST_FILES = 3
_LONGEST = 60
_UNVERSIONED: dict[Unversioned, str] = {
    "untracked": "git does not have",
    "outside": "lies outside of the repository",
    "lfs": "git-lfs has not fetched",
    "submodule": "lies in a submodule",
}
_CHOICES: dict[Choice, str] = {
    "named": "named by --variant",
    "marked": "marked gate: true",
    "marked-before": "marked gate: true in the baseline",
    "recommended": "recommended by the candidate's build",
    "recommended-before": "recommended by the baseline's build",
}


def told(change: Change) -> str:
    """One change in one clause: `accuracy.max_drop 0.01, now 0.05`."""
    if change.unversioned is not None:
        return (
            f"{change.place}: both sides read today's {_files(change)}, which"
            f" {_UNVERSIONED[change.unversioned]}: compare with a saved build (`optcli baseline save`)"
        )
    if change.kind == "libraries":
        return (
            f"{_files(change)} changed, and both sides run in today's libraries: give the baseline"
            " its own with --baseline-python VENV"
        )
    if change.kind == "committed":
        return (
            f"git holds {_files(change)}, so a pull request can bring its own: keep it outside of the"
            " repository (OPTCLI_STORE, --store, or a baseline's URL)"
        )
    if change.kind == "terms":
        return "the saved baseline does not hold what it was judged by: save it again"
    if change.kind == "variants" and change.after is None:
        return f"{change.place} is gone"
    if change.kind == "code":
        return f"the code of {change.place} changed"
    if change.place.endswith(".content"):
        return f"{change.place.removesuffix('.content')}: other samples or labels"
    return f"{change.place} {_value(change.before)}, now {_value(change.after)}"


def together(changes: Sequence[Change]) -> list[str]:
    """What `told` says of each, once for places whose files are the same."""
    alike: dict[object, list[Change]] = {}
    for index, each in enumerate(changes):
        shared = each.unversioned is not None
        alike.setdefault((each.unversioned, each.files) if shared else index, []).append(each)
    return [
        told(group[0].model_copy(update={"place": " and ".join(each.place for each in group)}))
        for group in alike.values()
    ]


def lines(report: GateReport) -> list[str]:
    """Every change of the terms with what became of it."""
    texts = []
    for each in report.changes:
        how = "accepted" if each.accepted else "tighter" if each.tighter else f"--accept {each.kind}?"
        texts.append(f"{told(each)} ({how})")
    return texts


def why_chosen(variant: GatedVariant) -> str:
    """Why a variant is judged."""
    return " and ".join(_CHOICES[each] for each in variant.chosen)


def kinds_of(changes: Sequence[Change]) -> list[ChangeKind]:
    """The kinds of some changes, each once."""
    return list(dict.fromkeys(each.kind for each in changes))


def _files(change: Change) -> str:
    """The files by name; many of one folder by the folder."""
    files, more = change.files, len(change.files) - _MOST_FILES
    folders = {PurePath(path).parent for path in files}
    if more > 0 and len(folders) == 1:
        return f"{len(files)} files of {folders.pop()}"
    shown = ", ".join(files[:_MOST_FILES])
    return f"{shown} and {more} more" if more > 0 else shown


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    text = wording.setting(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
