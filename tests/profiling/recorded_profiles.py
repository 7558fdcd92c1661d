"""What the runtimes' profilers wrote, cut down to what matters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def ort_node(name: str, kind: str, ts: int, dur: int, output: str = "float") -> dict[str, Any]:
    """One node as ONNX Runtime 1.31 writes it."""
    return {
        "cat": "Node",
        "pid": 7,
        "tid": 7,
        "dur": dur,
        "ts": ts,
        "ph": "X",
        "name": f"{name}_kernel_time",
        "args": {
            "op_name": kind,
            "provider": "CPUExecutionProvider",
            "node_index": "3",
            "input_type_shape": [{"float": [1, 64, 8, 8]}],
            "output_type_shape": [{output: [1, 64, 8, 8]}],
        },
    }


def ort_run(ts: int, dur: int) -> list[dict[str, Any]]:
    """The two events of a whole call."""
    whole = {"cat": "Session", "pid": 7, "tid": 7, "ts": ts, "dur": dur, "ph": "X", "name": "model_run"}
    inner = {**whole, "ts": ts + 1, "dur": dur - 2, "name": "SequentialExecutor::Execute", "args": {}}
    return [inner, {**whole, "args": {}}]  # ends first, is written first


def ort_profile() -> list[dict[str, Any]]:
    """A slow first call and two others of a quantized convolution."""
    loading = {"cat": "Session", "pid": 7, "tid": 7, "dur": 900, "ts": 1, "ph": "X", "args": {}}
    records = [{**loading, "name": "session_initialization"}]
    for start, factor in ((1000, 50), (100_000, 1), (200_000, 3)):
        records += [
            ort_node("quantize", "QuantizeLinear", start + 5, 10 * factor, "uint8"),
            ort_node("conv", "QLinearConv", start + 1005, 70 * factor, "uint8"),
            ort_node("dequantize", "DequantizeLinear", start + 9005, 20 * factor),
            *ort_run(start, 10_000),
        ]
    return records


def torch_event(name: str, start: float, total: float, *children: Any) -> Any:
    """One of torch.profiler's `FunctionEvent`s."""
    return SimpleNamespace(
        name=name,
        cpu_time_total=total,
        time_range=SimpleNamespace(start=start),
        cpu_children=list(children),
    )


def torch_compute(start: float = 0.0) -> Any:
    """A convolution with its wrappers, a batch norm and an addition, as an eager network runs them."""
    allocation = torch_event("aten::empty", start + 4, 30.0)
    conv = torch_event(
        "aten::conv2d",
        start + 1,
        104.0,
        torch_event(
            "aten::convolution",
            start + 2,
            103.0,
            torch_event("aten::mkldnn_convolution", start + 3, 100.0, allocation),
        ),
    )
    norm = torch_event(
        "aten::batch_norm", start + 200, 22.0, torch_event("aten::native_batch_norm", start + 201, 20.0)
    )
    return torch_event("optcli compute", start, 300.0, conv, norm, torch_event("aten::add", 250, 5.0))
