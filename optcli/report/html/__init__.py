"""Reports and documents as one HTML file that needs nothing else: tables, charts as inline SVG."""

from __future__ import annotations

from optcli.report.html.distributions import Quantiles
from optcli.report.html.document import html
from optcli.report.html.page import page

__all__ = ["Quantiles", "html", "page"]
