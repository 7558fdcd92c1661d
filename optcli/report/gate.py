"""The gate's answer: a table, what explains a failure, what to distrust, and the forms of CI systems.

These are JUnit XML, workflow commands of GitHub Actions, OpenMetrics text for GitLab's metrics reports,
and the `customSmallerIsBetter` JSON of github-action-benchmark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from optcli.report import junit as junit_xml
from optcli.report import wording
from optcli.report.junit import Case
from optcli.results.document import Cell, Column, Document, Items, Section, Table
from optcli.results.gate import (
    Change,
    ChangeKind,
    Choice,
    Comparison,
    GatedVariant,
    GateReport,
    Unversioned,
)

_HEADINGS = {"accept": "passed", "reject": "FAILED", "inconclusive": "could not tell"}
# Lets a bot find its own comment again and change it.
MARK = "optcli gate"
# What an outcome is called in front of a reviewer.
WORDS = {"accept": "pass", "reject": "FAIL", "inconclusive": "cannot tell"}
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
_LEVELS = {"reject": "error", "inconclusive": "warning"}


def document(report: GateReport) -> Document:
    """For a terminal, and for the comment of a pull request."""
    return Document(
        title=f"optcli gate {_HEADINGS[report.outcome]}: {report.recipe.name}",
        sections=list(_sections(report)),
        answer=report.sentence,
        outcome=report.outcome,
        footer=[_compared(report)],
        mark=MARK,
    )


def _sections(report: GateReport) -> Iterator[Section]:
    yield Section("", [Table(COLUMNS, rows(report))])
    yield Section(
        "What the candidate is judged by has changed",
        [Items(_with_decisions(report))],
        tone="inconclusive",
    )
    for name, variant in report.variants.items():
        reasons = [
            f"{each.name}: {each.reason}" for each in variant.comparisons if each.outcome != "accept"
        ]
        if reasons:
            yield Section(f"Why {name}", [Items([*reasons, *causes(variant)])], tone="inconclusive")
    yield Section(
        "Doubts about the measurement", [Items(list(_doubts(report)))], tone="inconclusive", folded=True
    )


def _compared(report: GateReport) -> str:
    """With what, which variants are judged and why, and how long it took."""
    judged = [f"{name} ({why})" for name, each in report.variants.items() if (why := _why_chosen(each))]
    which = f" Judged: {', '.join(judged)}." if judged else ""
    took = wording.seconds(report.started, report.finished)
    time = "" if took is None else f" Took {wording.duration(took)}."
    return f"Compared with {report.baseline}.{which}{time}"


@dataclass(frozen=True)
class _ComparedVariant:
    """One comparison of a variant."""

    variant: str
    comparison: Comparison


def rows(report: GateReport) -> list[_ComparedVariant]:
    """One row per comparison, in the recipe's order."""
    return [
        _ComparedVariant(name, each)
        for name, variant in report.variants.items()
        for each in variant.comparisons
    ]


def _doubts(report: GateReport) -> Iterator[str]:
    """What to distrust, by variant."""
    for name, variant in report.variants.items():
        yield from (f"{name}: {flag.text}" for flag in variant.flags)


def causes(variant: GatedVariant) -> Iterator[str]:
    """What differs between the two artifacts, and which operators grew."""
    yield from variant.causes
    for each in variant.operators:
        yield (
            f"{each.operator}: {wording.number(each.baseline_ms)} ms, now "
            f"{wording.number(each.candidate_ms)} ms a call"
        )


def _name(row: _ComparedVariant) -> Cell:
    compared = row.comparison
    size = "" if compared.batch_size is None else f", batch {compared.batch_size}"
    return Cell(f"{compared.name}{size}")


def _verdict(row: _ComparedVariant) -> Cell:
    compared = row.comparison
    verdict = WORDS[compared.outcome]
    if compared.improved:
        verdict = "improved"
    elif not compared.blocking:
        verdict = "reported" if compared.outcome == "accept" else f"{verdict.lower()} (advice)"
    decides = compared.blocking or compared.outcome == "accept"
    return Cell(verdict, tone=compared.outcome if decides else "inconclusive")


def _side(value: float | None, unit: str) -> Cell:
    return Cell("" if value is None else wording.figure(value, unit))


def _change(compared: Comparison) -> str:
    if compared.change is None:
        return ""
    sign = -1 if compared.metric == "accuracy" else 1  # a loss is shown as a fall
    # Adding 0.0 turns a negative zero into none.
    growth = round(100 * sign * compared.change.value, 2 if compared.metric == "accuracy" else 1) + 0.0
    value = f"{growth:+.2f} points" if compared.metric == "accuracy" else f"{growth:+.1f} %"
    low, high = compared.change.low, compared.change.high
    if low is None or high is None:
        return value
    low, high = sorted((100 * sign * low, 100 * sign * high))
    return f"{value} [{low:+.1f}, {high:+.1f}]"


def _limit(compared: Comparison) -> str:
    if compared.limit is None:
        return ""
    if compared.metric == "slo":
        return wording.figure(compared.limit, compared.unit)
    if compared.metric == "accuracy":
        return f"-{100 * compared.limit:g} points"
    besides = f" and {wording.megabytes(int(compared.slack))}" if compared.slack else ""
    return f"+{100 * compared.limit:g} %{besides}"


