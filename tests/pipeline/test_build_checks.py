"""A variant that cannot be built here is checked as far as can be, where its pass knows how."""

from dataclasses import replace

import numpy as np
import pytest

from optcli import environment
from optcli.artifact import EMBEDDED_STEPS, Artifact, Format
from optcli.errors import ExitCode, InputError, StepError
from optcli.files.digest import FileDigests
from optcli.models.formats import torch_devices
from optcli.pipeline import check
from optcli.pipeline.plan import plan_of
from optcli.recipe import load
from optcli.settings import TensorSpec

CHECKED = """\
  plain: []
  rare: {passes: [{"./fakes.py:Copy": {note: a}}, "./fakes.py:Watchful"], required: REQUIRED}
"""


@pytest.mark.slow
def test_the_steps_before_are_built_and_the_pass_is_asked(project, unmeasured):
    project.recipe(CHECKED.replace("REQUIRED", "false"))
    report = project.build()
    rare = report.variants["rare"]
    assert report.exit_code == ExitCode.DONE
    assert rare.status == "skipped"
    assert "optcli_no_such_package" in rare.reason
    assert rare.checked == ("the model has 1 input", "note a was seen")
    assert [step.name for step in rare.steps][-2:] == [
        "./fakes.py:Copy",
        "check for ./fakes.py:Watchful",
    ]
    assert (rare.artifact, rare.latency) == (None, ())
    again = project.build().variants["rare"]
    assert {step.status for step in again.steps} == {"cached"}
    assert again.checked == rare.checked


@pytest.mark.slow
def test_required_it_fails_as_missing(project, unmeasured):
    project.recipe(CHECKED.replace("REQUIRED", "true"))
    report = project.build()
    assert report.exit_code == ExitCode.MISSING
    assert report.variants["rare"].checked


@pytest.mark.slow
def test_a_pass_that_checks_nothing_costs_nothing(project, unmeasured):
    project.recipe('  plain: []\n  rare: [{"./fakes.py:Copy": {note: b}}, "./fakes.py:Unobtainable"]\n')
    rare = project.build().variants["rare"]
    assert (rare.status, rare.checked, rare.steps) == ("skipped", (), ())


@pytest.mark.slow
def test_a_step_before_that_fails_fails_the_variant(project, unmeasured):
    project.recipe(
        '  plain: []\n  rare: [{"./fakes.py:Convert": {wrong: true}}, "./fakes.py:Watchful"]\n'
    )
    assert project.build().variants["rare"].status == "failed"


def test_an_engine_without_a_gpu_is_checked_for(project, monkeypatch):
    lacking = environment.Missing("no GPU", "find one")
    monkeypatch.setattr(environment, "missing", lambda needs: [lacking] if needs.gpu else [])
    project.recipe("  plain: []\n  engine: [{tensorrt_engine: {precision: fp16}}]\n")
    engine = plan_of(load(project.folder / "recipe.yaml"), {}, FileDigests()).variants[1]
    assert engine.missing == (lacking,)
    assert [step.name for step in engine.possible] == ["source onnx", "check for tensorrt_engine"]
    assert [step.only_checks for step in engine.possible] == [False, True]
    assert engine.possible[-1].key not in {step.key for step in engine.steps}


