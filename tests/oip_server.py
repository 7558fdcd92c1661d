"""A small server of the Open Inference Protocol v2 whose times are known, and that can misbehave.

The model doubles the first four values of each row, and gives them `times` so large as each of its
outputs. A batch of b takes `fixed_ms + b * per_image_ms`,
which is slept; batches are sealed in turn, as Ray Serve does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import prometheus_client
from aiohttp import web

LENGTH = "Inference-Header-Content-Length"
NAME = "digits"
WIDTH = 4


class Server:
    def __init__(self) -> None:
        self.tasks: list[asyncio.Task] = []

    def begin(self, options: argparse.Namespace) -> None:
        """Nothing is left of what was asked before."""
        for task in self.tasks:
            task.cancel()
        self.tasks = [asyncio.create_task(each) for each in (self.seal(), self.work())]
        self.options = options
        self.waiting: asyncio.Queue[tuple[np.ndarray, float, asyncio.Future]] = asyncio.Queue()
        self.sealed: asyncio.Queue[list] = asyncio.Queue()
        self.seen = 0
        registry = self.registry = prometheus_client.CollectorRegistry()
        self.stage = prometheus_client.Histogram(
            "model_stage_seconds", "by stage", ["stage"], registry=registry
        )
        self.compute = prometheus_client.Histogram(
            "model_compute_seconds", "by rows", ["batch"], registry=registry
        )
        self.cpu = prometheus_client.Gauge(
            "model_process_cpu_seconds_total", "cpu", ["process"], registry=registry
        )
        self.memory = prometheus_client.Gauge(
            "model_process_rss_bytes", "rss", ["process"], registry=registry
        )

    async def begin_again(self, request: web.Request) -> web.Response:
        self.begin(options_of(await request.json()))
        return web.Response()

    async def seal(self) -> None:
        while True:
            first = await self.waiting.get()
            batch = [first]
            end = time.perf_counter() + self.options.wait_ms / 1000
            while len(batch) < self.options.batch:
                try:
                    left = end - time.perf_counter()
                    batch.append(await asyncio.wait_for(self.waiting.get(), max(0.0, left)))
                except TimeoutError:
                    break
            await self.sealed.put([batch, time.perf_counter()])

    async def work(self) -> None:
        while True:
            batch, closed = await self.sealed.get()
            begin = time.perf_counter()
            count = sum(len(rows) for rows, *_ in batch)
            sleep = (self.options.fixed_ms + count * self.options.per_image_ms) / 1000
            await asyncio.sleep(sleep)
            took = time.perf_counter() - begin
            self.compute.labels(str(count)).observe(took)
            for rows, came, answer in batch:
                self.stage.labels("batch_wait").observe(closed - came)
                self.stage.labels("queue").observe(begin - closed)
                self.stage.labels("compute").observe(took)
                if not answer.done():
                    given = 2 * rows.reshape(len(rows), -1)[:, :WIDTH]
                    other = given[:, :1] < 2 * self.options.other_below
                    answer.set_result(np.where(other, np.roll(given, 1, axis=1), given))

    async def infer(self, request: web.Request) -> web.Response:
        self.seen += 1
        options, seen = self.options, self.seen
        if options.die_after and seen > options.die_after:
            os._exit(1)
        if options.stall_after and seen > options.stall_after:
            await asyncio.sleep(3600)
        if options.drop_every and seen % options.drop_every == 0:
            return web.json_response({"error": "the queue is full"}, status=429)
        body = await request.read()
        if request.path.endswith("/images"):
            return web.json_response({"classes": [{"label": len(body), "score": 0.5}]})
        length = int(request.headers.get(LENGTH, 0))
        header = json.loads(body[:length] if length else body)
        about = header["inputs"][0]
        if length:
            values = np.frombuffer(body[length:], np.float32)
        else:
            values = np.array(about["data"], np.float32)
        answer = asyncio.get_running_loop().create_future()
        await self.waiting.put((values.reshape(about["shape"]), time.perf_counter(), answer))
        result = await answer
        if options.wrong_every and seen % options.wrong_every == 0:
            result = result + 1
        result = options.times * result
        told = [
            {"name": name, "datatype": "FP32", "shape": list(result.shape)} for name in options.outputs
        ]
        whole = {"model_name": NAME, "outputs": told}
        if not length:
            for each in told:
                each["data"] = result.ravel().tolist()
            return web.json_response(whole)
        raw = result.astype(np.float32).tobytes()
        for each in told:
            each["parameters"] = {"binary_data_size": len(raw)}
        text = json.dumps(whole).encode()
        return web.Response(body=text + raw * len(told), headers={LENGTH: str(len(text))})

    async def metrics(self, _: web.Request) -> web.Response:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.cpu.labels("ingress").set(usage.ru_utime + usage.ru_stime)
        self.memory.labels("ingress").set(usage.ru_maxrss * 1024)
        text = prometheus_client.generate_latest(self.registry).decode()
        return web.Response(text=text)

    async def ready(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.options.not_ready else 200)

    async def about(self, request: web.Request) -> web.Response:
        if request.match_info["name"] != NAME:
            return web.json_response({"error": "no such model"}, status=404)
        shape = [-1, *self.options.shape]
        return web.json_response(
            {
                "name": NAME,
                "platform": "test",
                "inputs": [{"name": "image", "datatype": "FP32", "shape": shape}],
                "outputs": [
                    {"name": each, "datatype": "FP32", "shape": [-1, WIDTH]}
                    for each in self.options.outputs
                ],
            }
        )

    async def server(self, _: web.Request) -> web.Response:
        return web.json_response({"name": "test", "version": "1", "extensions": []})

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response([{"name": NAME}])


async def _serve() -> None:
    server = Server()
    server.begin(options_of([]))
    application = web.Application(client_max_size=64 * 2**20)
    application.add_routes(
        [
            web.get("/v2", server.server),
            web.get("/v2/health/ready", server.ready),
            web.get("/v2/models/{name}", server.about),
            web.post("/v2/repository/index", server.models),
            web.post("/v2/models/{name}/infer", server.infer),
            web.post("/v2/models/{name}/images", server.infer),
            web.get("/metrics", server.metrics),
            web.post("/begin-again", server.begin_again),
        ]
    )
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until whoever started it is gone
    os._exit(0)


@dataclass(frozen=True)
class _Process:
    process: subprocess.Popen[str]
    url: str

    def begin(self, words: list[str]) -> None:
        urllib.request.urlopen(f"{self.url}/begin-again", json.dumps(words).encode(), 60).close()


# Servers that have served, and can again.
_idle: list[_Process] = []


@contextmanager
def serving(**options: object) -> Iterator[str]:
    """A server in a process of its own; gives its URL."""
    one = _idle.pop() if _idle else _started()
    one.begin([f"--{name.replace('_', '-')}={value}" for name, value in options.items()])
    try:
        yield one.url
    finally:
        try:
            one.begin([])
            _idle.append(one)
        except OSError:  # it died, as it was told to
            one.process.kill()
            one.process.communicate()


def _started() -> _Process:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return _Process(process, f"http://127.0.0.1:{int(process.stdout.readline())}")


def options_of(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, usual in (
        ("batch", 8),
        ("stall-after", 0),
        ("die-after", 0),
        ("drop-every", 0),
        ("wrong-every", 0),
        ("not-ready", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=usual)
    for name, figure in (
        ("wait-ms", 5.0),
        ("fixed-ms", 2.0),
        ("per-image-ms", 0.5),
        ("times", 1.0),
        ("other-below", -np.inf),  # rows whose first value is below it are given other answers
    ):
        parser.add_argument(f"--{name}", type=float, default=figure)
    parser.add_argument("--outputs", type=lambda text: text.split(","), default=["scores"])
    parser.add_argument(
        "--shape", type=lambda text: [int(each) for each in text.split(",")], default=[2, 4]
    )
    return parser.parse_args(words)


if __name__ == "__main__":
    asyncio.run(_serve())
