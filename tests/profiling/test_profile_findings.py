"""Findings are true of the record that they speak of, and silent below their thresholds."""

from __future__ import annotations

import pytest

from optcli.measure.profiling import Finding, OperatorTime, Profile, StageTime, document, findings
from optcli.measure.profiling.profiler import OPAQUE
from optcli.report.terminal import text as shown
from optcli.results import ArtifactSummary, flags


def operator(name: str, kind: str, share: float, precision: str | None = "fp32") -> OperatorTime:
    return OperatorTime(name=name, type=kind, precision=precision, time_ms=share * 10, share=share)


def profile(*operators: OperatorTime, stages=None, runner="onnxruntime", **more) -> Profile:
    """Ten milliseconds of compute; what operators leave over lies outside of them."""
    stages = {"copy in": 0.1, "compute": 10.0, "copy out": 0.1, **(stages or {})}
    inside = sum(each.share for each in operators)
    return Profile(
        variant="v",
        recipe="r",
        artifact=ArtifactSummary(key="k", format="onnx", path="v", precision="fp32", size_bytes=1),
        runner={"name": runner, "precision": "fp32", "threads": 2},
        batch_size=1,
        inputs="random",
        profiler="ONNX Runtime's profiler",
        calls=20,
        wall_ms=10.0,
        measured_at="2026-01-01T00:00:00+00:00",
        operators=operators,
        operators_ms=10 * inside,
        outside_ms=10 * (1 - inside),
        stages=tuple(StageTime(name=n, time_ms=t, samples=9) for n, t in stages.items()),
        **more,
    )


def kinds(found: tuple[Finding, ...]) -> list[str]:
    return [each.kind for each in found]


CONV = operator("conv", "Conv", 0.9)


def test_nothing_stands_out_but_where_the_time_goes():
    (found,) = findings(profile(CONV, operator("relu", "Relu", 0.1)))
    assert found.kind == "hot"
    assert found.message == "90 % of compute is Conv (1 of them); the slowest, conv, takes 90 %"
    assert "quantize_nncf" in found.action


def test_quantized_operators_are_not_told_to_be_quantized():
    (found,) = findings(profile(operator("c", "QLinearConv", 1.0, "int8")))
    assert "quantize" not in found.action


def test_the_plain_convolution_of_torch_is_known():
    found = findings(profile(operator("c", "aten::_slow_conv2d_forward", 1.0, None), runner="torch"))
    assert "plain convolution" in found[0].action


def test_framework_overhead_with_its_figures():
    found = findings(profile(operator("a", "Conv", 0.4), operator("b", "Relu", 0.2)))
    assert found[0].kind == "overhead"
    assert "40 % of compute, 4 ms of 10 ms, lies outside of the 2 operators" in found[0].message
    assert "2000.0 µs for each" in found[0].message
    assert "--batch-size 8" in found[0].action


@pytest.mark.parametrize(("runner", "action"), [("torch", "aot_inductor"), ("aoti", "--batch-size")])
def test_overhead_is_mended_by_compiling_where_python_is_in_the_call(runner, action):
    assert action in findings(profile(operator("a", "x", 0.5), runner=runner))[0].action


def test_overhead_is_not_judged_by_means_of_a_busy_machine():
    half = operator("a", "Conv", 0.5)
    busy = {"flags": (flags.environment_not_fit(spread=0.8),)}
    assert "overhead" not in kinds(findings(profile(half, statistic="mean", **busy)))
    assert "too unsteady" in findings(profile(half, **busy))[0].message


@pytest.mark.parametrize(("share", "expected"), [(0.14, []), (0.16, ["overhead"])])
def test_overhead_begins_at_its_threshold(share, expected):
    assert kinds(findings(profile(operator("a", "Conv", 1 - share))))[:-1] == expected


def test_quantization_that_remains():
    found = findings(
        profile(
            operator("conv", "QLinearConv", 0.8, "int8"),
            operator("q1", "QuantizeLinear", 0.07),
            operator("dq1", "DequantizeLinear", 0.13),
        )
    )
    assert found[0].kind == "quantize"
    assert "2 operators that only quantize or dequantize take 20 %, 2 ms" in found[0].message
    assert "the slowest is dq1" in found[0].message


def test_quantized_graphs_in_eager_torch():
    name = "quantized_decomposed::quantize_per_tensor"
    found = findings(profile(CONV, operator("q", name, 0.1), runner="torch"))
    assert found[0].kind == "quantize"
    assert "aot_inductor" in found[0].action


def test_one_quantization_at_the_edge_is_no_finding():
    found = findings(
        profile(operator("c", "QLinearConv", 0.97, "int8"), operator("q", "QuantizeLinear", 0.03))
    )
    assert kinds(found) == ["hot"]


