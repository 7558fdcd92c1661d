"""Drift: the answer of each input, its channels, what drifted."""

from __future__ import annotations

from collections.abc import Sequence

from optcli.report import junit as junit_xml
from optcli.report import wording
from optcli.report.terminal import figures
from optcli.results.document import Document, Items, Names, Section, Table, table_of_texts
from optcli.results.loadtest import Drift, DriftInput, DriftStatistic

WORDS = {"accept": "no drift", "reject": "DRIFTED", "inconclusive": "cannot tell"}
CHANNELS = (
    "input",
    "channel",
    "reference mean",
    "seen mean",
    "reference range",
    "seen range",
    "outside",
)
STATISTICS = ("input", "statistic", "of", "reference", "seen", "shift (sd)", "distance", "p")
# Of an input with many channels, those that are farthest.
MOST = 12


def about(drift: Drift) -> list[tuple[str, str]]:
    """Names and values of what is compared with what."""
    one = drift.reference
    inputs_seen = f"{drift.kept} of {drift.seen}, drawn at random, {drift.begun} to {drift.written}"
    return [
        ("model", f"{drift.model} at {drift.target}"),
        ("inputs seen", inputs_seen),
        ("reference", f"{one.samples} of {one.of} samples of the {one.role} data, {one.source}"),
    ]


def channels(drift: Drift) -> list[tuple[str, ...]]:
    """A row for each channel; of an input with many, for those that drifted farthest."""
    rows: list[tuple[str, ...]] = []
    for each in drift.inputs:
        for one in [one for one in each.channels if one.channel in _shown(each)]:
            usual, seen = one.reference_range, one.seen_range
            rows.append(
                (
                    each.name,
                    str(one.channel),
                    _signed(one.reference_mean),
                    _signed(one.seen_mean),
                    f"{_signed(usual[0])} to {_signed(usual[1])}",
                    f"{_signed(seen[0])} to {_signed(seen[1])}",
                    wording.percent(one.outside),
                )
            )
    return rows


def statistics(drift: Drift) -> list[tuple[str, ...]]:
    """A row for each statistic that drifted, the farthest of each input first."""
    return [
        (
            each.name,
            one.statistic,
            _of(one),
            _signed(one.reference),
            _signed(one.seen),
            wording.NONE if one.shift_sd is None else f"{one.shift_sd:+.2f}",
            f"{one.distance:.2f}",
            f"{one.p:.1g}",
        )
        for each in drift.inputs
        for one in [one for one in each.statistics if one.drifted][:MOST]
    ]


def document(drift: Drift) -> Document:
    """The answer of each input, its channels, and what drifted."""
    answers = [f"{each.name}: {WORDS[each.outcome]}, {each.reason}" for each in drift.inputs]
    return Document(
        title=f"optcli loadtest --drift: {drift.model}",
        label=WORDS[drift.outcome],
        outcome=drift.outcome,
        answer=drift.sentence,
        sections=[
            Section("Compared", [Names(about(drift))]),
            Section("Channels", [_channels(drift)]),
            Section("What drifted", [_statistics(drift)]),
            Section("Inputs", [Items(answers)]),
            Section("Notes", [Items(drift.notes)]),
        ],
    )


def junit(drift: Drift) -> str:
    """JUnit XML: one test case for each input; inconclusive ones are skipped."""
    usual = figures(_channels(drift))
    failed = f"{usual}\n\n{figures(_statistics(drift))}"
    place = f"drift.{drift.model}"
    cases = [junit_xml.judged(place, each.name, each, usual, failed) for each in drift.verdicts]
    return junit_xml.junit(f"optcli loadtest --drift {drift.model}", drift.started, cases)


def _channels(drift: Drift) -> Table[Sequence[str]]:
    return table_of_texts(CHANNELS, channels(drift))


def _statistics(drift: Drift) -> Table[Sequence[str]]:
    return table_of_texts(STATISTICS, statistics(drift), left=(0, 1, 2))


def _shown(one: DriftInput) -> set[int]:
    """The channels to show: all of few, else those that are farthest."""
    if len(one.channels) <= MOST:
        return {each.channel for each in one.channels}
    ranked = dict.fromkeys(each.channel for each in one.statistics if each.channel is not None)
    return set(list(ranked)[:MOST])


def _of(one: DriftStatistic) -> str:
    return "all" if one.channel is None else f"channel {one.channel}"


def _signed(value: float) -> str:
    return f"{value:.3g}"
