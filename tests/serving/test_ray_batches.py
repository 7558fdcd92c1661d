"""What a bundle's replica and ingress decide, without Ray: waits, who is computed, who is admitted."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from optcli.serving.deploy import ray_bundle

NAMES = ("admission", "batches", "metrics", "oip", "priorities")
BUNDLE = {
    "model": "small",
    "platform": "onnxruntime_onnx",
    "class_scores": None,
    "batched": True,
    "inputs": [
        {
            "name": "image",
            "datatype": "FP32",
            "dtype": "float32",
            "shape": [-1, 2],
            "least": [1, 2],
            "most": [8, 2],
            "usual": [1, 2],
        }
    ],
    "outputs": [{"name": "sums", "datatype": "FP32", "shape": [-1, 1]}],
}


@pytest.fixture
def copied(monkeypatch) -> Iterator[dict[str, ModuleType]]:
    """The modules of a bundle, imported as they are there."""
    monkeypatch.syspath_prepend(str(ray_bundle.FILES))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)


class Sums:
    """A model that remembers the numbers of rows that it computed."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def run(self, feed):
        self.rows.append(len(feed["image"]))
        return {"sums": feed["image"].sum(1, keepdims=True)}


def batches(copied, **config):
    model = Sums()
    made = copied["batches"].Batches(model, BUNDLE)
    made.configure({"max_batch_size": 4, "batch_wait_timeout_s": 0.05, "adaptive_wait": True, **config})
    return made, model


def test_every_batch_that_will_occur_is_warmed_up_once(copied):
    made, model = batches(copied)
    assert set(model.rows) == {1, 2, 3, 4}
    model.rows.clear()
    made.configure({"max_batch_size": 5, "batch_wait_timeout_s": 0.05, "adaptive_wait": True})
    assert set(model.rows) == {5}
    made.configure({"max_batch_size": 3, "batch_wait_timeout_s": 0.05, "adaptive_wait": True})
    assert set(model.rows) == {5}


@pytest.mark.parametrize(("gap", "wait"), [(0.03, 0.0), (0.015, 0.05)])
def test_no_batch_is_waited_for_while_single_rows_take_less_than_half_of_the_time(copied, gap, wait):
    made, _ = batches(copied)
    made.single_s = 0.01
    for turn in range(100):
        waits = made.arrives(turn * gap)
        made.leaves()
    assert waits == wait


def test_a_batch_is_waited_for_where_others_wait(copied):
    made, _ = batches(copied)
    made.single_s = 0.01
    for turn in range(100):
        made.arrives(turn)
        made.leaves()
    # One is computed, one waits for it; a third one finds that the replica is behind.
    assert [made.arrives(turn) for turn in range(100, 103)] == [0.0, 0.0, 0.05]


def test_a_fixed_wait_is_kept(copied):
    made, _ = batches(copied, adaptive_wait=False)
    made.single_s = 0.01
    for turn in range(50):
        assert made.arrives(turn) == 0.05
        made.leaves()


def test_rows_go_back_to_who_sent_them_and_the_late_are_left_out(copied):
    made, model = batches(copied)
    model.rows.clear()
    item = copied["batches"].Item
    feeds = [np.full((rows, 2), rows, np.float32) for rows in (1, 2, 3, 1)]
    far = 1e12
    items = [item({"image": feed}, len(feed), far, 0.0) for feed in feeds]
    items[1].deadline = 0.0
    items[2].cancelled = True
    results = made.call(items, 1.0, "here")
    assert model.rows == [2]
    assert [None if each["outputs"] is None else len(each["outputs"]["sums"]) for each in results] == [
        1,
        None,
        None,
        1,
    ]
    assert results[0]["rows"] == 2
    assert [("usage" in each) for each in results] == [True, False, False, False]
    assert made.call(items[1:3], 1.0, "here")[0]["rows"] == 0
    assert model.rows == [2]


