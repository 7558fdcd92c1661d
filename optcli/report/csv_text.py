"""Reports and comparisons as CSV: one row per variant, device, batch size and region.

Unknown cells are empty.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from optcli.report import columns
from optcli.report.changes import tables as of_changes
from optcli.report.changes.model import ReportComparison
from optcli.report.rows import every_row
from optcli.results import Report
from optcli.results.document import Column, R


def csv_text(report: Report) -> str:
    """The columns are documented in the README. A variant without latency has one row without it."""
    return _written(columns.COLUMNS, (row for each in report.by_device for row in every_row(each)))


def csv_of_changes(comparisons: Sequence[ReportComparison]) -> str:
    """Variants that only one side has are left out."""
    return _written(of_changes.COLUMNS, (row for each in comparisons for row in of_changes.rows(each)))


def _written(shown: Sequence[Column[R]], rows: Iterable[R]) -> str:
    """A header and the rows; empty where there are none."""
    lines = [{name: cell for each in shown for name, cell in each.csv(row).items()} for row in rows]
    stream = io.StringIO()
    if lines:
        writer = csv.DictWriter(stream, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return stream.getvalue()
