"""Several launches: table mode, launch pairs, and what happens when a process dies on the way."""

import math
import sys

import pytest
from scripted import ScriptedChild

from optcli.measure import latency
from optcli.observer import Silent
from optcli.results import flags
from optcli.settings import TensorSpec
from optcli.settings.latency import LatencySettings

INPUTS = (TensorSpec(name="image", shape=("batch", 3), batch={"min": 1, "opt": 8, "max": 64}),)
TABLE = LatencySettings(mode="table", batch_sizes=(1, 4))


@pytest.fixture
def measure(tmp_path, scripted, candidate):
    def run(scripts, settings=TABLE, wants_p99=False, **options):
        run.spawned = scripted(**scripts)
        candidates = [candidate(name) for name in scripts]
        return latency.measure(
            latency.LatencyOrder(candidates, "eager", INPUTS, None, settings, 0, wants_p99),
            tmp_path,
            Silent(),
            **options,
        )

    return run


@pytest.mark.slow
def test_every_launch_is_a_fresh_process_that_sees_all_batch_sizes(measure):
    measured = measure({"eager": {"call_ns": 4e6}, "onnx": {"call_ns": 2e6}})
    assert len(measure.spawned) == 10
    assert all(child.killed for child in measure.spawned)
    assert set(measured.orders) == {f"0/{launch}/{size}" for launch in range(5) for size in (1, 4)}
    for series in measured.series:
        assert series.launch == tuple(launch for launch in range(5) for _ in range(8))
        assert series.round == tuple(range(8)) * 5
        assert [start.launch for start in series.starts] == [0, 1, 2, 3, 4]
    assert len(measured.opened["onnx"].load_ms) == 5
    row = latency.to_results(measured)["onnx"][0]
    assert (row.launches, row.rounds, row.samples) == (5, 40, 40 * 30)
    assert (row.first_ms, row.warm_calls) == (11, 30)  # medians over launches


def test_the_order_differs_between_launches(measure):
    measured = measure({name: {"call_ns": 4e6} for name in ("eager", "a", "b", "c")})
    assert len({str(measured.orders[f"0/{launch}/1"]) for launch in range(5)}) == 5


@pytest.mark.slow
def test_the_speedup_is_a_t_interval_over_launches(measure):
    scripts = {
        "eager": {"call_ns": 8e6, "launch_jitter": 0.02},
        "onnx": {"call_ns": 4e6, "launch_jitter": 0.02},
    }
    measured = measure(scripts)
    found = latency.to_results(measured)["onnx"][0].speedup
    logs = [
        math.log(base.call_ns / other.call_ns)
        for base, other in zip(measure.spawned[::2], measure.spawned[1::2], strict=True)
    ]
    mean = sum(logs) / 5
    error = math.sqrt(sum((each - mean) ** 2 for each in logs) / 4 / 5)
    assert math.log(found.value) == pytest.approx(mean, abs=1e-4)
    assert math.log(found.high) == pytest.approx(mean + 2.776 * error, abs=1e-3)
    assert math.log(found.low) == pytest.approx(mean - 2.776 * error, abs=1e-3)


def test_a_table_warms_up_until_it_is_steady_and_says_where_it_is_not(measure):
    measured = measure({"eager": {"call_ns": 4e6}, "restive": {"call_ns": 4e6, "steady": False}})
    rows = latency.to_results(measured)
    assert rows["eager"][0].flags == ()
    assert rows["restive"][0].flags == (flags.unsteady(launches=5, total=5),)


def test_who_dies_in_the_third_launch_keeps_what_it_gave_and_the_others_are_complete(measure):
    dying = {"call_ns": 4e6, "fails": "round", "fails_at": 4, "fails_in": 2}
    measured = measure({"eager": {"call_ns": 8e6}, "bad": dying, "ok": {"call_ns": 2e6}})
    rows = latency.to_results(measured)
    assert [row.launches for row in rows["bad"]] == [3, 2]
    assert rows["bad"][1].speedup.value == pytest.approx(2)
    assert "segmentation fault" in rows["bad"][0].flags[-1].figures["error"]
    assert "at batch size 4 in launch 3 of 5" in rows["bad"][0].flags[-1].figures["error"]
    assert flags.fewer_launches(launches=2, planned=5) in rows["bad"][1].flags
    for name in ("eager", "ok"):
        assert [(row.launches, row.flags) for row in rows[name]] == [(5, ())] * 2
    assert [child.name for child in measure.spawned].count("bad") == 3


