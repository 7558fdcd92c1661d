"""A cache of predictions by content: equal inputs of the same model are computed once.

`cache.json` beside this file says where answers are kept: `memory` (in this process) or a Redis that
several processes share (`redis://`, `rediss://` or `unix://`). A Redis that is slow, full or gone costs
the hits and nothing else. Nothing is pickled: values are arrays in NumPy's own format.

Needs NumPy, and redis for a Redis.
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
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np

FILE = "cache.json"
# An environment variable that takes the place of `place`: passwords belong into no file. A load test
# switches the cache off by it.
PLACE, OFF = "CACHE_URL", "off"
Arrays = Mapping[str, np.ndarray]
_log = logging.getLogger("cache")
_MUCH_BYTES = 1 << 20
_MAGIC = b"NPYS1"
_HEAD = struct.Struct("<5sI")  # magic, CRC-32 of what follows
_PART = struct.Struct("<I")


class Store(Protocol):
    """Where values are kept. Neither call raises for a store that does not answer."""

    async def read(self, key: str) -> Arrays | None:
        """What is kept under a key; None where nothing is, or where it cannot be had."""

    async def write(self, key: str, value: Arrays) -> None:
        """Keep a value, if that is possible."""

    async def close(self) -> None:
        """Let go of what is open."""


class Cache:
    """Looks values up, and has what is missing computed, once for all equal requests in flight.

    `hit` and `miss` are called once for each request. A request that waits for an equal one and gets
    its value is a hit. `model` is a digest of all that decides an answer beside the request. Of one
    event loop.
    """

    def __init__(
        self,
        model: str,
        store: Store,
        *,
        hit: Callable[[], None] = lambda: None,
        miss: Callable[[], None] = lambda: None,
    ) -> None:
        self.model, self.hit = model, hit
        self._store, self._miss = store, miss
        self._flights: dict[str, asyncio.Task[Arrays]] = {}

    def beside(self) -> Cache:
        """A cache of the same values that waits for no request of this one: those of one priority."""
        return Cache(self.model, self._store, hit=self.hit, miss=self._miss)

    def key(self, parts: Iterable[bytes | str | memoryview | np.ndarray]) -> str:
        """The key of a request: a digest over the model and every part with its length, in order.

        An array counts with its type and shape.
        """
        digest = hashlib.sha256()
        for part in (self.model, *parts):
            if isinstance(part, np.ndarray):
                head = f"{part.dtype.str}{part.shape}".encode()
                digest.update(_PART.pack(len(head)) + head)
                part = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
            part = part.encode() if isinstance(part, str) else part
            digest.update(struct.pack("<Q", len(part)))
            digest.update(part)
        return digest.hexdigest()

    async def key_of(self, parts: Sequence[bytes | str | memoryview | np.ndarray]) -> str:
        """The same; much content is digested in a thread, so that other requests go on meanwhile."""
        size = sum(part.nbytes if isinstance(part, np.ndarray) else len(part) for part in parts)
        return await asyncio.to_thread(self.key, parts) if size > _MUCH_BYTES else self.key(parts)

    async def get(
        self,
        key: str,
        compute: Callable[[], Awaitable[Arrays]],
        wait_s: float | None = None,
        fits: Callable[[Arrays], bool] = lambda value: True,
    ) -> Arrays:
        """The value of a key, read-only. Raises what `compute` raises; failures are not kept.

        What the store has is computed again where it does not fit (`fits`): others may write there.

        Whoever waits for an equal request that fails, or for longer than `wait_s`, computes for itself:
        that request may have another deadline. `compute` goes on when the request that began it is
        cancelled.
        """
        flight = self._flights.get(key)
        if flight is not None:
            try:
                async with asyncio.timeout(wait_s):
                    value = await asyncio.shield(flight)
            except asyncio.CancelledError:
                waiting = asyncio.current_task()
                if waiting is None or waiting.cancelling() or not flight.cancelled():
                    raise  # it is this request that was cancelled
            except Exception as error:
                _log.debug("an equal request failed or is slow (%s): computing again", error)
            else:
                self.hit()
                return value
            self._miss()
            return await compute()
        flight = asyncio.create_task(self._found_or_computed(key, compute, fits))
        self._flights[key] = flight
        flight.add_done_callback(lambda done: self._landed(key, done))
        return await asyncio.shield(flight)

    async def parts(
        self,
        feed: Arrays,
        compute: Callable[[], Awaitable[Sequence[Arrays]]],
        deadline: float,
        fits: Callable[[Arrays], bool],
    ) -> list[Arrays]:
        """The outputs for tensors by input name, as one part; `compute` gives them in several.

        `deadline` is in seconds since the epoch. `fits` is as in `get`.
        """

        async def joined() -> Arrays:
            parts = await compute()
            if len(parts) == 1:
                return parts[0]
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

        key = await self.key_of([part for item in sorted(feed.items()) for part in item])
        return [await self.get(key, joined, deadline - time.time(), fits)]

    async def close(self) -> None:
        """Let go of the store. Computations in flight go on."""
        await self._store.close()

    def _landed(self, key: str, flight: asyncio.Task[Arrays]) -> None:
        del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # taken note of, also where nobody waits any more

    async def _found_or_computed(
        self, key: str, compute: Callable[[], Awaitable[Arrays]], fits: Callable[[Arrays], bool]
    ) -> Arrays:
        value = await self._store.read(key)
        if value is not None and fits(value):
            self.hit()
            return value
        self._miss()
        value = frozen(await compute())
        await self._store.write(key, value)
        return value


def frozen(value: Arrays) -> dict[str, np.ndarray]:
    """Copies that nobody can change: several requests share them."""
    copies = {name: np.array(array) for name, array in value.items()}
    for array in copies.values():
        array.flags.writeable = False
    return copies


class Memory:
    """The values used last, in this process: so many entries, so many bytes, each for so long."""

    def __init__(
        self,
        *,
        ttl_s: float,
        most_bytes: int,
        most_entries: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl_s, self._most_bytes, self._most_entries = ttl_s, most_bytes, most_entries
        self._now = now
        self._kept: OrderedDict[str, tuple[float, int, Arrays]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    async def read(self, key: str) -> Arrays | None:
        """What is kept under a key."""
        entry = self._kept.get(key)
        if entry is None:
            return None
        until, _, value = entry
        if self._now() >= until:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return value

    async def write(self, key: str, value: Arrays) -> None:
        """Keep a value; those not used for longest make room. One larger than all room is not kept."""
        size = sum(array.nbytes for array in value.values()) + len(key)
        if key in self._kept:
            self._drop(key)
        if size > self._most_bytes:
            return
        self._kept[key] = (self._now() + self._ttl_s, size, value)
        self.bytes += size
        while self.bytes > self._most_bytes or len(self._kept) > self._most_entries:
            self._drop(next(iter(self._kept)))

    async def close(self) -> None:
        """Nothing is open."""

    def _drop(self, key: str) -> None:
        self.bytes -= self._kept.pop(key)[1]


class Redis:
    """Values in a Redis, which other processes share and which may be gone at any time.

    A call waits for `limit_s` at most. After a failure it is left alone for `rest_s`; one line of the
    log says so, and one that it is back. Writing waits for nobody, and at most 64 writes at once.
    """

    _MOST_WRITES = 64
    _CONNECTIONS = 32

    def __init__(
        self, url: str, *, ttl_s: float, most_bytes: int, limit_s: float = 0.05, rest_s: float = 2.0
    ) -> None:
        import redis.asyncio as client
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        pool = client.BlockingConnectionPool.from_url(
            url,
            max_connections=self._CONNECTIONS,
            timeout=limit_s,
            socket_timeout=limit_s,
            socket_connect_timeout=limit_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._client = client.Redis.from_pool(pool)
        self._ttl_ms, self._most_bytes = max(1, int(ttl_s * 1000)), most_bytes
        self._limit_s = limit_s
        shown = _without_password(url)
        self._reading = _Breaker(f"reading from {shown}", rest_s)
        self._writing = _Breaker(f"writing to {shown}", rest_s)
        self._writes: set[asyncio.Task[None]] = set()

    async def read(self, key: str) -> Arrays | None:
        """What is kept under a key; None where Redis does not answer in time."""
        if not self._reading.closed():
            return None
        try:
            async with asyncio.timeout(self._limit_s):
                content = await self._client.get(_named(key))
        except Exception as error:  # the client raises its own kinds, those of sockets, and others
            self._reading.failed(error)
            return None
        self._reading.worked()
        try:
            return None if content is None else unpacked(key, content)
        except Exception as error:  # anybody may have written anything there
            _log.debug("the cache holds something else under a key of ours: %s", error)
            return None

    async def write(self, key: str, value: Arrays) -> None:
        """Begin to keep a value; left out where Redis is full or gone, or too many writes wait."""
        size = sum(array.nbytes for array in value.values())
        if (
            size > self._most_bytes
            or len(self._writes) >= self._MOST_WRITES
            or not self._writing.closed()
        ):
            return
        task = asyncio.create_task(self._write(key, value))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self, key: str, value: Arrays) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                await self._client.set(_named(key), packed(key, value), px=self._ttl_ms)
        except Exception as error:  # the same
            self._writing.failed(error)
        else:
            self._writing.worked()

    async def close(self) -> None:
        """Wait for the writes, which have a time limit, and close the connections."""
        await asyncio.gather(*self._writes)
        await self._client.aclose()


class _Breaker:
    """Leaves alone for some time what failed, and says so once."""

    def __init__(self, what: str, rest_s: float) -> None:
        self._what, self._rest_s = what, rest_s
        self._until = 0.0
        self._is_down = False

    def closed(self) -> bool:
        """Whether to try. After a rest one call tries, and the others go on without."""
        now = time.monotonic()
        if now < self._until:
            return False
        if self._is_down:
            self._until = now + self._rest_s
        return True

    def failed(self, error: Exception) -> None:
        self._until = time.monotonic() + self._rest_s
        if not self._is_down:
            reason = str(error) or type(error).__name__
            _log.warning("the cache is left out: %s failed (%s)", self._what, reason)
        self._is_down = True

    def worked(self) -> None:
        if self._is_down:
            _log.warning("the cache is back: %s works", self._what)
        self._is_down, self._until = False, 0.0


def packed(key: str, value: Arrays) -> bytes:
    """A value as bytes: its key, then names and `.npy` contents by turns, behind a checksum."""
    parts = [key.encode()]
    for name, array in value.items():
        content = io.BytesIO()
        np.lib.format.write_array(content, np.asarray(array), allow_pickle=False)
        parts += [name.encode(), content.getvalue()]
    data = b"".join(_PART.pack(len(part)) + part for part in parts)
    return _HEAD.pack(_MAGIC, zlib.crc32(data)) + data


def unpacked(key: str, data: bytes) -> dict[str, np.ndarray]:
    """The arrays that `packed` made under this key, read-only. Raises ValueError for anything else."""
    if len(data) < _HEAD.size or data[:5] != _MAGIC:
        raise ValueError("these are no arrays of this cache")
    body = memoryview(data)[_HEAD.size :]
    if zlib.crc32(body) != _HEAD.unpack_from(data)[1]:
        raise ValueError("the checksum differs")
    parts, place = [], 0
    while place < len(body):
        (size,) = _PART.unpack_from(body, place)
        parts.append(body[place + 4 : place + 4 + size])
        place += 4 + size
    if not parts or parts[0] != key.encode():
        raise ValueError("the value is that of another key")
    arrays = {}
    for name, content in zip(parts[1::2], parts[2::2], strict=True):
        array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        array.flags.writeable = False
        arrays[str(name, "utf-8")] = array
    return arrays


def _named(key: str) -> str:
    return f"predictions:{key}"


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return (
        f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
    )


@dataclass(frozen=True)
class Settings:
    """What `cache.json` says. `model` is a digest of all that decides an answer beside the request."""

    model: str
    place: str
    ttl_s: float = 3600.0
    most_bytes: int = 256 * 1024 * 1024
    most_entries: int = 100_000
    limit_s: float = 0.05

    @classmethod
    def from_file(cls, path: Path) -> Settings:
        """As the file says. Raises OSError, ValueError and TypeError."""
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        content["place"] = os.environ.get(PLACE) or content["place"]
        if content.pop("schema", None) != 1:
            raise ValueError(f"{FILE} has another schema than 1")
        return cls(**content)


def opened(folder: Path, hit: Callable[[], None], miss: Callable[[], None]) -> Cache | None:
    """The cache that the folder's `cache.json` describes; None where it is switched off.

    Raises as `Settings.from_file`.
    """
    if os.environ.get(PLACE) == OFF:
        return None
    settings = Settings.from_file(folder / FILE)
    ttl_s, most_bytes = settings.ttl_s, settings.most_bytes
    store: Store
    if settings.place == "memory":
        store = Memory(ttl_s=ttl_s, most_bytes=most_bytes, most_entries=settings.most_entries)
    else:
        store = Redis(settings.place, ttl_s=ttl_s, most_bytes=most_bytes, limit_s=settings.limit_s)
    return Cache(settings.model, store, hit=hit, miss=miss)
