"""A bundle in a real Ray: the protocol, bad input, a full queue, lost replicas, and the end of it all.

Nothing asserts on time. The model waits for a file where a test must know what is inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import pytest
import tritonclient.http as triton
from foreign_modules import imported, write_foreign_modules
from ray_cluster import command_line
from small_bundles import already_started, bundled, changed, gate, sealed_plan
from small_variants import IMAGE, onnx_model, variant
from tritonclient.utils import InferenceServerException

from optcli.artifact import Format
from optcli.cli import run
from optcli.errors import RunnerError, UsageError
from optcli.results.loadtest import Canary
from optcli.serving.bundle import CONFIG
from optcli.serving.running import Running, _free_port, running

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("hurried_loads")]

MODEL = "/v2/models/small"
# Nothing here takes so long: a test that hangs fails.
PATIENCE_S = 300.0
ADMITTED = 12


class Verb:
    """`optcli serve` of a bundle, started when it is first asked for, or once more after it ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.current = write_foreign_modules(folder.parent / "current")
        self.process: subprocess.Popen[str] | None = None

    def server(self) -> Running:
        if self.process is None or self.process.poll() is not None:
            self._server = self._started()
        return self._server

    def _started(self) -> Running:
        port = _free_port("127.0.0.1", None)
        command = [sys.executable, "-m", "optcli", "serve", str(self._folder), "--trust", "--json"]
        command += ["--port", str(port), "--ready-timeout", str(PATIENCE_S)]
        # A shell starts what runs in its background with the signal ignored.
        heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
        heard["cwd"] = self.current
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **heard)
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        assert said["url"] == f"http://127.0.0.1:{port}"
        return Running(said["url"], tuple(said["pids"]))


@dataclass(frozen=True)
class Served:
    """A running bundle with two replicas; while `gate` is not there, they compute nothing."""

    folder: Path
    verb: Verb
    gate: Path

    @property
    def server(self) -> Running:
        return self.verb.server()

    @property
    def url(self) -> str:
        return self.server.url

    def replicas(self) -> set[int]:
        """Processes that hold the model."""
        return titled("ServeReplica:small:Model", self.server)

    def called(self) -> set[int]:
        """Processes that hold the model and were given requests."""
        return self.replicas() & {
            int(each.name.partition("-")[2]) for each in self.folder.glob("called-*")
        }


def titled(name: str, server: Running) -> set[int]:
    """Those of the server's processes that have the name in their command line."""
    family = psutil.Process(server.pids[0]).children(recursive=True)
    return {each.pid for each in family if name in command_line(each)}


def written(folder: Path, instances: int = 1) -> None:
    onnx_model(folder / "model", {"image": ["batch", 3, 4, 4]})
    built = variant(folder / "model", Format.ONNX, IMAGE)
    plan = sealed_plan(instances=instances)
    bundled(built, plan, folder / "bundle")
    (folder / "bundle" / "plan.json").write_text(plan.to_json())  # as deploy does
    limits = {"deadline_ms": 30_000, "most_in_flight": ADMITTED, "read_timeout_s": 2}
    changed(folder / "bundle", **limits, most_body_bytes=100_000)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("live")
    written(folder, instances=2)
    found = Served(folder / "bundle", Verb(folder / "bundle"), gate(folder / "bundle"))
    yield found
    found.gate.touch()
    if (process := found.verb.process) is not None:
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert not imported(found.verb.current)


@pytest.fixture(autouse=True)
def _open(request) -> None:
    """The gate is open and both replicas are there when a test begins."""
    if "served" in request.fixturenames:
        served = request.getfixturevalue("served")
        served.gate.touch()
        until(lambda: len(served.replicas()) == 2 and metric(served, "model_queue_depth") == 0)
        # A replica's process is there before the ingress knows of it.
        until(lambda: together(served) == {200} and len(served.called()) == 2)
    return


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
    session: aiohttp.ClientSession, url: str, body: object = None, **headers: str
) -> dict[str, object]:
    data = json.dumps(message() if body is None else body) if not isinstance(body, bytes) else body
    path = f"{url}{MODEL}/infer"
    async with session.post(path, data=data, headers=headers) as response:
        return {"status": response.status, "headers": response.headers, **(await response.json())}


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    limits = aiohttp.TCPConnector(limit=0)
    patience = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(connector=limits, timeout=patience) as session:
        yield session


