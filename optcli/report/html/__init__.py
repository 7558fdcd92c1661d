"""The report as one HTML file that needs nothing else: tables, and charts as inline SVG."""

from __future__ import annotations

from optcli.report.html.distributions import Quantiles
from optcli.report.html.page import page

__all__ = ["Quantiles", "page"]
