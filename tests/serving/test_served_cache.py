"""A bundle's `cache.py`: in process, and in a real Redis that fails."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import signal
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from copied_modules import load
from needs import needs
from redis_server import RedisServer

cache = load("cache")
ROW = np.arange(6, dtype=np.float32).reshape(2, 3)


class Counted:
    """A cache whose hits, misses and computations are counted."""

    def __init__(self, store: Any, model: str = "digest") -> None:
        self.counts: Counter[str] = Counter()
        self.cache = cache.Cache(model, store, self.counter("hit"), self.counter("miss"))

    def counter(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(inc=lambda: self.counts.update([name]))

    async def get(self, *parts: Any, value: Any = None, within: float = 0.0) -> Any:
        """The value of a request; computing takes a moment."""

        async def compute() -> dict[str, np.ndarray]:
            self.counts["computed"] += 1
            await asyncio.sleep(within)
            if isinstance(value, Exception):
                raise value
            return {"out": np.array(self.counts["computed"] if value is None else value)}

        key = self.cache.key(*parts)
        return await self.cache.get(key, compute)


def memory(**options: Any) -> Any:
    return cache.Memory(**{"ttl_s": 60.0, "most_bytes": 100_000, **options})


def finished(coroutine: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await coroutine

    asyncio.run(limited())


# --- keys -------------------------------------------------------------------------------------------


def test_a_key_holds_everything_that_decides_an_answer() -> None:
    keys = [
        Counted(None, model).cache.key(*parts)
        for model, parts in [
            ("digest", [ROW]),
            ("other model", [ROW]),
            ("digest", [ROW.reshape(3, 2)]),
            ("digest", [ROW.astype(np.float64)]),
            ("digest", [ROW.view(np.int32)]),
            ("digest", [ROW + 1]),
            ("digest", [ROW, b""]),
            ("digest", ["image", ROW]),
            ("digest", ["im", "age", ROW]),
            ("digest", [b"ab", b"c"]),
            ("digest", [b"a", b"bc"]),
            ("digest", []),
        ]
    ]
    assert len(set(keys)) == len(keys)
    own = Counted(None).cache
    assert own.key(ROW) == own.key(np.asfortranarray(ROW)) == own.key(ROW.copy())
    assert own.key(b"abc") == own.key("abc")
    assert own.key(np.zeros(0, np.float32)) != own.key(np.zeros((0, 2), np.float32))


# --- in process -------------------------------------------------------------------------------------


def test_equal_requests_are_computed_once() -> None:
    async def body() -> None:
        one = Counted(memory())
        first = await one.get(ROW)
        again = await one.get(ROW.copy())
        other = await one.get(ROW + 1)
        assert first["out"] == again["out"] == 1
        assert other["out"] == 2
        assert one.counts == {"computed": 2, "miss": 2, "hit": 1}

    finished(body())


def test_nobody_can_change_what_is_kept() -> None:
    async def body() -> None:
        one = Counted(memory())
        answer = np.array([1.0, 2.0])
        await one.get(ROW, value=answer)
        answer[0] = 9
        assert (await one.get(ROW))["out"].tolist() == [1, 2]

    finished(body())


def test_what_was_not_used_for_longest_makes_room() -> None:
    async def body() -> None:
        size = 80 + 1024
        store = memory(most_bytes=3 * size)
        value = {"out": np.zeros(10)}
        for name in "abc":
            await store.write(name, value)
        assert await store.read("a") is not None
        await store.write("d", value)
        assert [await store.read(name) is not None for name in "abcd"] == [True, False, True, True]
        assert (len(store._kept), store.bytes) == (3, 3 * size)
        await store.write("d", {"out": np.zeros(20)})  # larger: what was not used for longest goes
        assert (len(store._kept), store.bytes) == (2, 2 * size + 80)
        await store.write("e", {"out": np.zeros(5000)})  # larger than all room
        assert await store.read("e") is None

    finished(body())


def test_values_get_old(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    async def body() -> None:
        store = memory(ttl_s=10.0)
        await store.write("a", {"out": ROW})
        clock[0] = 9.9
        assert await store.read("a") is not None
        clock[0] = 10.0
        assert await store.read("a") is None
        assert store.bytes == 0

    with monkeypatch.context() as patch:
        patch.setattr(cache, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        finished(body())


def test_a_failure_is_not_kept() -> None:
    async def body() -> None:
        one = Counted(memory())
        with pytest.raises(TimeoutError, match="past its deadline"):
            await one.get(ROW, value=TimeoutError("past its deadline"))
        assert (await one.get(ROW))["out"] == 2
        assert one.counts == {"computed": 2, "miss": 2}

    finished(body())


# --- what goes over the wire ------------------------------------------------------------------------


def test_values_survive_and_need_no_pickle() -> None:
    value = {
        "logits": ROW,
        "ünder": np.array(3, np.int64),
        "half": np.zeros((0, 4), np.float16),
        "flags": np.array([[True], [False]]),
        "turned": np.asfortranarray(ROW),
    }
    back = cache.unpacked(cache.packed(value))
    assert list(back) == list(value)
    for name, array in value.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)
    with pytest.raises(ValueError, match="allow_pickle"):
        cache.packed({"bad": np.array([{}], object)})


def test_anything_else_is_no_value() -> None:
    sound = cache.packed({"logits": ROW})
    changed = bytearray(sound)
    changed[sound.index(ROW.tobytes())] ^= 1
    pickled = pickle.dumps({"a": 1})
    for data in (b"", b"x", sound[:-1], bytes(changed), b"X" + sound[1:], pickled):
        assert cache.unpacked(data) is None
    assert cache.unpacked(sound)["logits"].tolist() == ROW.tolist()


# --- a real Redis -----------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    needs("redis-server")
    one = RedisServer(tmp_path_factory.mktemp("redis"))
    one.start()
    yield one
    one.kill()


# No machine is so busy that a sound Redis takes longer.
CALM = {"rest_s": 0.1, "limit_s": 20.0}


def redis(server: RedisServer, **options: Any) -> Any:
    store = cache.Redis(server.url, options.pop("ttl_s", 60.0), options.pop("most_bytes", 100_000))
    for name, value in {**CALM, **options}.items():
        setattr(store, name, value)
    return store


async def until(true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")


def test_two_processes_share_a_redis(server: RedisServer) -> None:
    async def body() -> None:
        one, two = Counted(redis(server)), Counted(redis(server))
        assert (await one.get(ROW, value=7))["out"] == 7
        assert (await two.get(ROW, value=8))["out"] == 7
        assert (two.counts, one.counts) == ({"hit": 1}, {"computed": 1, "miss": 1})
        other = Counted(redis(server), model="another model")
        assert (await other.get(ROW, value=8))["out"] == 8

    finished(body())


def test_values_in_redis_get_old(server: RedisServer) -> None:
    async def body() -> None:
        one = Counted(redis(server, ttl_s=30.5))
        await one.get(ROW)
        left = await one.cache._store._client.pttl(f"predictions:{one.cache.key(ROW)}")
        assert 0 < left <= 30_500

    finished(body())


def test_a_redis_that_dies_costs_the_hits_and_comes_back(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        one = Counted(redis(server))
        await one.get(ROW)
        assert (await one.get(ROW))["out"] == 1
        server.kill()
        for number in range(2, 40):
            assert (await one.get(ROW))["out"] == number
            await asyncio.sleep(0.01)  # several rests: each tries again, and says nothing more
        said = [each.message for each in caplog.records if each.name == "cache"]
        assert len(said) == 2
        assert said[0].startswith("the cache is left out: reading failed")
        assert said[1].startswith("the cache is left out: writing failed")
        server.start()
        for _ in range(1000):
            hits = one.counts["hit"]
            await one.get(ROW)
            if one.counts["hit"] > hits:
                break
            await asyncio.sleep(0.01)
        assert one.counts["hit"] > 1
        assert one.counts["hit"] + one.counts["miss"] == one.counts["computed"] + one.counts["hit"]

    with caplog.at_level(logging.WARNING, "cache"):
        finished(body())


def test_a_redis_that_stands_still_costs_its_time_limit_once(server: RedisServer) -> None:
    async def body() -> None:
        one = Counted(redis(server, limit_s=0.1, rest_s=60.0))
        await one.get(ROW)
        server.signal(signal.SIGSTOP)
        try:
            for number in range(2, 30):
                assert (await one.get(ROW))["out"] == number
        finally:
            server.signal(signal.SIGCONT)
        # All were answered while it stood still. It was asked once: the rest is longer than the test.
        assert "reading" in one.cache._store._until
        assert one.counts["hit"] == 0

    finished(body())


def test_a_late_answer_is_never_taken_for_another_request(server: RedisServer) -> None:
    async def body() -> None:
        one = Counted(redis(server, limit_s=0.1, rest_s=0.0))
        for value in range(40):
            await one.get(ROW + value, value=value)
        for turn in range(3):
            server.signal(signal.SIGSTOP)
            late = [one.get(ROW + value, value=value) for value in range(20)]
            assert [int(each["out"]) for each in await asyncio.gather(*late)] == list(range(20))
            server.signal(signal.SIGCONT)
            soon = [one.get(ROW + value, value=value) for value in range(20, 40)]
            assert [int(each["out"]) for each in await asyncio.gather(*soon)] == list(range(20, 40)), (
                turn
            )

    finished(body())


def test_a_full_redis_still_gives_what_it_has(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        one = Counted(redis(server, rest_s=60.0))
        await one.get(ROW, value=1)
        client = one.cache._store._client
        await client.config_set("maxmemory-policy", "noeviction")
        await client.config_set("maxmemory", "1")
        for value in range(5):
            assert (await one.get(ROW + 1, value=value))["out"] == value
        assert (await one.get(ROW, value=9))["out"] == 1
        said = [each.message for each in caplog.records if each.name == "cache"]
        assert len(said) == 1
        assert "writing failed" in said[0]

    with caplog.at_level(logging.WARNING, "cache"):
        finished(body())


def test_what_others_wrote_into_redis_is_no_answer(server: RedisServer) -> None:
    async def body() -> None:
        one = Counted(redis(server))
        key = f"predictions:{one.cache.key(ROW)}"
        client = one.cache._store._client
        for content in (b"", pickle.dumps({"out": 666}), b"PK\x03\x04"):
            await client.set(key, content)
            assert (await one.get(ROW, value=3))["out"] == 3
            assert (await one.get(ROW, value=4))["out"] == 3  # ours took its place
        await client.delete(key)
        await client.rpush(key, "a", "list")
        assert (await one.get(ROW, value=5))["out"] == 5

    finished(body())


def test_large_values_stay_out_of_redis(server: RedisServer) -> None:
    async def body() -> None:
        one = Counted(redis(server, most_bytes=1000))
        await one.get(ROW, value=np.zeros(1000))
        assert await one.cache._store._client.dbsize() == 0

    finished(body())


def test_many_requests_share_few_connections(server: RedisServer) -> None:
    async def body() -> None:
        one = Counted(redis(server))
        answers = await asyncio.gather(*(one.get(ROW + value, value=value) for value in range(300)))
        assert [int(each["out"]) for each in answers] == list(range(300))

    finished(body())


def test_nobody_is_there(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

        async def body() -> None:
            store = cache.Redis(f"redis://ann:secret@127.0.0.1:{port}/2", ttl_s=1.0, most_bytes=1000)
            one = Counted(store)
            for number in range(1, 4):
                assert (await one.get(ROW))["out"] == number

        with caplog.at_level(logging.WARNING, "cache"):
            finished(body())
    said = " ".join(each.message for each in caplog.records if each.name == "cache")
    assert "reading failed" in said
    assert "secret" not in said


# --- settings ---------------------------------------------------------------------------------------


def test_a_cache_is_opened_as_its_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"model": "m", "place": "memory", "most_bytes": 1100, "ttl_s": 60.0}
    (tmp_path / "cache.json").write_text(json.dumps(about))
    counts: Counter[str] = Counter()

    def counter(kind: object, name: str, about: str) -> SimpleNamespace:
        return SimpleNamespace(inc=lambda: counts.update([name]))

    async def compute(request: SimpleNamespace, deadline: float) -> dict[str, np.ndarray]:
        return {"out": ROW}

    def server() -> SimpleNamespace:
        made = SimpleNamespace(metrics=SimpleNamespace(of=counter), outputs=compute, cache=None)
        cache.extend(made, tmp_path)
        return made

    async def body() -> None:
        one = server()
        for value in (1.0, 2.0, 2.0, 1.0):
            await one.outputs(SimpleNamespace(feed={"x": np.array([value])}), 0.0)
        assert counts == {"cache_misses": 3, "cache_hits": 1}

    finished(body())
    monkeypatch.setenv("CACHE_URL", "off")
    assert server().cache is None
    monkeypatch.setenv("CACHE_URL", "redis://:secret@elsewhere")
    assert isinstance(server().cache._store, cache.Redis)