def ask(url: str, body: object = None, **headers: str) -> dict:
    async def once() -> dict:
        async with client() as session:
            return await post(session, url, body, **headers)

    return asyncio.run(once())


def together(served: Served) -> set[int]:
    """What as many requests at once as the server admits are answered."""

    async def every() -> set[int]:
        async with client() as session:
            answers = await asyncio.gather(*(post(session, served.url) for _ in range(ADMITTED)))
        return {each["status"] for each in answers}

    return asyncio.run(every())


def page(served: Any, path: str) -> tuple[int, str]:
    async def once() -> tuple[int, str]:
        async with client() as session, session.get(served.url + path) as response:
            return response.status, await response.text()

    return asyncio.run(once())


def metric(served: Any, name: str) -> float:
    _, text = page(served, "/metrics")
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
    return float(found[1]) if found else 0.0


def test_twenty_requests_of_tritonclient_equal_direct_inference(served):
    import onnxruntime

    session = onnxruntime.InferenceSession(served.folder / "model" / "model.onnx")
    asking = triton.InferenceServerClient(served.url.removeprefix("http://"))
    assert asking.is_server_live()
    assert asking.is_server_ready()
    assert asking.is_model_ready("small")
    metadata = asking.get_model_metadata("small")
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 4, 4]}]
    said = {"parameters": {"class_scores": False}}
    assert metadata["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 1], **said}]
    for number in range(20):
        binary = number % 2 == 0
        # Up to the eight rows that the model takes: in two parts where they are more than a batch.
        array = rows(1 + number % 8, seed=number)
        tensor = triton.InferInput("image", array.shape, "FP32")
        tensor.set_data_from_numpy(array, binary_data=binary)
        wanted = triton.InferRequestedOutput("logits", binary_data=binary)
        answer = asking.infer("small", [tensor], outputs=[wanted], request_id=str(number))
        (direct,) = session.run(["logits"], {"image": array})
        np.testing.assert_allclose(answer.as_numpy("logits"), direct, rtol=1e-5)
        assert answer.get_response()["id"] == str(number)


def test_the_version_that_the_metadata_name_is_there_and_no_other(served):
    asking = triton.InferenceServerClient(served.url.removeprefix("http://"))
    (version,) = asking.get_model_metadata("small")["versions"]
    assert asking.is_model_ready("small", version)
    assert asking.get_model_metadata("small", version) == asking.get_model_metadata("small")
    tensor = triton.InferInput("image", [1, 3, 4, 4], "FP32")
    tensor.set_data_from_numpy(rows())
    named, plain = (asking.infer("small", [tensor], model_version=each) for each in (version, ""))
    np.testing.assert_array_equal(named.as_numpy("logits"), plain.as_numpy("logits"))
    with pytest.raises(InferenceServerException, match="no such page"):
        asking.infer("small", [tensor], model_version="2")


def test_the_golden_request_gets_the_golden_response(served):
    golden = (served.folder / "golden-request.json").read_bytes()
    answer = ask(served.url, golden)
    wanted = json.loads((served.folder / "golden-response.json").read_text())
    assert answer["outputs"][0]["shape"] == wanted["outputs"][0]["shape"]
    np.testing.assert_allclose(answer["outputs"][0]["data"], wanted["outputs"][0]["data"], rtol=1e-3)


NAN = rows()
NAN[0, 0, 0, 0] = np.nan


@pytest.mark.parametrize(
    ("body", "headers", "status", "says"),
    [
        (b"{", {}, 400, "no JSON"),
        (b"[]", {}, 400, "no list `inputs`"),
        (message(name="picture"), {}, 400, "no input 'picture', its inputs are image"),
        (message(datatype="FP64"), {}, 400, "'image' is FP32, found 'FP64'"),
        (message(shape=[1, 3, 4]), {}, 400, "found [1, 3, 4]"),
        (message(shape=[9, 3, 4, 4]), {}, 400, "found [9, 3, 4, 4]"),
        (message(data=[1.0]), {}, 400, "48 numbers"),
        (message(data=["a"] * 48), {}, 400, "of another type"),
        (message(NAN), {}, 400, "infinite or NaN"),
        ({"inputs": []}, {}, 400, "'image' is missing"),
        ({**message(), "outputs": [{"name": "boxes"}]}, {}, 400, "no output 'boxes'"),
        (message(), {"inference-header-content-length": "99999"}, 400, "does not fit the body"),
        (message(), {"inference-header-content-length": "1" * 4301}, 400, "does not fit the body"),
        (message(), {"x-deadline-ms": "soon"}, 400, "x-deadline-ms wants milliseconds"),
        (message(), {"content-encoding": "gzip"}, 415, "send it as it is"),
        (b"0" * 200_000, {}, 413, "larger than 100000 bytes"),
    ],
)
def test_what_the_client_did_wrong_is_one_sentence(served, body, headers, status, says):
    answer = ask(served.url, body, **headers)
    assert answer["status"] == status
    assert says in answer["error"]
    assert "Traceback" not in answer["error"]
    assert ask(served.url)["status"] == 200


def test_another_page_or_method_is_one_sentence_too(served):
    for path, status, says in (
        (f"{MODEL}/infer", 405, "use POST"),
        ("/v3", 404, "no such page"),
    ):
        found, text = page(served, path)
        assert found == status
        assert says in json.loads(text)["error"]


def test_a_body_of_unknown_length_is_cut_off_where_it_is_too_large(served):
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"0" * 10_000

    async def once() -> int:
        url = f"{served.url}{MODEL}/infer"
        async with client() as session, session.post(url, data=chunks()) as response:
            return response.status

    assert asyncio.run(once()) == 413


def test_a_body_of_two_gigabytes_is_refused_before_it_is_read(served):
    host, port = served.url.removeprefix("http://").split(":")
    head = f"POST {MODEL}/infer HTTP/1.1\r\nhost: {host}\r\ncontent-length: {2 << 30}\r\n\r\n"
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.sendall(head.encode())
        # Nothing of the body was sent: the answer cannot have waited for it.
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    assert ask(served.url)["status"] == 200


def test_slow_clients_and_those_that_leave_disturb_nobody(served):
    host, port = served.url.removeprefix("http://").split(":")
    head = f"POST {MODEL}/infer HTTP/1.1\r\nhost: {host}\r\ncontent-length: 500\r\n\r\n"
    slow = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(3 * ADMITTED)]
    for connection in slow:
        connection.sendall(head.encode() + b"{")
    for connection in slow[::2]:
        connection.close()
    assert ask(served.url)["status"] == 200
    for connection in slow[1::2]:
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
        connection.close()
    assert ask(served.url)["status"] == 200


