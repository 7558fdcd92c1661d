"""What a bundle's server makes of requests that nobody means well, and of kept answers of others."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from copied_modules import RAY_FILES

pytest.importorskip("starlette", reason="the ingress answers through Starlette")

BUNDLE = {
    "model": "small",
    "platform": "test",
    "class_scores": None,
    "batched": True,
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2], "least": [1, 2], "most": [4, 2]}],
    "outputs": [
        {"name": "scores", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "count", "datatype": "INT64", "shape": [-1]},
    ],
}
SOUND = {"scores": np.zeros((2, 3), np.float32), "count": np.zeros(2, np.int64)}
MANY = "1" * 4301


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of a bundle, which import each other, as a server has them."""
    names = ["oip", "priorities", "cache"]
    monkeypatch.syspath_prepend(str(RAY_FILES))
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)


def request(**changes: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2], **changes}
    return json.dumps({"inputs": [tensor]}).encode()


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def refused(modules: Any, body: bytes, length: str | None = None) -> str:
    """The sentence of a request that is refused with 400, as its client gets it."""
    with pytest.raises(modules.oip.Refused) as caught:
        asyncio.run(modules.oip.Protocol(BUNDLE).read(bytearray(body), length))
    response = caught.value.response()
    assert response.status_code == 400
    return json.loads(response.body)["error"]


@pytest.mark.parametrize("length", [MANY, "0" * 4301, "٣", "-1", "1e1", "", " 5", "1" * 19])
def test_a_length_that_is_none_is_400(modules: Any, length: str) -> None:
    assert "does not fit the body" in refused(modules, request(), length)


def test_numbers_without_an_end_are_no_length_and_no_priority(modules: Any) -> None:
    assert modules.oip.whole("12") == 12
    with pytest.raises(modules.oip.Refused) as caught:
        modules.priorities.chosen(["high", "low"], MANY, None)
    assert caught.value.status == 400
    assert "no priority" in caught.value.sentence
    slow = SimpleNamespace(headers={"content-length": MANY})
    with pytest.raises(modules.oip.Refused) as caught:
        asyncio.run(modules.oip.body_of(slow, 100, 1.0))
    assert caught.value.status == 413


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": "\ud800"},
        {"datatype": "\ud800"},
        {"parameters": {"binary_data_size": "\udfff"}},
        {"shape": [10**4000, 2]},
        {"parameters": {"binary_data_size": 10**4000}},
        {"data": [10**4000, 1]},
    ],
)
def test_odd_values_are_one_sentence(modules: Any, changes: dict[str, Any]) -> None:
    assert "the input 'x'" in refused(modules, request(**changes))


def test_numbers_of_more_digits_than_python_reads_are_400(modules: Any) -> None:
    refused(modules, request(shape=[1, 2]).replace(b"[1, 2]", f"[{MANY}, 2]".encode()))
    large = request().replace(b"[1, 2]}", f"[{MANY}, {'1, ' * 40_000}2]}}".encode())
    assert len(large) > modules.oip._LARGE_JSON_BYTES
    refused(modules, large)


@pytest.mark.parametrize("levels", [200, 900, 940, 960, 980, 200_000])
def test_json_nested_to_any_depth_is_400(modules: Any, levels: int) -> None:
    """At some depth json still reads what no longer can be written into the sentence."""
    deep = f"{'[' * levels}{']' * levels}".encode()
    for name in ("datatype", "shape", "data"):
        refused(modules, request(**{name: "DEEP"}).replace(b'"DEEP"', deep))


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": None},
        {"more": np.zeros(2)},
        {"scores": np.zeros((2, 3))},
        {"scores": np.zeros((2, 3), ">f4")},
        {"scores": np.zeros((2, 4), np.float32)},
        {"scores": np.zeros((3, 3), np.float32)},
        {"scores": np.zeros((2, 3, 1), np.float32)},
        {"count": np.int64(3)},
    ],
)
def test_kept_outputs_that_the_model_cannot_give_are_computed_again(
    modules: Any, changes: dict[str, Any]
) -> None:
    protocol = modules.oip.Protocol(BUNDLE)
    other = {name: value for name, value in {**SOUND, **changes}.items() if value is not None}
    store = modules.cache.Memory(ttl_s=60.0, most_bytes=10_000, most_entries=10)
    counts = {"hit": 0, "miss": 0}
    cache = modules.cache.Cache(
        "digest",
        store,
        hit=lambda: counts.update(hit=counts["hit"] + 1),
        miss=lambda: counts.update(miss=counts["miss"] + 1),
    )
    feed = {"x": np.ones((2, 2), np.float32)}

    async def compute() -> list[dict[str, np.ndarray]]:
        return [SOUND]

    async def asked() -> dict[str, np.ndarray]:
        fits = lambda outputs: protocol.gives(2, outputs)  # noqa: E731
        (outputs,) = await cache.parts(feed, compute, time.time() + 60, fits)
        return outputs

    async def scene() -> None:
        await asked()
        (key,) = store._kept
        await store.write(key, other)  # as anybody can who reaches the Redis
        given = await asked()
        assert given.keys() == SOUND.keys()
        assert all(np.array_equal(given[name], SOUND[name]) for name in SOUND)
        await asked()

    asyncio.run(scene())
    assert counts == {"hit": 1, "miss": 2}