def model(folder, offset):
    """Gives its input plus `offset`: a difference that is large for small values alone."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "offset"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(np.float32(offset), "offset")],
    )
    folder.mkdir(parents=True)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(made, folder / "model.onnx")
    return Artifact("k", Format.ONNX, folder, "fp32", 1, "d", {"outputs": ["y"]})


SPEC = {"name": "x", "shape": ("batch", 8), "batch": {"min": 1, "opt": 2, "max": 4}}


def compared(tmp_path, offset=0.02, probe=None, **spec):
    made = [model(tmp_path / name, by) for name, by in (("child", offset), ("parent", 0.0))]
    return check.against_parent(*made, (TensorSpec(**SPEC, **spec),), probe, 1e-3, 1)


def test_a_model_of_0_to_255_is_checked_on_such_values_where_they_are_declared(tmp_path):
    with pytest.raises(StepError, match="on random inputs the outputs differ") as caught:
        compared(tmp_path / "a")
    assert "on values between 0 and 255 they differ by" in caught.value.hint
    assert "declare it with `range: [0, 255]` at input 'x'" in caught.value.hint
    found = compared(tmp_path / "b", range=(0, 255))
    assert 0 < found["largest_relative_error"] < 1e-3
    with pytest.raises(StepError, match=r"on random \(0 to 255\) inputs") as caught:
        compared(tmp_path / "c", offset=2.0, range=(0, 255))
    assert "range" not in caught.value.hint


def test_of_random_weights_the_hint_says_so(tmp_path):
    parent, child = model(tmp_path / "parent", 0.0), model(tmp_path / "child", 0.5)
    drawn = replace(parent, facts={**parent.facts, "weights": "random (seed 0)"})
    for source, wanted in ((drawn, True), (parent, False)):
        with pytest.raises(StepError, match="outputs differ") as caught:
            check.against_parent(child, source, (TensorSpec(**SPEC),), None, 1e-3, 1)
        assert ("load trained weights" in caught.value.hint) == wanted


def test_a_frozen_branch_is_not_hidden_by_a_range(tmp_path):
    """On the usual ranges both agree, as where one branch alone is taken: that is no advice."""
    parent, child = model(tmp_path / "parent", 0.0), model(tmp_path / "child", 0.02)
    traced = replace(child, facts={**child.facts, "fixed_decisions": 1})
    with pytest.raises(StepError, match="on random inputs the outputs differ") as caught:
        check.against_parent(traced, parent, (TensorSpec(**SPEC),), None, 1e-3, 1)
    assert "range" not in caught.value.hint
    assert "`method: script`" in caught.value.hint


def of_nodes(folder, shape, *nodes):
    """x [batch, 8] to y through nodes (operator, inputs, output); constants are [1, 8] and [1]."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    constants = {"sizes": np.array([1, 8]), "second": np.array([1])}
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, [output]) for operator, inputs, output in nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    folder.mkdir(parents=True)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(made, folder / "model.onnx")
    return Artifact("k", Format.ONNX, folder, "fp32", 1, "d", {"outputs": ["y"]})


def test_a_batch_that_is_baked_in_is_found_at_the_source(tmp_path):
    artifact = of_nodes(tmp_path / "m", ["batch", 8], ("Reshape", ["x", "sizes"], "y"))
    with pytest.raises(InputError, match="runs at batch size 1 only: at batch size 2 it") as caught:
        check.usable(artifact, (TensorSpec(**SPEC),), None, 1)
    assert "write `shape: [1, 8]`" in caught.value.hint
    assert caught.value.place == "inputs.x"
    fixed = TensorSpec(name="x", shape=(1, 8))
    facts = check.usable(artifact, (fixed,), None, 1).facts
    assert facts["output_tensors"] == [{"name": "y", "dtype": "float32", "shape": [None, 8]}]


def test_an_output_that_loses_its_batch_is_found_at_the_source(tmp_path):
    summed = ("ReduceSum", ["x", "second"], "summed")
    artifact = of_nodes(tmp_path / "m", None, summed, ("Squeeze", ["summed"], "y"))
    with pytest.raises(InputError, match="'y' loses its batch dimension at batch size 1") as caught:
        check.usable(artifact, (TensorSpec(**SPEC),), None, 1)
    assert "`squeeze(1)`" in caught.value.hint
    several = {**SPEC, "batch": {"min": 2, "opt": 2, "max": 4}}
    assert check.usable(artifact, (TensorSpec(**several),), None, 1).facts


def test_a_model_that_draws_at_random_is_named_at_the_source(tmp_path):
    artifact = of_nodes(
        tmp_path / "m", None, ("RandomNormalLike", ["x"], "noise"), ("Add", ["x", "noise"], "y")
    )
    with pytest.raises(InputError, match="the same input gives two answers") as caught:
        check.usable(artifact, (TensorSpec(**SPEC),), None, 1)
    assert "model.eval()" in caught.value.hint


@pytest.mark.parametrize(("mask", "found"), [([0] * 5 + [-np.inf] * 3, 3), ([np.inf] + [0] * 7, 1)])
def test_a_mask_of_infinities_is_noted(tmp_path, mask, found):
    artifact = operation(tmp_path / "m", ("Add", "mask"), mask=np.array(mask, np.float32))
    (note,) = check.usable(artifact, (TensorSpec(**SPEC),), None, 1).notes
    assert f"'y': {found} of 8 values are infinite" in note


def test_an_output_that_is_all_infinite_is_none(tmp_path):
    artifact = operation(tmp_path / "m", ("Add", "mask"), mask=np.full(8, -np.inf, np.float32))
    with pytest.raises(InputError, match="holds NaN or infinity"):
        check.usable(artifact, (TensorSpec(**SPEC),), None, 1)


