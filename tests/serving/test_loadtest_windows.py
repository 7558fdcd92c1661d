"""Load tests: windows, what they say of a promise, the search of the limit; on synthetic figures."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from optcli.results import Estimate
from optcli.results.loadtest import ClientFigures, LoadPoint, LoadWindow
from optcli.serving.loadtest import verdicts, workflow
from optcli.serving.loadtest.records import (
    Records,
    Spans,
    failed_share_low,
    over_windows,
    windows_of,
)
from optcli.serving.loadtest.verdicts import LoadTerms, grows, is_steady, judged

TERMS = LoadTerms({"p95": 100.0})


def client(late_ms=1.0):
    return ClientFigures(
        lateness_p99_ms=late_ms,
        lateness_limit_ms=5.0,
        saturated=late_ms > 5.0,
        cpu_cores=0.1,
        bytes_sent=1,
        bytes_received=1,
        most_in_flight=1,
    )


def window(p95_ms, requests=1000, failed=0):
    p95 = None if p95_ms is None else float(p95_ms)
    return LoadWindow(
        seconds=10, requests=requests, answered=requests - failed, failed=failed, p95_ms=p95
    )


def answer(*p95_ms, terms=TERMS, late_ms=1.0, short=False, estimate=None, **options):
    shown = [window(value) for value in p95_ms]
    known = {"p95": estimate or Estimate(value=max(v for v in p95_ms if v), low=1.0, high=1e9)}
    return judged(shown, known, terms, client(late_ms), short=short, **options)


def records(latencies_ms, apart_ms=10.0, cause=None, causes=("",), late_ms=0.0):
    planned = np.arange(len(latencies_ms)) * apart_ms
    latencies = np.asarray(latencies_ms, float)
    number = np.zeros(len(latencies), np.int16) if cause is None else np.asarray(cause, np.int16)
    wrong = np.zeros(len(latencies), bool)
    return Records(planned, planned + late_ms, planned + latencies, number, wrong, tuple(causes))


def test_the_usual_windows_hold_a_thousand_requests_and_ten_seconds():
    assert Spans.usual(200) == Spans(5.0, 3, 10.0)
    assert Spans.usual(20).window_s == 50.0
    assert not Spans.usual(20).is_short(20)
    assert Spans(5.0, 2, 50.0).is_short(20)
    assert Spans(5.0, 3, 49.0).is_short(20)
    assert Spans(5.0, 3, 10.0).bounds_ms() == [(5000, 15000), (15000, 25000), (25000, 35000)]


def test_requests_belong_to_the_window_they_were_planned_for():
    # The last request of the first window ends in the second: it counts where it was planned.
    taken = records([1, 1, 1, 500, 2, 2, 2, 2])
    first, second = windows_of(taken, Spans(0.0, 2, 0.04))
    assert first.latencies_ms.tolist() == [1, 1, 1, 500]
    assert second.latencies_ms.tolist() == [2, 2, 2, 2]


def test_latency_counts_from_the_planned_time_and_timeouts_count():
    taken = records(
        [5, 5, 1000, 0.1, np.nan], cause=[0, 0, 1, 2, 3], causes=["", "timeout", "queue_full", "x"]
    )
    # What the server refuses at once must not make it look fast; what it never answers must not vanish.
    assert taken.latencies_ms.tolist() == [5, 5, 1000]
    assert taken.failures == {"timeout": 1, "queue_full": 1, "x": 1}
    shown = taken.window(1.0)
    assert (shown.requests, shown.answered, shown.failed) == (5, 2, 3)
    assert shown.p99_ms == 1000
    assert taken.good(10.0) == 2
    assert taken.good(4.0) == 0
    assert records([5, 5], late_ms=7).lateness_p99_ms == 7


def test_an_interval_over_windows_is_wider_than_that_of_all_requests_where_windows_differ():
    random = np.random.default_rng(0)
    same = [records(random.exponential(10, 1000)) for _ in range(3)]
    shifted = [records(random.exponential(10, 1000) * factor) for factor in (0.8, 1.0, 1.2)]
    narrow, wide = (over_windows(each, "p95") for each in (same, shifted))
    assert wide.high - wide.low > 1.3 * (narrow.high - narrow.low)
    assert over_windows([records([1.0] * 20)], "p95") is None


def test_windows_that_agree_are_steady_and_those_that_rise_grow():
    assert is_steady([window(100), window(109), window(105)])
    assert not is_steady([window(100), window(112), window(105)])
    assert not is_steady([window(100), window(None), window(105)])
    assert grows([window(100), window(130), window(160)])
    assert not grows([window(100), window(90), window(160)])
    assert not grows([window(100), window(120), window(140)])


def test_two_of_three_windows_over_the_limit_are_a_breach_and_one_decides_nothing():
    assert answer(120, 130, 90).outcome == "reject"
    assert answer(120, 130, 90).breach
    one = answer(120, 95, 90)
    assert (one.outcome, one.breach) == ("inconclusive", False)
    assert "1 of 3 windows" in one.reason
    kept = answer(80, 82, 84)
    assert (kept.outcome, kept.breach, kept.steady) == ("accept", False, True)


def test_unsteady_windows_are_accepted_only_far_below_the_limit():
    near = answer(70, 85, 95, estimate=Estimate(value=90, low=60, high=130))
    assert near.outcome == "inconclusive"
    far = answer(10, 14, 12, estimate=Estimate(value=13, low=9, high=20))
    assert (far.outcome, far.steady) == ("accept", False)
    rising = answer(10, 14, 18, estimate=Estimate(value=13, low=9, high=20))
    assert rising.outcome == "inconclusive"
    assert "rises" in rising.reason


def test_a_short_run_never_accepts_and_rejects_only_what_is_surely_broken():
    assert answer(80, 82, 84, short=True).outcome == "inconclusive"
    unsure = answer(120, 130, 125, short=True, estimate=Estimate(value=125, low=95, high=200))
    assert (unsure.outcome, unsure.breach) == ("inconclusive", False)
    growing = answer(120, 240, 360, short=True, estimate=Estimate(value=240, low=50, high=900))
    assert (growing.outcome, growing.breach) == ("reject", True)
    sure = answer(120, 130, 125, short=True, estimate=Estimate(value=125, low=105, high=200))
    assert (sure.outcome, sure.breach) == ("reject", True)


def test_a_late_client_decides_nothing_about_latency():
    near = answer(101, 103, 111, late_ms=6.0)
    assert (near.outcome, near.breach) == ("inconclusive", False)
    assert not answer(50, 70, 90, late_ms=6.0).grows
    assert answer(50, 70, 90).grows
    # Far over the limit it is not the client.
    far = answer(113, 115, 90, late_ms=6.0)
    assert (far.outcome, far.breach) == ("reject", True)
    assert "client saturated" in answer(80, 80, 80, late_ms=6.0).reason
    assert LoadTerms({"p95": 100.0}).late_ms == 5.0
    assert LoadTerms({"p95": 400.0}).late_ms == 20.0


def test_a_wrong_answer_rejects_whatever_the_speed():
    wrong = answer(1, 1, 1, wrong=1, checked=3000, wrong_example="sample 3: too far")
    assert wrong.outcome == "reject"
    assert "sample 3" in wrong.reason


def test_failures_are_held_to_the_error_budget():
    few = judged([window(50, failed=1)] * 3, {}, TERMS, client(), short=False)
    assert few.outcome == "accept"  # 3 of 3000 are the budget
    many = judged([window(50, failed=2)] * 3, {}, TERMS, client(), short=False, failures={"timeout": 6})
    assert (many.outcome, many.breach) == ("reject", True)
    assert "timeout 6" in many.reason
    # In a short run one failure of a hundred may be chance, ten are none.
    assert not judged([window(50, 100, 1)], {}, TERMS, client(), short=True).breach
    assert judged([window(50, 100, 10)], {}, TERMS, client(), short=True).breach
    assert failed_share_low(0, 100) == 0.0
    assert failed_share_low(10, 100) == pytest.approx(0.0490, abs=1e-3)


def test_a_server_that_answers_nothing_breaks_the_promise():
    gone = judged(
        [window(None, 1000, 1000)] * 3, {}, TERMS, client(), short=False, failures={"connection": 3000}
    )
    assert gone.outcome == "reject"


def test_without_a_promise_right_answers_are_accepted():
    free = judged([window(50)], {}, LoadTerms({}), client(9.0), short=True)
    assert free.outcome == "accept"
    assert not free.breach


def point(rate, *, breach=False, saturated=False, wrong=0, outcome="accept", purpose="ramp"):
    shown = client(9.0 if saturated else 1.0)
    return LoadPoint(
        rate_per_s=rate, purpose=purpose, encoding="binary", seconds=30, requests=1000, sent_per_s=rate,
        answered_per_s=rate, good_per_s=rate, windows=(), steady=True, grows=False, short=False,
        breach=breach, failed_share=0, checked=1, wrong=wrong, client=shown,
        outcome="reject" if breach else outcome, reason="because",
    )  # fmt: skip


def search(capacity, start, **options):
    return workflow.highest_rate(
        start, lambda rate, purpose: point(rate, breach=rate > capacity, purpose=purpose, **options)
    )


@pytest.mark.parametrize("start", [30.0, 99.0, 130.0, 600.0])
def test_the_limit_is_found_to_five_percent_from_below_and_from_above(start):
    found, points = search(100.0, start)
    assert found.confirmed
    assert 100 / 1.05 <= found.rate_per_s <= 100 < found.broken_per_s
    assert points[-1].purpose == "confirm"
    rates = [each.rate_per_s for each in points if each.purpose == "ramp"]
    steps = {round(max(pair) / min(pair), 6) for pair in pairwise(rates)}
    assert steps <= {workflow.STEP}


def test_a_limit_that_does_not_hold_for_a_minute_is_lowered():
    def attempt(rate, purpose):
        capacity = 90.0 if purpose == "confirm" else 100.0
        return point(rate, breach=rate > capacity, purpose=purpose)

    found, points = workflow.highest_rate(40.0, attempt)
    assert found.confirmed
    assert found.rate_per_s <= 90 < found.broken_per_s
    assert [each.purpose for each in points].count("confirm") > 1


def confirming(*outcomes):
    """A search whose minutes end so, one after the other; the promise breaks over 100 a second."""
    left = list(outcomes)

    def attempt(rate, purpose):
        outcome = left.pop(0) if purpose == "confirm" else "accept"
        made = point(rate, breach=rate > 100, purpose=purpose, outcome=outcome.removeprefix("short "))
        return made.model_copy(
            update={"short": outcome.startswith("short"), "breach": made.outcome == "reject"}
        )

    found, points = workflow.highest_rate(40.0, attempt)
    return found, [each.rate_per_s for each in points if each.purpose == "confirm"], points


def test_a_minute_that_cannot_tell_is_repeated_once_and_then_the_rate_is_lowered():
    found, rates, _ = confirming("inconclusive", "accept")
    assert (found.confirmed, found.rate_per_s) == (True, rates[0])
    assert rates[0] == rates[1]
    found, rates, _ = confirming("inconclusive", "inconclusive", "accept")
    assert (found.confirmed, found.rate_per_s) == (True, rates[2])
    assert rates[2] == pytest.approx(rates[0] * 0.95)
    assert found.broken_per_s > 100  # what cannot tell breaks nothing


def test_a_limit_that_is_not_confirmed_is_a_rate_that_was_sent():
    found, rates, points = confirming(*["reject"] * 4)
    assert not found.confirmed
    assert found.broken_per_s == rates[-1] < rates[0]
    kept = [each.rate_per_s for each in points if each.outcome == "accept"]
    assert found.rate_per_s == max(rate for rate in kept if rate < found.broken_per_s)
    found, rates, _ = confirming(*["inconclusive"] * 4)
    assert (found.confirmed, found.rate_per_s) == (False, rates[0])


def test_a_minute_that_is_too_short_to_accept_is_not_repeated():
    _, rates, _ = confirming("short inconclusive")
    assert len(rates) == 1
    found, rates, _ = confirming("short reject", "short inconclusive")
    assert found.broken_per_s == rates[0] > rates[1]


def test_a_promised_rate_below_all_that_broke_is_not_rejected():
    broken = [point(100.0, breach=True, purpose="confirm")]
    none = workflow.LimitFound(rate_per_s=None, broken_per_s=100.0, confirmed=False)
    outcomes = [next(verdicts.of_limit(none, broken, rate)).outcome for rate in (50.0, 100.0, None)]
    assert outcomes == ["inconclusive", "reject", "reject"]


def test_no_rate_keeps_the_promise():
    found, points = search(0.1, 100.0)
    assert found.rate_per_s is None
    assert not found.confirmed
    assert points[-1].rate_per_s < 15
    (first, *_) = verdicts.of_limit(found, points, 50.0)
    assert first.outcome == "reject"


def test_a_saturated_client_is_tried_again_and_then_ends_the_search():
    found, points = search(100.0, 30.0, saturated=True)
    assert [each.rate_per_s for each in points] == [30.0] * 3
    (first, *_) = verdicts.of_limit(found, points, None)
    assert first.outcome == "inconclusive"


def test_a_wrong_answer_ends_the_search():
    _, points = search(100.0, 30.0, wrong=1)
    assert len(points) == 1


@pytest.mark.parametrize(
    ("promised", "outcome"),
    [(None, "accept"), (90.0, "accept"), (97.5, "inconclusive"), (200.0, "reject")],
)
def test_the_limit_is_held_to_the_promised_rate(promised, outcome):
    found = workflow.LimitFound(rate_per_s=96.0, broken_per_s=100.0, confirmed=True)
    found = found.model_copy(update={"predicted_per_s": {"plan": 100.0, "calibration": 200.0}})
    first, near, far = verdicts.of_limit(found, [point(96.0)], promised)
    assert (first.outcome, first.blocking) == (outcome, True)
    assert [near.outcome, far.outcome] == ["accept", "reject"]
    assert not near.blocking
    assert not far.blocking


def test_reject_comes_before_inconclusive_before_accept():
    made = [
        point(10, outcome="accept", purpose="rate"),
        point(20, outcome="inconclusive", purpose="rate"),
    ]
    decided = list(verdicts.of_points(made, TERMS))
    assert verdicts.overall(decided) == "inconclusive"
    assert "load 20/s" in verdicts.sentence(decided)
    decided = list(verdicts.of_points([*made, point(30, breach=True, purpose="rate")], TERMS))
    assert verdicts.overall(decided) == "reject"
    assert "load 30/s" in verdicts.sentence(decided)
    wrong = list(verdicts.of_points([point(30, wrong=2, purpose="rate")], TERMS))
    assert verdicts.overall(wrong) == "reject"
    assert verdicts.sentence(wrong).startswith("answers")
