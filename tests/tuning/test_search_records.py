"""What a search keeps, splits off and writes: trials, validation samples, the tuned recipe."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_project import DATA, HEAD, write_images, write_model

from optcli import data as samples_of
from optcli.errors import UsageError
from optcli.recipe import Recipe, load
from optcli.results import Estimate
from optcli.results.tuning import TuningTrial
from optcli.tuning import finalists, rules, starting, tune
from optcli.tuning.finalists import FinalistChoice
from optcli.tuning.space import Space
from optcli.tuning.starting import Study
from optcli.tuning.validation import validation_of

SPLIT = """\
data:
  calibration: {source: "imagefolder:images", split: {seed: 0, to: 0.5}, samples: 10}
  evaluation: {source: "imagefolder:images", split: {seed: 0, from: 0.5}}
accuracy: {metric: top1}
"""


def recipe(folder: Path, data: str = DATA, rest: str = "variants:\n  plain: []\n") -> Recipe:
    write_images(folder / "images")
    write_model(folder / "model.onnx")
    path = folder / "recipe.yaml"
    path.write_text(f"{HEAD}{data}{rest}")
    return load(path)


def trial(number: int, **more: Any) -> TuningTrial:
    given: dict[str, Any] = {
        "label": "openvino int8",
        "why": "a rule",
        "parameters": {
            "runtime": "openvino",
            "precision": "int8",
            "quantizer": "quantize_nncf",
            "preset": None,
            "smooth_quant": None,
            "fast_bias_correction": None,
            "shapes": "static",
        },
        "passes": (("to_openvino", {}), ("quantize_nncf", {})),
        "runner": {"name": "openvino", "shapes": "static"},
        "stage": "inside",
        "score": Estimate(value=2.0, low=1.9, high=2.1),
        "loss": Estimate(value=0.002, low=0.0, high=0.004),
        "samples": 400,
        "seconds": 10.0,
    }
    return TuningTrial(number=number, **{**given, **more})


def test_trials_outlive_a_run_and_a_torn_line_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "store" / "trials.jsonl"
    study = Study(path)
    study.keep(trial(0))
    study.keep(trial(1, stage="outside"))
    with path.open("a") as file:
        file.write('{"number": 2, "label": "to')
    again = Study(path)
    assert again.trials == study.trials
    again.keep(trial(2))
    assert [each.number for each in Study(path).trials] == [0, 1, 2]


@pytest.mark.slow
def test_a_pass_that_the_recipe_adds_is_tried_where_it_fits(tmp_path: Path) -> None:
    rest = "variants:\n  plain: []\ntune: {passes: {optimize_onnx: {}}}\n"
    space = Space.of(recipe(tmp_path, SPLIT, rest))
    parameters = {"runtime": "onnxruntime", "precision": "fp32", "passes": {"optimize_onnx": {}}}
    assert space.candidate(parameters).passes == (("optimize_onnx", {}),)
    plain = {"runtime": "onnxruntime", "precision": "fp32"}
    assert [rule.parameters for rule in rules.further(space, plain)] == [parameters]


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("{optimise_onnx: {}}", "no pass 'optimise_onnx'"),
        ("{prune: {rato: [0.3]}}", "no option 'rato'"),
    ],
)
def test_a_misspelt_pass_of_the_search_is_refused(tmp_path: Path, passes: str, message: str) -> None:
    read = recipe(tmp_path, SPLIT, f"variants:\n  plain: []\ntune: {{passes: {passes}}}\n")
    with pytest.raises(UsageError, match=message) as caught:
        tune(read.path, store=tmp_path / "store", artifacts=tmp_path / "artifacts")
    assert "did you mean" in caught.value.hint


def test_validation_samples_are_the_recipe_s_own(tmp_path: Path) -> None:
    own = '  validation: {source: "imagefolder:images", split: {seed: 1, to: 0.1}}\n'
    data = SPLIT.replace("accuracy:", f"{own}accuracy:")
    read = recipe(tmp_path, data)
    found = validation_of(read)
    assert found.samples == read.data["validation"]
    assert found.taken_from == "data.validation"


def test_validation_samples_are_split_off_and_calibration_loses_them(tmp_path: Path) -> None:
    read = recipe(tmp_path, SPLIT)
    found = validation_of(read)
    rest, part = found.data["calibration"], found.samples
    assert rest.split is not None
    assert part.split is not None
    assert (rest.split.start, rest.split.stop) == (0.0, pytest.approx(0.4))
    assert (part.split.start, part.split.stop) == (pytest.approx(0.4), 0.5)
    assert (rest.samples, part.samples) == (8, 2)
    assert "calibration" in found.taken_from


COPIES = """
data:
  training: {source: "npz:rows.npz", split: training}
  calibration: {source: "npz:rows.npz", split: calibration}
  evaluation: {source: "npz:rows.npz", split: evaluation}
