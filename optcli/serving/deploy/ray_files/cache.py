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

Arrays = Mapping[str, np.ndarray]


class Cache:
    """Looks answers up in a store, and keeps there what had to be computed.

    `model` is a digest of what else decides an answer; `counted` hears whether a request was a hit.
    """

    def __init__(self, model: str, store: Any, counted: Callable[[bool], None]) -> None:
        self.model, self.counted, self._store = model, counted, store

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
        self.counted(stored is not None)
        if stored is not None:
            return stored
        value = {name: np.array(array) for name, array in (await compute()).items()}
        for array in value.values():
            array.flags.writeable = False  # several requests share it
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

    def __init__(
        self, url: str, ttl_s: float, most_bytes: int, limit_s: float = 0.05, rest_s: float = 2.0
    ) -> None:
        import redis.asyncio as client

        pool = client.BlockingConnectionPool.from_url(url, max_connections=32, timeout=limit_s)
        self._client = client.Redis.from_pool(pool)
        self._ttl_ms, self._most_bytes = max(1, int(ttl_s * 1000)), most_bytes
        self._limit_s, self._rest_s, self._until = limit_s, rest_s, dict[str, float]()

    async def read(self, key: str) -> Arrays | None:
        content = await self._tried("reading", self._client.get, f"predictions:{key}")
        return None if content is None else unpacked(key, content)

    async def write(self, key: str, value: Arrays) -> None:
        named, content = f"predictions:{key}", packed(key, value)
        if len(content) <= self._most_bytes:
            await self._tried("writing", self._client.set, named, content, px=self._ttl_ms)

    async def _tried(self, what: str, call: Any, *arguments: Any, **named: Any) -> Any:
        if time.monotonic() < self._until.get(what, 0.0):
            return None
        try:
            async with asyncio.timeout(self._limit_s):
                result = await call(*arguments, **named)
        except Exception as error:  # the client raises its own kinds, those of sockets, and others
            if what not in self._until:
                logging.getLogger("cache").warning("the cache is left out: %s failed (%r)", what, error)
            self._until[what] = time.monotonic() + self._rest_s
            return None
        self._until.pop(what, None)
        return result


def packed(key: str, value: Arrays) -> bytes:
    """A value as bytes: its key and names, and the arrays in NumPy's form, which has checksums."""
    content = io.BytesIO()
    np.savez(content, np.array([key, *value]), *value.values(), allow_pickle=False)
    return content.getvalue()


def unpacked(key: str, content: bytes) -> Arrays | None:
    """The arrays that `packed` made under this key; None for anything else: others may write there."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            own, *names = arrays["arr_0"].tolist()
            value = {name: arrays[f"arr_{number}"] for number, name in enumerate(names, start=1)}
    except Exception:  # zipfile, zlib and NumPy raise many kinds over broken files
        return None
    return value if own == key else None


def opened(folder: Path, counted: Callable[[bool], None]) -> Cache | None:
    """The cache that the folder's `cache.json` describes; None where it is switched off."""
    about: dict[str, Any] = json.loads((folder / "cache.json").read_text(encoding="utf-8"))
    place = os.environ.get("CACHE_URL") or about["place"]
    if place == "off":
        return None
    limits = about["ttl_s"], about["most_bytes"]
    store = Memory(*limits) if place == "memory" else Redis(place, *limits)
    return Cache(about["model"], store, counted)
