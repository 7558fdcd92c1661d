"""Static shapes in the gate: both sides in the form that the baseline had, unless the recipe says."""

from dataclasses import replace
from pathlib import Path

import pytest

from optcli.artifact import Artifact, Format
from optcli.gate.baselines import Baseline, BaselineVariant
from optcli.gate.side import Side, runner_changes, sides

ARTIFACT = Artifact("key", Format.OPENVINO, Path("model"), "fp32", 1, "digest", {})
STATIC = {"precision": "f32", "shapes": "static", "batch_sizes": [1, 8]}
DYNAMIC = {"precision": "f32", "shapes": "dynamic", "batch_sizes": None}


def kept(options, runner="openvino"):
    return BaselineVariant(ARTIFACT, runner, options)


@pytest.mark.parametrize(("then", "now"), [(STATIC, DYNAMIC), (DYNAMIC, STATIC)])
@pytest.mark.parametrize("is_open", [True, False])
def test_what_was_chosen_on_another_day_is_no_difference(then, now, is_open):
    candidates = {"int8": Side("int8", kept(now), (), open_shapes=is_open)}
    before = Baseline("git:main", {"int8": kept(then)}, (), {}, None, {})
    (side,) = sides(candidates, before).values()
    assert side.candidate.options == (then if is_open else now)
    assert side.baseline.options == then
    assert runner_changes(side) == []


def test_another_runner_and_a_new_variant_keep_their_own():
    side = Side("int8", kept(DYNAMIC), (), open_shapes=True)
    other = Baseline("git:main", {"int8": kept(STATIC, "onnxruntime")}, (), {}, None, {})
    assert sides({"int8": side}, other)["int8"].candidate == side.candidate
    none = replace(other, variants={})
    assert sides({"int8": side}, none)["int8"].candidate == side.candidate