def test_an_input_that_the_model_cannot_take_costs_its_own_request_alone(copied):
    made, model = batches(copied)
    compute = model.run

    def run(feed):
        if (feed["image"] == 13).any():
            raise IndexError("13 is no token\nof this model")
        return compute(feed)

    model.run = run
    model.rows.clear()
    item = copied["batches"].Item
    feeds = [np.full((1, 2), value, np.float32) for value in (1, 13, 3)]
    results = made.call([item({"image": feed}, 1, 1e12, 0.0) for feed in feeds], 1.0, "here")
    assert [each["failed"] for each in results] == [None, "13 is no token", None]
    sums = [None if each["outputs"] is None else each["outputs"]["sums"].item() for each in results]
    assert sums == [2, None, 6]
    assert results[0]["rows"] == 2
    (alone,) = made.call([item({"image": feeds[1]}, 1, 1e12, 0.0)], 1.0, "here")
    assert (alone["failed"], alone["outputs"], alone["rows"]) == ("13 is no token", None, 0)


def test_inputs_of_other_sizes_are_a_batch_of_their_own(copied):
    made, model = batches(copied)
    model.rows.clear()
    item = copied["batches"].Item
    sizes = (2, 3, 2, 5, 3)
    feeds = [np.full((1, size), place, np.float32) for place, size in enumerate(sizes)]
    results = made.call([item({"image": feed}, 1, 1e12, 0.0) for feed in feeds], 1.0, "here")
    assert [each["outputs"]["sums"].item() for each in results] == [
        place * size for place, size in enumerate(sizes)
    ]
    assert sorted(model.rows) == [1, 2, 2]
    assert results[0]["rows"] == 5
    # By name, whatever the order in which a request has its inputs.
    two, other = np.zeros((1, 2), np.float32), np.zeros((1, 4), np.float32)
    one = item({"image": two, "more": other}, 1, 1e12, 0.0)
    turned = item({"more": other, "image": two}, 1, 1e12, 0.0)
    model.rows.clear()
    assert all(each["outputs"] is not None for each in made.call([one, turned], 1.0, "here"))
    assert model.rows == [2]


def test_admission_counts_those_inside(copied):
    bound, refused = copied["admission"].Bound(2), copied["oip"].Refused
    admission = copied["admission"].Admission(bound, 0.3)

    async def ask():
        with admission.admitted():
            with pytest.raises(ZeroDivisionError), admission.admitted():
                1 / 0  # noqa: B018
            with admission.admitted():
                with pytest.raises(refused) as caught, admission.admitted():
                    pass
                assert (caught.value.status, caught.value.cause) == (429, "queue_full")
                assert caught.value.headers == {"retry-after": "1"}

    asyncio.run(ask())
    assert admission.inside == 0


class Server:
    """Answers `per_s` requests a second, each after those inside; `bound` says how many these are."""

    def __init__(self, bound, per_s, begins=0.0):
        self.bound, self.each_s, self.now = bound, 1 / per_s, begins
        self.begun, self.took = [], []

    def run(self, seconds, *, unread_s=0.0):
        """Be full for a while; what the answers took."""
        until, self.took = self.now + seconds, []
        while self.now < until:
            self.begun += [self.now] * (self.bound.at(self.now) - len(self.begun))
            self.now += self.each_s
            if self.begun:
                begun = self.begun.pop(0)
                self.took.append(unread_s + self.now - begun)
                self.bound.answered(begun, self.now, unread_s)
        return np.array(self.took)


