"""Load tests: a running server is held to its promise, in open loop, from a process of its own."""

from __future__ import annotations

from typing import Any

from optcli.results.loadtest import LoadTest
from optcli.serving.loadtest.canary import Shadow, canary_test
from optcli.serving.loadtest.load_options import Options
from optcli.serving.loadtest.workflow import load_test


def schema() -> dict[str, Any]:
    """JSON Schema of what `optcli loadtest --json` prints."""
    return LoadTest.model_json_schema(by_alias=True, mode="serialization")
