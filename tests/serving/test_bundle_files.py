"""The files of a bundle: few, on what Ray documents; and its batches and metrics without Ray."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from copied_modules import RAY_FILES
from test_hostile_requests import BUNDLE as PROTOCOL

import optcli
from optcli.serving.deploy import monitoring

pytestmark = pytest.mark.usefixtures("hurried_plans")

ALWAYS = ("app", "oip", "batches", "metrics", "launch", "model_onnxruntime")
EXTRAS = ("oip_grpc", "grpc_service_pb2", "image_endpoint", "keeping", "cache", "forms", "extensions")
# What Ray's pages on Serve name (production guide, performance tuning).
DOCUMENTED = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S",
}
BUNDLE = {
    **PROTOCOL,
    "inputs": [{**PROTOCOL["inputs"][0], "usual": [1, 2], "dtype": "float32"}],
    "largest_batch": 4,
    "slo_ms": {"p95": 40.0},
}


def lines_of(names: tuple[str, ...]) -> int:
    return sum(len((RAY_FILES / f"{name}.py").read_text().splitlines()) for name in names)


def test_a_bundle_is_small():
    """Without extras six files; app.py is the one that everybody reads."""
    assert lines_of(("app",)) <= 200
    assert lines_of(ALWAYS) <= 800
    assert lines_of(("cache",)) <= 150
    assert lines_of((*ALWAYS, *EXTRAS)) <= 1400
    assert {path.stem for path in RAY_FILES.glob("*.py")} == {
        *ALWAYS,
        *EXTRAS,
        *("model_openvino", "model_torchscript", "model_aoti", "torch_tensors"),
    }


def test_nothing_of_a_bundle_rests_on_what_ray_keeps_to_itself():
    for path in (*RAY_FILES.glob("*.py"), RAY_FILES / "ray.env"):
        text = path.read_text()
        assert not re.search(r"ray[\w.]*\._private|serve_start|__serve_|_build_asgi_app", text), path
        assert set(re.findall(r"RAY_SERVE_\w+", text)) <= DOCUMENTED, path
        assert not re.search(r"(?:ray|serve)\.[\w.]*\b_\w+\(", text), path
        assert not re.search(r"ray\.init\([^)]*\b_\w+=", text), path


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    names = ("oip", "batches")
    monkeypatch.syspath_prepend(str(RAY_FILES))
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("batches")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)


class Sums:
    """A model that remembers the shapes that it computed, and takes no number beyond a hundred."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.shapes.append(feed["x"].shape)
        if (feed["x"] > 100).any():
            raise IndexError("index out of range\nin a long text")
        return {"sums": feed["x"].sum(1, keepdims=True)}


class Counts:
    """Metrics that are remembered."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.stages: list[str] = []

    def compute(self, batch: str) -> SimpleNamespace:
        return SimpleNamespace(observe=lambda seconds: self.calls.append(int(batch)))

    def stage(self, stage: str) -> SimpleNamespace:
        return SimpleNamespace(observe=lambda seconds: self.stages.append(stage))


def made(batches: Any) -> SimpleNamespace:
    model, counts = Sums(), Counts()
    return SimpleNamespace(model=model, counts=counts, own=batches.Batches(model, BUNDLE, counts))


def item(batches: Any, value: float, rows: int = 1, columns: int = 2, deadline: float = 1e12) -> Any:
    return batches.Item({"x": np.full((rows, columns), value, np.float32)}, rows, deadline, 0.0)


def test_every_batch_that_will_occur_is_warmed_up(batches):
    one = made(batches)
    for largest, called in ((4, {1, 2, 4}), (5, {1, 2, 4, 5}), (3, {1, 2, 3})):
        one.model.shapes.clear()
        one.own.warm_up(largest)
        assert {shape[0] for shape in one.model.shapes} == called


def test_rows_go_back_to_who_sent_them_and_the_late_are_left_out(batches):
    one = made(batches)
    late, gone = item(batches, 2, deadline=0.0), item(batches, 3)
    gone.cancelled = True
    results = one.own.call([item(batches, 1), late, gone, item(batches, 4, rows=2)], 1.0)
    assert one.model.shapes == [(3, 2)]
    assert results[0]["sums"].tolist() == [[2]]
    assert results[3]["sums"].tolist() == [[8], [8]]
    assert [results[1].status, results[2].status] == [504, 504]
    assert one.counts.calls == [3]
    assert sorted(set(one.counts.stages)) == ["batch_wait", "compute", "queue"]


def test_an_input_that_the_model_cannot_take_costs_its_own_request_alone(batches):
    one = made(batches)
    results = one.own.call([item(batches, 1), item(batches, 101), item(batches, 2)], 1.0)
    assert [results[0]["sums"].item(), results[2]["sums"].item()] == [2, 4]
    assert (results[1].status, results[1].sentence) == (500, "the model failed: index out of range")
    assert one.counts.calls == [2]


def test_inputs_of_other_sizes_are_computed_one_by_one(batches):
    one = made(batches)
    results = one.own.call([item(batches, 1), item(batches, 1, columns=3), item(batches, 2)], 1.0)
    assert one.model.shapes == [(1, 2), (1, 3), (1, 2)]
    assert [each["sums"].item() for each in results] == [2, 3, 4]


_COUNTING = """
import json, time, extensions, metrics
one = metrics.Metrics(json.loads('BUNDLE'), "APPLICATION")
one.queue_bound.set(8); one.queue_depth.inc(3)
class Refused(Exception):
    status = 200
