"""The gate's answer for people and for CI systems."""

from __future__ import annotations

from optcli.report.gate.ci import benchmark_json, github_annotations, gitlab_metrics, junit
from optcli.report.gate.document import document

__all__ = ["benchmark_json", "document", "github_annotations", "gitlab_metrics", "junit"]
