"""What changed from one report to another, with intervals, or why that cannot be said."""

from optcli.report.changes.comparing import compare, compare_devices
from optcli.report.changes.model import ReportComparison
from optcli.report.changes.tables import document
