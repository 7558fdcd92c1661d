"""The server that is loaded: asked over HTTP what it serves, before anything is sent."""

from __future__ import annotations

import http.client
import json
import math
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.errors import InputError, RunnerError, UsageError, did_you_mean, excerpt
from optcli.files import regular_files
from optcli.results.loadtest import Served
from optcli.results.plan import Plan
from optcli.serving.loadtest.messages import TensorAbout

_TIMEOUT_S = 10.0
_MOST_BYTES = 8 * 1024 * 1024
# What no model has: a server that says so would fill the memory of whoever believes it.
_MOST_TENSORS, _MOST_DIMENSIONS, _MOST_NAME = 1000, 32, 1000
_MOST_REQUEST_BYTES, _LARGEST_VALUE_BYTES = 512 * 1024 * 1024, 8
# Models that are listed where one is not named, or not known.
_MOST_LISTED = 100
_START = "start it first: `optcli serve FOLDER`, or name the folder of a bundle in place of the URL"


@dataclass(frozen=True)
class Endpoint:
    """A model on a server that is ready.

    `samples` and `expected` are npz files of inputs and outputs by name, where there are some; `golden`
    are the files of an image and of its answer. `tolerance` is that of the golden response. `plan` is
    what the server was deployed with. `pids` are the server's processes where the load test started it.
    A call of the model takes `threads` processors. `class_scores` are the outputs that hold scores of
    classes; None: not known.
    """

    served: Served
    inputs: tuple[TensorAbout, ...]
    outputs: tuple[str, ...]
    samples: Path | None = None
    expected: Path | None = None
    golden: tuple[Path, Path] | None = None
    tolerance: float = 1e-3
    plan: Plan | None = None
    concurrency: int = 1
    threads: int = 1
    pids: tuple[int, ...] = ()
    class_scores: tuple[str, ...] | None = None


def is_url(target: str) -> bool:
    """Whether a target is the address of a server rather than a folder."""
    return "://" in target


def address(url: str) -> tuple[str, str | None]:
    """The base of a server's URL, and the model where the URL names one. Raises `UsageError`."""
    parts = urllib.parse.urlsplit(url)
    try:
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            f"found {excerpt(url)!r}, wanted the URL of a server",
            place="TARGET",
            hint="such as http://127.0.0.1:8000, or the folder of a bundle",
        )
    before, models, after = parts.path.partition("/v2/models/")
    base = f"{parts.scheme}://{parts.netloc}{before.removesuffix('/').removesuffix('/v2')}"
    return base, after.split("/")[0] or None if models else None


def asked(url: str, model: str | None, *, wait_s: float = 10.0) -> Endpoint:
    """What a server says of a model, once it is ready.

    Raises `UsageError` where nothing answers at the URL, for an unknown model and for one whose inputs
    have no rows in common, `RunnerError` where
    the server is not ready after `wait_s` seconds, `InputError` where it does not speak the protocol.
    """
    base, named = address(url)
    model = model or named
    _require_ready(base, wait_s)
    about = _json(base, "/v2")
    if about is None or "name" not in about:
        raise InputError(
            "the server does not speak the Open Inference Protocol v2: GET /v2 says nothing of it",
            place=base,
            hint="name the base URL, without a path behind it",
        )
    if model is None:
        listed = excerpt(", ".join(_models(base)), 300) or "none"
        raise UsageError(
            "the model is not named",
            place="--model",
            hint=f"the server lists {listed}: name one, or give {base}/v2/models/NAME",
        )
    metadata = _json(base, f"/v2/models/{urllib.parse.quote(model, safe='')}")
    if metadata is None or "inputs" not in metadata:
        raise UsageError(
            f"the server has no model {model!r}",
            place=base,
            hint=did_you_mean(model, _models(base)) or "name it with --model",
        )
    inputs = tuple(_tensor(each, base) for each in _listed(metadata, "inputs", model, base))
    outputs = tuple(_name(each, base) for each in _listed(metadata, "outputs", model, base))
    size = sum(_LARGEST_VALUE_BYTES * math.prod(max(1, n) for n in each.shape) for each in inputs)
    if size > _MOST_REQUEST_BYTES:
        raise InputError(
            f"a request for {model!r} would have {size:,} bytes by the shapes that the server names,"
            f" wanted at most {_MOST_REQUEST_BYTES:,}",
            place=base,
            hint="look at GET /v2/models/NAME",
        )
    if len({each.shape[0] for each in inputs if each.shape}) > 1:
        shapes = excerpt(", ".join(f"{each.name} {list(each.shape)}" for each in inputs), 300)
        raise UsageError(
            f"a load test sends a sample in each row, and the inputs have no rows in common: {shapes}",
            place=base,
            hint="let every input begin with the batch, such as [batch, 2] for the size of an image",
        )
    served = Served(url=base, model=model, platform=excerpt(str(metadata.get("platform") or "")))
    return Endpoint(served, inputs, outputs, class_scores=_class_scores(metadata["outputs"]))