COLUMNS: tuple[Column[_ComparedVariant], ...] = (
    Column("variant", lambda row: Cell(row.variant), align="left"),
    Column("figure", _name, align="left"),
    Column("baseline", lambda row: _side(row.comparison.baseline, row.comparison.unit)),
    Column("now", lambda row: _side(row.comparison.candidate, row.comparison.unit)),
    Column("change", lambda row: Cell(_change(row.comparison))),
    Column("limit", lambda row: Cell(_limit(row.comparison))),
    Column("verdict", _verdict, align="left"),
)


def change_in_words(change: Change) -> str:
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


def changes_in_words(changes: Sequence[Change]) -> list[str]:
    """What `change_in_words` says of each, once for places whose files are the same."""
    alike: dict[object, list[Change]] = {}
    for index, each in enumerate(changes):
        shared = each.unversioned is not None
        alike.setdefault((each.unversioned, each.files) if shared else index, []).append(each)
    return [
        change_in_words(
            group[0].model_copy(update={"place": " and ".join(each.place for each in group)})
        )
        for group in alike.values()
    ]


def _with_decisions(report: GateReport) -> list[str]:
    """Every change of the terms with what became of it."""
    texts = []
    for each in report.changes:
        how = "accepted" if each.accepted else "tighter" if each.tighter else f"--accept {each.kind}?"
        texts.append(f"{change_in_words(each)} ({how})")
    return texts


def _why_chosen(variant: GatedVariant) -> str:
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


def junit(report: GateReport) -> str:
    """JUnit XML: one test case per figure; inconclusive ones are skipped, failed ones carry figures."""
    name = report.recipe.name
    return junit_xml.junit(f"optcli gate {name}", report.started, list(_cases(report)))


def _cases(report: GateReport) -> Iterator[Case]:
    for name, variant in report.variants.items():
        for each in variant.comparisons:
            size = f" at batch size {each.batch_size}" if each.batch_size else ""
            place, figures = f"{report.recipe.name}.{name}", _figures(each)
            failed = "\n".join([figures, *causes(variant)])
            yield junit_xml.judged(place, f"{each.name}{size}", each, figures, failed)
    for change in report.changes:
        result: Literal["passed", "skipped"] = "skipped" if change.open else "passed"
        name = f"{change.kind} {change.place}"
        yield Case(f"{report.recipe.name}.terms", name, result, change_in_words(change))


def github_annotations(report: GateReport) -> Iterator[str]:
    """Workflow commands of GitHub Actions: one for each figure that does not pass."""
    place = _property(report.recipe.path)
    for change in report.changes:
        if change.open:
            title = _property(f"optcli gate: {change.kind} changed")
            yield f"::warning file={place},title={title}::{_message(change_in_words(change))}"
    for name, variant in report.variants.items():
        for each in variant.comparisons:
            level = _LEVELS.get(each.outcome)
            if level and each.blocking:
                title = _property(f"optcli gate: {name} {each.name} {WORDS[each.outcome]}")
                yield f"::{level} file={place},title={title}::{_message(each.reason)}"


def gitlab_metrics(report: GateReport) -> str:
    """OpenMetrics text: GitLab shows in a merge request which of these changed."""
    _with_decisions = []
    for name, variant in report.variants.items():
        for each in variant.comparisons:
            if each.candidate is not None:
                labels = {"variant": name, "figure": each.name}
                if each.batch_size is not None:
                    labels["batch_size"] = str(each.batch_size)
                marks = ",".join(f'{key}="{_label(value)}"' for key, value in labels.items())
                _with_decisions.append(
                    f"optcli_{each.metric}_{each.unit}{{{marks}}} {each.candidate:.10g}"
                )
    return "\n".join([*_with_decisions, "# EOF"]) + "\n"


def benchmark_json(report: GateReport) -> str:
    """JSON for github-action-benchmark's `customSmallerIsBetter`: times, sizes and losses."""
    entries = []
    for name, variant in report.variants.items():
        for each in variant.comparisons:
            if each.candidate is None or each.metric in ("slo", "outputs"):
                continue
            value = each.candidate
            label = f"{name} {each.name}"
            if each.batch_size is not None:
                label += f", batch {each.batch_size}"
            if each.metric == "accuracy":
                if each.change is None:
                    continue
                label, value = f"{label} loss", each.change.value
            entries.append({"name": label, "unit": each.unit, "value": value, "extra": each.reason})
    return json.dumps(entries, indent=2) + "\n"


def _figures(compared: Comparison) -> str:
    _with_decisions = [
        f"baseline {compared.baseline} {compared.unit}, now {compared.candidate} {compared.unit}"
    ]
    if compared.change is not None:
        _with_decisions.append(
            f"change {compared.change.value:+.6f} [{compared.change.low}, {compared.change.high}]"
        )
    if compared.limit is not None:
        _with_decisions.append(f"limit {compared.limit}")
    if compared.pairs:
        _with_decisions.append(f"{compared.pairs} launch pairs")
    return "\n".join(_with_decisions)


def _message(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _message(value).replace(":", "%3A").replace(",", "%2C")


def _label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
