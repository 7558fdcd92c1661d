"""What was disturbed is measured again by fresh launches, and nothing else is."""

import importlib
from dataclasses import replace

import pytest
from scripted import ScriptedChild

from optcli.measure import latency
from optcli.observer import Silent
from optcli.results import flags
from optcli.settings import TensorSpec
from optcli.settings.latency import LatencySettings

INPUTS = (TensorSpec(name="image", shape=("batch", 3), batch={"min": 1, "opt": 8, "max": 64}),)
CALM = {"call_ns": 4e6}


class Listening(Silent):
    def __init__(self):
        self.said = []

    def progress(self, step, fraction, message):
        self.said.append(message)


@pytest.fixture
def measure(tmp_path, scripted, candidate):
    def run(scripts, **settings):
        run.spawned, run.observer = scripted(**scripts), Listening()
        chosen = LatencySettings.model_validate({"batch_sizes": (1, 4), **settings})
        candidates = [candidate(name) for name in scripts]
        return latency.measure(
            latency.LatencyOrder(candidates, "eager", INPUTS, None, chosen, 0), tmp_path, run.observer
        )

    return run


def launched(measure):
    return [child.name for child in measure.spawned]


def test_nothing_more_is_launched_once_it_is_enough(tmp_path, scripted, candidate):
    """The second launch is disturbed: it would have been measured again."""
    asked = []

    def run(*answers):
        scripts = {"eager": CALM, "onnx": {**CALM, "slowed": (1, 2)}}
        spawned = scripted(**scripts)
        chosen, candidates = LatencySettings(batch_sizes=(1,)), [candidate(name) for name in scripts]
        told = iter(answers)

        def enough(so_far):
            asked.append([len(series.launches) for series in so_far.series])
            return next(told)

        latency.measure(
            latency.LatencyOrder(candidates, "eager", INPUTS, None, chosen, 0),
            tmp_path,
            Silent(),
            enough=enough,
        )
        return [child.name for child in spawned]

    assert run(True) == ["eager", "onnx"]
    assert asked == [[1, 1]]
    asked.clear()
    assert run(False, True) == ["eager", "onnx"] * 2
    assert asked == [[1, 1], [2, 2]]
    assert run(False, False) == ["eager", "onnx"] * 4, "it is not asked after the last one"


def test_a_quiet_machine_measures_once(measure):
    measured = measure({"eager": CALM, "onnx": CALM})
    assert launched(measure) == ["eager", "onnx"] * 3
    assert not any("again" in message for message in measure.observer.said)
    assert {row.launches for rows in latency.to_results(measured).values() for row in rows} == {3}


@pytest.mark.slow
def test_only_the_disturbed_variant_and_the_baseline_are_launched_again(measure):
    measured = measure({"eager": CALM, "onnx": {**CALM, "slowed": (1, 2)}, "int8": CALM})
    assert launched(measure) == ["eager", "onnx", "int8"] * 3 + ["eager", "onnx"]
    (again,) = [message for message in measure.observer.said if "again" in message]
    assert again == "the machine was not quiet: eager, onnx again in 0 s (attempt 1 of 3)"
    rows = latency.to_results(measured)
    assert rows["onnx"][0].speedup.value == pytest.approx(1.0)
    assert (rows["onnx"][0].launches, rows["onnx"][0].fit) == (3, True)
    assert flags.rounds_not_counted(left_out=4, rounds=16) in rows["onnx"][0].flags


@pytest.mark.slow
def test_a_disturbed_baseline_has_all_measured_again(measure):
    measured = measure({"eager": {**CALM, "slowed": (1, 2.1, 2.2)}, "onnx": CALM, "int8": CALM})
    assert launched(measure) == ["eager", "onnx", "int8"] * 5
    rows = latency.to_results(measured)
    assert rows["int8"][1].speedup.value == pytest.approx(1.0)
    assert (rows["eager"][0].launches, rows["int8"][0].launches) == (3, 5)


def test_only_the_disturbed_batch_size_is_measured_again(measure, monkeypatch):
    calm = ScriptedChild.do_round

    def disturbed(self, command):
        round = calm(self, command)
        if (self.name, self.launch, command.batch_size) == ("onnx", 0, 4):
            return replace(round, waited_ns=sum(round.ns))
        return round

    monkeypatch.setattr(ScriptedChild, "do_round", disturbed)
    measured = measure({"eager": CALM, "onnx": CALM})
    rounds = {(series.name, series.batch_size): len(series.launches) for series in measured.series}
    assert rounds == {("eager", 1): 3, ("eager", 4): 4, ("onnx", 1): 3, ("onnx", 4): 4}


def test_after_three_attempts_there_is_no_ratio(measure):
    measured = measure({"eager": {**CALM, "slowed": (1, 2, 4, 8, 16, 32)}, "onnx": CALM})
    assert launched(measure) == ["eager", "onnx"] * 6
    assert sum("again" in message for message in measure.observer.said) == 3
    rows = latency.to_results(measured)
    assert not rows["eager"][0].fit
    assert rows["onnx"][0].speedup is None
    assert rows["onnx"][0].flags[-1] == flags.no_speedup("not-fit", "eager", ("eager",), 6)
    assert latency.protocol(measured)["launches_planned"] == 3


def test_pauses_grow_and_all_of_it_is_bounded(measure, monkeypatch):
    module, now, pauses = importlib.import_module("optcli.measure.latency.measure"), [0.0], []

    class Clock:
        @staticmethod
        def monotonic():
            return now[0]

        @staticmethod
        def sleep(seconds):
            pauses.append(seconds)
            now[0] += seconds + 25.0  # what the launch after it takes

    monkeypatch.setattr(module, "time", Clock)
    monkeypatch.setattr(module, "_PAUSES", (0.2, 0.4, 0.8))
    measure({"eager": {**CALM, "slowed": (1, 2, 4, 8, 16, 32)}, "onnx": CALM})
    assert pauses == [2.0, 4.0], "a third would pass 60 s"
    pauses.clear()
    measure({"eager": {**CALM, "slowed": (1, 2, 4, 8, 16, 32)}, "onnx": CALM}, max_seconds=86_400)
    assert pauses == [10.0] * 3, "a pause is no longer than that, however long a measurement may take"


@pytest.mark.parametrize("mode", ["quick", "table"])
def test_what_failed_is_not_tried_again(measure, mode):
    measure(
        {"eager": CALM, "bad": {**CALM, "slowed": (1, 2), "fails": "round", "fails_in": 1}}, mode=mode
    )
    assert launched(measure).count("bad") == 2
    assert launched(measure).count("eager") == {"quick": 3, "table": 5}[mode]


def test_a_gate_measures_as_many_pairs_as_its_own_rule_takes(measure):
    measured = measure({"eager": {**CALM, "slowed": (1, 2)}, "onnx": CALM}, mode="gate")
    assert launched(measure) == ["eager", "onnx"] * 8
    assert len(latency.pair_log_ratios(measured, "onnx", 1)) == 8
    assert latency.to_results(measured)["onnx"][0].speedup is not None


def test_in_quick_mode_only_the_first_launch_times_opening(measure):
    measured = measure({"eager": CALM, "onnx": CALM})
    assert measured.opened["onnx"].load_ms == (20.0,)
    opened = [name for name, do, _ in ScriptedChild.turns if do == "open"]
    assert opened == ["eager", "onnx"] * 3