def _require_ready(base: str, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        status, body = fetched(base, "/v2/health/ready")
        if status == 200:
            return
        if status is None:
            why = body.decode(errors="replace")
            raise UsageError(f"nothing answers there: {why}", place=base, hint=_START)
        if status == 404:
            raise InputError(
                "the server does not speak the Open Inference Protocol v2: it has no /v2/health/ready",
                place=base,
                hint="name the base URL of a server that does, such as http://127.0.0.1:8000",
            )
        if time.monotonic() > deadline:
            raise RunnerError(
                f"the server is not ready after {wait_s:g} s: it says {status}",
                place=base,
                hint="look into its log; a model that is still warming up needs longer",
            )
        time.sleep(0.2)


def _listed(metadata: dict[str, Any], part: str, model: str, base: str) -> list[Any]:
    """What the metadata of a model say of its inputs or outputs. Raises `InputError`."""
    tensors = metadata.get(part)
    if not isinstance(tensors, list) or not 0 < len(tensors) <= _MOST_TENSORS:
        count = f"{len(tensors):,}" if isinstance(tensors, list) else "no list of"
        raise InputError(
            f"the server names {count} {part} of {model!r}, wanted 1 to {_MOST_TENSORS}",
            place=base,
            hint="look at GET /v2/models/NAME",
        )
    return tensors


def _class_scores(outputs: Sequence[Mapping[str, Any]]) -> tuple[str, ...] | None:
    """The outputs that hold scores of classes; None where the server says nothing of it."""
    parameters = {each["name"]: each.get("parameters") for each in outputs}
    parts = {
        k: v["class_scores"]
        for k, v in parameters.items()
        if isinstance(v, dict) and "class_scores" in v
    }
    return tuple(name for name, holds in parts.items() if holds is True) if parts else None


def _tensor(each: Any, base: str) -> TensorAbout:
    name = _name(each, base)
    kind, shape = each.get("datatype"), each.get("shape")
    if not isinstance(shape, list) or not isinstance(kind, str) or len(kind) > _MOST_NAME:
        raise _undescribed(each, base)
    sizes = tuple(_size(size) for size in shape[: _MOST_DIMENSIONS + 1])
    if len(sizes) > _MOST_DIMENSIONS or any(size < -1 or size == 0 for size in sizes):
        raise _undescribed(each, base)
    return TensorAbout(name, kind, sizes)


def _size(size: Any) -> int:
    """A size of a shape, which some servers write as text; 0 for what is none."""
    if isinstance(size, str | float) and len(str(size)) < 20:
        with suppress(ValueError, OverflowError):
            return int(size) if isinstance(size, str) or size == int(size) else 0
    return size if type(size) is int else 0


def _name(each: Any, base: str) -> str:
    name = each.get("name") if isinstance(each, dict) else None
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME:
        raise _undescribed(each, base)
    return name


def _undescribed(each: Any, base: str) -> InputError:
    try:
        shown = excerpt(json.dumps(each))
    except RecursionError:
        shown = "what is nested too deeply"
    return InputError(
        f"the server describes an input or output as {shown}",
        place=base,
        hint="wanted name, datatype and shape with sizes from 1, or -1 for one that varies, as in the"
        " Open Inference Protocol v2",
    )


def _models(base: str) -> list[str]:
    """The models of a server that lists them: Triton's extension, else none."""
    status, body = fetched(base, "/v2/repository/index", b"{}")
    if status != 200:
        status, body = fetched(base, "/v2/models")
    listed = _parsed(body) if status == 200 else []
    listed = listed.get("models") if isinstance(listed, dict) else listed
    if not isinstance(listed, list):
        return []
    names = [each.get("name") if isinstance(each, dict) else each for each in listed]
    named = [name for name in names if isinstance(name, str) and 0 < len(name) <= _MOST_NAME]
    return named[:_MOST_LISTED]


def _json(base: str, path: str) -> dict[str, Any] | None:
    status, body = fetched(base, path)
    answer = _parsed(body) if status == 200 else None
    return answer if isinstance(answer, dict) else None


def _parsed(body: bytes) -> Any:
    """What the JSON of a server holds; None for anything else."""
    try:
        return regular_files.parsed_json(body)
    except ValueError:
        return None


def fetched(
    base: str,
    path: str,
    data: bytes | None = None,
    *,
    most_bytes: int = _MOST_BYTES,
    timeout_s: float | None = None,
) -> tuple[int | None, bytes]:
    """The status and the first bytes of an answer; None and the reason where nothing answers.

    To connect and to answer may take `timeout_s` each, usually ten seconds, in whatever pieces. Raises
    `InputError` for something that answers and speaks no HTTP, and for one that sends elsewhere.
    """
    seconds = timeout_s or _TIMEOUT_S
    parts = urllib.parse.urlsplit(base + path)
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    connection = kinds[parts.scheme](parts.hostname or "", parts.port, timeout=seconds)
    late = threading.Event()
    try:
        connection.connect()
        with _ended(connection.sock, seconds, late):
            connection.request("GET" if data is None else "POST", parts.path, data)
            answer = connection.getresponse()
            status, body = answer.status, b""
            if status == 200:
                body = answer.read(most_bytes)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if not late.is_set() and isinstance(error, http.client.HTTPException):
            message = excerpt(str(error).strip())
            raise InputError(
                f"the server there speaks no HTTP, or breaks off: {message!r}",
                place=base,
                hint="name the URL of a server that speaks the Open Inference Protocol v2",
            ) from error
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        status, body = None, why.encode(errors="replace")
    if late.is_set():
        return None, f"no whole answer came within {seconds:g} s".encode()
    if status is not None and 300 <= status < 400:
        to = answer.headers.get("Location", "")
        raise InputError(
            f"the server sends elsewhere ({status}, {excerpt(to)!r}), which is not followed",
            place=base + path,
            hint="name the URL of the server itself",
        )
    return status, body


@contextmanager
def _ended(connection: socket.socket, seconds: float, late: threading.Event) -> Iterator[None]:
    """Break a connection off after some seconds, and set `late`: each wait has a limit of its own."""

    def end() -> None:
        late.set()
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        connection.close()
