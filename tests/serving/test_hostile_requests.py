"""What a bundle's server makes of requests that nobody means well, and of kept answers of others."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import json
import sys
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from copied_modules import RAY_FILES

pytest.importorskip("starlette", reason="the ingress answers through Starlette")
from starlette.requests import Request
from starlette.responses import Response

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
    names = ["oip", "cache", "extensions"]
    # What is counted is no matter here, and looks for Ray.
    monkeypatch.setitem(sys.modules, "metrics", SimpleNamespace(everything=None))
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
        modules.oip.Protocol(BUNDLE).read(body, length)
    response = caught.value.response()
    assert response.status_code == 400
    return json.loads(response.body)["error"]


@pytest.mark.parametrize("length", [MANY, "0" * 4301, "٣", "-1", "1e1", "", " 5", "1" * 19])
def test_a_length_that_is_none_is_400(modules: Any, length: str) -> None:
    assert "does not fit the body" in refused(modules, request(), length)


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
    refused(modules, request().replace(b"[1, 2]}", f"[{MANY}, 2]}}".encode()))


@pytest.mark.parametrize("levels", [200, 900, 940, 960, 980, 200_000])
def test_json_nested_to_any_depth_is_400(modules: Any, levels: int) -> None:
    """At some depth json still reads what no longer can be written into the sentence."""
    deep = f"{'[' * levels}{']' * levels}".encode()
    for name in ("datatype", "shape", "data"):
        refused(modules, request(**{name: "DEEP"}).replace(b'"DEEP"', deep))


@pytest.mark.parametrize("size", [8.0, True, 7, -8, 9, "8", [8]])
def test_a_size_of_a_binary_tensor_that_is_not_that_of_its_bytes_is_refused(modules, size):
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, 2],
        "parameters": {"binary_data_size": size},
    }
    header = json.dumps({"inputs": [tensor]}).encode()
    assert "'x'" in refused(modules, header + bytes(8), str(len(header)))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([1], "wants 2 numbers in `data`: found 1"),
        ([1, 2, 3], "found 3"),
        ([[1], [2, 3]], "lists are of different lengths"),
        ([1, [2]], "lists are of different lengths"),
        (["a", "b"], "of another type"),
        ([True, False], "of another type"),
        ([1, None], "of another type"),
        ({"a": 1}, "neither `data` nor"),
        ([1e39, 1], "infinite or NaN"),
    ],
)
def test_what_is_wrong_with_numbers_is_said_without_a_library_in_between(modules, data, says):
    sentence = refused(modules, request(data=data))
    assert says in sentence
    for word in ("array", "dtype", "numpy", "inhomogeneous", "reshape", "setting an"):
        assert word not in sentence


def test_an_answer_may_hold_binary_tensors_and_json(modules):
    protocol = modules.oip.Protocol(BUNDLE)
    message = json.loads(request())
    message["outputs"] = [{"name": "count", "parameters": {"binary_data": True}}, {"name": "scores"}]
    asked = protocol.read(json.dumps({**message, "id": "7"}).encode(), None)
    outputs = {"scores": np.array([[0.1, 2, -3]], np.float32), "count": np.array([5], np.int64)}
    body, headers = protocol.write(asked, outputs)
    length = int(headers[modules.oip.HEADER])
    written = json.loads(body[:length])
    assert written["id"] == "7"
    assert [each["name"] for each in written["outputs"]] == ["count", "scores"]
    np.testing.assert_array_equal(
        np.array(written["outputs"][1]["data"], np.float32), outputs["scores"].ravel()
    )
    assert np.frombuffer(body[length:], np.int64).tolist() == [5]
    with pytest.raises(modules.oip.Refused, match="JSON has no form"):
        protocol.write(asked, {**outputs, "scores": np.full((1, 3), np.nan, np.float32)})


def test_requests_of_many_rows_go_in_parts(modules):
    feed = {"x": np.arange(10).reshape(5, 2)}
    parts = modules.oip.InferRequest(feed, 5, {}).parts(2)
    assert [rows for _, rows in parts] == [2, 2, 1]
    np.testing.assert_array_equal(np.concatenate([part["x"] for part, _ in parts]), feed["x"])


def asked(modules: Any, body: bytes, encoding: str | None = None, accepted: str = "") -> Any:
    """The answer to a body of at most 1,000 bytes; the server gives back what it was sent."""
    chunks = [{"type": "http.request", "body": body[:5], "more_body": True}]
    chunks.append({"type": "http.request", "body": body[5:]})
    headers = [(b"accept-encoding", accepted.encode())]
    headers += [(b"content-encoding", encoding.encode())] if encoding else []

    async def receive() -> Any:
        return chunks.pop(0)

    async def answer(request: Request) -> Response:
        return Response(await modules.oip.body_of(request, 1000), headers={"x-own": "kept"})

    request = Request({"type": "http", "headers": headers}, receive)
    if modules.extensions is None:
        return asyncio.run(answer(request))
    return asyncio.run(modules.extensions.compressed(answer, 1000, request))


def test_bodies_are_bounded_and_not_compressed(modules):
    modules.extensions = None
    assert asked(modules, b"x" * 1000).body == b"x" * 1000
    for body, encoding, status in ((b"x" * 1001, None, 413), (gzip.compress(b"x"), "gzip", 415)):
        with pytest.raises(modules.oip.Refused) as caught:
            asked(modules, body, encoding)
        assert caught.value.status == status


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_bodies_are_read_and_bounded_by_what_they_hold(modules, encoding):
    compress = gzip.compress if encoding == "gzip" else zlib.compress
    assert asked(modules, compress(b"x" * 1000), encoding).body == b"x" * 1000
    for body, status in (
        (compress(b"x" * 1001), 413),
        (compress(bytes(10_000_000)), 413),  # a few kilobytes that become ten megabytes
        (b"no such thing", 400),
        (compress(b"x" * 500)[:-6], 400),
    ):
        with pytest.raises(modules.oip.Refused) as caught:
            asked(modules, body, encoding)
        assert caught.value.status == status
    with pytest.raises(modules.oip.Refused, match="gzip or deflate"):
        asked(modules, b"x", "br")


def test_an_answer_is_compressed_for_who_asks_for_that_alone(modules):
    answer = asked(modules, b"x" * 1000, accepted="gzip")
    assert gzip.decompress(answer.body) == b"x" * 1000
    assert (answer.headers["content-encoding"], answer.headers["x-own"]) == ("gzip", "kept")
    assert int(answer.headers["content-length"]) == len(answer.body) < 1000
    assert asked(modules, b"x", accepted="gzip, deflate").body == b"x"
