import json
from dataclasses import replace

import numpy as np
import pytest
from scripted import ScriptedChild

from optcli.measure import latency
from optcli.observer import Silent
from optcli.results import flags
from optcli.settings import TensorSpec
from optcli.settings.latency import LatencySettings

INPUTS = (TensorSpec(name="image", shape=("batch", 3), batch={"min": 1, "opt": 8, "max": 64}),)
SETTINGS = LatencySettings(launches=1, rounds=8, calls=16, batch_sizes=(1, 4), threads=2)
ONCE = LatencySettings(launches=1, rounds=8, calls=16)


@pytest.fixture
def measure(tmp_path, scripted, candidate):
    def run(scripts, settings=SETTINGS, seed=0, wants_p99=False, **options):
        run.spawned = scripted(**scripts)
        candidates = [candidate(name) for name in scripts]
        return latency.measure(
            latency.LatencyOrder(candidates, "eager", INPUTS, None, settings, seed, wants_p99),
            tmp_path,
            Silent(),
            **options,
        )

    return run


def test_every_artifact_has_its_turn_in_every_round(measure):
    measured = measure({"eager": {"call_ns": 8e6}, "onnx": {"call_ns": 4e6}, "int8": {"call_ns": 2e6}})
    turns = [(name, size) for name, do, size in ScriptedChild.turns if do == "round"]
    for size in (1, 4):
        named = [name for name, at in turns if at == size]
        rounds = [named[start : start + 3] for start in range(0, 24, 3)]
        assert rounds == measured.orders[f"0/0/{size}"]
        assert all(sorted(each) == ["eager", "int8", "onnx"] for each in rounds)
        assert len({tuple(each) for each in rounds}) > 2
    assert [series.ns.shape[0] for series in measured.series] == [8] * 6
    assert all(child.killed for child in measure.spawned)


def test_the_order_comes_from_the_seed(measure):
    scripts = {"eager": {"call_ns": 8e6}, "onnx": {"call_ns": 4e6}}
    first, second, other = (measure(scripts, seed=seed).orders for seed in (1, 1, 2))
    assert first == second != other


def test_all_are_open_and_warm_before_the_first_round(measure):
    measure({"eager": {"call_ns": 8e6}, "onnx": {"call_ns": 4e6}}, LatencySettings())
    done = [do for _, do, _ in ScriptedChild.turns[:6]]
    assert done == ["ready", "ready", "open", "open", "warm", "warm"]


def test_results_have_percentiles_and_a_paired_speedup(measure):
    scripts = {"eager": {"call_ns": 8e6, "jitter": 0.01}, "onnx": {"call_ns": 4e6, "jitter": 0.01}}
    measured = measure(scripts, wants_p99=True)
    rows = latency.to_results(measured)
    first, second = rows["onnx"]
    assert (first.batch_size, second.batch_size) == (1, 4)
    assert first.p50_ms.low <= first.p50_ms.value <= first.p50_ms.high
    assert first.p50_ms.value == pytest.approx(4, rel=0.01)
    assert first.p50_ms.value < first.p95_ms.value < first.p99_ms.value
    assert first.speedup.value == pytest.approx(2, rel=0.01)
    assert first.speedup.low < 2 < first.speedup.high
    assert second.throughput_per_s == pytest.approx(4 / 8e-3, rel=0.01)
    assert (first.samples, first.flags) == (8 * 69, ())
    assert first.cpu_ms == pytest.approx(8, rel=0.01)
    assert (first.load_ms, first.first_ms, first.peak_memory_bytes) == (20, 9, 50_000_000)
    assert rows["eager"][0].speedup.value == 1
    assert latency.speedup(measured, "eager", "onnx", 1).value == pytest.approx(0.5, rel=0.01)


def test_a_percentile_without_enough_samples_is_none_with_a_flag(measure):
    settings = LatencySettings(launches=1, rounds=4, calls=5, max_seconds=1)
    row = latency.to_results(measure({"eager": {"call_ns": 40e6}}, settings))["eager"][0]
    assert row.samples == 20
    assert (row.p90_ms, row.p95_ms, row.p99_ms) == (None, None, None)
    assert row.p50_ms.low is not None
    wanted = {90: 36, 95: 72, 99: 368}
    assert row.flags == tuple(flags.too_few_calls(q, 20, needed) for q, needed in wanted.items())