for status, seconds in ((200, 0.0), (200, 0.05), (429, 0.0), (400, 0.0), (504, 0.0), (500, 0.0)):
    try:
        with one.request():
            time.sleep(seconds)
            if status != 200:
                refused = Refused()
                refused.status = status
                raise refused
    except Refused:
        pass
one.compute(batch="2").observe(0.01); one.stage(stage="parse").observe(0.001)
print(one.text().decode() if "APPLICATION" == "last" else "")
print(json.dumps(extensions.statistics("small")))
"""


@pytest.mark.slow
def test_metrics_of_all_processes_are_one_page(tmp_path):
    """Counters of a process that is gone still count, its gauges do not."""
    texts = []
    for application in ("first", "last"):
        code = _COUNTING.replace("BUNDLE", json.dumps(BUNDLE)).replace("APPLICATION", application)
        variables = {**os.environ, "METRICS_FOLDER": str(tmp_path / "metrics")}
        command = [sys.executable, "-c", code]
        ran = subprocess.run(
            command, cwd=RAY_FILES, env=variables, capture_output=True, text=True, check=True
        )
        texts.append(ran.stdout)
    page = texts[1]
    of_first = 'application="first",model="small"'
    assert f"model_queue_depth{{{of_first}" not in page
    assert 'model_queue_depth{application="last",model="small",version="1"} 3.0' in page
    # The promise of 40 ms is the edge of a bucket: one of the two answers kept it.
    kept = r'request_seconds_bucket\{application="last",le="0.04",model="small",outcome="ok",.*\} 1.0'
    assert re.search(kept, page)
    for outcome in ("ok", "invalid", "queue_full", "deadline", "error"):
        assert f'outcome="{outcome}"' in page
    # The alerts and the dashboard of a plan with this promise read nothing else.
    plan = optcli.plan(curve="6ms+1ms*b", rate_per_s=100, slo={"p95_ms": 40}, batch=2)
    monitoring.write(tmp_path, "small", plan, monitoring.of_ray("small", plan))
    rules = (tmp_path / monitoring.ALERTS).read_text()
    watched = rules + (tmp_path / monitoring.DASHBOARD).read_text()
    named = set(re.findall(r"\bmodel_\w+(?=\{)", watched))
    assert {"model_request_seconds_bucket", "model_queue_bound"} <= named
    assert all(f"{name}{{" in page for name in named), named
    assert 'le="0.04"' in rules
    (said,) = json.loads(page.splitlines()[-1])["model_stats"]
    assert said["inference_count"] == 4
    assert said["execution_count"] == 2
    assert said["inference_stats"]["success"]["count"] == 4
    assert said["inference_stats"]["success"]["ns"] >= 100_000_000
    assert said["inference_stats"]["fail"]["count"] == 6
