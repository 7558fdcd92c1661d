"""From what each runtime's profiler writes to operators with their times."""

from __future__ import annotations

import pytest
from recorded_profiles import ort_node, ort_profile, ort_run, torch_compute, torch_event

from optcli.measure.profiling import onnxruntime, openvino, torch
from optcli.measure.profiling.profiler import OPAQUE, OperatorEvent, ProfiledEvents, times


def named(events):
    return [(event.name, event.type, event.time_us, event.precision) for event in events]


class TestOnnxRuntime:
    def test_nodes_of_the_last_calls_with_their_types_and_precision(self):
        read = onnxruntime.reading(ort_profile(), 2)
        assert named(read.calls[0]) == [
            ("quantize", "QuantizeLinear", 10.0, "int8"),
            ("conv", "QLinearConv", 70.0, "int8"),
            ("dequantize", "DequantizeLinear", 20.0, "fp32"),
        ]
        assert [event.time_us for event in read.calls[1]] == [30.0, 210.0, 60.0]
        assert len(read.calls) == 2

    def test_the_trace_holds_the_profiled_calls_alone(self):
        trace = onnxruntime.reading(ort_profile(), 2).trace
        assert {event["name"] for event in trace} == {
            "model_run", "quantize_kernel_time", "conv_kernel_time", "dequantize_kernel_time",
        }  # fmt: skip
        assert min(event["ts"] for event in trace) == 100_000

    def test_what_holds_a_branch_keeps_the_rest_of_its_time(self):
        records = [
            ort_node("inner", "Conv", 110, 60),
            ort_node("branch", "If", 100, 80),
            ort_node("after", "Relu", 180, 5),
            *ort_run(90, 200),
        ]
        (call,) = onnxruntime.reading(records, 1).calls
        assert {event.name: event.time_us for event in call} == {"branch": 20, "inner": 60, "after": 5}

    def test_half_precision_and_nodes_without_shapes(self):
        assert (
            onnxruntime.precision({"op_name": "Conv", "output_type_shape": [{"float16": []}]}) == "fp16"
        )
        assert onnxruntime.precision({"op_name": "Conv"}) is None
        assert onnxruntime.precision({"op_name": "MatMulIntegerToFloat"}) == "int8"


class TestOpenvino:
    LAYERS = (("conv", "Convolution", "brgconv_avx512_I8"), ("back", "Reorder", "jit_uni_f32"))

    def counters(self, *times_us):
        return [
            {"name": name, "type": kind, "kernel": kernel, "time_us": time_us}
            for (name, kind, kernel), time_us in zip(self.LAYERS, times_us, strict=True)
        ]

    def test_means_since_the_beginning_become_means_of_the_profiled_calls(self):
        # 2 calls of 100 µs while it warmed up, then 8 of 50: a mean of 60 over all 10.
        read = openvino.reading(self.counters(100, 10), 2, self.counters(60, 10), 10)
        assert named(read.calls[0]) == [
            ("conv", "Convolution", 50.0, "int8"),
            ("back", "Reorder", 10.0, "fp32"),
        ]
        assert read.statistic == "mean"

    def test_layers_lie_end_to_end_in_the_trace(self):
        trace = openvino.reading(self.counters(0, 0), 0, self.counters(60, 10), 10).trace
        assert [(event["name"], event["ts"], event["dur"]) for event in trace] == [
            ("conv", 0.0, 60.0),
            ("back", 60.0, 10.0),
        ]

    @pytest.mark.parametrize(
        ("kernel", "expected"),
        [("brgconv_avx512_1x1_I8", "int8"), ("jit_avx512_bf16", "bf16"), ("ref_any_f32", "fp32"),
         ("unknown", None)],
    )  # fmt: skip
    def test_precision_by_the_kernel(self, kernel, expected):
        assert openvino.precision(kernel) == expected


