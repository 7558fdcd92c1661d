"""A cache of answers by content: equal inputs of the same model are computed once.

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
import struct
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
_log = logging.getLogger("cache")
_MOST_WRITES, _CONNECTIONS = 64, 32


class Cache:
    """Looks answers up in a store, and has what is missing computed, once for all equal requests.

    `model` is a digest of all that decides an answer beside the request; `counted` hears of each
    request whether it was a hit.
    """

    def __init__(self, model: str, store: Any, counted: Callable[[bool], None]) -> None:
        self.model, self.counted, self._store = model, counted, store
        self._flights: dict[str, asyncio.Task[Arrays]] = {}

    def key(self, *parts: bytes | str | np.ndarray) -> str:
        """The key of a request: a digest over the model and each part with its length, in order."""
        digest = hashlib.sha256()
        for part in (self.model, *parts):
            if isinstance(part, np.ndarray):
                digest.update(f"{part.dtype.str}{part.shape}".encode())
                part = np.ascontiguousarray(part).tobytes()
            content = part.encode() if isinstance(part, str) else part
            digest.update(struct.pack("<Q", len(content)) + content)
        return digest.hexdigest()

    async def get(
        self,
        key: str,
        compute: Callable[[], Awaitable[Arrays]],
        deadline: float,
        fits: Callable[[Arrays], bool],
    ) -> Arrays:
        """The answer under a key, computed where there is none that `fits`; failures are not kept.

        Whoever waits for an equal request that fails, or beyond the own deadline, computes for itself.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.create_task(self._looked_up(key, compute, fits))
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._landed(key, done))
            return await asyncio.shield(flight)
        try:
            async with asyncio.timeout(deadline - time.time()):
                value = await asyncio.shield(flight)
        except Exception:
            self.counted(False)
            return await compute()
        self.counted(True)
        return value

    def _landed(self, key: str, flight: asyncio.Task[Arrays]) -> None:
        del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # taken note of, also where nobody waits any more

    async def _looked_up(
        self, key: str, compute: Callable[[], Awaitable[Arrays]], fits: Callable[[Arrays], bool]
    ) -> Arrays:
        kept: Arrays | None = await self._store.read(key)
        hit = kept is not None and fits(kept)
        self.counted(hit)
        if kept is not None and hit:
            return kept
        value = {name: np.array(array) for name, array in (await compute()).items()}
        for array in value.values():
            array.flags.writeable = False  # several requests share it
        await self._store.write(key, value)
        return value


class Memory:
    """The answers used last, in this process: so many entries and bytes, each for so long."""

    def __init__(self, ttl_s: float, most_bytes: int, most_entries: int) -> None:
        self._ttl_s, self._most_bytes, self._most_entries = ttl_s, most_bytes, most_entries
        self._kept: OrderedDict[str, tuple[float, int, Arrays]] = OrderedDict()
        self.bytes = 0

    async def read(self, key: str) -> Arrays | None:
        until, _, value = self._kept.get(key, (0.0, 0, {}))
        if time.monotonic() >= until:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return value

    async def write(self, key: str, value: Arrays) -> None:
        """Keep a value; those not used for longest make room."""
        size = sum(array.nbytes for array in value.values()) + len(key)
        self._drop(key)
        if size <= self._most_bytes:
            self._kept[key] = (time.monotonic() + self._ttl_s, size, value)
            self.bytes += size
        while self.bytes > self._most_bytes or len(self._kept) > self._most_entries:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: str) -> None:
        self.bytes -= self._kept.pop(key, (0.0, 0, {}))[1]


class Redis:
    """Answers in a Redis. A call waits for `limit_s`; what failed is left alone for `rest_s`."""

    def __init__(
        self, url: str, ttl_s: float, most_bytes: int, limit_s: float = 0.05, rest_s: float = 2.0
    ) -> None:
        import redis.asyncio as client
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        times = dict.fromkeys(("timeout", "socket_timeout", "socket_connect_timeout"), limit_s)
        pool = client.BlockingConnectionPool.from_url(
            url, max_connections=_CONNECTIONS, retry=Retry(NoBackoff(), 0), **times
        )
        self._client = client.Redis.from_pool(pool)
        self._ttl_ms, self._most_bytes = max(1, int(ttl_s * 1000)), most_bytes
        self._limit_s, self._rest_s = limit_s, rest_s
        self._until: dict[str, float] = {}
        self._writes: set[asyncio.Task[Any]] = set()

    async def read(self, key: str) -> Arrays | None:
        content = await self._tried("reading", self._client.get, f"predictions:{key}")
        return None if content is None else unpacked(key, content)

    async def write(self, key: str, value: Arrays) -> None:
        """Begin to keep a value; left out where too many writes wait."""
        size = sum(array.nbytes for array in value.values())
        if size <= self._most_bytes and len(self._writes) < _MOST_WRITES:
            named, content = f"predictions:{key}", packed(key, value)
            call = self._tried("writing", self._client.set, named, content, px=self._ttl_ms)
            task = asyncio.create_task(call)
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)

    async def _tried(self, what: str, call: Any, *arguments: Any, **named: Any) -> Any:
        if time.monotonic() < self._until.get(what, 0.0):
            return None
        try:
            async with asyncio.timeout(self._limit_s):
                result = await call(*arguments, **named)
        except Exception as error:  # the client raises its own kinds, those of sockets, and others
            if what not in self._until:
                _log.warning("the cache is left out: %s failed (%s)", what, str(error) or type(error))
            self._until[what] = time.monotonic() + self._rest_s
            return None
        if self._until.pop(what, None) is not None:
            _log.warning("the cache is back: %s works", what)
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
    for array in value.values():
        array.flags.writeable = False
    return value if own == key else None


def opened(folder: Path, counted: Callable[[bool], None]) -> Cache | None:
    """The cache that the folder's `cache.json` describes; None where it is switched off."""
    about: dict[str, Any] = json.loads((folder / "cache.json").read_text(encoding="utf-8"))
    place, ttl_s, size = (
        os.environ.get("CACHE_URL") or about["place"],
        about["ttl_s"],
        about["most_bytes"],
    )
    if place == "off":
        return None
    if place == "memory":
        return Cache(about["model"], Memory(ttl_s, size, about["most_entries"]), counted)
    return Cache(about["model"], Redis(place, ttl_s, size, about["limit_s"]), counted)
