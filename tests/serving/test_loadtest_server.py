"""Load tests against a server whose times are known, and that stalls, drops, errs and dies.

Nothing here asserts on time: counts, causes and what became of answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from oip_server import serving

from optcli.errors import InputError, RunnerError, StepError, UsageError
from optcli.measure.queueing.arrivals import Constant, Poisson
from optcli.observer import Observer, Silent
from optcli.serving.loadtest import calibrating, driving, endpoint, predicting
from optcli.serving.loadtest.driving import Driver
from optcli.serving.loadtest.messages import Setup
from optcli.serving.loadtest.records import Spans
from optcli.serving.loadtest.verdicts import LoadTerms

pytestmark = pytest.mark.usefixtures("hurried_loads")

# No request of a constant rate is planned for just the end of a window. Without a time to settle the
# metrics are read before the first request.
SHORT = Spans(0.0, 3, 0.402)
PROMISE = LoadTerms({"p95": 60_000.0})


class Hearing(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def progress(self, step: str, fraction: float | None, message: str) -> None:
        self.said.append(message)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as address:
        yield address


@contextmanager
def driving_at(
    url: str, scratch: Path, *, terms=PROMISE, timeout_s=20.0, observer=None, **options
) -> Iterator[Driver]:
    found = endpoint.asked(url, "digits")
    served = {"batch": 8, "wait_ms": 5.0, "instances": 1, "semantics": "sealed"}
    found = replace(found, served=found.served.model_copy(update=served))
    setup = Setup(
        url=found.served.url,
        model=found.served.model,
        inputs=found.inputs,
        outputs=found.outputs,
        **options,
    )
    with driving.driver(
        found, setup, terms, scratch, observer or Silent(), seed=1, timeout_s=timeout_s
    ) as driver:
        yield driver


@pytest.fixture
def images(tmp_path):
    from PIL import Image

    for index in range(3):
        Image.new("RGB", (8 + index, 8)).save(tmp_path / f"{index}.png")
    return tuple(sorted(tmp_path.glob("*.png")))


@pytest.mark.long
@pytest.mark.slow
def test_every_planned_request_is_answered_and_checked_in_each_encoding(url, tmp_path, images):
    hearing = Hearing()
    with driving_at(url, tmp_path, images=images, observer=hearing) as driver:
        points = {
            encoding: driver.point(Constant(50), SHORT, encoding=encoding)
            for encoding in ("binary", "json", "image")
        }
        assert driver.payload.startswith("16 random inputs of seed 0")
        assert driver.cpus
    for encoding, point in points.items():
        assert point.encoding == encoding
        assert point.requests == 60  # three windows of 0.402 s
        assert [each.requests for each in point.windows] == [20, 20, 20]
        assert (point.failed_share, point.failures, point.wrong) == (0.0, {}, 0)
        assert point.checked == 60
        assert point.client.bytes_received > 0
        assert point.short
        assert not point.breach
    tensors = points["binary"].server
    assert set(tensors.stages_ms) == {"batch_wait", "queue", "compute"}
    assert 1 <= tensors.batch_rows <= 8
    assert tensors.batch_fill == tensors.batch_rows / 8
    assert points["json"].client.bytes_sent != points["binary"].client.bytes_sent
    # On a busy machine the questions before the load take long enough for a line as well.
    lines = [line for line in hearing.said if "asked one by one" not in line]
    assert all("answers/s" in line and "0 errors" in line for line in lines)
    assert hearing.said
    assert not list(tmp_path.glob("records-*"))


@pytest.mark.slow
def test_expected_outputs_are_held_against_answers(url, tmp_path):
    samples = np.random.default_rng(0).standard_normal((6, 2, 4)).astype(np.float32)
    expected = 2 * samples.reshape(6, -1)[:, :4]
    expected[4, 0] += 1
    np.savez(tmp_path / "s.npz", image=samples)
    np.savez(tmp_path / "e.npz", scores=expected)
    files = {"samples": tmp_path / "s.npz", "expected": tmp_path / "e.npz"}
    with driving_at(url, tmp_path, **files) as driver:
        point = driver.point(Constant(60), Spans(0.0, 1, 0.999))
    # 59 requests go round the six samples; the fifth of these is expected to be otherwise.
    assert (point.checked, point.wrong) == (59, 10)
    assert point.outcome == "reject"
    assert point.wrong_example.startswith("sample 4: 'scores' is 1 away")
    assert point.good_per_s == pytest.approx(49 / 0.999)


@pytest.mark.slow
@pytest.mark.parametrize("score", [0.5, 0.9])
def test_a_golden_image_has_the_answer_that_was_deployed_with_it(url, tmp_path, images, score):
    answer = tmp_path / "golden-answer.json"
    size = len(images[0].read_bytes())
    answer.write_text(json.dumps({"classes": [{"label": size, "score": score}]}))
    with driving_at(url, tmp_path, images=images, golden_answer=answer) as driver:
        assert "3 images, compared with the first answers, the golden one with its" in driver.payload
        point = driver.point(Constant(60), Spans(0.0, 1, 0.999), encoding="image")
    # Every third of 59 requests holds the first image; the server always says 0.5.
    assert (point.checked, point.wrong) == (59, 0 if score == 0.5 else 20)


@pytest.mark.long
@pytest.mark.slow
def test_an_answer_that_is_wrong_under_load_alone_is_found(tmp_path):
    with serving(wrong_every=50) as url, driving_at(url, tmp_path) as driver:
        point = driver.point(Constant(100), SHORT)
    assert point.wrong >= 1
    assert point.outcome == "reject"
    assert "are wrong" in point.reason


@pytest.mark.long
@pytest.mark.slow
def test_a_server_that_stalls_cannot_hide_and_nothing_hangs(tmp_path):
    with serving(stall_after=40) as url, driving_at(url, tmp_path, timeout_s=1.0) as driver:
        point = driver.point(Constant(100), SHORT)
    assert point.failures["timeout"] >= 90
    # A closed loop would have sent one request and waited; here all were sent.
    assert point.client.most_in_flight > 50
    assert point.windows[-1].p95_ms >= 1000
    assert (point.outcome, point.breach) == ("reject", True)


@pytest.mark.long
@pytest.mark.slow
def test_a_server_that_dies_breaks_the_promise_and_the_test_ends(tmp_path):
    with serving(die_after=60) as url, driving_at(url, tmp_path) as driver:
        point = driver.point(Constant(100), SHORT)
        assert point.failures["connection"] >= 50
        assert (point.outcome, point.breach) == ("reject", True)
        assert point.server is None  # its metrics died with it
        again = driver.point(Constant(50), SHORT)
        assert again.failed_share == 1.0
        assert again.p95_ms is None


@pytest.mark.long
@pytest.mark.slow
def test_refused_requests_are_counted_by_cause_and_do_not_make_it_look_fast(tmp_path):
    with serving(drop_every=10) as url, driving_at(url, tmp_path) as driver:
        point = driver.point(Constant(100), SHORT)
    assert point.failures == {"queue_full": 12}
    assert sum(each.answered for each in point.windows) == 120 - point.failures["queue_full"]
    assert point.outcome == "reject"


@pytest.mark.long
@pytest.mark.slow
def test_too_many_open_requests_are_a_failure_of_the_server(tmp_path):
    with (
        serving(stall_after=20) as url,
        driving_at(url, tmp_path, timeout_s=1.5, most_in_flight=10) as driver,
    ):
        point = driver.point(Constant(100), SHORT)
    assert point.client.most_in_flight == 10
    assert point.failures["in_flight"] > 50
    assert point.outcome == "reject"


@pytest.mark.long
@pytest.mark.slow
def test_a_calibration_through_the_server_finds_its_curve(tmp_path):
    with (
        serving(fixed_ms=20, per_image_ms=5, batch=4, wait_ms=40) as url,
        driving_at(url, tmp_path) as driver,
    ):
        served = driver.endpoint.served.model_copy(update={"batch": 4, "wait_ms": 40.0})
        driver.endpoint = replace(driver.endpoint, served=served)
        found = calibrating.calibrated(driver)
        model = predicting.of_calibration(found)
        batching = predicting.batching_of(served)
        driver.predict = lambda process: [predicting.predicted(model, batching, process)]
        point = driver.point(Poisson(20), SHORT)
    # The server sleeps for so long at least: 20 + 5b ms.
    assert set(found.points_ms) >= {1, 4}
    assert all(found.points_ms[size] >= 20 + 5 * size for size in found.points_ms)
    assert found.points_ms[4] > found.points_ms[1]
    assert min(found.calls.values()) >= 4
    assert found.overhead_ms > 0
    assert [each.by for each in point.predicted] == ["calibration"]


@pytest.mark.slow
def test_a_server_without_metrics_by_batch_cannot_be_calibrated(tmp_path, url):
    with driving_at(url, tmp_path) as driver:
        unknown = driver.endpoint.served.model_copy(update={"batch": None})
        driver.endpoint = replace(driver.endpoint, served=unknown)
        with pytest.raises(UsageError, match="optcli does not know how the server batches"):
            calibrating.calibrated(driver)


@pytest.mark.slow
def test_a_server_that_refuses_one_request_is_named_before_the_load(tmp_path):
    with (
        serving(drop_every=1) as url,
        driving_at(url, tmp_path) as driver,
        pytest.raises(StepError, match="refuses a single request: 429") as caught,
    ):
        driver.point(Constant(50), SHORT)
    assert "the queue is full" in caught.value.message


@pytest.mark.slow
def test_samples_of_another_model_are_refused_before_the_load(tmp_path, url):
    np.savez(tmp_path / "s.npz", image=np.zeros((4, 3, 3), np.float32))
    with (
        pytest.raises(InputError, match=r"the server takes \[2, 4\]"),
        driving_at(url, tmp_path, samples=tmp_path / "s.npz"),
    ):
        pass


@pytest.mark.slow
def test_a_server_is_asked_before_anything_is_sent(url):
    found = endpoint.asked(f"{url}/v2/models/digits/infer", None)
    assert found.served.model == "digits"
    assert [each.name for each in found.inputs] == ["image"]
    assert found.outputs == ("scores",)
    with pytest.raises(UsageError, match="no model 'digts'") as caught:
        endpoint.asked(url, "digts")
    assert "'digits'" in caught.value.hint
    with pytest.raises(UsageError, match="not named") as caught:
        endpoint.asked(url, None)
    assert "digits" in caught.value.hint
    with pytest.raises(InputError, match="does not speak the Open Inference Protocol"):
        endpoint.asked(f"{url}/elsewhere", "digits")
    with pytest.raises(UsageError, match="nothing answers there"):
        endpoint.asked("http://127.0.0.1:1", "digits")


def test_inputs_without_rows_in_common_are_refused(monkeypatch):
    shapes = {"images": [1, 3, 16, 16], "orig_im_size": [2]}
    inputs = [{"name": k, "datatype": "INT64", "shape": shape} for k, shape in shapes.items()]
    about = {"name": "net", "inputs": inputs, "outputs": [{"name": "boxes"}]}
    monkeypatch.setattr(endpoint, "_require_ready", lambda base, wait_s: None)
    monkeypatch.setattr(endpoint, "_json", lambda base, page: about)
    with pytest.raises(UsageError, match=r"no rows in common: images .*, orig_im_size \[2\]") as caught:
        endpoint.asked("http://127.0.0.1:1", "net")
    assert "[batch, 2]" in caught.value.hint


@pytest.mark.slow
def test_a_server_that_is_not_ready_is_waited_for_and_then_named():
    with serving(not_ready=1) as url, pytest.raises(RunnerError, match=r"not ready after 0\.3 s"):
        endpoint.asked(url, "digits", wait_s=0.3)


def test_more_requests_than_fit_into_memory_are_refused():
    with pytest.raises(UsageError, match="too many"):
        driving.drawn(Poisson(1e6), Spans(5, 3, 10), 0)
    times = driving.drawn(Poisson(100), Spans(1, 3, 1), 0)
    assert times.max() < 4000
    assert abs(times.size - 400) < 100
