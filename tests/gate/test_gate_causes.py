"""Why two artifacts differ: the one thing that was changed, and nothing that follows from it."""

import copy

import pytest

from optcli.gate import explain

SOURCE = {
    "step": "source",
    "key": "s0",
    "kind": "python",
    "model": {
        "kind": "python",
        "code": "c" * 64,
        "weights": {"file": "w" * 64},
        "arguments": {"width": 8},
    },
    "inputs": [{"name": "image", "shape": ["batch", 3]}],
    "code": {"models/sources/python.py": "1" * 64},
    "versions": {"torch": "2.15.0"},
}
EXPORT = {
    "step": "export_onnx",
    "key": "e0",
    "parent": "s0",
    "options": {"opset": None},
    "seed": 0,
    "data": {},
    "code": {"pass": "2" * 64, "models/formats/onnx.py": "3" * 64},
    "versions": {"onnx": "1.23.2"},
}
QUANTIZE = {
    "step": "quantize_nncf",
    "key": "q0",
    "parent": "e0",
    "options": {"preset": "mixed", "samples": 300},
    "seed": 0,
    "data": {"calibration": "4" * 64},
    "code": {"pass": "5" * 64},
    "versions": {"nncf": "3.4.0"},
}
STEPS = (SOURCE, EXPORT, QUANTIZE)


def changed(*changes, keys=("s1", "e1", "q1")):
    """The same steps with values changed, and all keys, as a change at the root changes them."""
    steps = copy.deepcopy(STEPS)
    for step, key in zip(steps, keys, strict=True):
        step["key"] = key
    steps[1]["parent"], steps[2]["parent"] = keys[:2]
    for index, path, value in changes:
        inner = steps[index]
        *outer, last = path.split("/")
        for name in outer:
            inner = inner[name]
        inner[last] = value
    return steps


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ((0, "model/code", "x" * 64), "the network's own code"),
        ((0, "model/weights/file", "x" * 64), "the weights"),
        ((0, "model/arguments/width", 16), "the model: arguments.width 8, now 16"),
        ((2, "data/calibration", "x" * 64), "quantize_nncf: other calibration samples"),
        ((2, "options/preset", "performance"), "quantize_nncf: preset mixed, now performance"),
        ((2, "options/preset", None), "quantize_nncf: preset mixed, now not set"),
        ((1, "versions/onnx", "1.24.0"), "onnx 1.23.2, now 1.24.0, in export_onnx"),
        ((1, "seed", 1), "export_onnx: seed 0, now 1"),
        ((0, "inputs", [{"name": "image", "shape": [1, 3]}]), "the inputs' shapes or types"),
    ],
)
def test_one_change_is_the_only_cause(change, cause):
    assert explain.of_making(STEPS, changed(change)) == [cause]


def test_a_change_of_samples_is_named_by_its_settings():
    settings = {"kind": "npz", "prepare": {"scale": 1 / 255, "layout": "nchw"}}
    other = {"kind": "npz", "prepare": {"scale": 1 / 2550, "layout": "nchw"}}
    samples = explain.of_samples({"calibration": settings}, {"calibration": other, "training": other})
    steps = changed((2, "data/calibration", "x" * 64))
    assert explain.of_making(STEPS, steps, samples) == [
        "data.calibration.prepare.scale 1/255, now 1/2550"
    ]
    # With the same settings the files are others.
    same = explain.of_samples({"calibration": settings}, {"calibration": settings})
    assert explain.of_making(STEPS, steps, same) == ["quantize_nncf: other calibration samples"]


def test_the_same_steps_have_no_cause():
    assert explain.of_making(STEPS, copy.deepcopy(STEPS)) == []


def test_own_code_is_one_cause_and_the_last():
    found = explain.of_making(
        STEPS,
        changed(
            (0, "code", {}), (1, "code/pass", "x"), (2, "code/pass", "x"), (2, "options/samples", 9)
        ),
    )
    assert found == [
        "quantize_nncf: samples 300, now 9",
        "optcli's own code: source, export_onnx, quantize_nncf",
    ]


def test_a_pass_of_the_users_own_is_named_with_its_file():
    before = [*STEPS[:2], {"step": "./mine.py:Clip", "key": "c0", "code": {"pass": "1"}}]
    after = [*STEPS[:2], {"step": "./mine.py:Clip", "key": "c1", "code": {"pass": "2"}}]
    assert explain.of_making(before, after) == ["the code of ./mine.py:Clip"]


def test_other_passes_are_named_as_a_chain():
    assert explain.of_making(STEPS, STEPS[:2]) == [
        "passes: export_onnx → quantize_nncf, now export_onnx"
    ]
    assert explain.of_making(STEPS, STEPS[:1])[0].endswith("now none")


def test_a_runtime_is_a_cause_only_where_the_runner_uses_it():
    before, after = (
        {"onnxruntime": "1.30.0", "torch": "2.14"},
        {"onnxruntime": "1.31.1", "torch": "2.15"},
    )
    assert explain.of_running(before, after, ["onnxruntime"]) == ["onnxruntime 1.30.0, now 1.31.1"]
    assert explain.of_running(before, before, ["onnxruntime"]) == []


def test_a_library_that_made_and_runs_the_artifact_is_one_cause():
    making = ["onnxruntime 1.25.1, now 1.31.1, in quantize_nncf", "opset 17, now 18, in export_onnx"]
    running = ["onnxruntime 1.25.1, now 1.31.1"]
    assert explain.merged(making, running) == [making[1], *running]
    assert explain.merged(making, []) == making
    assert explain.of_options({"threads": 1}, {"threads": 2}) == ["runner setting threads: 1, now 2"]
