"""What people read: documents of results, and one renderer for each form of a document.

The only room besides `cli/` that shapes text for the screen: fractions become percent here.
"""

from __future__ import annotations

from optcli.report.csv_text import csv_text
from optcli.report.notes import ending
from optcli.report.recommendation import Advice, recommend

__all__ = ["Advice", "csv_text", "ending", "recommend"]