def test_a_head_that_comes_a_line_at_a_time_is_cut_off_at_every_entrance(served):
    for url in entrances(served):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\n")
            connection.settimeout(0.2)
            said = b""
            until = time.monotonic() + PATIENCE_S
            while not said and time.monotonic() < until:
                connection.sendall(b"x-a: b\r\n")
                with contextlib.suppress(TimeoutError):
                    said = connection.recv(100)
            assert said.startswith(b"HTTP/1.1 408"), url


def entrances(served: Served) -> list[str]:
    """Where requests come in: at the ingress itself, and at Ray's own proxy, which routes to it."""
    ports = {
        connection.laddr.port
        for pid in titled("ProxyActor", served.server)
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    found = [served.url]
    for port in sorted(ports):
        url = f"http://127.0.0.1:{port}"
        # Its other ports speak no HTTP.
        live = f"{url}/v2/health/live"
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            urllib.request.urlopen(live, timeout=10) as response,
        ):
            found += [url] if response.status == 200 else []
    return found


def test_a_full_queue_admits_so_many_through_all_proxies_together(served):
    through = entrances(served)
    assert len(through) == 2
    served.gate.unlink()
    before = metric(served, 'model_dropped_total{cause="queue_full"}')

    async def overload() -> tuple[Counter, Counter]:
        async with client() as one, client() as other:
            asked = [
                asyncio.create_task(post((one, other)[number % 2], through[number % 2]))
                for number in range(3 * ADMITTED)
            ]
            refused: list[dict] = []
            for answer in asyncio.as_completed(asked):
                refused.append(await answer)
                if len(refused) == 2 * ADMITTED:
                    break
            assert all(int(each["headers"]["retry-after"]) >= 1 for each in refused)
            assert all("the queue is full" in each["error"] for each in refused)
            served.gate.touch()
            every = Counter([(await task)["status"] for task in asked])
            return Counter(each["status"] for each in refused), every

    refused, every = asyncio.run(overload())
    assert refused == {429: 2 * ADMITTED}
    assert every == {429: 2 * ADMITTED, 200: ADMITTED}
    assert metric(served, 'model_dropped_total{cause="queue_full"}') - before == 2 * ADMITTED


