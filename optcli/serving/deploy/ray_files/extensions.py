"""What clients of Triton may ask for beside inference: compressed bodies, and statistics."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from metrics import everything
from oip import Refused, body_of
from starlette.requests import Request
from starlette.responses import Response


def extend(server: Any, folder: Path) -> None:
    """Let the replica of app.py take and send compressed bodies, and answer the statistics' pages."""
    name, bundle = server.protocol.name, json.loads((folder / "bundle.json").read_text())
    for path, answer in server.posted.items():
        server.posted[path] = partial(compressed, answer, bundle["most_body_bytes"])
    for path in ("/v2/models/stats", f"{server.protocol.path}/stats"):
        server.pages[path] = partial(statistics, name)


async def compressed(answer: Any, most_bytes: int, request: Request) -> Response:
    """The answer to a request, of which each may be compressed. Raises `Refused`."""
    if encoding := request.headers.get("content-encoding"):
        plain = [each for each in request.scope["headers"] if each[0] != b"content-encoding"]
        request = Request({**request.scope, "headers": plain}, request.receive)
        content = decompressed(await body_of(request, most_bytes), encoding, most_bytes)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content}

        request = Request(request.scope, receive)
    response: Response = await answer(request)
    if request.headers.get("accept-encoding", "").strip() != "gzip":
        return response
    kept = {key: value for key, value in response.headers.items() if key != "content-length"}
    return Response(gzip.compress(response.body, 1), headers={**kept, "content-encoding": "gzip"})


def decompressed(body: bytes, encoding: str, most_bytes: int) -> bytes:
    """A body in gzip or deflate as it was. Raises `Refused`."""
    if encoding not in {"gzip", "deflate"}:
        raise Refused(415, f"the body is compressed with {encoding[:20]!r}: send gzip or deflate")
    reader = zlib.decompressobj(32 + zlib.MAX_WBITS)  # finds out which of the forms it is
    try:
        content = reader.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise Refused(400, f"the body is not what its content-encoding {encoding} says") from error
    if len(content) > most_bytes:
        raise Refused(413, f"the body is larger than {most_bytes} bytes")
    if not reader.eof:
        raise Refused(400, f"the body of the content-encoding {encoding} is cut off")
    return content


def statistics(model: str) -> dict[str, Any]:
    """The metrics as the protocol's statistics of a model, in nanoseconds."""
    sums: dict[tuple[str, str], float] = defaultdict(float)
    inferences = 0.0
    for family in everything().collect():
        for sample in family.samples:
            by = sample.labels.get("outcome") or sample.labels.get("stage") or ""
            sums[sample.name, by] += sample.value
            if sample.name == "model_compute_seconds_count":
                inferences += int(sample.labels["batch"]) * sample.value

    def spent(name: str, *kinds: str) -> dict[str, int]:
        count = sum(sums[f"{name}_count", each] for each in kinds)
        return {"count": int(count), "ns": int(1e9 * sum(sums[f"{name}_sum", each] for each in kinds))}

    request, stage = "model_request_seconds", "model_stage_seconds"
    about = {
        "name": model,
        "version": "1",
        "inference_count": int(inferences),
        "execution_count": int(sums["model_compute_seconds_count", ""]),
        "inference_stats": {
            "success": spent(request, "ok"),
            "fail": spent(request, "queue_full", "deadline", "error"),
            "queue": spent(stage, "batch_wait"),
            "compute_input": spent(stage, "parse"),
            "compute_infer": spent(stage, "compute"),
            "compute_output": spent(stage, "post"),
        },
    }
    return {"model_stats": [about]}
