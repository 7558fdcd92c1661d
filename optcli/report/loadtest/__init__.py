"""A load test for people and for CI systems."""

from __future__ import annotations

from optcli.report.loadtest.document import document, junit

__all__ = ["document", "junit"]
