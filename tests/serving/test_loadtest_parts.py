"""Load tests: payloads, answers, the server's metrics, predictions and addresses, without a server."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from optcli.errors import InputError, UsageError
from optcli.measure.queueing.arrivals import Poisson
from optcli.results.loadtest import Calibration, Served
from optcli.serving.loadtest import calibrating, endpoint, load_options, metrics, payloads, predicting
from optcli.serving.loadtest.messages import Setup, TensorAbout
from optcli.serving.loadtest.verdicts import LoadTerms

IMAGE = TensorAbout("image", "FP32", (-1, 2, 3))


def setup(**options):
    given = {"url": "http://x", "model": "m", "inputs": (IMAGE,), "outputs": ("scores",)}
    return Setup(**{**given, **options})


def sealed(**options):
    given = {
        "url": "http://x",
        "model": "m",
        "batch": 16,
        "wait_ms": 10.0,
        "instances": 1,
        "semantics": "sealed",
    }
    return Served(**{**given, **options})


def test_binary_and_json_requests_hold_the_same_values():
    samples = {"image": np.arange(12, dtype=np.float32).reshape(2, 2, 3)}
    binary = payloads.of_tensors(setup(), samples, binary=True)
    length = int(binary[1].headers[payloads.HEADER_LENGTH])
    header = json.loads(binary[1].body[:length])
    assert header["inputs"][0]["shape"] == [1, 2, 3]
    assert np.frombuffer(binary[1].body[length:], np.float32).tolist() == [6, 7, 8, 9, 10, 11]
    (_, text) = payloads.of_tensors(setup(), samples, binary=False)
    assert payloads.HEADER_LENGTH not in text.headers
    assert json.loads(text.body)["inputs"][0]["data"] == [6, 7, 8, 9, 10, 11]
    assert text.path == "/v2/models/m/infer"


def test_a_model_of_a_fixed_batch_gets_so_many_rows():
    fixed = TensorAbout("image", "FP32", (3, 2))
    samples = {"image": np.arange(8, dtype=np.float32).reshape(4, 2)}
    made = payloads.of_tensors(setup(inputs=(fixed,)), samples, binary=False)
    last = json.loads(made[3].body)["inputs"][0]
    assert last["shape"] == [3, 2]
    assert last["data"] == [6, 7, 0, 1, 2, 3]  # goes round


def test_random_inputs_follow_the_metadata_and_the_seed():
    two = (IMAGE, TensorAbout("ids", "INT64", (-1, 4)))
    first, again = (payloads.samples_of(setup(inputs=two, random_samples=5)) for _ in range(2))
    assert first["image"].shape == (5, 2, 3)
    assert first["ids"].dtype.kind == "i"
    assert np.array_equal(first["image"], again["image"])
    with pytest.raises(InputError, match="need its sizes"):
        payloads.samples_of(setup(inputs=(TensorAbout("image", "FP32", (-1, 3, -1)),)))
    with pytest.raises(InputError, match="BYTES"):
        payloads.of_tensors(
            setup(inputs=(TensorAbout("text", "BYTES", (-1, 1)),)),
            {"text": np.zeros((1, 1))},
            binary=True,
        )


def test_samples_that_do_not_fit_the_server_are_named(tmp_path):
    path = tmp_path / "samples.npz"
    np.savez(path, imgae=np.zeros((4, 2, 3)))
    with pytest.raises(InputError, match="takes the input 'image'") as caught:
        payloads.samples_of(setup(samples=path))
    assert "imgae" in caught.value.hint
    np.savez(path, image=np.zeros((4, 3, 3)))
    with pytest.raises(InputError, match=r"\[3, 3\], the server takes \[2, 3\]"):
        payloads.samples_of(setup(samples=path))
    np.savez(path, image=np.zeros((0, 2, 3)))
    with pytest.raises(InputError, match="none"):
        payloads.samples_of(setup(samples=path))
    path.write_bytes(b"no archive")
    with pytest.raises(InputError, match="cannot be read"):
        payloads.samples_of(setup(samples=path))


def test_an_answer_may_differ_by_the_tolerance_of_its_largest_value():
    wanted = {"scores": np.array([[100.0, 0.0]], np.float32)}
    assert payloads.difference({"scores": np.array([[100.05, 0.05]])}, wanted, 1e-3) is None
    assert "0.2 away" in payloads.difference({"scores": np.array([[100.0, 0.2]])}, wanted, 1e-3)
    detector = {"out": np.stack([np.full((4, 9), 300.0), np.full((4, 9), 0.5)], axis=1)}
    moved = {"out": detector["out"] + np.array([[[0.1], [0]]])}
    assert payloads.difference(moved, detector, 1e-3) is None  # of a box, not of a score
    assert "0.1 away" in payloads.difference({"out": detector["out"] + 0.1}, detector, 1e-3)
    assert "missing" in payloads.difference({"other": np.zeros(2)}, wanted, 1e-3)
    assert "shape" in payloads.difference({"scores": np.zeros((1, 3))}, wanted, 1e-3)
    assert "not finite" in payloads.difference({"scores": np.array([[100.0, np.nan]])}, wanted, 1e-3)
    labels = {"label": np.array([3, 4])}
    assert payloads.difference({"label": np.array([3, 4])}, labels, 1.0) is None
    assert "1 of 2" in payloads.difference({"label": np.array([3, 5])}, labels, 1.0)


def test_answers_to_images_are_compared_value_by_value():
    wanted = {"classes": [{"label": "cat", "score": 0.5}]}
    assert (
        payloads.json_difference({"classes": [{"label": "cat", "score": 0.5001}]}, wanted, 1e-3) is None
    )
    assert "'dog'" in payloads.json_difference(
        {"classes": [{"label": "dog", "score": 0.5}]}, wanted, 1e-3
    )
    assert "0.6" in payloads.json_difference(
        {"classes": [{"label": "cat", "score": 0.6}]}, wanted, 1e-3
    )
    assert "entries" in payloads.json_difference({"classes": []}, wanted, 1e-3)
    assert "keys" in payloads.json_difference({}, wanted, 1e-3)


METRICS = """
model_stage_seconds_sum{{stage="compute"}} {sum}
model_stage_seconds_count{{stage="compute"}} {count}
model_compute_seconds_sum{{batch="1"}} {sum}
model_compute_seconds_count{{batch="1"}} {count}
model_compute_seconds_sum{{batch="4",replica="a"}} 0.2
model_compute_seconds_count{{batch="4",replica="a"}} 10
model_compute_seconds_sum{{batch="4",replica="b"}} {more}
model_compute_seconds_count{{batch="4",replica="b"}} 10
model_process_cpu_seconds_total{{process="ingress"}} {sum}
model_cache_hits_total {count}
model_cache_misses_total 5
"""


def test_two_readings_of_the_metrics_give_what_happened_between_them():
    before = metrics.parsed(METRICS.format(sum=1.0, count=100, more=0.1), 5.0)
    after = metrics.parsed(METRICS.format(sum=3.0, count=200, more=0.2), 15.0)
    found = metrics.figures(before, after, batch=8)
    assert found.stages_ms == {"compute": pytest.approx(20.0)}
    assert found.compute_ms == {1: pytest.approx(20.0)}  # no batch of 4 came between them
    assert found.calls == {1: 100}
    assert (found.batch_rows, found.batch_fill) == (1.0, 0.125)
    assert found.cpu_cores == {"ingress": pytest.approx(0.2)}
    assert found.cache_hit_share == 1.0
    assert metrics.figures(None, after, 8) is None


def test_a_counter_that_began_anew_does_not_turn_negative():
    before = metrics.parsed('model_process_cpu_seconds_total{process="replica"} 50', 0.0)
    after = metrics.parsed('model_process_cpu_seconds_total{process="replica"} 3', 10.0)
    assert metrics.figures(before, after, 8).cpu_cores == {"replica": pytest.approx(0.3)}


def test_text_that_is_no_metrics_has_no_values():
    assert metrics.parsed("<html>nothing {here", 0.0).values == {}
    assert metrics.parsed("", 0.0).values == {}


def test_a_calibrated_curve_never_falls():
    known = Calibration(
        model="m",
        measured="now",
        points_ms={1: 5.0, 2: 4.0, 4: 8.0},
        calls={1: 9, 2: 9, 4: 9},
        overhead_ms=2.0,
    )
    model = predicting.of_calibration(known)
    assert dict(model.curve.points) == {1: 4.5, 2: 4.5, 4: 8.0}
    assert (model.by, model.overhead.total_ms) == ("calibration", 2.0)


def test_work_beside_the_model_delays_it_where_both_have_the_same_processors():
    known = Calibration(
        model="m",
        measured="now",
        points_ms={1: 5.0, 4: 8.0},
        calls={1: 9, 4: 9},
        overhead_ms=9.0,
        ingress_ms=2.0,
        replica_ms=3.0,
        own_processors=True,
    )
    model = predicting.of_calibration(known)
    assert dict(model.curve.points) == {1: 8.0, 4: 20.0}
    assert model.overhead == predicting.Overhead(after_ms=4.0, ingress_ms=2.0)
    # With processors to spare it goes on beside the model, and is then the slowest that all pass.
    model = predicting.of_calibration(known.model_copy(update={"own_processors": False}))
    assert dict(model.curve.points) == {1: 5.0, 4: 8.0}
    assert model.overhead == predicting.Overhead(after_ms=6.0, ingress_ms=3.0)
    found = predicting.predicted(model, predicting.batching_of(sealed(wait_ms=0.0)), Poisson(250))
    assert found.utilisation == pytest.approx(0.75)


def test_processor_time_beside_the_model_is_read_from_the_metrics():
    text = """
