"""Load tests by priority: which requests have one, what each saw, and what decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from oip_server import serving
from PIL import Image
from test_loadtest_server import PROMISE, SHORT, driving_at
from test_loadtest_windows import client, records

from optcli.errors import UsageError
from optcli.measure.queueing import Constant, Poisson
from optcli.report import loadtest as forms
from optcli.report import terminal
from optcli.report.html import html
from optcli.report.markdown_text import markdown
from optcli.results.loadtest import LoadTest, Predicted, Served, ServedPriority
from optcli.serving.loadtest import by_priority, predicting, verdicts
from optcli.serving.loadtest.judging import Judged, Terms
from optcli.serving.loadtest.records import Spans, windows_of

pytestmark = pytest.mark.usefixtures("hurried_loads")

SHARES = {"high": 0.2, "low": 0.8}
PRIORITIES = tuple(
    ServedPriority(name=name, number=number, share=share)
    for number, (name, share) in enumerate(SHARES.items(), start=1)
)
SERVED = Served(url="http://here", model="digits", priorities=PRIORITIES)


def nothing(process, priority):
    return ()


def test_a_server_elsewhere_takes_the_priorities_in_the_order_they_are_named():
    bare = SERVED.model_copy(update={"priorities": ()})
    assert by_priority.shared(bare, SHARES, own=False).priorities == PRIORITIES
    assert by_priority.shared(bare, {}, own=False) is bare
    assert by_priority.smallest_share(bare) == 1
    assert by_priority.drawn(bare, np.arange(3.0), 0) is None


def test_a_bundle_knows_its_priorities_and_keeps_their_numbers():
    own = ServedPriority(name="middle", number=3, share=0.0, batch=4)
    served = SERVED.model_copy(update={"priorities": (*PRIORITIES, own)})
    mixed = by_priority.shared(served, {"middle": 0.75, "high": 0.25}, own=True)
    found = [(each.name, each.number, each.share, each.batch) for each in mixed.priorities]
    assert found == [("high", 1, 0.25, None), ("middle", 3, 0.75, 4)]
    assert by_priority.smallest_share(mixed) == 0.25
    assert set(by_priority.drawn(mixed, np.arange(100.0), 0)) == {1, 3}


@pytest.mark.parametrize(
    ("shares", "own", "says"),
    [
        ({"high": 0.2, "low": 0.7}, True, "add up to 0.9"),
        ({"high": 1.0, "low": 0.0}, True, "shares over 0"),
        ({"hihg": 0.2, "low": 0.8}, True, "does not know the priority 'hihg'"),
    ],
)
def test_other_priorities_are_refused(shares, own, says):
    with pytest.raises(UsageError, match=says) as caught:
        by_priority.shared(SERVED, shares, own=own)
    assert caught.value.place == "--priority"
    bare = SERVED.model_copy(update={"priorities": ()})
    with pytest.raises(UsageError, match="it has no priorities"):
        by_priority.shared(bare, SHARES, own=True)


def test_the_same_seed_draws_the_same_priorities_by_their_shares():
    times = np.arange(20_000.0)
    first = by_priority.drawn(SERVED, times, 5)
    np.testing.assert_array_equal(first, by_priority.drawn(SERVED, times, 5))
    assert np.mean(first == 1) == pytest.approx(0.2, abs=0.01)


def loaded(latencies_ms, numbers, *, cause=None, terms=None, causes=("", "queue_full")):
    """Priority loads of 4 seconds in two windows, a request every millisecond."""
    taken = replace(
        records(latencies_ms, 1.0, cause=cause, causes=causes), priority=np.asarray(numbers)
    )
    spans = Spans(0.0, 2, len(latencies_ms) / 2000)
    return by_priority.loads(
        SERVED,
        windows_of(taken, spans),
        spans,
        Poisson(1000),
        terms or Terms({"p95": 100.0}),
        client(),
        nothing,
    )


def test_each_priority_is_held_to_the_promise_by_itself():
    numbers = np.tile([1, 2, 2, 2, 2], 800)
    high, low = loaded(np.where(numbers == 1, 20.0, 300.0), numbers)
    assert (high.requests, low.requests) == (800, 3200)
    assert (high.p95_ms.value, low.p95_ms.value) == (20, 300)
    assert (high.outcome, low.outcome) == ("inconclusive", "reject")  # seconds accept nothing
    assert (high.breach, low.breach) == (False, True)
    assert high.good_per_s == pytest.approx(200)
    assert low.good_per_s == 0


def test_drops_are_those_of_their_priority():
    numbers = np.tile([1, 2, 2, 2, 2], 800)
    cause = (numbers == 2) & (np.arange(4000) % 2 == 0)
    high, low = loaded(np.full(4000, 20.0), numbers, cause=cause)
    assert (high.failures, high.failed_share) == ({}, 0.0)
    assert low.failures == {"queue_full": 1600}
    assert low.failed_share == 0.5
    assert low.breach


def test_the_worst_priority_decides_and_a_wrong_answer_before_it():
    whole = Judged(steady=True, grows=False, breach=False, outcome="accept", reason="p95 fine")
    numbers = np.tile([1, 2], 2000)
    parts = loaded(np.where(numbers == 1, 20.0, 300.0), numbers)
    judged = by_priority.worst(whole, parts, wrong=0)
    assert (judged.outcome, judged.breach) == ("reject", True)
    assert judged.reason.startswith("priority low: p95 300 ms")
    wrong = replace(whole, outcome="reject", reason="1 of 9 compared answers are wrong")
    assert by_priority.worst(wrong, parts, wrong=1) is wrong
    assert by_priority.worst(whole, (), wrong=0) is whole


def test_the_limit_is_that_of_the_priority_that_breaks_first():
    carried = {"high": 40.0, "low": 120.0}
    assert by_priority.highest(SERVED, lambda each: carried[each.name]) == pytest.approx(150)


def test_a_priority_is_predicted_by_its_own_replicas_and_all_together_by_none():
    alone = {"batch": 4, "instances": 1}
    own = [each.model_copy(update=alone) for each in PRIORITIES]
    apart = SERVED.model_copy(update={"batch": 8, "instances": 3, "priorities": tuple(own)})
    assert predicting.as_served(apart, None).batch is None
    assert predicting.as_served(apart, own[0]).instances == 1
    together = SERVED.model_copy(update={"batch": 8, "instances": 3})
    assert predicting.as_served(together, None).batch == 8
    assert predicting.as_served(together, PRIORITIES[0]).batch is None


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["binary", "json"])
def test_requests_say_their_priority_and_each_is_counted(tmp_path: Path, encoding):
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    images = (tmp_path / "one.png",)
    # The server refuses the second priority, whatever else it is asked.
    with serving(drop_priority=2) as url, driving_at(url, tmp_path, images=images) as driver:
        served = driver.endpoint.served.model_copy(update={"priorities": PRIORITIES})
        driver.endpoint = replace(driver.endpoint, served=served)
        driver.predict = lambda process, priority: (
            [] if priority is None else [Predicted(by="plan", utilisation=process.rate_per_s / 1000)]
        )
        point = driver.point(Constant(100), SHORT, encoding=encoding)
    high, low = point.priorities
    assert high.requests + low.requests == point.requests == 120
    assert (high.failed_share, low.failed_share) == (0.0, 1.0)
    assert high.failures == {}
    assert point.failures == low.failures == {"queue_full": low.requests}
    assert point.checked == high.requests > 0
    assert (high.outcome, low.outcome, point.outcome) == ("inconclusive", "reject", "reject")
    assert point.reason.startswith("priority low: ")
    (one,) = high.predicted
    assert one.utilisation == pytest.approx(0.02)
    assert not list(tmp_path.glob("priority-*"))
    _is_shown(point, served)


def _is_shown(point, served) -> None:
    """What people read names both priorities."""
    decided = tuple(verdicts.of_points([point], PROMISE))
    names = [each.name for each in decided]
    assert {"load 100/s", "load 100/s, priority high", "load 100/s, priority low"} <= set(names)
    test = LoadTest(
        name="digits", started="2026-01-01T00:00:00+00:00", finished="2026-01-01T00:00:01+00:00",
        outcome="reject", sentence="reject", verdicts=decided, served=served, slo_ms={"p95": 1.0},
        error_budget=0.001, arrivals="constant", seed=0, payload="random", points=(point,),
    )  # fmt: skip
    text = terminal.text(forms.document(test))
    assert "By priority" in text
    assert "high 0.2 of the requests; low 0.8 of the requests" in text
    assert f"queue_full {point.priorities[1].requests}" in text
    assert "| low |" in markdown(forms.document(test)).replace("**", "")
    assert 'id="by-priority"' in html(forms.document(test))
    cases = {case.get("name") for case in ET.fromstring(forms.junit(test)).iter("testcase")}
    assert "load 100/s, priority low" in cases
    assert LoadTest.model_validate_json(test.to_json()) == test
    plain = test.model_copy(update={"points": (point.model_copy(update={"priorities": ()}),)})
    assert "By priority" not in terminal.text(forms.document(plain))