@pytest.mark.parametrize("step", ["ready", "open", "warm", "round"])
def test_a_failing_candidate_costs_only_itself(measure, step):
    measured = measure(
        {"eager": {"call_ns": 4e6}, "bad": {"call_ns": 4e6, "fails": step}, "ok": {"call_ns": 2e6}}
    )
    rows = latency.to_results(measured)
    assert set(rows) == {"eager", "ok"}
    assert rows["ok"][1].speedup.value == pytest.approx(2)
    assert set(measured.failures) == {"bad"}
    assert "segmentation fault" in measured.failures["bad"]


def test_what_was_measured_before_a_failure_is_kept_and_flagged(measure):
    measured = measure(
        {"eager": {"call_ns": 4e6}, "bad": {"call_ns": 4e6, "fails": "round", "fails_at": 4}}
    )
    (row,) = latency.to_results(measured)["bad"]
    assert row.batch_size == 1
    assert [flag.kind for flag in row.flags] == ["stopped"]
    assert "failed at batch size 4" in row.flags[0].text


def test_without_the_baseline_there_is_no_speedup_and_a_flag_says_so(measure):
    rows = latency.to_results(
        measure({"eager": {"call_ns": 4e6, "fails": "open"}, "onnx": {"call_ns": 4e6}})
    )
    assert rows["onnx"][0].speedup is None
    assert flags.no_speedup("baseline-not-beside", "eager") in rows["onnx"][0].flags


@pytest.mark.slow
def test_groups_are_compared_with_the_baseline_of_their_own(measure):
    measured = measure({name: {"call_ns": 4e6} for name in ("eager", "a", "b")}, budget_bytes=0)
    assert measured.groups == (("eager", "a"), ("eager", "b"))
    assert len([series for series in measured.series if series.name == "eager"]) == 4
    assert latency.speedup(measured, "a", "b", 1) is None
    assert latency.to_results(measured)["b"][0].speedup.value == pytest.approx(1)
    assert len(latency.to_results(measured)["eager"]) == 2


def test_batch_sizes_the_model_does_not_take_are_skipped_with_a_flag(measure):
    rows = latency.to_results(
        measure({"eager": {"call_ns": 4e6}}, LatencySettings(batch_sizes=(4, 128)))
    )
    (row,) = rows["eager"]
    assert row.batch_size == 4
    assert flags.batch_size_not_measured(128, "the model takes 1 to 64") in row.flags


def test_threads_of_the_settings_are_the_runners_unless_it_has_its_own(measure, candidate, tmp_path):
    measure({"eager": {"call_ns": 4e6}})
    (child,) = measure.spawned
    assert child.request.options == {"threads": 2}
    assert child.environment["OMP_NUM_THREADS"] == "2"
    assert child.log == tmp_path / "eager.log"
    own = candidate("eager", threads=1)
    latency.measure(latency.LatencyOrder([own], "eager", INPUTS, None, SETTINGS, 0), tmp_path, Silent())
    assert measure.spawned[-1].request.options == {"threads": 1}


def test_threads_that_were_not_heeded_are_marked_other_wishes_are_not(scripted, candidate, tmp_path):
    one = {"call_ns": 4e6, "threads": 1}
    scripted(eager={"call_ns": 4e6}, asked=one, slighted=one)
    candidates = [candidate("eager"), candidate("asked", threads=1), candidate("slighted")]
    rows = latency.to_results(
        latency.measure(
            latency.LatencyOrder(candidates, "eager", INPUTS, None, SETTINGS, 0), tmp_path, Silent()
        )
    )
    marked = {
        name: [flag for flag in found[0].flags if flag.kind == "other-thread-count"]
        for name, found in rows.items()
    }
    slighted = [flags.other_thread_count(threads=1, wanted=2)]
    assert marked == {"eager": [], "asked": [], "slighted": slighted}


def test_what_a_runner_warns_of_is_marked_at_every_row(scripted, candidate, tmp_path):
    warning = flags.no_instructions("fp16")
    scripted(eager={"call_ns": 4e6}, cast={"call_ns": 9e6, "flags": [warning.model_dump()]})
    candidates = [candidate("eager"), candidate("cast")]
    rows = latency.to_results(
        latency.measure(
            latency.LatencyOrder(candidates, "eager", INPUTS, None, SETTINGS, 0), tmp_path, Silent()
        )
    )
    assert rows["cast"]
    assert all(warning in row.flags for row in rows["cast"])
    assert not any(warning in row.flags for row in rows["eager"])


