"""The server that is loaded: asked over HTTP what it serves, before anything is sent."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.errors import InputError, RunnerError, UsageError, did_you_mean, excerpt
from optcli.results.loadtest import Served
from optcli.results.plan import Plan
from optcli.serving.loadtest.messages import TensorAbout

_TIMEOUT_S = 10.0
_MOST_BYTES = 8 * 1024 * 1024
_START = "start it first: `optcli serve FOLDER`, or name the folder of a bundle in place of the URL"


@dataclass(frozen=True)
class Endpoint:
    """A model on a server that is ready.

    `samples` and `expected` are npz files of inputs and outputs by name, where there are some; `golden`
    are the files of an image and of its answer. `tolerance` is that of the golden response. `plan` is
    what the server was deployed with. `pids` are the server's processes where the load test started it.
    `wait_ms_at` is the wait for a batch at a rate, where the server adapts it; None: always the same.
    With a priority it is that of its own replicas, at its own rate. A call of the model takes `threads`
    processors. `class_scores` are the outputs that hold scores of classes; None: not known.
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
    wait_ms_at: Callable[[float, str | None], float] | None = None
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
        listed = ", ".join(_models(base)) or "none"
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
    inputs = tuple(_tensor(each, base) for each in metadata["inputs"])
    outputs = tuple(str(each.get("name")) for each in metadata.get("outputs") or ())
    if not inputs or not outputs:
        raise InputError(
            f"the server names no inputs or no outputs of {model!r}",
            place=base,
            hint="look at GET /v2/models/NAME",
        )
    if len({each.shape[0] for each in inputs if each.shape}) > 1:
        shapes = ", ".join(f"{each.name} {list(each.shape)}" for each in inputs)
        raise UsageError(
            f"a load test sends a sample in each row, and the inputs have no rows in common: {shapes}",
            place=base,
            hint="let every input begin with the batch, such as [batch, 2] for the size of an image",
        )
    served = Served(url=base, model=model, platform=str(metadata.get("platform") or ""))
    return Endpoint(served, inputs, outputs)


def _require_ready(base: str, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        status, body = _get(base, "/v2/health/ready")
        if status == 200:
            return
        if status is None:
            raise UsageError(f"nothing answers there: {body}", place=base, hint=_START)
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


def _tensor(each: Any, base: str) -> TensorAbout:
    try:
        shape = tuple(int(size) for size in each["shape"])
        return TensorAbout(str(each["name"]), str(each["datatype"]), shape)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the server describes an input as {excerpt(json.dumps(each))}",
            place=base,
            hint="wanted name, datatype and shape, as in the Open Inference Protocol v2",
        ) from error


def _models(base: str) -> list[str]:
    """The models of a server that lists them: Triton's extension, else none."""
    status, body = _get(base, "/v2/repository/index", data=b"{}")
    if status != 200:
        status, body = _get(base, "/v2/models")
    try:
        listed = json.loads(body) if status == 200 else []
    except ValueError:
        return []
    listed = listed.get("models", []) if isinstance(listed, dict) else listed
    names = [each.get("name") if isinstance(each, dict) else each for each in listed]
    return [str(name) for name in names if name]


def _json(base: str, path: str) -> dict[str, Any] | None:
    status, body = _get(base, path)
    try:
        answer = json.loads(body) if status == 200 else None
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else None


def _get(base: str, path: str, data: bytes | None = None) -> tuple[int | None, str]:
    """The status and the body of an answer; None and the reason where nothing answers."""
    status, body = fetched(base, path, data)
    return status, body.decode("utf-8", errors="replace")


def fetched(
    base: str, path: str, data: bytes | None = None, *, most_bytes: int = _MOST_BYTES
) -> tuple[int | None, bytes]:
    """The status and the first bytes of an answer; None and the reason where nothing answers.

    Raises `InputError` for something that answers and speaks no HTTP.
    """
    try:
        with urllib.request.urlopen(base + path, data=data, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return int(answer.status), answer.read(most_bytes)
    except urllib.error.HTTPError as error:
        return error.code, b""
    except urllib.error.URLError as error:
        return None, str(error.reason).encode()
    except (OSError, ValueError) as error:
        return None, (str(error) or type(error).__name__).encode()
    except http.client.HTTPException as error:
        raise InputError(
            f"the server there speaks no HTTP, or breaks off: {excerpt(str(error).strip())!r}",
            place=base,
            hint="name the URL of a server that speaks the Open Inference Protocol v2",
        ) from error
