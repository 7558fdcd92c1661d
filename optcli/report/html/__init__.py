"""Reports and comparisons as one HTML file that needs nothing else: tables, charts as inline SVG."""

from __future__ import annotations

from optcli.report.html.changes import changes_page
from optcli.report.html.distributions import Quantiles
from optcli.report.html.page import page

__all__ = ["Quantiles", "changes_page", "page"]