def test_a_full_queue_refuses_what_it_has_not_read(served):
    served.gate.unlink()

    async def overload() -> tuple[int, int]:
        async with client() as session:
            asked = [asyncio.create_task(post(session, served.url)) for _ in range(ADMITTED)]
            await asyncio.to_thread(until, lambda: metric(served, "model_queue_depth") == ADMITTED)
            full = (await post(session, served.url, {"no": "inputs"}))["status"]
            served.gate.touch()
            await asyncio.gather(*asked)
            return full, (await post(session, served.url, {"no": "inputs"}))["status"]

    assert asyncio.run(overload()) == (429, 400)


def test_a_late_request_is_answered_504_and_never_computed(served):
    before = metric(served, "model_batch_rows_sum")
    served.gate.unlink()

    async def late() -> list[dict]:
        async with client() as session:
            # These hold both replicas, and are computed.
            inside = [asyncio.create_task(post(session, served.url)) for _ in range(8)]
            await asyncio.to_thread(until, lambda: metric(served, "model_queue_depth") == 8)
            answers = [await post(session, served.url, None, **{"x-deadline-ms": "200"})]
            served.gate.touch()
            return answers + [await task for task in inside]

    answer, *others = asyncio.run(late())
    assert (answer["status"], [each["status"] for each in others]) == (504, [200] * 8)
    assert "deadline" in answer["error"]
    assert ask(served.url)["status"] == 200
    # The eight, and the one just now.
    assert metric(served, "model_batch_rows_sum") - before == 9


def test_whoever_leaves_makes_room(served):
    served.gate.unlink()

    async def leave() -> None:
        async with client() as session:
            asked = [asyncio.create_task(post(session, served.url)) for _ in range(ADMITTED)]
            await asyncio.to_thread(until, lambda: metric(served, "model_queue_depth") == ADMITTED)
            for task in asked:
                task.cancel()
        await asyncio.to_thread(until, lambda: metric(served, "model_queue_depth") == 0)

    asyncio.run(leave())


def test_metrics_have_their_names(served):
    assert ask(served.url)["status"] == 200
    _, text = page(served, "/metrics")
    for stage in ("parse", "queue", "batch_wait", "compute", "post"):
        assert metric(served, f'model_stage_seconds_count{{stage="{stage}"}}') > 0
    assert re.search(r'^model_compute_seconds_count\{batch="1"\} [1-9]', text, re.M)
    for name in ("model_batch_rows_count", 'model_requests_total{code="200"}'):
        assert metric(served, name) > 0
    for cause in ("queue_full", "deadline", "replica"):
        assert f'model_dropped_total{{cause="{cause}"}}' in text
    for process in ("ingress", "replica-0"):
        assert metric(served, f'model_process_cpu_seconds_total{{process="{process}"}}') > 0
        assert metric(served, f'model_process_rss_bytes{{process="{process}"}}') > 0
    assert "model_cache_hits_total" in text


def test_batch_and_wait_change_while_it_runs(served):
    path = served.folder / CONFIG
    before = path.read_text()
    try:
        path.write_text(before.replace("max_batch_size: 4", "max_batch_size: 2"))
        os.kill(served.server.pids[0], signal.SIGHUP)

        def three() -> float:
            """Batches of more than two rows, after many that come at once."""
            served.gate.unlink()

            async def many() -> None:
                async with client() as session:
                    asked = [asyncio.create_task(post(session, served.url)) for _ in range(ADMITTED)]
                    await asyncio.to_thread(
                        until, lambda: metric(served, "model_queue_depth") == ADMITTED
                    )
                    served.gate.touch()
                    assert {(await task)["status"] for task in asked} == {200}

            count, small = "model_batch_rows_count", 'model_batch_rows_bucket{le="2.0"}'
            earlier = metric(served, count) - metric(served, small)
            asyncio.run(many())
            return metric(served, count) - metric(served, small) - earlier

        until(lambda: three() == 0)
    finally:
        path.write_text(before)
        os.kill(served.server.pids[0], signal.SIGHUP)
    until(lambda: three() > 0)