@pytest.mark.parametrize(
    ("own", "refused"),
    [
        (0.18, ""),
        (0.05, "does not compute what its parent computes"),
        (5.0, "rounding decides the answers"),
    ],
)
def test_a_quantized_parent_is_measured_by_what_its_runtime_varies_by(
    tmp_path, monkeypatch, own, refused
):
    """Fused and unfused kernels round to other integers; a child may differ by more than 0.2 then."""
    parent = replace(model(tmp_path / "parent", 0.0), precision="int8")
    child = model(tmp_path / "child", 0.25 if own < 1 else 0.8)
    monkeypatch.setattr(check, "_own_variation", lambda *_: own)
    spec = (TensorSpec(**SPEC, range=(0, 1)),)
    if not refused:
        assert check.against_parent(child, parent, spec, None, 1e-3, 1)["tolerance"] == 0.36
        return
    with pytest.raises(StepError, match=refused):
        check.against_parent(child, parent, spec, None, 1e-3, 1)


class Rounded:
    """Gives which side of a half each value lies on: whatever is near moves all of the output."""

    def run(self, feed):
        return {"y": (feed["x"] > 0.5).astype(np.float32)}


def test_what_rounding_moves_in_a_quantized_parent_of_another_format_is_looked_at(tmp_path):
    program = replace(model(tmp_path / "parent", 0.0), format=Format.EXPORTED)
    near, far = ({"x": np.full((4, 9), each, np.float32)} for each in (0.5001, 0.9))
    assert check._own_variation(program, Rounded(), near) == 1.0
    assert check._own_variation(program, Rounded(), far) == 0.0


def test_what_was_compiled_for_a_gpu_may_round_otherwise(tmp_path):
    parent = model(tmp_path / "parent", 0.0)
    child = model(tmp_path / "child", 0.0005)
    on_gpu = replace(child, facts={**child.facts, torch_devices.FACT: "cuda"})
    spec = (TensorSpec(**SPEC),)
    assert check.against_parent(on_gpu, parent, spec, None, 1e-4, 1)["tolerance"] == 1e-3
    for other in ({}, {torch_devices.FACT: "cpu"}):
        on_cpu = replace(child, facts={**child.facts, **other})
        with pytest.raises(StepError, match="allowed are 1e-04"):
            check.against_parent(on_cpu, parent, spec, None, 1e-4, 1)


def test_what_resizes_images_inside_may_differ_by_a_grey_level(tmp_path):
    parent, child = model(tmp_path / "parent", 0.0), model(tmp_path / "child", 0.01)
    resizing = replace(parent, facts={**parent.facts, EMBEDDED_STEPS: "all"})
    spec = (TensorSpec(**SPEC),)
    assert check.against_parent(child, resizing, spec, None, 1e-3, 1)["tolerance"] == 0.02
    exact = replace(parent, facts={**parent.facts, EMBEDDED_STEPS: "values"})
    with pytest.raises(StepError, match="allowed are 1e-03"):
        check.against_parent(child, exact, spec, None, 1e-3, 1)


def test_random_inputs_lie_where_the_data_do(tmp_path):
    photographs = np.random.default_rng(0).uniform(0, 255, (16, 8)).astype(np.float32)
    np.savez(tmp_path / "probe.npz", x=photographs)
    assert compared(tmp_path / "a", probe=tmp_path / "probe.npz")["largest_relative_error"] < 1e-3
    spec = TensorSpec(**SPEC)
    drawn = [
        feed["x"] for kind, _, feed in check.feeds((spec,), tmp_path / "probe.npz") if kind != "real"
    ]
    assert drawn
    for values in drawn:
        assert photographs.min() <= values.min() < 64 < 192 < values.max() <= photographs.max()


def test_a_difference_everywhere_asks_for_the_range_without_promising_anything(tmp_path):
    with pytest.raises(StepError) as caught:
        compared(tmp_path, offset=90.0)
    assert "declare them with `range: [LOW, HIGH]` at input 'x'" in caught.value.hint