# --- heads of requests ------------------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK"


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("httptools", reason="uvicorn reads HTTP with it")
    monkeypatch.syspath_prepend(str(RAY_FILES))
    monkeypatch.delitem(sys.modules, "request_heads", raising=False)
    yield importlib.import_module("request_heads")
    monkeypatch.delitem(sys.modules, "request_heads", raising=False)


async def answering(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    length = [(b"content-length", b"2"), (b"x-headers", str(len(scope["headers"])).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": b"ok"})


def spoken(heads: Any, monkeypatch: pytest.MonkeyPatch, scene: Any, limit_s: float = 0.2) -> None:
    """Let a scene talk to a uvicorn that is set up as Ray sets it up."""
    import uvicorn
    from uvicorn.protocols.http import auto

    monkeypatch.setattr(heads.LimitedProtocol, "limit_s", limit_s)
    monkeypatch.setattr(auto, "AutoHTTPProtocol", heads.LimitedProtocol)

    async def both() -> None:
        config = uvicorn.Config(
            lambda: answering, factory=True, port=0, lifespan="off", log_config=None, log_level=None
        )
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(server._serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with asyncio.timeout(60):
            await scene(*await asyncio.open_connection("127.0.0.1", port))
        server.should_exit = True
        await serving

    asyncio.run(both())


@pytest.mark.slow
@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_headers_that_come_one_at_a_time_have_a_limit(heads, monkeypatch, first):
    """From the first byte, before it, and in the second request of a connection."""

    async def scene(reader, writer):
        writer.write(first)
        if first.endswith(b"\r\n\r\n"):
            assert (await reader.readuntil(b"ok")).startswith(OK)
            writer.write(b"GET / HTTP/1.1\r\n")
        said = asyncio.create_task(reader.read())
        while not said.done():
            if first:
                writer.write(b"x-a: b\r\n")
            await asyncio.sleep(0.05)
        assert (await said).startswith(b"HTTP/1.1 408")
        writer.close()

    spoken(heads, monkeypatch, scene)


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b"x-a: b\r\n" * 500, b"a" * 5000])
def test_headers_without_an_end_are_not_kept(heads, monkeypatch, piece):
    async def scene(reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nx: ")
        said = asyncio.create_task(reader.read(12))
        for _ in range(200):
            if said.done():
                break
            writer.write(piece)
            await asyncio.sleep(0.01)
        assert await said == b"HTTP/1.1 400"
        writer.close()

    spoken(heads, monkeypatch, scene, 60.0)


@pytest.mark.slow
def test_slow_bodies_and_idle_connections_are_not_of_it(heads, monkeypatch):
    """A body has the application's own limit, and what follows it adds no headers."""

    async def scene(reader, writer):
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        for _ in range(2):
            writer.write(head)
            await asyncio.sleep(0.5)
            writer.write(b"2\r\nab\r\n0\r\n" + b"trailer: x\r\n" * 50 + b"\r\n")
            answer = await reader.readuntil(b"ok")
            assert answer.startswith(OK)
            assert b"x-headers: 2\r\n" in answer
            await asyncio.sleep(0.5)
        writer.close()

    spoken(heads, monkeypatch, scene)