model_stage_seconds_count{{stage="parse"}} {n}
model_compute_seconds_sum{{batch="2"}} {compute}
model_compute_seconds_count{{batch="2"}} {n}
model_process_cpu_seconds_total{{process="ingress"}} {ingress}
model_process_cpu_seconds_total{{process="replica-0"}} {replica}
"""
    before = metrics.parsed(text.format(n=100, compute=1.0, ingress=5.0, replica=7.0), 0.0)
    after = metrics.parsed(text.format(n=300, compute=2.0, ingress=5.4, replica=9.6), 10.0)
    assert metrics.work_ms(before, after, 1, {}) == pytest.approx((2.0, 8.0))
    assert metrics.work_ms(before, after, 2, {}) == pytest.approx((2.0, 3.0))
    assert metrics.work_ms(before, after, 4, {}) == pytest.approx((2.0, 0.0))
    # 200 calls of two rows that took 5 ms each here, and 4 ms in all loads together.
    assert metrics.work_ms(before, after, 1, {2: 4.0}) == pytest.approx((2.0, 9.0))
    assert metrics.work_ms(after, after, 1, {}) == (0.0, 0.0)


def test_a_wait_that_is_too_short_for_sealed_batches_is_named():
    # E1 of the reference: 6 + 4b ms, B = 16, one replica, 200 a second need a wait of about 25 ms.
    model = predicting.PredictionModel("plan", predicting.Curve.from_line(6, 4), predicting.Overhead())
    short = predicting.unstable(model, predicting.batching_of(sealed(wait_ms=10.0)), 200.0)
    assert short.kind == "unstable"
    assert 20 < short.figures["least_wait_ms"] < 40
    assert "grows without bound" in short.text
    assert predicting.unstable(model, predicting.batching_of(sealed(wait_ms=40.0)), 200.0) is None
    never = predicting.unstable(model, predicting.batching_of(sealed(wait_ms=40.0)), 300.0)
    assert "1 instance cannot serve 300 requests a second, whatever the wait" in never.text
    oldest = sealed(wait_ms=10.0, semantics="oldest-age")
    assert predicting.unstable(model, predicting.batching_of(oldest), 200.0) is None
    assert predicting.batching_of(Served(url="http://x", model="m")) is None


@pytest.mark.slow
def test_what_the_simulation_says_of_a_rate():
    model = predicting.PredictionModel("plan", predicting.Curve.from_line(6, 4), predicting.Overhead())
    batching = predicting.batching_of(sealed(wait_ms=40.0))
    calm = predicting.predicted(model, batching, Poisson(100))
    assert not calm.grows
    assert calm.p50_ms < calm.p95_ms < calm.p99_ms
    over = predicting.predicted(model, batching, Poisson(400))
    assert over.grows
    assert over.p95_ms is None
    most = predicting.highest(model, batching, Poisson(100), LoadTerms({"p95": 150.0}))
    assert 150 < most < 250  # p95 is 145 ms at 200 a second


@pytest.mark.parametrize(
    ("url", "base", "model"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", None),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000", None),
        ("http://host:8000/v2", "http://host:8000", None),
        ("https://host/serve/v2/models/digits/infer", "https://host/serve", "digits"),
        ("http://host:1/v2/models/digits", "http://host:1", "digits"),
    ],
)
def test_an_address_may_name_the_model(url, base, model):
    assert endpoint.address(url) == (base, model)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "http:///v2"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UsageError, match="wanted the URL of a server"):
        endpoint.address(url)


def test_a_golden_request_becomes_samples_with_expected_outputs(tmp_path):
    request = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    response = {"outputs": [{"name": "scores", "datatype": "FP32", "shape": [1, 1], "data": [7]}]}
    (tmp_path / load_options.REQUEST).write_text(json.dumps(request))
    with pytest.raises(UsageError, match="no such file"):
        load_options.golden_samples(tmp_path, tmp_path)
    (tmp_path / load_options.RESPONSE).write_text(json.dumps(response))
    taken = load_options.golden_samples(tmp_path, tmp_path)
    with np.load(taken.samples) as samples, np.load(taken.expected) as expected:
        assert samples["image"].tolist() == [[1, 2]]
        assert expected["scores"].tolist() == [[7]]
    (tmp_path / load_options.RESPONSE).write_text("{}")
    with pytest.raises(InputError, match="holds no tensors"):
        load_options.golden_samples(tmp_path, tmp_path)


def test_a_stored_calibration_is_read_back_and_others_are_refused(tmp_path):
    path = tmp_path / calibrating.FILE
    assert calibrating.read(path) is None
    known = Calibration(model="m", measured="now", points_ms={1: 5.0}, calls={1: 9}, overhead_ms=2.0)
    path.write_text(known.to_json())
    assert calibrating.read(path) == known
    path.write_text(known.model_copy(update={"schema_version": 99}).to_json())
    with pytest.raises(InputError, match="schema 99"):
        calibrating.read(path)
    for text in ("{}", *(known.to_json().replace("5.0", ms) for ms in ("-5.0", "0", "1e999"))):
        path.write_text(text)
        with pytest.raises(InputError, match="no calibration"):
            calibrating.read(path)


def test_what_a_request_adds_is_told_from_what_goes_on_without_any():
    def taken(rate, processors, others=0.07):
        return calibrating.Taken(rate, processors, others)

    # 5 % of a processor always, 2.5 ms for each request, and 7 % for others.
    light, heavy = taken(10, 0.075), taken(100, 0.3)
    assert calibrating.at_ingress_ms(light, heavy) == pytest.approx(2.5 / (1 - 0.05 - 0.07))
    # Loads that are too close, and a light one that says nothing: all is taken to be for requests.
    assert calibrating.at_ingress_ms(taken(60, 0.2), heavy) == pytest.approx(3 / 0.93)
    assert calibrating.at_ingress_ms(taken(0, 0), heavy) == pytest.approx(3 / 0.93)
    # A light load that took more than it can: at least half of the work is for requests.
    assert calibrating.at_ingress_ms(taken(10, 0.5), heavy) == pytest.approx(1.5 / (1 - 0.15 - 0.07))
    # However much the others take, half of the processor is left.
    assert calibrating.at_ingress_ms(light, taken(100, 0.3, 0.9)) == pytest.approx(2.5 / 0.5)


@pytest.mark.slow
def test_the_variation_of_the_work_comes_from_a_light_load_as_well(monkeypatch):
    monkeypatch.setattr(predicting, "Demand", partial(predicting.Demand, requests=8_000))
    known = Calibration(
        model="m",
        measured="now",
        points_ms={1: 5.0},
        calls={1: 99},
        overhead_ms=8.0,
        ingress_ms=3.0,
        replica_ms=1.0,
        own_processors=True,
    )
    server = sealed(batch=1, wait_ms=0.0)
    driver = SimpleNamespace(seed=0, endpoint=SimpleNamespace(served=server, concurrency=1))
    model = predicting.of_calibration(known.model_copy(update={"ingress_cv2": 1.5}))
    batching = predicting.batching_of(server)
    seen = {rate: predicting.predicted(model, batching, Poisson(rate)).p95_ms for rate in (60.0, 125.0)}
    assert calibrating._variation(driver, known, seen) == pytest.approx(1.5, abs=0.1)
    # A p95 that is 15 % too short decides alone that nothing varies; beside a light load it does not.
    heavy = {125.0: 0.85 * seen[125.0]}
    assert calibrating._variation(driver, known, heavy) < 0.5
    assert 0.6 < calibrating._variation(driver, known, seen | heavy) < 1.5
    # The queue grows already without any variation.
    assert calibrating._variation(driver, known, {200.0: 50.0}) == 0.0


@pytest.mark.parametrize(
    ("whole", "answered", "said"),
    [
        (True, 7, "of 10 lone requests the server did not answer: timeout 3"),
        (False, 0, "of 10 requests the server did not answer: timeout 10"),
    ],
)
def test_a_calibration_says_what_a_server_does_not_answer(whole, answered, said):
    records = SimpleNamespace(
        answered=np.arange(10) < answered, count=10, failures={"timeout": 10 - answered}
    )
    reading = metrics.parsed("", 0.0)
    driver = SimpleNamespace(
        endpoint=SimpleNamespace(pids=(), served=sealed()),
        send=lambda *_, **__: (records, None, (reading, reading)),
    )
    with pytest.raises(UsageError) as caught:
        calibrating._Phases(driver)._sent(np.arange(10.0), "a load", whole=whole)
    assert caught.value.message == said
