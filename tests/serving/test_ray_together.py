"""Rows that arrive at the same time go to a replica in one call; a full lane reads no request."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import sys
import time
from types import SimpleNamespace

import pytest
from copied_modules import load

from optcli.serving.deploy import ray_bundle

pytestmark = pytest.mark.slow

together = load("together")


class Replica:
    """Answers calls when `free` is set; `calls` has the rows of each."""

    def __init__(self, failing: Exception | None = None) -> None:
        self.calls: list[list[int]] = []
        self.cancelled: list[list[int]] = []
        self.free = asyncio.Event()
        self.failing = failing

    def ask(self, rows):
        self.calls.append([feed["row"] for feed, _ in rows])
        return Response(self, self.calls[-1])


class Response:
    def __init__(self, replica, rows):
        self.replica, self.rows = replica, rows

    def cancel(self):
        self.replica.cancelled.append(self.rows)

    def __await__(self):
        return self._answer().__await__()

    async def _answer(self):
        await self.replica.free.wait()
        if self.replica.failing:
            raise self.replica.failing
        return [10 * row for row in self.rows]


def row(number):
    return {"row": number}, 1e12


def started(gathering, numbers):
    return [asyncio.ensure_future(gathering.result(row(number))) for number in numbers]


async def rounds(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


def test_what_comes_at_once_goes_in_calls_of_the_largest_batch():
    async def scene():
        replica = Replica()
        gathering = together.Together(replica.ask, 4, lambda: 8)
        replica.free.set()
        assert await asyncio.gather(*started(gathering, range(6))) == [0, 10, 20, 30, 40, 50]
        assert replica.calls == [[0, 1, 2, 3], [4, 5]]

    asyncio.run(scene())


def test_a_row_does_not_wait_for_others():
    async def scene():
        replica = Replica()
        gathering = together.Together(replica.ask, 4, lambda: 8)
        (first,) = started(gathering, [1])
        await rounds()
        assert replica.calls == [[1]]
        (second,) = started(gathering, [2])  # while the first is computed
        await rounds()
        assert replica.calls == [[1], [2]]
        replica.free.set()
        assert await asyncio.gather(first, second) == [10, 20]

    asyncio.run(scene())


def test_rows_wait_for_each_other_while_the_replicas_have_enough_to_do():
    async def scene():
        replica, away = Replica(), 8
        gathering = together.Together(replica.ask, 4, lambda: away)
        busy = started(gathering, range(7))
        await rounds()
        assert replica.calls == [[0, 1, 2, 3], [4, 5, 6]]
        waiting = started(gathering, range(7, 9))
        await rounds()
        waiting += started(gathering, range(9, 12))
        await rounds()
        assert len(replica.calls) == 2  # one place is free, which two of them would not fit in
        waiting.pop(1).cancel()
        replica.free.set()
        assert await asyncio.gather(*busy) == [10 * row for row in range(7)]
        assert await asyncio.gather(*waiting) == [70, 90, 100, 110]
        assert replica.calls[2:] == [[7, 9, 10, 11]]
        # With one more replica as much again goes at once; and never less than a call.
        replica.free.clear()
        away, before = 16, len(replica.calls)
        busy = started(gathering, range(17))
        await rounds()
        assert [len(call) for call in replica.calls[before:]] == [4] * 4
        replica.free.set()
        assert len(await asyncio.gather(*busy)) == 17
        replica.free.clear()
        away, before = 0, len(replica.calls)
        busy = started(gathering, range(6))
        await rounds()
        assert [len(call) for call in replica.calls[before:]] == [4]
        replica.free.set()
        assert len(await asyncio.gather(*busy)) == 6

    asyncio.run(scene())


def test_rows_that_wait_are_sent_after_a_call_that_failed():
    async def scene():
        replica = Replica(failing=ConnectionError("the replica is gone"))
        gathering = together.Together(replica.ask, 4, lambda: 4)
        lost = started(gathering, range(4))
        await rounds()
        waiting = started(gathering, range(4, 6))
        await rounds()
        assert replica.calls == [[0, 1, 2, 3]]
        replica.free.set()
        results = await asyncio.gather(*lost, *waiting, return_exceptions=True)
        assert [str(each) for each in results] == ["the replica is gone"] * 6
        assert replica.calls == [[0, 1, 2, 3], [4, 5]]

    asyncio.run(scene())


def test_a_replica_that_hangs_keeps_no_place_of_rows_that_nobody_waits_for():
    async def scene():
        replica = Replica()  # being cancelled does not end its calls
        gathering = together.Together(replica.ask, 4, lambda: 4)
        hanging = started(gathering, range(4))
        await rounds()
        waiting = started(gathering, range(4, 6))
        await rounds()
        for request in hanging:
            request.cancel()
        await rounds()
        assert replica.cancelled == [[0, 1, 2, 3]]
        assert replica.calls == [[0, 1, 2, 3], [4, 5]]
        replica.free.set()  # what then ends after all is not counted twice
        assert await asyncio.gather(*waiting) == [40, 50]
        replica.free.clear()
        more = started(gathering, range(8))
        await rounds()
        assert replica.calls[2:] == [[0, 1, 2, 3]]
        replica.free.set()
        assert len(await asyncio.gather(*more)) == 8

    asyncio.run(scene())


def test_every_row_of_a_failed_call_fails_alike():
    async def scene():
        replica = Replica(failing=ConnectionError("the replica is gone"))
        replica.free.set()
        gathering = together.Together(replica.ask, 4, lambda: 8)
        results = await asyncio.gather(*started(gathering, range(3)), return_exceptions=True)
        assert [str(each) for each in results] == ["the replica is gone"] * 3
        assert replica.calls == [[0, 1, 2]]

    asyncio.run(scene())


def test_a_call_that_cannot_be_made_fails_at_once():
    def ask(rows):
        raise ConnectionError("there is no way to a replica")

    async def scene():
        result = together.Together(ask, 4, lambda: 8).result(row(1))
        with pytest.raises(ConnectionError, match="no way to a replica"):
            await asyncio.wait_for(result, 10)

    asyncio.run(scene())


def test_a_row_that_was_given_up_is_not_sent():
    async def scene():
        replica = Replica()
        gathering = together.Together(replica.ask, 4, lambda: 8)
        requests = started(gathering, range(2))
        await asyncio.sleep(0)  # both wait, and nothing is sent yet
        requests[0].cancel()
        replica.free.set()
        assert await requests[1] == 10
        assert replica.calls == [[1]]

    asyncio.run(scene())


def test_a_call_is_cancelled_where_nobody_waits_for_any_of_its_rows():
    async def scene():
        replica = Replica()
        gathering = together.Together(replica.ask, 4, lambda: 8)
        requests = started(gathering, range(2))
        await rounds()
        requests[0].cancel()
        await rounds()
        assert replica.cancelled == []  # the other one still waits
        requests[1].cancel()
        await rounds()
        assert replica.cancelled == [[0, 1]]
        replica.free.set()
        await rounds()

    asyncio.run(scene())


class Handle:
    """Of a deployment that is not asked."""

    infer = infer_rows = SimpleNamespace(remote=None)


@pytest.fixture
def lanes(monkeypatch):
    """The module `lanes` of a bundle, and `oip`, imported as they are there."""
    names = ("lanes", "admission", "metrics", "oip", "together", "priorities")
    monkeypatch.syspath_prepend(str(ray_bundle.FILES))
    pytest.importorskip("ray.serve", reason="lanes call replicas through Ray Serve")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("lanes"), importlib.import_module("oip")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)


def about(name):
    return {
        "name": name,
        "deployment": name or "Model",
        "largest_batch": 4,
        "most_in_flight": 1,
        "shared_calls": True,
        "deadline_ms": 100.0,
        "instances": 1,
        "concurrency": 1,
        "slo_ms": {"p95": 50.0},
    }


@pytest.mark.parametrize("names", [("",), ("high", "low")])
def test_a_lane_is_full_unless_answers_are_kept(lanes, names):
    module, oip = lanes
    metrics = module.Metrics([about(name) for name in names])
    bundle = {**about(""), "priorities": [about(name) for name in names if name]}
    every = module.Lanes(bundle, [Handle() for _ in names], metrics)
    first = every.known(names[0] or None)
    assert first is every.every[0]
    assert not first.full

    async def scene():
        with first.admission.admitted():
            assert first.full
            with pytest.raises(oip.Refused) as caught:
                first.admission.require_room()
            assert caught.value.cause == "queue_full"
            first.cache = object()
            assert not first.full  # the answer may be kept
            first.cache = None

    asyncio.run(scene())
    assert not first.full


def test_the_lane_is_known_before_a_request_is_read_where_its_header_names_it(lanes):
    module, _ = lanes
    high, low = about("high"), about("low")
    metrics = module.Metrics([high, low])
    every = module.Lanes({**about(""), "priorities": [high, low]}, [Handle(), Handle()], metrics)
    assert every.known("low") is every.every[1]
    assert every.known(None) is None  # its body may name either
    assert every.known("no such lane") is None  # it is refused once the request is read


@pytest.mark.parametrize(
    ("rows", "largest", "shared", "calls"),
    [
        (1, 4, True, ["infer_rows"] * 2),
        (1, 1, True, ["infer"] * 4),
        (3, 4, True, ["infer"] * 4),
        (1, 4, False, ["infer"] * 5),  # with autoscaling
    ],
)
def test_single_rows_of_a_batching_lane_share_calls(lanes, rows, largest, shared, calls):
    module, _ = lanes
    made = []

    async def infer(feed, rows, deadline):
        made.append("infer")
        return result(feed)

    async def infer_rows(sent):
        made.append("infer_rows")
        return [result(feed) for feed, _ in sent]

    def result(feed):
        times = dict.fromkeys(("arrived", "sealed", "start", "end"), 0.0)
        return {**times, "outputs": feed, "failed": None}

    handle = SimpleNamespace(
        infer=SimpleNamespace(remote=lambda *sent: asyncio.ensure_future(infer(*sent))),
        infer_rows=SimpleNamespace(remote=lambda sent: asyncio.ensure_future(infer_rows(sent))),
    )
    described = {**about(""), "largest_batch": largest, "shared_calls": shared}
    lane = module.Lane(described, handle, module.Metrics([described]))

    async def scene():
        feeds = [{"image": number} for number in range(4)]
        asked = [
            SimpleNamespace(feed=feed, rows=rows, parts=lambda _, f=feed: [(f, rows)]) for feed in feeds
        ]
        if largest > rows == 1:  # one more than fits a call
            feeds, asked = [*feeds, feeds[0]], [*asked, asked[0]]
        answers = await asyncio.gather(*(lane.computed(each, time.time() + 60) for each in asked))
        assert answers == [[feed] for feed in feeds]

    asyncio.run(scene())
    assert made == calls


def test_a_lane_gives_its_replicas_what_they_compute_and_as_much_to_go_on_with(lanes):
    module, _ = lanes
    described = {**about(""), "instances": 3, "concurrency": 2, "most_in_flight": 90}
    lane = module.Lane(described, Handle(), module.Metrics([described]))
    assert lane.may_be_away() == 2 * 3 * 2 * 4  # as planned, until Ray has said how many there are
    lane.replicas = 1
    assert lane.may_be_away() == 2 * 2 * 4


def test_a_lane_admits_by_its_own_plan_and_the_common_promise(lanes):
    module, _ = lanes
    high, low = {**about("high"), "most_in_flight": 40}, {**about("low"), "most_in_flight": 80}
    for each in (high, low):
        del each["slo_ms"], each["concurrency"]
    bundle = {**about(""), "concurrency": 2, "priorities": [high, low]}
    described = module.about(bundle)
    every = module.Lanes(bundle, [Handle(), Handle()], module.Metrics(described)).every
    assert [lane.admission.most for lane in every] == [40, 80]

    async def scene():
        # Each takes longer than the 50 ms that were promised.
        for lane in every:
            for _ in range(2):
                with lane.admission.admitted():
                    await asyncio.sleep(0.06)
        waiting = [every[0].admission.admitted() for _ in range(8)]
        for each in waiting:
            each.__enter__()
        await asyncio.sleep(0.06)
        for each in waiting:
            each.__exit__(None, None, None)

    asyncio.run(scene())
    assert [lane.admission.most for lane in every] == [36, 80]


def test_ray_is_asked_for_replicas_where_no_answer_shows_that_there_is_one(lanes):
    module, oip = lanes
    times = dict.fromkeys(("arrived", "sealed", "start", "end"), 0.0)
    good = {**times, "outputs": {}, "failed": None}

    async def infer(feed, rows, deadline):
        if isinstance(feed["now"], BaseException):
            raise feed["now"]
        return feed["now"]

    remote = SimpleNamespace(remote=lambda *sent: asyncio.ensure_future(infer(*sent)))
    handle = SimpleNamespace(infer=remote, infer_rows=remote)
    named = [{**about(name), "largest_batch": 1} for name in ("high", "low")]
    bundle = {**about(""), "priorities": named}
    every = module.Lanes(bundle, [handle, handle], module.Metrics(named))
    high, low = every.every

    def call(lane, now):
        feed = {"now": now}
        asked = SimpleNamespace(feed=feed, rows=1, parts=lambda _: [(feed, 1)])
        return asyncio.run(lane.computed(asked, time.time() + 60))

    assert every.in_doubt()  # nothing is known yet
    call(high, good)
    assert every.in_doubt()  # nothing of the other one
    call(high, good)
    call(low, good)
    assert not every.in_doubt()
    assert every.in_doubt()  # no answer since then
    for failure in (TimeoutError(), module.RayServeException("gone")):
        call(high, good)
        with pytest.raises(oip.Refused):
            call(low, failure)
        call(low, good)
        assert every.in_doubt()
    call(high, good)
    call(low, good)
    with pytest.raises(asyncio.CancelledError):
        call(low, asyncio.CancelledError())  # the client went away
    assert not every.in_doubt()
    # The number of replicas may have changed while all calls had answers.
    asked_at = []
    for look in range(20):
        call(high, good)
        call(low, good)
        if every.in_doubt():
            asked_at.append(look)
    assert len(asked_at) == 4
    assert {after - before for before, after in itertools.pairwise(asked_at)} == {5}