accuracy: {metric: top1, max_drop: 0.1}
"""


@pytest.mark.slow
def test_validation_samples_that_another_role_has_too_are_left_out_with_a_count(tmp_path: Path) -> None:
    rows = np.arange(70, dtype=np.float32)
    rows[10:14] = 50  # copies within the training set
    calibration = [*rows[20:30], *range(200, 205)]  # images of the training set, and others
    image = np.concatenate([rows, calibration, np.arange(100, 110)]).astype(np.float32)
    split = ["training"] * 70 + ["calibration"] * 15 + ["evaluation"] * 10
    values = np.tile(image[:, None, None, None], (1, 3, 8, 8))
    np.savez(tmp_path / "rows.npz", image=values, target=np.zeros(95, int), split=split)
    start = starting.started(recipe(tmp_path, COPIES).path, ())
    found = starting.with_own_samples(start)
    roles = {
        role: samples_of.open(each, tmp_path, start.recipe.inputs)
        for role, each in found.validation.data.items()
    }
    own = samples_of.open(found.validation.samples, tmp_path, start.recipe.inputs)
    drawn = samples_of.open(start.validation.samples, tmp_path, start.recipe.inputs)
    assert 0 < len(own) < len(drawn)
    samples_of.disjoint({"evaluation": own, **{k: v for k, v in roles.items() if k != "validation"}})
    assert f"without {len(drawn) - len(own)} that" in found.validation.taken_from
    bare = starting.bare(found)
    assert bare.data["validation"].without == found.validation.samples.without


def test_a_split_by_a_list_cannot_be_divided(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("0/0.png\n")
    data = SPLIT.replace("split: {seed: 0, to: 0.5}, samples: 10", "split: {file: ids.txt}")
    with pytest.raises(UsageError, match="lists its ids") as caught:
        validation_of(recipe(tmp_path, data))
    assert "data.validation" in caught.value.hint


def test_the_tuned_recipe_is_an_ordinary_one(tmp_path: Path) -> None:
    read = recipe(tmp_path, SPLIT, "variants:\n  plain: []\n  other: [to_openvino]\n")
    choices = finalists.variant_names(
        [
            FinalistChoice(trial(3), "the fastest"),
            FinalistChoice(
                trial(4, passes=(("to_openvino", {}), ("quantize_nncf", {"preset": "mixed"}))), "x"
            ),
        ]
    )
    assert list(choices) == ["openvino-int8", "openvino-int8-n2"]
    changed = finalists.settings_of(["latency.threads=1", "data.calibration.samples=4"])
    out = tmp_path / "elsewhere" / "recipe.tuned.yaml"
    out.parent.mkdir()
    text = finalists.text(
        read,
        out,
        choices,
        ("plain", {"passes": []}),
        changed,
        confidence=0.975,
        measuring_s=5.0,
        command="optcli tune recipe.yaml",
    )
    finalists.write(out, text)
    tuned = load(out)
    assert list(tuned.variants) == ["plain", "openvino-int8", "openvino-int8-n2"]
    assert tuned.baseline == "plain"
    assert tuned.name == f"{read.name}-tuned"
    assert tuned.latency.mode == "table"
    assert tuned.latency.threads == 1
    assert tuned.data["calibration"].samples == 4
    assert tuned.accuracy is not None
    assert tuned.accuracy.confidence == 0.975
    passes = tuned.variants["openvino-int8-n2"].passes
    assert [use.name for use in passes] == ["to_openvino", "quantize_nncf"]
    assert passes[1].options == {"preset": "mixed"}
    assert "0.20 points lost on 400 validation samples" in text.replace("\n  # ", " ")


def test_a_part_that_was_split_off_is_named_with_its_whole_path(tmp_path: Path) -> None:
    read = recipe(tmp_path, SPLIT)
    changed = finalists.changes(validation_of(read).data, read)
    assert changed["data"]["calibration"]["source"] == f"imagefolder:{tmp_path / 'images'}"
    assert changed["data"]["calibration"]["split"]["to"] == pytest.approx(0.4)
