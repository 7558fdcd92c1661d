"""Requests for the model pass Starlette by, and Python's garbage collector leaves out what exists."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from copied_modules import RAY_FILES, load

pytest.importorskip("starlette", reason="the ingress answers through Starlette")

FROZEN = f"""
import gc, sys
sys.path.insert(0, {str(RAY_FILES)!r})
from garbage import leave_out_what_exists
kept = [[number] for number in range(50_000)]
before = len(gc.get_objects())
leave_out_what_exists()
print(before >= 50_000, gc.get_freeze_count() >= 50_000, len(gc.get_objects()) < 1000)
class Ring: pass
ring = Ring(); ring.itself = ring; kind = id(ring)
del ring
print(gc.isenabled(), gc.collect() > 0)
"""


def answered(app, kind, method, path):
    """The status and the body that an ASGI application gives."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"asked", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "method": method, "path": path, "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


def test_what_is_posted_to_the_model_goes_to_its_handler():
    from starlette.responses import Response

    async def handle(request):
        return Response(await request.body() + b" " + request.url.path.encode(), status_code=201)

    async def others(scope, receive, send):
        await Response(f"{scope['type']} {scope['method']}", status_code=404)(scope, receive, send)

    app = load("direct").Direct(["/infer", "/images"], handle, others)
    assert answered(app, "http", "POST", "/infer") == (201, b"asked /infer")
    assert answered(app, "http", "POST", "/images") == (201, b"asked /images")
    assert answered(app, "http", "GET", "/infer") == (404, b"http GET")
    assert answered(app, "http", "POST", "/infer/") == (404, b"http POST")
    assert answered(app, "http", "POST", "/metrics") == (404, b"http POST")


def test_what_exists_is_left_out_of_collections_and_new_garbage_is_not():
    done = subprocess.run([sys.executable, "-c", FROZEN], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True True True", "True True"]
