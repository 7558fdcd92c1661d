"""What ends a trial: time that is over, a best one that is surely ahead; and why INT8 does not pay."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optcli.data import DataSettings
from optcli.errors import StepError
from optcli.observer import Silent
from optcli.pipeline.execute import BuildSettings
from optcli.results import Accuracy, Estimate
from optcli.results.tuning import TuningTrial
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.slo import SloSettings
from optcli.store import Store
from optcli.tuning import trial_runner, trials
from optcli.tuning.candidates import TrialCandidate
from optcli.tuning.timing import Timing
from optcli.tuning.trial_runner import TrialRunner
from optcli.tuning.trials import Trials
from optcli.tuning.validation import Validation

FLOAT = TrialCandidate((("export_onnx", {}),), {"name": "onnxruntime"}, "float", {"precision": "fp32"})
OTHER = TrialCandidate((("quantize", {}),), {"name": "onnxruntime"}, "other", {"precision": "int8"})
TRAINED = TrialCandidate(
    (("finetune", {}), ("export_onnx", {})), {"name": "onnxruntime"}, "trained", {"precision": "fp32"}
)
NOTHING: Any = SimpleNamespace()


def test_nothing_begins_after_the_time_of_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(trial_runner, "time", SimpleNamespace(monotonic=lambda: now[0]))
    place = TrialRunner(Store(tmp_path), tmp_path, Silent(), BuildSettings(timeout_s=50.0))
    assert place._in_time().timeout_s == 50.0
    limited = place.within(30.0)
    assert limited._in_time().timeout_s == 30.0
    now[0] = 120.0
    assert limited._in_time().timeout_s == 10.0, "what a step leaves is for the next"
    now[0] = 127.77356
    assert limited._in_time().timeout_s == 2.2, "a person reads it where the step is stopped"
    now[0] = 130.0
    for call in (lambda: limited.measure(NOTHING, (), NOTHING, 0), lambda: limited.judge(NOTHING, "a")):
        with pytest.raises(StepError, match="the time is used up"):
            call()


def attempted(
    objective: str,
    monkeypatch: pytest.MonkeyPatch,
    policy: str = "fixed-set",
    surest: float | None = None,
    *,
    certain: bool = False,
    candidate: TrialCandidate = OTHER,
) -> TuningTrial:
    """A trial with calls twice as long as the reference's, which is the best so far.

    That one is `certain` or not; `surest` is the score of the fastest that is.
    """

    def timed(timing: Any, *given: Any, may_end: bool) -> TuningTrial:
        # Surely slower, it ends after one launch; not where it may win by being surely inside.
        sure_only = policy == "non-inferiority" or (given[3].trains and surest is not None)
        assert may_end == (certain or not sure_only)
        slow = Estimate(value=0.5, low=0.4, high=0.6)
        ahead = slow if timing.races else None
        known = {"speedups": {1: slow}, "ahead": ahead, "score": Estimate(value=2.0)}
        trial: TuningTrial = given[3]
        return trial.model_copy(update=known)

    def judged(_: Any, __: Any, ___: Any, ____: Any, trial: TuningTrial) -> TuningTrial:
        return trial.model_copy(update={"stage": "inside", "loss": Estimate(value=0.0)})

    built: Any = SimpleNamespace(facts={}, size_bytes=10, key="k")
    monkeypatch.setattr(trials, "artifact", lambda *_: built)
    monkeypatch.setattr(trials, "early_end", lambda *_: {})
    monkeypatch.setattr(trials, "blocks_gone", lambda *_: {"blocks_removed": 2, "blocks_found": 7})
    monkeypatch.setattr(Trials, "variants_of", lambda *_: None)
    monkeypatch.setattr(Timing, "timed", timed)
    monkeypatch.setattr(Trials, "_judged", judged)
    place: Any = SimpleNamespace(within=lambda _: place, make=lambda _: None)
    tune = SimpleNamespace(objective=objective)
    recipe: Any = SimpleNamespace(tune=tune, wants_certainty=policy == "non-inferiority")
    carried = Trials(place, recipe, (), ("plain", {}), NOTHING, (1,), FLOAT)
    best = TuningTrial(
        number=0,
        label="float",
        why="",
        parameters={},
        passes=FLOAT.passes,
        runner=dict(FLOAT.runner or {}),
        certain=certain,
    )
    sure = best.model_copy(update={"score": Estimate(value=surest)}) if surest else None
    return carried.attempt(1, candidate, "a rule", best, sure, 60.0)


@pytest.mark.parametrize(
    ("objective", "stage"),
    [("p50", "slower"), ("throughput", "slower"), ("cost", "inside"), ("size", "inside")],
)
def test_a_trial_is_behind_by_what_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, objective: str, stage: str
) -> None:
    """A smaller file, or half of the threads, may be what is wanted though calls take longer."""
    assert attempted(objective, monkeypatch).stage == stage


@pytest.mark.parametrize(
    ("policy", "certain", "surest", "stage"),
    [
        ("fixed-set", False, None, "slower"),
        ("non-inferiority", False, None, "inside"),
        ("non-inferiority", False, 1.5, "inside"),
        ("non-inferiority", False, 2.5, "slower"),
        ("non-inferiority", True, 3.0, "slower"),
    ],
)
def test_a_slower_trial_may_win_where_the_recipe_wants_to_be_certain(
    monkeypatch: pytest.MonkeyPatch, policy: str, certain: bool, surest: float | None, stage: str
) -> None:
    """Its score is 2: behind the best, which is not surely inside, or behind one that is."""
    assert attempted("p50", monkeypatch, policy, surest, certain=certain).stage == stage


@pytest.mark.parametrize(
    ("certain", "surest", "stage"),
    [
        (False, None, "slower"),
        (False, 1.5, "inside"),
        (False, 2.5, "slower"),
        (True, 3.0, "slower"),
    ],
)
def test_a_slower_trained_network_may_win_where_the_samples_suffice_to_be_sure(
    monkeypatch: pytest.MonkeyPatch, certain: bool, surest: float | None, stage: str
) -> None:
    """A whole network is surely inside the bar: then the best one, which is not, does not win."""
    found = attempted("p50", monkeypatch, "fixed-set", surest, certain=certain, candidate=TRAINED)
    assert found.stage == stage
    plain = attempted("p50", monkeypatch, "fixed-set", surest, certain=certain)
    assert plain.stage == "slower"


@pytest.mark.parametrize(("ms", "asked"), [(40.0, [256]), (4.0, [None])])
def test_a_part_is_judged_first_where_all_samples_take_long(ms: float, asked: list[int | None]) -> None:
    """4,000 samples in batches of 8: 20 s, of which a part saves most, or 2 s."""
    judged: list[int | None] = []

    def judge(_: Any, __: str, part: Any = None) -> Accuracy:
        judged.append(part.samples if part is not None else None)
        lost = Estimate(value=0.5, low=0.4, high=0.6)
        return Accuracy(metric="top1", value=0.4, baseline=0.9, samples=4000, drop=lost)

    place: Any = SimpleNamespace(judge=judge)
    recipe: Any = SimpleNamespace(accuracy=AccuracySettings(metric="top1", max_drop=0.01))
    validation = Validation(DataSettings(source="npz:samples.npz"), "data.validation", {})
    carried = Trials(place, recipe, (), ("plain", {}), validation, (1, 8), FLOAT)
    carried._samples = 4000
    trial = int8_at(2.0)[1].model_copy(update={"p50_ms": {1: 20.0, 8: ms}})
    found = carried._judged(place, NOTHING, "int8", trial)
    assert judged == asked
    assert found.stage == "outside"


@pytest.mark.parametrize(("slo", "sizes"), [(None, (8,)), (SloSettings(p99_ms=5.0), (1, 8))])
def test_the_service_level_is_judged_at_its_own_batch_size(
    slo: SloSettings | None, sizes: tuple[int, ...]
) -> None:
    """`--batch-size 8` is about throughput; the promise is about single requests all the same."""
    recipe: Any = SimpleNamespace(
        slo=slo,
        tune=SimpleNamespace(max_size_mb=None),
        latency=SimpleNamespace(batch_sizes=(1, 8)),
    )
    carried = Trials(NOTHING, recipe, (), ("plain", {}), NOTHING, (8,), FLOAT)
    assert carried.timing.measured_sizes() == sizes


@pytest.mark.parametrize(
    ("p50_ms", "p95_ms", "limit", "kept"),
    [
        (100.0, None, {"p99_ms": 50.0}, False),
        (40.0, 60.0, {"p99_ms": 50.0}, False),
        (40.0, None, {"p99_ms": 50.0}, True),
        (100.0, None, {"p95_ms": 50.0}, False),
    ],
)
def test_a_percentile_that_needs_more_calls_is_not_taken_for_kept(
    p50_ms: float, p95_ms: float | None, limit: dict[str, float], *, kept: bool
) -> None:
    """A slow network has few calls in the time of a trial: its median says enough."""
    tail = Estimate(value=p95_ms) if p95_ms else None
    row: Any = SimpleNamespace(p50_ms=Estimate(value=p50_ms), p95_ms=tail, p99_ms=None)
    tune = SimpleNamespace(max_size_mb=None)
    recipe: Any = SimpleNamespace(slo=SloSettings(**limit), tune=tune)
    carried = Trials(NOTHING, recipe, (), ("plain", {}), NOTHING, (1,), FLOAT)
    assert carried.timing.keeps_promises({1: row}, int8_at(2.0)[1]) is kept


def int8_at(score: float) -> list[TuningTrial]:
    def trial(number: int, precision: str, its: float) -> TuningTrial:
        return TuningTrial(
            number=number,
            label=f"openvino {precision}",
            why="",
            parameters={"runtime": "openvino", "precision": precision},
            passes=(("to_openvino", {}),),
            stage="inside",
            score=Estimate(value=its),
            loss=Estimate(value=0.0),
        )

    return [trial(0, "fp32", 1.0), trial(1, "int8", score)]


def test_the_blocks_of_a_network_are_counted_that_is_cut_and_not_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = dataclasses.replace(OTHER, parameters={**OTHER.parameters, "blocks": 0.34})
    looked = attempted("p50", monkeypatch, candidate=cut)
    assert (looked.blocks_removed, looked.blocks_found) == (2, 7)
    assert attempted("p50", monkeypatch).blocks_found is None
