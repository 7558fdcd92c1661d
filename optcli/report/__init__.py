"""Reports for people: a table for the terminal, plain text for pipes, Markdown, a recommendation.

The only room besides `cli/` that shapes text for the screen: fractions become percent here.
"""

from __future__ import annotations

from optcli.report.csv_text import csv_text
from optcli.report.markdown import markdown
from optcli.report.notes import ending
from optcli.report.recommendation import Advice, recommend
from optcli.report.table import table, text

__all__ = ["Advice", "csv_text", "ending", "markdown", "recommend", "table", "text"]
