"""The gate's answer for people and for CI systems."""

from __future__ import annotations

from optcli.report.gate.ci import benchmark_json, github_annotations, gitlab_metrics, junit
from optcli.report.gate.markdown import markdown
from optcli.report.gate.terminal import table, text

__all__ = [
    "github_annotations",
    "benchmark_json",
    "gitlab_metrics",
    "junit",
    "markdown",
    "table",
    "text",
]
