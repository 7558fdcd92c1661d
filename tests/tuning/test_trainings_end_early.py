"""Trainings of a search end early, and the search knows how long they really were."""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_project import DATA, write_recipe

from optcli.artifact import Format
from optcli.observer import Silent
from optcli.passes.finetune import Finetune
from optcli.passes.quantize_aware import QuantizeAware
from optcli.recipe import load
from optcli.report.tuning import trial_row
from optcli.results import Estimate
from optcli.results.tuning import TuningTrial
from optcli.settings import TensorSpec
from optcli.settings.postprocess import PostprocessSettings
from optcli.tuning import trial_runner
from optcli.tuning.display import Display
from optcli.tuning.space import Space
from optcli.tuning.strategy import Strategy
from optcli.tuning.trial_facts import fallen, trained_s

CUT = {"runtime": "openvino", "precision": "fp32", "blocks": 0.5, "width": 0.0, "train_s": 100}
WHY = "it has reached its aim"


def space(folder: Path, accuracy: str) -> Space:
    data = DATA.replace("{metric: top1, max_drop: 0.5}", accuracy)
    return Space(
        recipe=load(write_recipe(folder, data=data)),
        source=Format.TORCH,
        runtimes=("openvino",),
        precisions={"openvino": ("fp32", "int8")},
        trains=True,
        prunes=True,
        aware=True,
        threads=(2,),
    )


@pytest.mark.parametrize(
    ("accuracy", "gives_up"),
    [
        ("{metric: top1, max_drop: 0.02}", 0.24),
        ("{metric: top1, max_drop: 0.001}", 0.12),
        ("{metric: top1, max_drop: 0.4}", 1.0),
        ("{metric: top5, max_drop: 0.02}", None),
    ],
)
def test_a_first_training_may_end_early_and_a_second_one_runs_to_its_end(
    tmp_path: Path, accuracy: str, gives_up: float | None
) -> None:
    found = space(tmp_path, accuracy).candidate({**CUT, "more_s": 50})
    first, more = [Finetune(**options) for name, options in found.passes if name == "finetune"]
    assert (first.stop_at_drop, first.give_up_at_drop) == (0.0, gives_up)
    assert (more.stop_at_drop, more.give_up_at_drop) == (None, None)
    aware = {"runtime": "openvino", "precision": "int8", "aware_s": 60, "stop_at": -0.01}
    ((_, options),) = space(tmp_path, accuracy).candidate(aware).passes
    assert QuantizeAware(**options).stop_at_drop == -0.01


@pytest.mark.parametrize(("side", "size"), [(32, 64), (128, 64), (224, 16), (416, 8), (1024, 8)])
def test_a_step_of_large_images_has_fewer_of_them(tmp_path: Path, side: int, size: int) -> None:
    small = space(tmp_path, "{metric: top1, max_drop: 0.02}")
    image = TensorSpec(name="image", shape=("batch", 3, side, side))
    large = replace(small, recipe=small.recipe.model_copy(update={"inputs": (image,)}))
    passes = dict(large.candidate(CUT).passes)
    options = passes["finetune"]
    assert options["batch_size"] == size
    assert passes["prune"].get("block_samples") == (16 if side > 96 else None)
    assert "stop_at_drop" in options


def test_of_a_detector_no_samples_are_held_out(tmp_path: Path) -> None:
    """They would be judged by top-1."""
    own = space(tmp_path, "{metric: top1, max_drop: 0.02}")
    update = {"postprocess": PostprocessSettings.model_validate({"yolox": {}})}
    detector = replace(own, recipe=own.recipe.model_copy(update=update))
    ((_, options),) = [each for each in detector.candidate(CUT).passes if each[0] == "finetune"]
    assert not {"stop_at_drop", "give_up_at_drop"} & set(options)


@pytest.mark.parametrize(("detects", "rate"), [(False, 0.002), (True, 0.0005)])
def test_detectors_are_trained_in_smaller_steps(tmp_path: Path, detects: bool, rate: float) -> None:
    own = space(tmp_path, "{metric: top1, max_drop: 0.02}")
    if detects:
        update = {"postprocess": PostprocessSettings.model_validate({"yolox": {}})}
        own = replace(own, recipe=own.recipe.model_copy(update=update))
    look = trial(family="convolutional", parameters={**CUT, "train_s": 0})
    proposed = Strategy(own, 0.02, 900.0)._training([look], look, 100.0, "a reason").parameters
    passes = dict(own.candidate(proposed).passes)
    assert passes["finetune"]["learning_rate"] == rate


