"""A load test for people and for CI systems."""

from __future__ import annotations

from optcli.report.loadtest.forms import junit, markdown, text

__all__ = ["junit", "markdown", "text"]
