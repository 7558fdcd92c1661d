"""A bundle in a real Ray: the protocol over HTTP and gRPC, bad input, full queues, and lost processes.

One server for all tests, with two priorities, of which the low one has two replicas. Nothing asserts on
time. The model waits for a file where a test must know what is inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
import yaml
from foreign_modules import imported, write_foreign_modules
from ray_cluster import command_line
from small_bundles import already_started, bundled, changed, gate, sealed_plan
from small_variants import IMAGE, onnx_model, variant
from tritonclient.utils import InferenceServerException

from optcli.artifact import Format
from optcli.cli import run
from optcli.errors import RunnerError, UsageError
from optcli.results.loadtest import Canary, LoadTest
from optcli.results.plan import Plan
from optcli.serving.bundle import CONFIG
from optcli.serving.running import Running, running

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("hurried_loads")]

MODEL = "/v2/models/small"
# Nothing here takes so long: a test that hangs fails.
PATIENCE_S = 300.0
# Requests that a replica takes; of the low priority there are two.
ADMITTED = 8
# The deadline of the high priority.
SOON_MS = 10_000.0


@dataclass(frozen=True)
class Served:
    """A running bundle; while the file `open-PRIORITY` is not there, that priority computes nothing."""

    folder: Path
    server: Running

    @property
    def url(self) -> str:
        return self.server.url

    def gate(self, priority: str) -> Path:
        return self.folder / f"open-{priority}"

    def processes(self, name: str) -> set[int]:
        """Those of the server that have the name in their command line."""
        family = psutil.Process(self.server.pids[0]).children(recursive=True)
        return {each.pid for each in family if name in command_line(each)}

    def count(self, name: str, **labels: str) -> float:
        """A metric, summed over the labels that are not named."""
        total = 0.0
        for line in page(self.url, "/metrics")[1].splitlines():
            found = re.fullmatch(rf"{re.escape(name)}\{{(.*)\}} (\S+)", line)
            if found and all(f'{key}="{value}"' in found[1] for key, value in labels.items()):
                total += float(found[2])
        return total

    def inside(self, priority: str = "low") -> float:
        return self.count("model_queue_depth", application=f"small-{priority}")


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("live")
    out = folder / "bundle"
    onnx_model(folder / "model", {"image": ["batch", 3, 4, 4]})
    plan = sealed_plan(priorities={"high": 0.25, "low": 0.75}, instances=2)
    bundled(variant(folder / "model", Format.ONNX, IMAGE), plan, out, grpc=True, extensions=True)
    (out / "plan.json").write_text(plan.to_json())  # as deploy does
    changed(out, most_body_bytes=100_000, cpus=3)
    text = (out / CONFIG).read_text()
    text = re.sub(r"max_in_flight: \d+", f"max_in_flight: {ADMITTED}", text)
    text = re.sub(r"deadline_ms: \S+", "deadline_ms: 30000.0", text)
    text = re.sub(r"deadline_ms: \S+", f"deadline_ms: {SOON_MS}", text, count=1)  # of the high one
    text = re.sub(r"request_timeout_s: \S+", "request_timeout_s: 45", text)
    at = text.rindex("num_replicas: 1")
    (out / CONFIG).write_text(f"{text[:at]}num_replicas: 2{text[at + len('num_replicas: 1') :]}")
    gate(out, "high", "low")
    with running(out, log=folder / "server.log", ready_s=PATIENCE_S) as server:
        yield Served(out, server)


@pytest.fixture(autouse=True)
def _open(request) -> None:
    """The gates are open, and every priority answers, when a test begins."""
    if "served" in request.fixturenames:
        served = request.getfixturevalue("served")
        for priority, route in (("high", "/high"), ("low", "")):
            served.gate(priority).touch()
            until(lambda priority=priority: served.inside(priority) == 0)
            until(lambda route=route: ask(served.url, route=route)["status"] == 200)


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)


def rows(count: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 3, 4, 4)).astype(np.float32)


def message(array: np.ndarray | None = None, **changes: object) -> dict:
    array = rows() if array is None else array
    tensor = {"name": "image", "datatype": "FP32", "shape": list(array.shape)}
    return {"inputs": [{**tensor, "data": array.ravel().tolist(), **changes}]}


async def post(
    session: aiohttp.ClientSession, url: str, body: object = None, *, route: str = "", **headers: str
) -> dict[str, Any]:
    data = body if isinstance(body, bytes) else json.dumps(message() if body is None else body)
    path = f"{url}{route}{MODEL}/infer"
    async with session.post(path, data=data, headers=headers) as response:
        text = await response.text()
        said = json.loads(text) if text.startswith("{") else {"error": text}
        return {"status": response.status, "headers": response.headers, **said}


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    limits, patience = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(connector=limits, timeout=patience) as session:
        yield session


def ask(url: str, body: object = None, *, route: str = "", **headers: str) -> dict[str, Any]:
    async def once() -> dict[str, Any]:
        async with client() as session:
            try:
                return await post(session, url, body, route=route, **headers)
            except aiohttp.ClientError as error:  # nobody listens for a moment
                return {"status": 0, "error": str(error)}

    return asyncio.run(once())


def page(url: str, path: str) -> tuple[int, str]:
    async def once() -> tuple[int, str]:
        async with client() as session, session.get(url + path) as response:
            return response.status, await response.text()

    return asyncio.run(once())


def direct(served: Served, array: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(served.folder / "model" / "model.onnx")
    return np.asarray(session.run(["logits"], {"image": array})[0])


def input_of(kind: Any, array: np.ndarray, name: str = "image", **how: bool) -> Any:
    tensor = kind.InferInput(name, array.shape, "FP32")
    tensor.set_data_from_numpy(array, **how)
    return tensor


def test_twenty_requests_of_tritonclient_equal_direct_inference(served):
    asking = triton.InferenceServerClient(served.url.removeprefix("http://"))
    assert asking.is_server_live()
    assert asking.is_server_ready()
    for number in range(20):
        binary = number % 2 == 0
        # Up to the eight rows that the model takes: in two parts where they are more than a batch.
        array = rows(1 + number % 8, seed=number)
        wanted = triton.InferRequestedOutput("logits", binary_data=binary)
        answer = asking.infer(
            "small",
            [input_of(triton, array, binary_data=binary)],
            outputs=[wanted],
            request_id=str(number),
            model_version="1" if number % 3 else "",
            request_compression_algorithm=("gzip", "deflate", None)[number % 3],
            response_compression_algorithm=("gzip", None)[number % 2],
        )
        np.testing.assert_allclose(answer.as_numpy("logits"), direct(served, array), rtol=1e-5)
        assert answer.get_response()["id"] == str(number)
    with pytest.raises(InferenceServerException, match="no such page"):
        asking.infer("small", [input_of(triton, rows())], model_version="2")


def test_what_clients_of_triton_ask_of_a_model(served):
    asking = triton.InferenceServerClient(served.url.removeprefix("http://") + "/high")
    for version in ("", "1"):
        assert asking.is_model_ready("small", version)
        metadata = asking.get_model_metadata("small", version)
        assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 4, 4]}]
        assert metadata["outputs"][0]["parameters"] == {"class_scores": False}
        config = asking.get_model_config("small", version)
        assert config["max_batch_size"] == 8
        assert config["input"] == [{"name": "image", "data_type": "TYPE_FP32", "dims": [3, 4, 4]}]
    assert [each["name"] for each in asking.get_model_repository_index()] == ["small"]
    (before,) = asking.get_inference_statistics("small")["model_stats"]
    assert ask(served.url, message(rows(2)), route="/high")["status"] == 200
    (after,) = asking.get_inference_statistics()["model_stats"]
    assert after["inference_count"] == before["inference_count"] + 2
    success = [each["inference_stats"]["success"]["count"] for each in (before, after)]
    assert success[1] == success[0] + 1


def test_the_protocol_over_grpc_says_the_same(served):
    asking = triton_grpc.InferenceServerClient(f"127.0.0.1:{served.server.grpc_port}")
    low = {"application": "small-low"}
    assert asking.is_server_live(headers=low)
    assert asking.is_server_ready(headers=low)
    assert asking.is_model_ready("small", headers=low)
    assert asking.get_model_metadata("small", headers=low).inputs[0].shape == [-1, 3, 4, 4]
    assert asking.get_model_config("small", headers=low).config.max_batch_size == 8
    assert asking.get_inference_statistics("small", headers=low).model_stats[0].inference_count > 0
    assert asking.get_model_repository_index(headers=low).models[0].name == "small"
    for number in range(8):
        array = rows(1 + number, seed=number)
        answer = asking.infer(
            "small",
            [input_of(triton_grpc, array)],
            request_id=str(number),
            headers=low,
            compression_algorithm=("gzip", None)[number % 2],
        )
        np.testing.assert_allclose(answer.as_numpy("logits"), direct(served, array), rtol=1e-5)
        assert answer.get_response().id == str(number)
    for array, name, model, code, says in (
        (rows(), "image", "other", "NOT_FOUND", "the model is small"),
        (rows(), "picture", "small", "INVALID_ARGUMENT", "no input 'picture'"),
        (rows(9), "image", "small", "INVALID_ARGUMENT", "found [9, 3, 4, 4]"),
        (NAN, "image", "small", "INVALID_ARGUMENT", "infinite or NaN"),
    ):
        with pytest.raises(InferenceServerException, match=re.escape(says)) as caught:
            asking.infer(model, [input_of(triton_grpc, array, name)], headers=low)
        assert code in str(caught.value)
    with pytest.raises(InferenceServerException, match="the model is small"):
        asking.get_model_metadata("other", headers=low)


NAN = rows()
NAN[0, 0, 0, 0] = np.nan


def test_what_the_client_did_wrong_is_one_sentence(served):
    for body, headers, status, says in (
        (b"{", {}, 400, "no JSON"),
        (b"[]", {}, 400, "no list `inputs`"),
        (message(name="picture"), {}, 400, "no input 'picture', its inputs are image"),
        (message(datatype="FP64"), {}, 400, "'image' is FP32, found 'FP64'"),
        (message(shape=[9, 3, 4, 4]), {}, 400, "found [9, 3, 4, 4]"),
        (message(data=[1.0]), {}, 400, "48 numbers"),
        (message(NAN), {}, 400, "infinite or NaN"),
        ({"inputs": []}, {}, 400, "'image' is missing"),
        ({**message(), "outputs": [{"name": "boxes"}]}, {}, 400, "no output 'boxes'"),
        (message(), {"inference-header-content-length": "99999"}, 400, "does not fit the body"),
        (message(), {"content-encoding": "br"}, 415, "send gzip or deflate"),
        (message(), {"content-encoding": "gzip"}, 400, "not what its content-encoding"),
        (b"0" * 200_000, {}, 413, "larger than 100000 bytes"),
    ):
        answer = ask(served.url, body, **headers)
        assert answer["status"] == status, says
        assert says in answer["error"]
        assert "Traceback" not in answer["error"]
    assert page(served.url, f"{MODEL}/infer")[0] == 400
    assert page(served.url, "/v3")[0] == 404
    assert ask(served.url)["status"] == 200


def test_bodies_without_an_end_are_cut_off_and_slow_ones_too(served):
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"0" * 10_000

    async def unannounced() -> int:
        url = f"{served.url}{MODEL}/infer"
        async with client() as session, session.post(url, data=chunks()) as response:
            return response.status

    assert asyncio.run(unannounced()) == 413
    host, port = served.url.removeprefix("http://").split(":")
    head = f"POST {MODEL}/infer HTTP/1.1\r\nhost: {host}\r\ncontent-length: "
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.sendall(f"{head}{2 << 30}\r\n\r\n".encode() + bytes(200_000))
        # Little of the body was sent: the answer cannot have waited for it.
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    slow = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(3 * ADMITTED)]
    for connection in slow:
        connection.sendall(f"{head}500\r\n\r\n".encode() + b"{")
    for connection in slow[::2]:
        connection.close()
    assert ask(served.url)["status"] == 200
    for connection in slow[1::2]:
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
        connection.close()


def test_a_full_queue_refuses_and_leaves_the_other_priority_alone(served):
    refused = served.count(
        "model_request_seconds_count", application="small-high", outcome="queue_full"
    )
    served.gate("high").unlink()

    async def flood() -> list[dict[str, Any]]:
        async with client() as session:
            asked = [
                asyncio.create_task(post(session, served.url, route="/high")) for _ in range(ADMITTED)
            ]
            await asyncio.to_thread(until, lambda: served.inside("high") == ADMITTED)
            more = await post(session, served.url, route="/high")
            assert more["status"] == 429
            assert "the queue is full" in more["error"]
            assert (await post(session, served.url))["status"] == 200
            served.gate("high").touch()
            return [await each for each in asked]

    assert {each["status"] for each in asyncio.run(flood())} == {200}
    assert (
        served.count("model_request_seconds_count", application="small-high", outcome="queue_full")
        == refused + 1
    )


def test_what_is_late_is_said_and_not_computed(served):
    late = served.count("model_request_seconds_count", outcome="deadline")
    computed = served.count("model_compute_seconds_count", application="small-high")
    served.gate("high").unlink()

    async def wait() -> list[dict[str, Any]]:
        async with client() as session:
            # The first is being computed; it holds the model, so that the others wait behind it.
            first = asyncio.create_task(post(session, served.url, route="/high"))
            await asyncio.to_thread(until, lambda: served.inside("high") == 1)
            await asyncio.sleep(1)  # its batch is closed
            others = (post(session, served.url, route="/high") for _ in range(3))
            return await asyncio.gather(first, *others)

    assert {each["status"] for each in asyncio.run(wait())} == {504}
    served.gate("high").touch()
    until(lambda: ask(served.url, route="/high")["status"] == 200)
    assert served.count("model_request_seconds_count", outcome="deadline") == late + 4
    assert served.count("model_compute_seconds_count", application="small-high") <= computed + 2


@pytest.mark.parametrize("name", ["ServeReplica:small-low", "ProxyActor", "ServeController"])
def test_it_comes_back_from_each_process_that_is_killed_twice(served, name):
    counted = served.count("model_request_seconds_count", outcome="ok")
    for _ in range(2):
        until(lambda: served.processes(name))
        for pid in served.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: ask(served.url)["status"] == 200)
    until(lambda: ask(served.url, route="/high")["status"] == 200)
    assert served.count("model_request_seconds_count", outcome="ok") > counted  # nothing was forgotten


def test_a_load_test_is_for_the_application_of_one_priority(served, capsys):
    bundle, url = str(served.folder), f"{served.url}/high"
    quick = ("--seconds", "1.5", "--settle", "0.2s", "--rate", "40", "--json")
    assert run(["loadtest", bundle, "--trust", *quick]) == 2
    said = capsys.readouterr().err
    assert "an application for each priority, at /high and /" in said
    plan = str(served.folder / "plan.json")
    code = run(["loadtest", url, "--model", "small", "--plan", plan, *quick])
    said = capsys.readouterr()
    assert code in (1, 5), said.err  # seconds of load accept nothing
    test = LoadTest.model_validate_json(said.out)
    planned = Plan.model_validate_json((served.folder / "plan.json").read_text()).priorities[0]
    assert test.served.batch == planned.configuration.batch
    assert test.promised_per_s == pytest.approx(0.25 * 200)
    (point,) = test.points
    assert [each.by for each in point.predicted] == ["plan"]
    assert point.wrong == 0 < point.checked


def test_a_canary_of_two_bundles_starts_both_and_stops_both(served, tmp_path, monkeypatch, capsys):
    seen = already_started(served.server, monkeypatch)
    first, other = tmp_path / "bundle", tmp_path / "candidate"
    for folder in (first, other):  # of which the application of all requests is tried
        shutil.copytree(served.folder, folder)
        changed(folder, priorities=[])
    targets = [str(first), str(other)]
    quick = ("--seconds", "1.5", "--settle", "0.2s", "--rate", "20", "--json")
    code = run(["loadtest", *targets, "--trust", "--shadow", "50%", *quick])
    said = capsys.readouterr()
    assert code in (1, 5), said.err  # seconds of load promote nothing
    assert seen == ["started bundle", "started candidate", "stopped candidate", "stopped bundle"]
    found = Canary.model_validate_json(said.out)
    assert [found.first.target, found.second.target] == targets
    assert 0 < found.second.requests < found.first.requests
    assert (found.first.wrong, found.second.wrong) == (0, 0)


def test_a_port_that_is_taken_is_said_before_ray_starts(served):
    port = int(served.url.rpartition(":")[2])
    with pytest.raises(UsageError, match="cannot listen there"), running(served.folder, port=port):
        pass


def test_a_model_that_cannot_be_opened_ends_the_start_with_its_reason(tmp_path):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    bundled(variant(tmp_path / "model", Format.ONNX, IMAGE), sealed_plan(), tmp_path / "bundle")
    (tmp_path / "bundle" / "model" / "model.onnx").write_bytes(b"no model")
    once = {"RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1"}  # Ray tries three times otherwise
    server = running(tmp_path / "bundle", ready_s=PATIENCE_S, variables=once)
    began = time.monotonic()
    with pytest.raises(RunnerError, match=r"(?s)did not get ready.*model.onnx"), server:
        pass
    assert time.monotonic() - began < PATIENCE_S, "it ends before its limit"


def test_the_verb_says_what_is_no_bundle(tmp_path, capsys):
    assert run(["serve", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "has no bundle.json" in said
    assert "--target ray" in said


def test_ctrl_c_answers_what_is_inside_and_a_lost_ray_ends_it_with_a_reason(served, tmp_path):
    """Both on a server of the verb, started twice on the same port: the second one loses its Ray."""
    folder, port = tmp_path / "bundle", served.server.grpc_port + 1
    shutil.copytree(served.folder, folder)
    changed(folder, grpc=False)
    current = write_foreign_modules(tmp_path / "current")
    command = [sys.executable, "-m", "optcli", "serve", str(folder), "--trust", "--json"]
    command += ["--port", str(port), "--ready-timeout", str(PATIENCE_S)]

    def started() -> tuple[subprocess.Popen[str], Running]:
        # A shell starts what runs in its background with the signal ignored.
        heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        verb = subprocess.Popen(command, text=True, cwd=current, **pipes, **heard)
        assert verb.stdout is not None
        said = json.loads(verb.stdout.readline())
        return verb, Running(said["url"], tuple(said["pids"]))

    verb, server = started()
    (folder / "open-low").unlink()
    one = Served(folder, server)

    async def stop() -> set[int]:
        async with client() as session:
            asked = [asyncio.create_task(post(session, server.url)) for _ in range(4)]
            await asyncio.to_thread(until, lambda: one.inside() == 4)
            verb.send_signal(signal.SIGINT)
            await asyncio.to_thread(until, lambda: page(server.url, "/v2/health/ready")[0] == 503)
            (folder / "open-low").touch()
            return {(await task)["status"] for task in asked}

    assert asyncio.run(stop()) == {200}
    assert verb.wait(PATIENCE_S) == 0
    until(lambda: not any(map(psutil.pid_exists, server.pids)))
    config = yaml.safe_load((folder / CONFIG).read_text())
    (_, low) = config["applications"]
    low["deployments"][0]["num_replicas"] = 1  # the second has what it needs to be lost
    (folder / CONFIG).write_text(yaml.safe_dump({**config, "applications": [low]}))
    changed(folder, priorities=[])
    verb, server = started()
    for pid in Served(folder, server).processes("gcs_server"):
        os.kill(pid, signal.SIGKILL)
    assert verb.wait(PATIENCE_S) not in (0, 70)
    assert "gcs_server" in verb.communicate()[1]
    assert not imported(current)
