"""A cache of answers by content: what the same model has answered is not computed again.

`cache.json` says where answers are kept: in `memory`, where each replica has its own, or in a Redis
that all share. A Redis that is slow, full or gone costs the hits and nothing else. Nothing is pickled.
CACHE_URL takes the place of the file's address: passwords belong into no file; `off` is without cache.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import Counter

Arrays = Mapping[str, np.ndarray]


class Cache:
    """Keeps answers in a store; `model` is a digest of what decides them beside the request."""

    def __init__(self, model: str, store: Any, hits: Any, misses: Any) -> None:
        self.model, self.hits, self.misses, self._store = model, hits, misses, store

    def key(self, *parts: bytes | str | np.ndarray) -> str:
        """The key of a request: a digest over the model and each part with its length, in order."""
        digest = hashlib.sha256()
        for part in (self.model, *parts):
            if isinstance(part, np.ndarray):
                digest.update(f"{part.dtype.str}{part.shape}".encode())
                part = np.ascontiguousarray(part).tobytes()
            content = part.encode() if isinstance(part, str) else part
            digest.update(len(content).to_bytes(8, "little") + content)
        return digest.hexdigest()

    async def get(self, key: str, compute: Callable[[], Awaitable[Arrays]]) -> Arrays:
        """The answer under a key, computed where there is none; failures are not kept."""
        stored: Arrays | None = await self._store.read(key)
        if stored is not None:
            self.hits.inc()
            return stored
        self.misses.inc()
        value = {name: np.array(array) for name, array in (await compute()).items()}
        await self._store.write(key, value)
        return value


class Memory:
    """The answers used last, in this process: so many bytes, each for so long."""

    def __init__(self, ttl_s: float, most_bytes: int) -> None:
        self._ttl_s, self._most_bytes, self.bytes = ttl_s, most_bytes, 0
        self._kept: dict[str, tuple[float, int, Arrays]] = {}

    async def read(self, key: str) -> Arrays | None:
        until, _, value = self._kept.get(key, (0.0, 0, {}))
        if time.monotonic() >= until:
            self._drop(key)
            return None
        self._kept[key] = self._kept.pop(key)  # the last one goes last
        return value

    async def write(self, key: str, value: Arrays) -> None:
        """Keep a value; those not used for longest make room."""
        size = sum(array.nbytes for array in value.values()) + 1024  # with what holds it
        self._drop(key)
        if size <= self._most_bytes:
            self._kept[key] = (time.monotonic() + self._ttl_s, size, value)
            self.bytes += size
        while self.bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: str) -> None:
        self.bytes -= self._kept.pop(key, (0.0, 0, {}))[1]


class Redis:
    """Answers in a Redis. A call waits for `limit_s`; after a failure there is none for `rest_s`."""

    def __init__(self, url: str, ttl_s: float, most_bytes: int) -> None:
        import redis.asyncio as client

        self._client = client.from_url(url)
        self._ttl_ms, self._most_bytes = max(1, int(ttl_s * 1000)), most_bytes
        self.limit_s, self.rest_s, self._until = 0.05, 2.0, dict[str, float]()

    async def read(self, key: str) -> Arrays | None:
        content = await self._tried("reading", self._client.get, f"predictions:{key}")
        return None if content is None else unpacked(content)

    async def write(self, key: str, value: Arrays) -> None:
        if len(content := packed(value)) <= self._most_bytes:
            own = f"predictions:{key}"
            await self._tried("writing", self._client.set, own, content, px=self._ttl_ms)

    async def _tried(self, what: str, call: Any, *arguments: Any, **named: Any) -> Any:
        if time.monotonic() < self._until.get(what, 0.0):
            return None
        try:
            async with asyncio.timeout(self.limit_s):
                return await call(*arguments, **named)
        except Exception as error:  # the client raises its own kinds, those of sockets, and others
            if what not in self._until:
                logging.getLogger("cache").warning("the cache is left out: %s failed (%r)", what, error)
            self._until[what] = time.monotonic() + self.rest_s
            return None


def packed(value: Arrays) -> bytes:
    """A value as bytes: its names, and the arrays in NumPy's form, which has checksums."""
    content = io.BytesIO()
    np.savez(content, np.array([*value]), *value.values(), allow_pickle=False)
    return content.getvalue()


def unpacked(content: bytes) -> Arrays | None:
    """The arrays that `packed` made; None for anything else: others may write there."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            names = arrays["arr_0"].tolist()
            return {name: arrays[f"arr_{number}"] for number, name in enumerate(names, start=1)}
    except Exception:  # zipfile, zlib and NumPy raise many kinds over broken files
        return None


def extend(server: Any, folder: Path) -> None:
    """Put the cache that `cache.json` describes before what the replica of app.py computes."""
    about: dict[str, Any] = json.loads((folder / "cache.json").read_text(encoding="utf-8"))
    place = os.environ.get("CACHE_URL") or about["place"]
    if place == "off":
        return
    limits = about["ttl_s"], about["most_bytes"]
    store = Memory(*limits) if place == "memory" else Redis(place, *limits)
    hits = server.metrics.of(Counter, "cache_hits", "Requests that the cache answered")
    misses = server.metrics.of(Counter, "cache_misses", "Requests that the cache did not know")
    cache, compute = Cache(about["model"], store, hits, misses), server.outputs

    async def outputs(request: Any, deadline: float) -> Arrays:
        key = cache.key(*(part for pair in sorted(request.feed.items()) for part in pair))
        return await cache.get(key, lambda: compute(request, deadline))

    server.cache, server.outputs = cache, outputs
