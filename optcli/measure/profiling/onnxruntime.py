"""ONNX Runtime's profiler: one JSON file with every node of every call since the session was made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from optcli.errors import RunnerError
from optcli.measure.profiling.profiler import OperatorEvent, ProfiledEvents, Profiler
from optcli.runners.onnxruntime import OnnxruntimeRunner

Record = Mapping[str, Any]

_SHORT = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16", "double": "fp64"}
_SHORT |= {"uint8": "int8", "int8": "int8"}
_KERNEL = "_kernel_time"
# Their names say what they compute in, whatever they give out.
_INTEGER = ("QLinear", "QGemm", "QAttention", "ConvInteger", "MatMulInteger", "DynamicQuantizeMatMul")


class OnnxruntimeProfiler(Profiler):
    """Reads what a session writes that was made with `enable_profiling`, in whole microseconds."""

    def read(self) -> ProfiledEvents:
        path = cast(OnnxruntimeRunner, self._runner).end_profile()
        try:
            records = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RunnerError(
                f"ONNX Runtime's profile cannot be read: {error}",
                place=str(path),
                hint="check that the temporary folder (TMPDIR) has room",
            ) from error
        return reading(records, self._calls)


def reading(records: Sequence[Record], count: int) -> ProfiledEvents:
    """The last `count` calls of a profile, as the list of events that ONNX Runtime writes.

    Nodes inside the branches of If and the bodies of Loop are events of their own: what holds them
    keeps the rest of its time.
    """
    runs = sorted((each for each in records if each.get("name") == "model_run"), key=_start)[-count:]
    of_nodes = (each for each in records if each.get("cat") == "Node")
    kernels = (each for each in of_nodes if str(each.get("name", "")).endswith(_KERNEL))
    nodes = sorted(kernels, key=_start)
    inside = [
        [each for each in nodes if _start(run) <= _start(each) < _start(run) + run["dur"]]
        for run in runs
    ]
    events = [dict(each) for run, within in zip(runs, inside, strict=True) for each in (run, *within)]
    return ProfiledEvents("ONNX Runtime's profiler", [_events(within) for within in inside], events)


def _start(record: Record) -> float:
    return float(record.get("ts", 0))


def _events(nodes: Sequence[Record]) -> list[OperatorEvent]:
    """Events with their own time, from nodes by their start: If and Loop hold others inside."""
    own = [float(node["dur"]) for node in nodes]
    open_: list[int] = []
    for index, node in enumerate(nodes):
        while open_ and _start(nodes[open_[-1]]) + nodes[open_[-1]]["dur"] <= _start(node):
            open_.pop()
        holds = bool(open_) and nodes[open_[-1]]["args"].get("op_name") in ("If", "Loop", "Scan")
        if holds:
            own[open_[-1]] -= float(node["dur"])
        open_.append(index)
    return [
        OperatorEvent(
            str(node["name"]).removesuffix(_KERNEL),
            str(node["args"].get("op_name", "unknown")),
            max(0.0, time_us),
            precision(node["args"]),
        )
        for node, time_us in zip(nodes, own, strict=True)
    ]


def precision(arguments: Record) -> str | None:
    """What a node computes in: integers by its name, else the element type of its first output."""
    if str(arguments.get("op_name", "")).startswith(_INTEGER):
        return "int8"
    outputs = arguments.get("output_type_shape") or arguments.get("input_type_shape") or []
    kind = next((name for tensor in outputs for name in tensor), None)
    return None if kind is None else _SHORT.get(kind, kind)