def waves(folder, *gains, offset=0.0):
    """The sine of its input times the gains: a large one makes much of a rounding."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, values, last = [], [numpy_helper.from_array(np.float32(offset), "offset")], "x"
    for number, gain in enumerate(gains):
        values.append(numpy_helper.from_array(np.float32(gain), f"gain{number}"))
        nodes.append(helper.make_node("Mul", [last, f"gain{number}"], [f"m{number}"]))
        last = f"m{number}"
    nodes += [helper.make_node("Sin", [last], ["s"]), helper.make_node("Add", ["s", "offset"], ["y"])]
    shape = ["batch", 8]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], values)
    folder.mkdir(parents=True)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(made, folder / "model.onnx")
    return Artifact("k", Format.ONNX, folder, "fp32", 1, "d", {"outputs": ["y"]})


@pytest.mark.parametrize(
    ("parent", "child", "right"),
    [
        ({"gains": (1e4,)}, {"gains": (3e3, 10 / 3)}, True),  # roundings grow to 1e-3
        ({"gains": (1.0,)}, {"gains": (1.0,), "offset": 1e-3}, False),  # they do not grow here
        ({"gains": (1e4,)}, {"gains": (1e4,), "offset": 0.05}, False),
        ({"gains": (1e7,)}, {"gains": (3e6, 10 / 3)}, False),  # noise: nothing is right
    ],
)
def test_a_network_in_which_roundings_grow_is_held_to_that(tmp_path, parent, child, right):
    made = [
        waves(tmp_path / name, *about["gains"], offset=about.get("offset", 0.0))
        for name, about in (("child", child), ("parent", parent))
    ]
    spec = TensorSpec(**SPEC)
    if right:
        found = check.against_parent(*made, (spec,), None, 1e-5, 1)
        assert 1e-5 < found["largest_relative_error"] <= found["tolerance"] <= 0.02
    else:
        with pytest.raises(StepError, match="does not compute what its parent computes"):
            check.against_parent(*made, (spec,), None, 1e-5, 1)


def test_what_one_batch_is_allowed_no_other_is(tmp_path, monkeypatch):
    """Roundings grow in the first batch alone; the second one is off by more than the tolerance."""
    grown = iter([1e-3, 0.0])
    monkeypatch.setattr(check, "rounding_error", lambda *_: next(grown))
    made = [model(tmp_path / name, by) for name, by in (("child", 0.002), ("parent", 0.0))]
    with pytest.raises(StepError, match=r"at batch size 2 .* allowed are 1e-05"):
        check.against_parent(*made, (TensorSpec(**SPEC),), None, 1e-5, 1)


def test_whole_numbers_lie_within_their_range():
    spec = TensorSpec(name="ids", dtype="int64", shape=(1, 1000), range=(5, 9))
    ((kind, _, feed),) = check.feeds((spec,), None)
    assert kind == "random (5 to 9)"
    assert set(feed["ids"].ravel()) == {5, 6, 7, 8, 9}


@pytest.mark.parametrize("range", [(1, 1), (2, 1), (0, float("inf")), (float("nan"), 1), (0, 1, 2)])
def test_a_range_ascends_and_is_finite(range):
    with pytest.raises(ValueError, match="range"):
        TensorSpec(**SPEC, range=range)


def operation(folder, *operations, **constants):
    """A network of one input and some operations in a row."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    names = ["x", *(f"t{index}" for index in range(len(operations) - 1)), "y"]
    nodes = [
        helper.make_node(kind, [names[index], *more], [names[index + 1]])
        for index, (kind, *more) in enumerate(operations)
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [
            numpy_helper.from_array(value, name)
            for name, value in {"thousand": np.float32(1000), **constants}.items()
        ],
    )
    folder.mkdir(parents=True)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(made, folder / "model.onnx")
    return Artifact("k", Format.ONNX, folder, "fp32", 1, "d", {"outputs": ["y"]})


@pytest.mark.parametrize("kind", ["Log", "Sqrt"])
def test_a_model_with_a_domain_is_told_how_to_declare_it(tmp_path, kind):
    artifact = operation(tmp_path / "model", (kind,))
    with pytest.raises(InputError, match="holds NaN or infinity") as caught:
        check.usable(artifact, (TensorSpec(**SPEC),), None, 1)
    assert "on values between 0 and 1 it holds none" in caught.value.hint
    assert "`range: [0, 1]` at input 'x'" in caught.value.hint
    assert check.usable(artifact, (TensorSpec(**SPEC, range=(0, 1)),), None, 1).notes == ()


def test_where_no_usual_range_helps_that_is_said_too(tmp_path):
    artifact = operation(tmp_path / "model", ("Sub", "thousand"), ("Log",))
    with pytest.raises(InputError) as caught:
        check.usable(artifact, (TensorSpec(**SPEC),), None, 1)
    hint = caught.value.hint
    assert "neither are the outputs numbers on values between 0 and 1 nor between 0 and 255" in hint
    assert "`range: [LOW, HIGH]` at input 'x'" in hint
    np.savez(tmp_path / "probe.npz", x=np.zeros((4, 8), np.float32))
    for spec, probe in (({"range": (0, 1)}, None), ({}, tmp_path / "probe.npz")):
        with pytest.raises(InputError) as caught:
            check.usable(artifact, (TensorSpec(**SPEC, **spec),), probe, 1)
        assert caught.value.hint == "look for NaN in the weights, and at what `prepare` feeds it"
