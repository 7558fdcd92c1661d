"""The tuned recipe of recipes whose own variants could get in its way."""

from pathlib import Path
from typing import Any

import pytest
from tiny_project import DATA, write_recipe

from optcli.recipe import Recipe, load
from optcli.results import Estimate
from optcli.results.tuning import TuningTrial
from optcli.tuning import finalists, starting
from optcli.tuning.candidates import TrialCandidate
from optcli.tuning.finalists import FinalistChoice
from optcli.tuning.trials import Trials
from optcli.tuning.validation import validation_of

INT8 = (("to_openvino", {}), ("quantize_nncf", {}))
MATRIX = """\
matrix:
  t${threads}:
    over: {threads: [1, 2]}
    variant: {passes: [], runner: {name: onnxruntime, threads: "${threads}"}}
"""


def choice(precision: str = "int8", passes: Any = INT8) -> FinalistChoice:
    trial = TuningTrial(
        number=1,
        label=f"openvino {precision}",
        why="a rule",
        parameters={"runtime": "openvino", "precision": precision},
        passes=passes,
        runner={"name": "openvino", "shapes": "static"},
        stage="inside",
        score=Estimate(value=2.0),
        loss=Estimate(value=0.0),
    )
    return FinalistChoice(trial, "the fastest")


def tuned(path: Path, *choices: FinalistChoice, overrides: tuple[str, ...] = ()) -> Recipe:
    """The recipe that a search of the one at `path` writes for its finalists."""
    start = starting.started(path, overrides)
    read = start.recipe
    named = finalists.variant_names(choices, finalists.names_of(read))
    out = path.with_name("recipe.tuned.yaml")
    text = finalists.text(
        read,
        out,
        named,
        start.baseline,
        finalists.settings_of(overrides),
        confidence=0.975,
        measuring_s=5.0,
        command="optcli tune recipe.yaml",
    )
    finalists.write(out, text)
    return load(out)


@pytest.mark.parametrize("baseline", ["plain", "t1"])
def test_what_a_matrix_writes_is_not_in_it(tmp_path: Path, baseline: str) -> None:
    rest = f"variants:\n  plain: []\nbaseline: {baseline}\n{MATRIX}"
    found = tuned(write_recipe(tmp_path, rest, DATA), choice())
    assert set(found.variants) == {baseline, "openvino-int8"}
    runner = found.variants[baseline].runner
    assert (runner is not None) is (baseline == "t1")


def test_a_recipe_of_a_matrix_alone(tmp_path: Path) -> None:
    found = tuned(write_recipe(tmp_path, MATRIX, DATA), choice())
    assert list(found.variants) == ["t1", "openvino-int8"]


def test_variants_that_the_command_line_adds_are_not_in_it(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, "variants:\n  plain: []\n", DATA)
    found = tuned(path, choice(), overrides=("variants.other=[to_openvino]",))
    assert list(found.variants) == ["plain", "openvino-int8"]


def test_a_finalist_takes_nothing_from_a_variant_of_the_same_name(tmp_path: Path) -> None:
    rest = """\
variants:
  plain: []
  ov: [to_openvino]
  openvino-int8: {extends: ov, passes: [quantize_nncf], runner: {name: openvino, threads: 2}}
"""
    found = tuned(write_recipe(tmp_path, rest, DATA), choice(), choice("fp32", INT8[:1]))
    assert list(found.variants) == ["plain", "openvino-int8-n2", "openvino-fp32"]
    variant = found.variants["openvino-int8-n2"]
    assert [use.name for use in variant.passes] == ["to_openvino", "quantize_nncf"]
    assert variant.extends is None
    assert variant.runner is not None
    assert variant.runner.configured.model_dump()["threads"] is None


def test_a_baseline_named_like_a_finalist_that_extends_a_variant(tmp_path: Path) -> None:
    rest = """\
variants:
  ov: [to_openvino]
  openvino-int8: {extends: ov, passes: [quantize_nncf], runner: openvino}
baseline: openvino-int8
"""
    found = tuned(write_recipe(tmp_path, rest, DATA), choice())
    assert found.baseline == "openvino-int8"
    assert list(found.variants) == ["openvino-int8", "openvino-int8-n2"]
    for variant in found.variants.values():
        assert [use.name for use in variant.passes] == ["to_openvino", "quantize_nncf"]


@pytest.mark.parametrize("name", ["reference", "best", "trial-1"])
def test_a_baseline_named_like_a_variant_of_a_trial(tmp_path: Path, name: str) -> None:
    read = load(write_recipe(tmp_path, f"variants:\n  {name}: []\n", DATA))
    nothing: Any = None
    reference = TrialCandidate(INT8[:1], None, "float")
    baseline = (name, {"passes": []})
    trials = Trials(nothing, read, (), baseline, validation_of(read), (1,), reference)
    found = trials.variants_of({name: {"passes": ["to_openvino"]}})
    assert len(found.variants) == 2
    assert not found.variants[found.baseline].passes
    assert found.variants[name].passes