@pytest.mark.parametrize(
    ("kind", "action"),
    [("ReorderOutput", "optimization_level"), ("Cast", "one precision"), ("Transpose", "layout"),
     ("aten::copy_", "channels_last")],
)  # fmt: skip
def test_reformats_with_what_mends_each(kind, action):
    found = findings(profile(CONV, operator("r", kind, 0.1)))
    assert kinds(found) == ["reformat", "hot"]
    assert f"1 {kind} take 10 %, 1 ms" in found[0].message
    assert action in found[0].action


def test_decoding_that_takes_longer_than_the_call_comes_first():
    found = findings(profile(operator("a", "Conv", 0.2), stages={"read": 25.0, "prepare": 5.0}))
    assert kinds(found) == ["decode", "overhead", "hot"]
    assert "takes 30 ms in one thread (reading and decoding 25 ms), the call itself 10.2 ms" in (
        found[0].message
    )
    assert "in 3 processes" in found[0].action
    assert "decode" not in kinds(findings(profile(CONV, stages={"read": 5.0, "prepare": 5.0})))


def test_what_a_busy_machine_says_of_decoding_is_doubted():
    busy = profile(CONV, stages={"read": 25.0, "prepare": 5.0}, flags=(flags.environment_not_fit(),))
    assert "too unsteady" in findings(busy)[0].message


def test_copies_of_large_outputs():
    found = findings(profile(operator("a", "Conv", 1.0), stages={"copy out": 9.9}))
    assert kinds(found) == ["copies", "hot"]
    assert "50 % of a call, 10 ms" in found[0].message


def test_compiled_code_is_called_what_it_is():
    found = findings(profile(operator("package", OPAQUE, 0.99, None), runner="aoti"))
    assert kinds(found) == ["opaque"]


def test_three_at_most_the_largest_first():
    found = findings(
        profile(
            operator("a", "Conv", 0.3),
            operator("q", "QuantizeLinear", 0.2),
            operator("t", "Transpose", 0.1),
            stages={"copy out": 30.0},
        )
    )
    assert kinds(found) == ["copies", "overhead", "quantize"]


def test_stages_alone_where_no_profiler_is_read():
    bare = profile().model_copy(update={"operators_ms": None, "outside_ms": None, "profiler": None})
    assert findings(bare) == ()
    assert "compute" in shown(document(bare, 5))


def test_the_text_shows_types_the_slowest_and_the_findings():
    many = [operator(f"conv{n}", "Conv", 0.05) for n in range(10)]
    relu = operator("relu", "Relu", 0.5)
    found = profile(relu, *many, trace="t.json", profiler_adds=0.1)
    text = shown(document(found.model_copy(update={"findings": findings(found)}), 3))
    assert "Slowest 3 of 11 operators" in text
    assert "conv2" not in text
    conv = next(line for line in text.splitlines() if line.startswith("Conv "))
    assert conv.split() == ["Conv", "fp32", "10", "5.000", "50.0", "%"]
    assert "  50 % of compute is" in text
    assert "adds 10 % to a call" in text
    assert "t.json" in text


def test_operators_outside_and_unexplained_come_to_compute():
    found = profile(CONV).model_copy(
        update={"operators_ms": 3.15, "outside_ms": 0.25, "unexplained_ms": 6.6}
    )
    text = shown(document(found, 3)).splitlines()

    def figures(label):
        return next(line for line in text if line.startswith(f"{label} ")).split()[-3:]

    assert figures("outside of operators") == ["0.250", "2.5", "%"]
    assert figures("unexplained") == ["6.600", "66.0", "%"]
    assert ["compute", "10.000", "100.0", "%"] in [line.split() for line in text]
    said = findings(found)
    assert said[0].kind == "unexplained"
    assert "66 % of compute, 6.6 ms of 10 ms, is in no operator's usual time" in said[0].message


def test_what_the_profiler_adds_is_no_unexplained_time():
    found = profile(CONV).model_copy(update={"operators_ms": 12.0, "outside_ms": 0.0})
    found = found.model_copy(update={"unexplained_ms": -2.0})
    assert "unexplained" not in kinds(findings(found))
    lines = shown(document(found, 3)).splitlines()
    line = next(line for line in lines if line.startswith("added by the profiler"))
    assert line.split()[-1] == "-2.000"


def test_the_record_says_its_schema_and_comes_back():
    text = profile(CONV).model_dump_json(by_alias=True)
    assert '"schema":2' in text
    assert Profile.model_validate_json(text) == profile(CONV)
