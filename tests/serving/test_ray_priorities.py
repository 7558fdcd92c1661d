"""Two priorities in a real Ray: each has its own replicas and queue, whatever the other one gets.

Nothing asserts on time. The model of a priority waits for a file where a test must know what is inside.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from small_bundles import already_started, bundled, gate, sealed_plan
from small_variants import IMAGE, onnx_model, variant
from test_ray_live import (
    PATIENCE_S,
    ask,
    client,
    lost_with_all,
    message,
    metric,
    page,
    post,
    rows,
    titled,
    until,
)

from optcli import cli
from optcli.artifact import Format
from optcli.results.loadtest import LoadTest
from optcli.serving.bundle import FILE
from optcli.serving.running import Running, running

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("hurried_loads")]

# So many requests of each priority are admitted.
ADMITTED = {"high": 6, "low": 8}


@dataclass(frozen=True)
class Served:
    """A running bundle; a priority computes while its file lies in `gates`."""

    folder: Path
    server: Running
    gates: Path

    @property
    def url(self) -> str:
        return self.server.url

    def replicas(self, priority: str) -> set[int]:
        return titled(f"ServeReplica:small:Model-{priority}", self.server)

    def waiting(self, priority: str) -> float:
        return self.count("model_queue_depth", priority=priority)

    def count(self, name: str, **labels: str) -> float:
        told = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        return metric(self, f"{name}{{{told}}}")


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("priorities")
    onnx_model(folder / "model", {"image": ["batch", 3, 4, 4]})
    out = folder / "bundle"
    plan = sealed_plan(priorities={"high": 0.25, "low": 0.75}, instances=2)
    bundled(variant(folder / "model", Format.ONNX, IMAGE), plan, out)
    (out / "plan.json").write_text(plan.to_json())  # as deploy does
    about = json.loads((out / FILE).read_text())
    for each in about["priorities"]:
        each |= {"most_in_flight": ADMITTED[each["name"]], "deadline_ms": 30_000}
    (out / FILE).write_text(json.dumps(about))
    gates = gate(out, "high", "low")
    with running(out, log=folder / "server.log", ready_s=PATIENCE_S) as server:
        yield Served(out, server, gates)


@pytest.fixture(autouse=True)
def _open(request) -> None:
    """The gates are open and a replica of each priority answers when a test begins."""
    if "served" not in request.fixturenames:
        return
    served = request.getfixturevalue("served")
    for name in ADMITTED:
        (served.gates / f"open-{name}").touch()
        until(lambda name=name: served.replicas(name) and served.waiting(name) == 0)
        until(lambda name=name: ask(served.url, None, **{"x-priority": name})["status"] == 200)


def test_a_flood_of_the_low_does_not_starve_the_high(served):
    (served.gates / "open-low").unlink()
    flood = 5 * ADMITTED["low"]
    before = {
        name: served.count("model_dropped_total", cause="queue_full", priority=name)
        for name in ADMITTED
    }

    async def overload() -> tuple[list[int], Counter]:
        async with client() as session:
            low = [
                asyncio.create_task(post(session, served.url, None, **{"x-priority": "low"}))
                for _ in range(flood)
            ]
            # All that does not fit is refused, and what fits waits: nobody computes for it.
            await asyncio.to_thread(
                until, lambda: sum(task.done() for task in low) == flood - ADMITTED["low"]
            )
            urgent = []
            for _ in range(3 * ADMITTED["high"]):
                answer = await post(session, served.url, None, **{"x-priority": "high"})
                urgent.append(answer["status"])
            assert sum(not task.done() for task in low) == ADMITTED["low"]
            (served.gates / "open-low").touch()
            return urgent, Counter([(await task)["status"] for task in low])

    urgent, low = asyncio.run(overload())
    assert set(urgent) == {200}
    assert low == {200: ADMITTED["low"], 429: flood - ADMITTED["low"]}
    after = {
        name: served.count("model_dropped_total", cause="queue_full", priority=name)
        for name in ADMITTED
    }
    assert (after["high"] - before["high"], after["low"] - before["low"]) == (
        0,
        flood - ADMITTED["low"],
    )


def test_the_high_have_a_bound_of_their_own(served):
    (served.gates / "open-high").unlink()

    async def overload() -> Counter:
        async with client() as session:
            high = [
                asyncio.create_task(post(session, served.url, None, **{"x-priority": "high"}))
                for _ in range(3 * ADMITTED["high"])
            ]
            await asyncio.to_thread(
                until, lambda: sum(task.done() for task in high) == 2 * ADMITTED["high"]
            )
            assert (await post(session, served.url))["status"] == 200  # the others go on
            (served.gates / "open-high").touch()
            return Counter([(await task)["status"] for task in high])

    assert asyncio.run(overload()) == {200: ADMITTED["high"], 429: 2 * ADMITTED["high"]}


def test_the_golden_request_gets_the_golden_response_in_each_way(served):
    golden = json.loads((served.folder / "golden-request.json").read_text())
    wanted = json.loads((served.folder / "golden-response.json").read_text())["outputs"][0]
    for parameters, headers, priority in (
        ({}, {}, "low"),
        ({}, {"x-priority": "high"}, "high"),
        ({}, {"x-priority": "1"}, "high"),
        ({"priority": "high"}, {}, "high"),
        ({"priority": 2}, {}, "low"),
        ({"priority": 1}, {"x-priority": "high"}, "high"),
    ):
        before = served.count("model_stage_seconds_count", stage="compute", priority=priority)
        answer = ask(served.url, {**golden, "parameters": parameters}, **headers)
        np.testing.assert_allclose(answer["outputs"][0]["data"], wanted["data"], rtol=1e-3)
        after = served.count("model_stage_seconds_count", stage="compute", priority=priority)
        assert after == before + 1, (parameters, headers)


@pytest.mark.parametrize(("number", "priority"), [(0, "low"), (1, "high"), (2, "low")])
def test_a_client_of_triton_names_its_priority_by_number(served, number, priority):
    asking = triton.InferenceServerClient(served.url.removeprefix("http://"))
    array = rows(2)
    tensor = triton.InferInput("image", array.shape, "FP32")
    tensor.set_data_from_numpy(array, binary_data=True)
    before = served.count("model_requests_total", code="200", priority=priority)
    answer = asking.infer("small", [tensor], priority=number)
    np.testing.assert_allclose(answer.as_numpy("logits")[:, 0], array.reshape(2, -1).sum(1), rtol=1e-4)
    assert served.count("model_requests_total", code="200", priority=priority) == before + 1


@pytest.mark.parametrize(
    ("parameters", "headers", "says"),
    [
        ({"priority": "urgent"}, {}, "there is no priority 'urgent': they are high, low, or 1 to 2"),
        ({"priority": 3}, {}, "there is no priority '3'"),
        ({"priority": [1]}, {}, "there is no priority '[1]'"),
        ({}, {"x-priority": "urgent"}, "there is no priority 'urgent'"),
        ({"priority": "low"}, {"x-priority": "high"}, "header x-priority asks for the priority high"),
    ],
)
def test_a_priority_that_is_none_is_one_sentence(served, parameters, headers, says):
    before = served.count("model_requests_total", code="400", priority="")
    answer = ask(served.url, {**message(), "parameters": parameters}, **headers)
    assert answer["status"] == 400
    assert says in answer["error"]
    assert served.count("model_requests_total", code="400", priority="") == before + 1
    assert ask(served.url)["status"] == 200


def test_readiness_falls_with_the_last_replica_of_a_priority_and_the_other_goes_on(served):
    lost_with_all(served, lambda: served.replicas("high"))
    assert ask(served.url)["status"] == 200
    until(lambda: page(served, "/v2/health/ready")[0] == 200)
    until(lambda: ask(served.url, None, **{"x-priority": "high"})["status"] == 200)


def test_a_load_test_says_what_each_priority_saw(served, monkeypatch, capsys):
    bundle = str(served.folder)
    already_started(served.server, monkeypatch)
    quick = ("--seconds", "1.5", "--settle", "0.2s", "--rate", "40", "--json")
    code = cli.run(["loadtest", bundle, "--trust", *quick, "--priority", "high=0.5,low=0.5"])
    said = capsys.readouterr()
    assert code in (1, 5), said.err  # seconds of load accept nothing
    test = LoadTest.model_validate_json(said.out)
    assert [(each.name, each.share) for each in test.served.priorities] == [("high", 0.5), ("low", 0.5)]
    (point,) = test.points
    high, low = point.priorities
    assert high.requests + low.requests == point.requests
    assert high.requests > 0 < low.requests
    assert [each.by for each in high.predicted] == ["plan"]
    assert point.predicted == ()
    assert point.wrong == 0 < point.checked
    assert cli.run(["loadtest", bundle, "--trust", *quick, "--priority", "urgent=0.5,low=0.5"]) == 2
    assert "does not know the priority 'urgent'" in capsys.readouterr().err
