"""A report device by device: one table each, and what is said below it."""

from __future__ import annotations

from dataclasses import replace

from optcli.report.notes import Notes, notes
from optcli.results import Report

# Sections that speak of one device's figures.
_OF_ITS_OWN = ("Verdicts", "Doubts about the measurement")


def views(report: Report) -> list[tuple[Report, Notes]]:
    """The report of each device alone with its notes; just the report where it names one machine.

    What an earlier device says of the whole build is left out. Verdicts and doubts stay: each holds for
    one device. The last one has the ending.
    """
    found: list[tuple[Report, Notes]] = []
    said: set[tuple[str, str]] = set()
    for alone in report.by_device:
        whole = notes(alone)
        found.append((alone, _without(whole, said) if found else whole))
        said |= {(title, line) for title, lines in whole.sections for line in lines}
        said |= {("", line) for line in whole.footer}
    *before, (last, of_last) = found
    ending = notes(report).ending
    return [(each, replace(its, ending="")) for each, its in before] + [
        (last, replace(of_last, ending=ending))
    ]


def _without(whole: Notes, said: set[tuple[str, str]]) -> Notes:
    def new(title: str, lines: list[str]) -> list[str]:
        return [line for line in lines if title in _OF_ITS_OWN or (title, line) not in said]

    kept = {title: new(title, lines) for title, lines in whole.sections}
    return whole.with_sections(kept, new("", whole.footer))