def test_a_measurement_that_gave_nothing_is_not_finished(measure, monkeypatch):
    said = []
    for word in ("finished", "failed"):
        monkeypatch.setattr(Silent, word, lambda _, *about, word=word: said.append((word, about)))
    fails = {"call_ns": 8e6, "fails": "open", "fails_in": 0}
    measure({"eager": fails, "onnx": {"call_ns": 4e6}})
    measure({"eager": fails, "onnx": fails})
    assert [each[0] for each in said] == ["finished", "failed"]
    assert said[1][1] == ("latency", "nothing could be measured")


def test_rounds_before_a_death_are_kept(measure, monkeypatch):
    calm, left = ScriptedChild.send, [3]

    def dying(self, command):
        if self.name == "bad" and command.do == "round":
            left[0] -= 1
            if left[0] < 0:
                self.fails = "round"
        calm(self, command)

    monkeypatch.setattr(ScriptedChild, "send", dying)
    measured = measure({"eager": {"call_ns": 8e6}, "bad": {"call_ns": 4e6}})
    (row,) = latency.to_results(measured)["bad"]
    assert (row.rounds, row.launches) == (3, 1)
    assert row.speedup.value == pytest.approx(2)
    assert row.speedup.low is not None


def test_without_the_baseline_from_some_launch_on_the_speedup_is_over_those_before(measure):
    dying = {"call_ns": 8e6, "fails": "open", "fails_in": 2}
    rows = latency.to_results(measure({"eager": dying, "ok": {"call_ns": 4e6}}))
    assert (rows["eager"][0].launches, rows["ok"][0].launches) == (2, 5)
    assert rows["ok"][0].speedup.value == pytest.approx(2)
    assert "in launch 3 of 5" in rows["eager"][0].flags[-1].figures["error"]


def test_what_memory_cannot_tell_is_not_told(measure):
    scripts = {"eager": {"call_ns": 4e6}, "bad": {"call_ns": 4e6, "fails": "memory"}}
    once = LatencySettings(launches=1)
    (row,) = latency.to_results(measure(scripts, once))["bad"]
    assert row.peak_memory_bytes is None
    assert row.samples == 4 * 138


def test_the_number_of_calls_holds_for_all_launches(measure):
    measured = measure({"eager": {"call_ns": 4e6, "launch_jitter": 0.02}})
    assert {series.ns.shape[0] for series in measured.series} == {40}


def test_protocol_names_mode_launches_threads_that_wait_and_where_the_time_went(measure):
    protocol = latency.protocol(measure({"eager": {"call_ns": 4e6}, "onnx": {"call_ns": 2e6}}))
    assert (protocol["mode"], protocol["launches"], protocol["warm_calls"]) == ("table", 5, [30, 30])
    assert "3 %" in protocol["warmup"]
    assert protocol["waiting"]["environment"]["onnx"]["OMP_WAIT_POLICY"] == "PASSIVE"
    assert protocol["waiting"]["idle_cpu"] == 0
    assert set(protocol["seconds"]) == {"wall", "opening", "warm_up", "timed", "share_measuring"}
    assert 0 <= protocol["seconds"]["share_measuring"] <= 1
    before = protocol["conditions"]["before"]
    assert {"load_average", "affinity", "cpu_quota", "governor", "steal_s"} <= set(before)


@pytest.fixture
def pairs(tmp_path, scripted, candidate):
    def make(scripts, **settings):
        make.spawned = scripted(**scripts)
        base, other = (candidate(name) for name in scripts)
        chosen = LatencySettings(mode="gate", **settings)
        return latency.LaunchPairs(
            latency.LatencyOrder((base, other), base.name, INPUTS, None, chosen, 0), tmp_path, Silent()
        )

    return make


