"""What people read: documents of results, and one renderer for each form of a document.

The only room besides `cli/` that shapes text for the screen: fractions become percent here.
"""

from optcli.report.csv_text import csv_text
from optcli.report.notes import ending
from optcli.report.recommendation import Advice, recommend