def test_wrong_runner_options_are_that_candidates_failure(measure, candidate, tmp_path):
    measure({"eager": {"call_ns": 4e6}})
    wrong = candidate("wrong", nonsense=3)
    measured = latency.measure(
        latency.LatencyOrder([candidate("eager"), wrong], "eager", INPUTS, None, SETTINGS, 0),
        tmp_path,
        Silent(),
    )
    assert "nonsense" in measured.failures["wrong"]
    assert "eager" in latency.to_results(measured)


@pytest.mark.slow
def test_noise_is_marked_and_no_call_dropped(measure):
    rows = {}
    for jitter in (0.01, 0.18, 0.4):
        measured = measure({"eager": {"call_ns": 4e6, "jitter": jitter}})
        rows[jitter] = latency.to_results(measured)["eager"][0]
        assert rows[jitter].samples == measured.of("eager")[0].only([0]).ns.size * rows[jitter].launches
        assert rows[jitter].launches == len(measured.of("eager")[0].launches)
    assert rows[0.01].flags == ()
    assert "fluctuating" in [flag.kind for flag in rows[0.18].flags]
    assert rows[0.4].flags[0].kind == "environment-not-fit"
    assert rows[0.4].flags[0].figures["spread"] > 0.3


def test_a_machine_that_becomes_busy_costs_rounds_not_hours(measure):
    settings = ONCE.model_copy(update={"max_seconds": 1.0})
    rows = latency.to_results(
        measure({"eager": {"call_ns": 4e6}, "slow": {"call_ns": 4e6, "busy": 8}}, settings)
    )
    assert (rows["eager"][0].samples, rows["slow"][0].samples) == (8 * 16, 6 * 16)
    assert flags.time_cap(rounds=6, planned=8, launches=1, total=1) in rows["slow"][0].flags
    assert rows["slow"][0].speedup.value == pytest.approx(1 / 8, rel=0.01)


def test_interrupted_and_stolen_rounds_are_marked(measure, monkeypatch):
    calm = ScriptedChild.do_round
    disturbed = iter([{"switches": 9}, {"steal_s": 0.045}, {"waited_ns": 45_000_000}] * 2 + [{}] * 2)
    noisy = lambda self, command: replace(calm(self, command), **next(disturbed))  # noqa: E731
    monkeypatch.setattr(ScriptedChild, "do_round", noisy)
    row = latency.to_results(measure({"eager": {"call_ns": 4e6}}, ONCE))["eager"][0]
    (noisy,) = row.flags
    assert noisy.figures == pytest.approx(
        {"lost": 0.0815, "switches": 18, "steal_s": 0.09, "waited_s": 0.09}, rel=0.01
    )


def test_samples_come_back_from_the_file(measure, tmp_path):
    scripts = {"eager": {"call_ns": 4e6}, "bad": {"call_ns": 4e6, "fails": "round", "fails_in": 1}}
    measured = measure(scripts, LatencySettings(mode="table", launches=2, batch_sizes=(1, 4)))
    latency.save(measured, tmp_path / "samples.npz")
    again = latency.load(tmp_path / "samples.npz")
    assert latency.to_results(again) == latency.to_results(measured)
    assert latency.protocol(again) == latency.protocol(measured)
    assert (again.failures, again.orders) == (measured.failures, measured.orders)
    assert (again.opened, again.conditions) == (measured.opened, measured.conditions)
    for mine, theirs in zip(measured.series, again.series, strict=True):
        assert np.array_equal(mine.ns, theirs.ns)
        assert replace(mine, ns=None) == replace(theirs, ns=None)


def test_samples_of_another_version_are_refused(measure, tmp_path):
    latency.save(measure({"eager": {"call_ns": 4e6}}), tmp_path / "samples.npz")
    with np.load(tmp_path / "samples.npz") as archive:
        about = json.loads(str(archive["about"]))
    np.savez(tmp_path / "older.npz", about=np.array(json.dumps({**about, "version": 1})))
    with pytest.raises(ValueError, match="another version"):
        latency.load(tmp_path / "older.npz")


def test_protocol_says_how_it_was_measured(measure):
    protocol = latency.protocol(measure({"eager": {"call_ns": 4e6}, "int8": {"call_ns": 1e5}}))
    assert protocol["calls_per_round"] == [69, 200]
    assert (protocol["mode"], protocol["launches"], protocol["rounds"]) == ("quick", 1, 8)
    assert protocol["inputs"] == "random"
    assert protocol["threads"] == [2]