class TestTorch:
    def test_what_computes_is_found_below_what_was_called(self):
        (call,) = torch.operators(
            torch.compute_steps([torch_compute(), torch_event("aten::conv2d", 900, 5.0)])
        )
        assert named(call) == [
            ("aten::conv2d", "aten::mkldnn_convolution", 100.0, None),
            ("aten::batch_norm", "aten::native_batch_norm", 20.0, None),
            ("aten::add", "aten::add", 5.0, None),
        ]

    def test_calls_come_in_their_order(self):
        late, early = torch_compute(5000.0), torch_compute(0.0)
        early.cpu_children = early.cpu_children[:1]
        assert [len(call) for call in torch.operators(torch.compute_steps([late, early]))] == [1, 3]

    def test_generated_code_is_one_row_beside_the_operators_it_calls(self):
        matrix = torch_event("aten::addmm", 20, 30.0)
        region = torch_event(
            "## Call CompiledFxGraph fwgy467 ##", 10, 100.0, matrix, torch_event("aten::empty", 60, 9.0)
        )
        compiled = torch_event("Torch-Compiled Region: 0/0", 5, 110.0, region)
        (call,) = torch.operators([torch_event("optcli compute", 0, 120.0, compiled)])
        assert named(call) == [
            ("aten::addmm", "aten::addmm", 30.0, None),
            ("compiled graph", OPAQUE, 70.0, None),
        ]

    def test_an_interruption_between_operators_makes_no_row(self):
        interrupted = torch_compute(5000.0)
        interrupted.cpu_children[0].cpu_time_total = 9000.0
        calls = torch.operators([torch_compute(), interrupted, torch_compute()])
        assert [[event.type for event in call] for call in calls] == [
            ["aten::mkldnn_convolution", "aten::native_batch_norm", "aten::add"]
        ] * 3

    def test_integer_operators_are_known_by_their_name(self):
        step = torch_event("optcli compute", 0, 9.0, torch_event("quantized::linear", 1, 8.0))
        assert torch.operators([step])[0][0].precision == "int8"


class TestTimes:
    def reading(self, *calls, **more):
        events = [
            [OperatorEvent(name, kind, time_us) for name, kind, time_us in call] for call in calls
        ]
        return ProfiledEvents("a profiler", events, [], **more)

    def test_medians_over_calls_and_shares_of_everything(self):
        call = [("a", "Conv", 600.0), ("b", "Relu", 200.0)]
        slow = [("a", "Conv", 90_000.0), ("b", "Relu", 200.0)]
        found = times(self.reading(call, call, slow), [1.0] * 4, [1.1, 1.1, 91.0])
        assert [(each.name, each.time_ms) for each in found.operators] == [("a", 0.6), ("b", 0.2)]
        assert found.operators_ms == pytest.approx(0.8)
        # 0.2 ms by the calls without a profiler, 0.3 by those with it: that is the profiler's work.
        assert found.outside_ms == pytest.approx(0.2)
        assert sum(each.share for each in found.operators) == pytest.approx(0.8)

    def test_a_name_that_comes_twice_in_a_call_is_told_apart(self):
        call = [("conv", "Conv", 5.0), ("conv", "Conv", 7.0)]
        found = times(self.reading(call, call), [1.0], [1.0, 1.0])
        assert [each.name for each in found.operators] == ["conv #2", "conv #1"]

    def test_an_operator_that_not_every_call_has(self):
        always = ("a", "Conv", 9.0)
        found = times(self.reading([always, ("b", "If", 4.0)], [always]), [1.0], [1.0, 1.0])
        assert {each.name: each.calls for each in found.operators} == {"a": 1.0, "b": 0.5}

    def test_operators_that_the_profiler_inflates_leave_nothing_outside(self):
        found = times(self.reading([("a", "Conv", 1500.0)]), [1.0] * 8, [1.9])
        assert found.outside_ms == 0.0
        assert found.unexplained_ms == pytest.approx(-0.5)
        assert found.operators[0].share == pytest.approx(1.0)

    def test_waiting_for_a_busy_machine_is_not_outside(self):
        found = times(
            self.reading([("a", "Conv", 900.0)], statistic="mean"), [1.0, 1.0, 9.0, 9.0], [9.0]
        )
        assert found.outside_ms == pytest.approx(0.1)

    def test_what_holds_up_another_operator_in_each_call_is_unexplained(self):
        """As on a busy machine: calls of 6.75 ms whose operators usually take 3.15 ms together."""
        names = [f"conv{number}" for number in range(9)]
        calls = [
            [(name, "Conv", 350.0 + (3600.0 if name == held else 0.0)) for name in names]
            for held in names
        ]
        found = times(self.reading(*calls), [6.75] * 9, [6.75] * 9)
        assert found.operators_ms == pytest.approx(3.15)
        assert found.outside_ms == pytest.approx(0.0)
        assert found.unexplained_ms == pytest.approx(3.6)
        assert sum(each.share for each in found.operators) == pytest.approx(3.15 / 6.75)

    def test_what_lies_outside_is_told_of_quick_calls_on_both_sides(self):
        usual, held_up = [("a", "Conv", 700.0)], [("a", "Conv", 4000.0)]
        calls = [usual, usual, held_up, held_up, held_up]
        found = times(self.reading(*calls), [1.0, 1.0, 5.0, 5.0, 5.0], [1.2, 1.2, 4.5, 4.5, 4.5])
        assert found.outside_ms == pytest.approx(0.3)

    def test_a_profiler_that_noted_nothing(self):
        found = times(self.reading([]), [1.0], [1.0])
        assert found.operators == ()
        assert found.notes == ("a profiler noted no operator",)
