from dataclasses import replace

import numpy as np
import pytest
from handmade import measured, series

from optcli.measure.latency import launches, quality
from optcli.measure.latency.samples import LaunchStart
from optcli.results import flags
from optcli.results.statistics import spread


def flags_of(one, **settings):
    return list(quality.flags_of(measured(one, **settings), one))


CALM = 4e6 * (1 + 0.01 * np.random.default_rng(0).normal(size=(8, 50)))


def test_a_calm_measurement_leaves_no_doubt():
    assert flags_of(series(CALM)) == []


def test_inputs_that_take_longer_than_others_are_no_noise():
    """Sixteen inputs, of which half take twice as long; every round begins with another one."""
    first = tuple(3 * row % 16 for row in range(8))
    feed = (np.arange(50)[None, :] + np.array(first)[:, None]) % 16
    one = series(CALM * np.where(feed < 8, 1, 2), first_feed=first)
    assert spread(one.ns) > 0.5
    assert launches.spread_of(one) < 0.03
    assert flags_of(one) == []


def test_too_few_calls_to_know_an_inputs_own_time_are_taken_as_they_are():
    one = series(CALM[:, :4])
    assert launches.spread_of(one) == pytest.approx(spread(one.ns))


def test_rounds_that_differ_are_noise():
    one = series(CALM * np.linspace(1, 2, 8)[:, None])
    (doubt,) = flags_of(one)
    assert doubt.kind == "environment-not-fit"
    assert doubt.figures["spread"] == pytest.approx(0.41, abs=0.005)


@pytest.mark.parametrize(
    ("share", "kinds"),
    [(0.05, []), (0.15, ["noisy"]), (0.6, ["environment-not-fit", "noisy"])],
)
def test_waiting_for_a_processor_is_said_even_where_the_median_hides_it(share, kinds):
    waited = (int(share * CALM[0].sum()),) * 8
    doubts = flags_of(series(CALM, waited_ns=waited))
    assert [flag.kind for flag in doubts] == kinds
    if len(kinds) > 1:
        assert doubts[0].figures == {"waited": pytest.approx(0.6, rel=0.01)}


@pytest.mark.parametrize(("share", "named"), [(0.01, False), (0.15, True), (0.6, True)])
def test_a_quota_is_named_where_it_may_be_what_threads_waited_for(share, named):
    one = series(CALM, waited_ns=(int(share * CALM[0].sum()),) * 8)
    conditions = {
        "before": {"throttled_s": 7.0, "cpu_quota": 1.5},
        "after": {"throttled_s": 9.0, "cpu_quota": 1.5},
    }
    doubts = quality.flags_of(replace(measured(one), conditions=conditions), one)
    assert (flags.throttled(seconds=2.0, quota=1.5) in doubts) == named


def test_rounds_that_were_interrupted_are_no_noise_where_it_took_hardly_any_time():
    assert flags_of(series(CALM, switches=(9,) * 8)) == []
    lost = flags_of(
        series(CALM, switches=(9,) * 8, steal_s=tuple(0.2 * row.sum() / 1e9 for row in CALM))
    )
    assert [flag.figures for flag in lost] == [
        pytest.approx({"lost": 0.2, "switches": 72, "steal_s": 0.32, "waited_s": 0}, rel=0.01)
    ]


def test_launches_that_were_not_steady_or_too_few_are_counted():
    starts = (LaunchStart(0, 9.0, 10, True, 0.5, None), LaunchStart(1, 9.0, 99, False, 10.0, None))
    one = series(CALM, launch=[0] * 4 + [1] * 4, starts=starts)
    assert flags_of(one, mode="table", rounds=4) == [
        flags.unsteady(launches=1, total=2),
        flags.fewer_launches(launches=2, planned=5),
    ]


def test_rounds_cut_by_the_time_cap_are_said_by_launch():
    one = series(CALM, launch=[0] * 5 + [1] * 3)
    assert flags_of(one, mode="table", launches=2, rounds=5) == [
        flags.time_cap(rounds=3, planned=5, launches=1, total=2)
    ]


def test_a_process_that_computes_while_others_are_timed_is_named():
    other = series(CALM, name="onnx")
    restless = series(CALM, idle_cpu_ns=tuple(int(0.2 * row.sum()) for row in CALM))
    found = measured(restless, other)
    assert quality.idle_share(found, restless) == pytest.approx(0.2, rel=1e-3)
    (doubt,) = quality.flags_of(found, restless)
    assert (doubt.kind, doubt.figures) == ("restless", {"share": pytest.approx(0.2, rel=1e-3)})
    assert quality.flags_of(found, other) == ()