@pytest.mark.parametrize(
    ("samples", "high", "stop_at"),
    [
        (600, 0.008, -0.0158),
        (4000, 0.008, None),
        # No network is surely inside: few samples cannot show it of any, and a small loss is enough.
        (100, 0.03, None),
    ],
)
def test_a_training_ends_where_its_network_should_be_surely_inside(
    tmp_path: Path, samples: int, high: float, stop_at: float | None
) -> None:
    strategy = Strategy(space(tmp_path, "{metric: top1, max_drop: 0.01}"), 0.01, 900.0)
    known = {"stage": "inside", "samples": samples, "parameters": {}, "number": 0}
    done = [trial(loss=Estimate(value=0.0, low=0.0, high=high), **known)]
    look = trial(parameters={**CUT, "train_s": 0})
    proposed = strategy._training(done, look, 90.0, "a reason").parameters
    assert proposed is not None
    assert proposed.get("stop_at") == stop_at
    assert proposed["train_s"] == 90


def test_what_was_learned_before_is_learned_by_the_same_options(tmp_path: Path) -> None:
    """Else the store would not have it, and it would be trained again."""
    strategy = Strategy(space(tmp_path, "{metric: top1, max_drop: 0.01}"), 0.01, 900.0)
    first = trial(stage="inside", parameters={**CUT, "stop_at": -0.02}, score=Estimate(value=2.0))
    look = trial(parameters={**CUT, "blocks": 0.8, "train_s": 0})
    proposed = strategy._training([first], look, 90.0, "a reason").parameters
    assert proposed is not None
    before = strategy.space.candidate(first.parameters).passes[:2]
    assert strategy.space.candidate(proposed).passes[:2] == before


def trial(**more: Any) -> TuningTrial:
    known = {"number": 1, "label": "pruned", "why": "", "parameters": CUT, "passes": ()}
    return TuningTrial.model_validate({**known, **more})


def test_a_loss_is_expected_to_fall_from_what_was_really_trained() -> None:
    assert trained_s(trial()) == 100
    ended = trial(trained_share=0.25)
    assert trained_s(ended) == 25
    assert fallen(0.02, ended, 75.0) == pytest.approx(0.01), "four times as long: half of it"
    assert trained_s(trial(trained_share=0.25, parameters={**CUT, "more_s": 50})) == 75


def made_of(*steps: tuple[str, dict[str, Any]]) -> Any:
    done = {
        str(key): SimpleNamespace(artifact=lambda facts=facts: SimpleNamespace(facts=facts))
        for key, (_, facts) in enumerate(steps)
    }
    planned = [SimpleNamespace(name=name, key=str(key)) for key, (name, _) in enumerate(steps)]
    variant = SimpleNamespace(name="trial-1", steps=planned)
    return SimpleNamespace(done=done, plan=SimpleNamespace(variants=[variant]))


ENDED = {"finetuning": {"early_stopping": {"why": WHY, "share": 0.3}}}
WHOLE = {"finetuning": {"early_stopping": {"why": None, "share": 1.0}}}
PLAIN: dict[str, Any] = {"finetuning": {}}


@pytest.mark.parametrize(
    ("steps", "more_s", "share"),
    [
        ([("prune", {}), ("finetune", ENDED)], 0, 0.3),
        ([("prune", {}), ("finetune", WHOLE)], 0, None),
        # What was learned before the last cut ended early, the last training did not.
        ([("finetune", ENDED), ("prune", ENDED), ("finetune", WHOLE)], 0, None),
        ([("finetune", WHOLE), ("prune", WHOLE), ("finetune", ENDED), ("finetune", PLAIN)], 50, 0.3),
        ([("prune", {}), ("finetune", PLAIN)], 0, None),
    ],
)
def test_the_record_says_how_much_of_its_last_training_ran(
    steps: list[Any], more_s: int, share: float | None
) -> None:
    found = trial_runner.early_end(made_of(*steps), "trial-1", {**CUT, "more_s": more_s})
    assert found == ({} if share is None else {"ended_early": WHY, "trained_share": share})


def test_quantization_aware_training_too() -> None:
    facts = {**WHOLE, "quantization_aware_training": {"early_stopping": {"why": WHY, "share": 0.2}}}
    made = made_of(("finetune", WHOLE), ("quantize_aware", facts))
    assert trial_runner.early_end(made, "trial-1", CUT) == {"ended_early": WHY}
    assert trial_runner.early_end(made, "trial-1", {"aware_s": 60}) == {"ended_early": WHY}


def test_people_read_why_it_ended() -> None:
    lines: list[str] = []

    class Seen(Silent):
        def finished(self, step: str, seconds: float) -> None:
            lines.append(step)

    ended = trial(stage="inside", loss=Estimate(value=0.001), ended_early=WHY)
    Display(Seen(), time.monotonic()).ends(ended)
    assert lines == [
        f"tune: trial 1: pruned, 0.10 points lost, inside the bar, its training ended early: {WHY}"
    ]
    assert trial_row(ended, "p50")[-1] == "pruned (the training ended early)"


def test_the_record_says_how_many_blocks_a_cut_has_removed() -> None:
    pruning = {"pruning": {"blocks_removed": ["layer2.1", "layer3.2"], "blocks_found": 7}}
    made = made_of(("prune", pruning), ("export", {}))
    assert trial_runner.blocks_gone(made, "trial-1") == {"blocks_removed": 2, "blocks_found": 7}
