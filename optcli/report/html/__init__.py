"""Documents as one HTML file that needs nothing else: tables, charts as inline SVG."""

from __future__ import annotations

from optcli.report.html.document import html

__all__ = ["html"]