def test_a_server_that_is_slower_than_planned_admits_fewer(copied):
    bound = copied["admission"].Bound(60, 4, {0.95: 0.15})
    server = Server(bound, 300)
    took = server.run(30.0)
    assert took[:80].max() > 0.18
    late = took[len(took) // 2 :]
    assert np.mean(late > 0.15) < 0.05
    # 0.95 of the promise is used: 43 requests of 60.
    assert 33 < bound.at(server.now) <= 43
    # Half of the time passes before requests are read: half as many may be inside.
    took = server.run(30.0, unread_s=0.075)
    assert np.mean(took[len(took) // 2 :] > 0.15) < 0.05
    assert 14 < bound.at(server.now) <= 21


def test_the_bound_is_the_planned_one_while_the_promise_is_kept(copied):
    bound = copied["admission"].Bound(60, 4, {0.95: 0.15})
    assert Server(bound, 500).run(20.0).max() < 0.15
    assert bound.at(20.0) == 60
    # Four of a hundred answers take long, which is fewer than the promise leaves.
    for count in range(2000):
        bound.answered(20 + count / 100, 20 + count / 100 + (1.0 if count % 25 == 0 else 0.01), 0.0)
    assert bound.at(40.9) == 60


def test_a_lowered_bound_rises_again(copied):
    bound = copied["admission"].Bound(60, 4, {0.95: 0.15})
    slow = Server(bound, 100)
    slow.run(20.0)
    assert bound.at(slow.now) < 20
    fast = Server(bound, 500, begins=slow.now)
    fast.run(10.0)
    assert bound.at(fast.now) == 60
    slow = Server(bound, 100, begins=fast.now)
    slow.run(20.0)
    # What was seen long ago says nothing of the next burst.
    assert bound.at(slow.now) < 20
    assert bound.at(slow.now + 1.5) == 60


def test_a_server_of_few_answers_is_remembered_between_them(copied):
    bound = copied["admission"].Bound(12, 2, {0.95: 5.0})
    server = Server(bound, 0.5)  # one answer every two seconds
    server.run(300.0)
    assert bound.at(server.now + 1.9) == 3
    assert bound.at(server.now + 21.0) == 12


def test_a_promise_that_cannot_be_kept_leaves_the_model_its_work(copied):
    bound = copied["admission"].Bound(60, 20, {0.5: 0.001, 0.99: 0.1})
    server = Server(bound, 100)
    server.run(30.0)
    assert bound.at(server.now) == 20
    quarter = copied["admission"].Bound(60, 1, {0.5: 0.001})
    server = Server(quarter, 100)
    server.run(60.0)
    assert quarter.at(server.now) == 15
    assert copied["admission"].Bound(3, 8).at(0.0) == 3


@pytest.mark.slow
def test_the_time_before_a_request_is_read_is_a_round_of_the_event_loop(copied):
    seen = []

    class Noted(copied["admission"].Bound):
        def answered(self, begun, now, before):
            seen.append(before)

    admission = copied["admission"].Admission(Noted(100), 1.0)

    async def busy():
        for _ in range(60):
            with admission.admitted():
                time.sleep(0.01)
            await asyncio.sleep(0)

    asyncio.run(busy())
    assert seen[0] == 0.0
    assert 0.015 < seen[-1] < 0.1


def test_a_request_longer_than_a_batch_goes_in_parts(copied):
    asked = copied["oip"].Asked({"image": np.arange(10).reshape(5, 2)}, 5, {})
    parts = asked.parts(2)
    assert [rows for _, rows in parts] == [2, 2, 1]
    np.testing.assert_array_equal(
        np.concatenate([feed["image"] for feed, _ in parts]), np.arange(10).reshape(5, 2)
    )


def test_the_header_may_shorten_the_deadline_and_not_lengthen_it(copied):
    seconds_of = copied["oip"].seconds_of
    assert [seconds_of(each, 1.0) for each in (None, "200", "5000")] == [1.0, 0.2, 1.0]
    for wrong in ("0", "-1", "nan", "soon"):
        with pytest.raises(copied["oip"].Refused, match="above 0"):
            seconds_of(wrong, 1.0)


def test_metrics_number_replicas_as_they_are_seen_and_count_each_call_once(copied):
    every = copied["metrics"].Metrics([{"name": "", "largest_batch": 8}])
    metrics = every.of("")
    times = {"arrived": 1.0, "sealed": 1.5, "start": 2.0, "end": 2.25, "outputs": {}}
    first = {**times, "replica": "a", "rows": 3, "usage": (4.0, 5)}
    metrics.observe([first, {**times, "replica": "a"}], 0.5)
    metrics.observe([{**first, "replica": "b", "usage": (6.0, 7)}], 0.5)
    text = every.text().decode()
    for line in (
        'model_stage_seconds_sum{stage="queue"} 3.0',
        'model_stage_seconds_sum{stage="batch_wait"} 1.5',
        'model_stage_seconds_count{stage="compute"} 3.0',
        'model_compute_seconds_sum{batch="3"} 0.5',
        "model_batch_rows_count 2.0",
        'model_process_cpu_seconds_total{process="replica-0"} 4.0',
        'model_process_rss_bytes{process="replica-1"} 7.0',
    ):
        assert line in text


def test_metrics_of_priorities_have_a_label(copied):
    lanes = [{"name": name, "largest_batch": batch} for name, batch in (("high", 4), ("low", 16))]
    every = copied["metrics"].Metrics(lanes)
    times = {"arrived": 1.0, "sealed": 1.5, "start": 2.0, "end": 2.25, "outputs": {}}
    every.of("high").observe([{**times, "replica": "a", "rows": 3, "usage": (4.0, 5)}], 0.5)
    every.of("low").waiting(7, 9)
    every.of("low").answered(429, "queue_full")
    every.of("").answered(400, "")  # its priority was never read
    lines = every.text().decode().splitlines()
    for line in (
        'model_stage_seconds_count{priority="high",stage="compute"} 1.0',
        'model_compute_seconds_count{batch="3",priority="high"} 1.0',
        'model_batch_rows_bucket{le="16.0",priority="high"} 1.0',
        'model_batch_rows_count{priority="low"} 0.0',
        'model_queue_depth{priority="low"} 7.0',
        'model_queue_bound{priority="low"} 9.0',
        'model_dropped_total{cause="queue_full",priority="low"} 1.0',
        'model_dropped_total{cause="queue_full",priority="high"} 0.0',
        'model_requests_total{code="400",priority=""} 1.0',
        'model_process_cpu_seconds_total{process="replica-0"} 4.0',
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("header", "named", "wanted"),
    [
        (None, None, "low"),
        ("high", None, "high"),
        (None, "middle", "middle"),
        (None, 1, "high"),
        (None, 3, "low"),
        (None, 0, "low"),
        ("2", None, "middle"),
        ("0", None, "low"),
        ("high", 1, "high"),
    ],
)
def test_a_priority_is_named_or_counted_as_triton_does(copied, header, named, wanted):
    assert copied["priorities"].chosen(["high", "middle", "low"], header, named) == wanted


@pytest.mark.parametrize(
    "wrong", ["urgent", "", "3", "-1", "\u00b2", 3, -1, 1.0, True, ["high"], {}, "x" * 99]
)
def test_another_priority_is_refused_in_one_sentence(copied, wrong):
    chosen, refused = copied["priorities"].chosen, copied["oip"].Refused
    for header, named in ((None, wrong), (wrong, None)):
        if not isinstance(header, str | None):
            continue
        with pytest.raises(refused, match="they are high, low, or 1 to 2") as caught:
            chosen(["high", "low"], header, named)
        assert caught.value.status == 400
        assert len(caught.value.sentence) < 120


def test_a_header_that_contradicts_the_request_is_refused(copied):
    with pytest.raises(
        copied["oip"].Refused, match="for the priority high, the request for low"
    ) as caught:
        copied["priorities"].chosen(["high", "low"], "high", "low")
    assert caught.value.status == 400


def test_the_priority_of_a_request_is_read_with_its_parameters(copied):
    protocol = copied["oip"].Protocol(BUNDLE)
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    for parameters, wanted in ((None, None), ({"priority": "high"}, "high"), ({"priority": 1}, 1)):
        body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        assert protocol.parsed(body, None).priority == wanted


@pytest.mark.parametrize("size", [8.0, True, "8", -8, [8], 9])
def test_a_size_of_a_binary_tensor_that_is_not_the_whole_number_of_its_bytes_is_refused(copied, size):
    oip = copied["oip"]

    def parsed(size):
        tensor = {"name": "image", "datatype": "FP32", "shape": [1, 2]}
        tensor["parameters"] = {"binary_data_size": size}
        header = json.dumps({"inputs": [tensor]}).encode()
        return oip.Protocol(BUNDLE).parsed(header + bytes(8), str(len(header)))

    assert parsed(8).feed["image"].tolist() == [[0, 0]]
    with pytest.raises(oip.Refused, match="takes 8 bytes, found binary_data_size") as caught:
        parsed(size)
    assert caught.value.status == 400


@pytest.mark.parametrize("rows", [3, 20_000])
def test_answers_in_json_hold_every_number_and_others_go_on_while_many_are_written(
    copied, rows, monkeypatch
):
    oip, threads, longest = copied["oip"], [], []
    kept = json.dumps

    def dumps(value, **options):
        threads.append(threading.current_thread() is threading.main_thread())
        longest.append(len(value))
        return kept(value, **options)

    monkeypatch.setattr(oip.json, "dumps", dumps)
    sums = np.random.default_rng(0).standard_normal((rows, 1)).astype(np.float32)
    asked = oip.Asked({}, rows, {"sums": False}, "an id")
    parts = [{"sums": sums[: rows // 2]}, {"sums": sums[rows // 2 :]}]
    body, headers = asyncio.run(oip.Protocol(BUNDLE).write(asked, parts))
    answer = json.loads(body)
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("small", "1", "an id")
    (output,) = answer["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("sums", "FP32", [rows, 1])
    assert output["data"] == sums.ravel().tolist()
    assert headers == {"content-type": "application/json"}
    assert set(threads) == {rows == 3}
    assert max(longest) <= 4096


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 2), (20_000, 2), (1, 1, 20_000, 2)])
@pytest.mark.parametrize("before_tensors", [False, True])
def test_requests_in_json_hold_every_number_and_others_go_on_while_many_are_read(
    copied, shape, before_tensors, monkeypatch
):
    """JSON may also stand before binary tensors, whose sizes a header tells."""
    oip, threads, most = copied["oip"], [], []
    loads, asarray = json.loads, np.asarray

    def loading(text):
        threads.append(threading.current_thread() is threading.main_thread())
        return loads(text)

    def making(data, *more):
        most.append(len(data))
        return asarray(data, *more)

    monkeypatch.setattr(oip.json, "loads", loading)
    monkeypatch.setattr(oip.np, "asarray", making)
    monkeypatch.setattr(oip, "_MANY_READ", 1000)
    rows = shape[-2]
    (image,) = BUNDLE["inputs"]
    inputs = [{**image, "most": [rows, 2]}, {**image, "name": "more"}]
    numbers = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for data in (numbers.tolist(), numbers.ravel().tolist()):
        given = {"name": "image", "datatype": "FP32", "shape": [rows, 2], "data": data}
        asked = {"inputs": [given], "id": "an id"}
        tensors = b""
        if before_tensors:
            tensors = bytes(8 * rows)
            sized = {"parameters": {"binary_data_size": len(tensors)}}
            asked["inputs"] = [{**given, **sized, "name": "more"}, given]
            inputs[1]["most"] = [rows, 2]
        header = json.dumps(asked).encode()
        protocol = oip.Protocol({**BUNDLE, "inputs": inputs if before_tensors else inputs[:1]})
        length = str(len(header)) if before_tensors else None
        found = asyncio.run(protocol.read(bytearray(header + tensors), length))
        assert found.id == "an id"
        assert np.array_equal(found.feed["image"], numbers.reshape(rows, 2))
    assert set(threads) == {rows == 3}
    assert max(most) <= 1000


def test_a_list_of_numbers_that_is_ragged_is_refused_however_long_it_is(copied, monkeypatch):
    oip = copied["oip"]
    monkeypatch.setattr(oip, "_MANY_READ", 2)
    protocol = oip.Protocol(BUNDLE)
    for data in ([[1, 2], [3]], [[1, 2], [3, 4], [5]], [[1], [2, 3, 4]], []):
        tensor = {"name": "image", "datatype": "FP32", "shape": [2, 2], "data": data}
        with pytest.raises(oip.Refused, match="wants 4 numbers in `data`"):
            protocol.parsed(json.dumps({"inputs": [tensor]}).encode(), None)


def test_one_answer_may_hold_binary_tensors_and_json(copied):
    oip = copied["oip"]
    described = [{"name": name, "datatype": "FP32", "shape": [-1, 2]} for name in ("a", "b")]
    protocol = oip.Protocol({**BUNDLE, "outputs": described})
    asked = oip.Asked({}, 1, {"a": True, "b": False})
    part = {"a": np.array([[1, 2]], np.float32), "b": np.array([[3, 4]], np.float32)}
    body, headers = protocol.written(asked, [part])
    length = int(headers[oip.HEADER])
    first, second = json.loads(body[:length])["outputs"]
    assert first["parameters"] == {"binary_data_size": 8}
    assert second["data"] == [3, 4]
    assert np.frombuffer(body[length:], np.float32).tolist() == [1, 2]
    part["b"][0, 0] = np.nan
    with pytest.raises(oip.Refused, match="infinite or NaN"):
        protocol.written(asked, [part])