def test_launch_pairs_go_on_where_they_stopped(pairs):
    found = pairs({"base": {"call_ns": 4e6}, "new": {"call_ns": 4.2e6, "launch_jitter": 0.01}})
    first = found.measure(2)
    assert found.count == 2
    early = latency.pair_log_ratios(first, "new", 1)
    assert len(early) == 2
    later = latency.pair_log_ratios(found.measure(3), "new", 1)
    assert (found.count, len(later)) == (5, 5)
    assert later[:2] == early
    expected = [math.log(child.call_ns / 4e6) for child in pairs.spawned if child.name == "new"]
    assert later == pytest.approx(expected, abs=1e-4)
    assert latency.pair_log_ratios(first, "new", 1, q=0.95) == pytest.approx(early, abs=1e-4)
    assert latency.pair_log_ratios(first, "new", 8) == []


def test_both_sides_are_warmed_up_and_timed_by_the_baselines_numbers(pairs, monkeypatch):
    asked = []
    calm = ScriptedChild.send
    monkeypatch.setattr(
        ScriptedChild,
        "send",
        lambda self, command: (asked.append((self.name, command)), calm(self, command)),
    )
    measured = pairs({"base": {"call_ns": 4e6}, "new": {"call_ns": 40e6}}).measure(2)
    warm = [(name, each.calls, each.steady) for name, each in asked if each.do == "warm"]
    assert warm == [("base", 10, True), ("new", 30, False), ("base", 30, False), ("new", 30, False)]
    assert {each.calls for _, each in asked if each.do == "round"} == {15}
    assert {series.ns.shape for series in measured.series} == {(16, 15)}


def test_a_pair_without_one_side_ends_the_pairs(pairs):
    found = pairs({"base": {"call_ns": 4e6}, "new": {"call_ns": 4e6, "fails": "round", "fails_in": 2}})
    measured = found.measure(8)
    assert "segmentation fault" in measured.failures["new"]
    assert len(latency.pair_log_ratios(measured, "new", 1)) == 2
    assert found.measure(8).failures
    assert len(pairs.spawned) == 6


def test_a_pair_needs_two_names(pairs, candidate, tmp_path):
    with pytest.raises(ValueError, match="two names"):
        latency.LaunchPairs(
            latency.LatencyOrder(
                (candidate("a"), candidate("a")),
                candidate("a").name,
                INPUTS,
                None,
                LatencySettings(),
                0,
            ),
            tmp_path,
            Silent(),
        )


def test_an_artifact_may_have_its_own_interpreter_and_process(scripted, candidate, tmp_path):
    from dataclasses import replace

    spawned = scripted(eager={"call_ns": 4e6}, other={"call_ns": 4e6})
    other = replace(candidate("other"), interpreter="other/bin/python", serve="mine:serve")
    once = LatencySettings(launches=1)
    latency.measure(
        latency.LatencyOrder([candidate("eager"), other], "eager", INPUTS, None, once, 0),
        tmp_path,
        Silent(),
    )
    assert [(child.interpreter, child.function) for child in spawned] == [
        (sys.executable, "optcli.measure.latency.process:serve"),
        ("other/bin/python", "mine:serve"),
    ]


def test_an_artifact_from_elsewhere_is_measured_in_a_confined_process(scripted, candidate, tmp_path):
    from dataclasses import replace

    spawned = scripted(eager={"call_ns": 4e6}, other={"call_ns": 4e6})
    other = candidate("other")
    foreign = replace(other, artifact=replace(other.artifact, foreign=True))
    once = LatencySettings(launches=1)
    latency.measure(
        latency.LatencyOrder([candidate("eager"), foreign], "eager", INPUTS, None, once, 0),
        tmp_path,
        Silent(),
    )
    assert [child.confined for child in spawned] == [None, ()]