def test_a_killed_replica_costs_its_own_requests_alone(served):
    served.gate.unlink()

    async def lose() -> Counter:
        async with client() as session:
            asked = []
            for count in range(1, ADMITTED + 1):  # one after the other: each is a call of its own
                asked.append(asyncio.create_task(post(session, served.url)))
                await asyncio.to_thread(
                    until,
                    lambda: metric(served, "model_queue_depth") == count,  # noqa: B023
                )
            lost = min(served.replicas())
            os.kill(lost, signal.SIGKILL)
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            async with session.get(f"{served.url}/v2/health/ready") as ready:
                assert ready.status == 200  # the other replica is there
            served.gate.touch()
            return Counter([(await task)["status"] for task in asked])

    answers = asyncio.run(lose())
    assert set(answers) == {200, 503}
    assert sum(answers.values()) == ADMITTED
    assert metric(served, 'model_dropped_total{cause="replica"}') == answers[503]
    until(lambda: len(served.replicas()) == 2)
    assert ask(served.url)["status"] == 200


def lost_with_all(served: Any, replicas: Callable[[], set[int]]) -> None:
    """Kill replicas until the server is no longer ready: it looks for them from time to time."""

    def none_is_left() -> bool:
        # Whoever was still starting, or took the place of another, goes as well.
        for replica in replicas():
            with contextlib.suppress(ProcessLookupError):
                os.kill(replica, signal.SIGKILL)
        return page(served, "/v2/health/ready")[0] == 503

    until(none_is_left)


def test_readiness_falls_with_the_last_replica_and_comes_back(served):
    lost_with_all(served, served.replicas)
    assert page(served, "/v2/health/live")[0] == 200
    until(lambda: page(served, f"{MODEL}/ready")[0] == 200)
    until(lambda: ask(served.url)["status"] == 200)


def test_a_canary_of_two_bundles_starts_both_and_stops_both(served, tmp_path, monkeypatch, capsys):
    seen = already_started(served.server, monkeypatch)
    other = tmp_path / "candidate"
    shutil.copytree(served.folder, other)
    targets = [str(served.folder), str(other)]
    quick = ("--seconds", "1.5", "--settle", "0.2s", "--rate", "20", "--json")
    code = run(["loadtest", *targets, "--trust", "--shadow", "50%", *quick])
    said = capsys.readouterr()
    assert code in (1, 5), said.err  # seconds of load promote nothing
    assert seen == ["started bundle", "started candidate", "stopped candidate", "stopped bundle"]
    found = Canary.model_validate_json(said.out)
    assert [found.first.target, found.second.target] == targets
    assert 0 < found.second.requests < found.first.requests
    assert found.agreement.agreeing == found.agreement.samples > 0
    assert found.agreement.rules == {"logits": "near"}
    assert (found.first.wrong, found.second.wrong) == (0, 0)
    # Without --slo the promise is that of the first bundle's plan.
    assert found.slo_ms == {"p95": 60.0}


def test_only_the_loopback_address_listens_for_requests(served):
    family = psutil.Process(served.server.pids[0]).children(recursive=True)
    port = int(served.url.rpartition(":")[2])
    listening = [
        connection.laddr
        for process in family
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}


def test_a_port_that_is_taken_is_said_before_ray_starts(served):
    port = int(served.url.rpartition(":")[2])
    with pytest.raises(UsageError, match="cannot listen there"), running(served.folder, port=port):
        pass


def test_a_model_that_cannot_be_opened_ends_the_start_with_its_reason(tmp_path):
    written(tmp_path)
    (tmp_path / "bundle" / "model" / "model.onnx").write_bytes(b"no model")
    reason = r"(?s)did not get ready.*model.onnx"
    once = {"RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1"}  # Ray tries three times otherwise
    server = running(tmp_path / "bundle", ready_s=PATIENCE_S, variables=once)
    with pytest.raises(RunnerError, match=reason), server:
        pass


def test_the_verb_says_what_is_no_bundle(tmp_path, capsys):
    assert run(["serve", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "has no bundle.json" in said
    assert "--target ray" in said


def test_ctrl_c_answers_what_is_inside_and_leaves_no_process(served):
    server, verb = served.server, served.verb.process
    served.gate.unlink()

    async def stop() -> set[int]:
        async with client() as session:
            asked = [asyncio.create_task(post(session, server.url)) for _ in range(4)]
            await asyncio.to_thread(until, lambda: metric(server, "model_queue_depth") == 4)
            verb.send_signal(signal.SIGINT)
            await asyncio.to_thread(until, lambda: page(server, "/v2/health/ready")[0] == 503)
            served.gate.touch()
            return {(await task)["status"] for task in asked}

    assert asyncio.run(stop()) == {200}
    assert verb.wait(PATIENCE_S) == 0
    until(lambda: not any(map(psutil.pid_exists, server.pids)))
