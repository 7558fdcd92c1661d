"""OpenVINO's counters: the mean time of every layer over all calls since the model was compiled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from optcli.measure.profiling.profiler import OperatorEvent, ProfiledEvents, Profiler
from optcli.runners.openvino import OpenvinoRunner

Counter = Mapping[str, Any]

_SHORT = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8"}
_KERNEL = re.compile(r"_(f32|f16|bf16|i8|u8|i32|i64|f64|u1|i4|u4|boolean)$", re.IGNORECASE)
_NOTE = (
    "OpenVINO reports means in whole microseconds, not single calls: the trace shows layers end to end"
)


class OpenvinoProfiler(Profiler):
    """Reads the counters of a model that was compiled with `PERF_COUNT`."""

    _before: tuple[list[dict[str, Any]], int] = ([], 0)

    def begin(self) -> None:
        self._before = self._counted()

    def read(self) -> ProfiledEvents:
        return reading(*self._before, *self._counted())

    def _counted(self) -> tuple[list[dict[str, Any]], int]:
        return cast(OpenvinoRunner, self._runner).counters(), self._calls


def reading(
    before: Sequence[Counter], calls_before: int, after: Sequence[Counter], calls_after: int
) -> ProfiledEvents:
    """Means over the calls between two looks at the counters, which are means since the beginning.

    Their rounding to microseconds makes an error of about (before + after) / (after - before) of one.
    """
    before_us = {(layer["name"], layer["type"]): float(layer["time_us"]) for layer in before}
    events = []
    for layer in after:
        earlier_us = before_us.get((layer["name"], layer["type"]), 0.0) * calls_before
        time_us = (float(layer["time_us"]) * calls_after - earlier_us) / max(
            1, calls_after - calls_before
        )
        events.append(
            OperatorEvent(
                str(layer["name"]), str(layer["type"]), max(0.0, time_us), precision(layer["kernel"])
            )
        )
    return ProfiledEvents("OpenVINO's counters", [events], _trace(after, events), "mean", (_NOTE,))


def precision(kernel: str) -> str | None:
    """What a kernel computes in, from its name: `brgconv_avx512_I8` gives int8."""
    match = _KERNEL.search(kernel)
    return None if match is None else _SHORT.get(match[1].lower(), match[1].lower())


def _trace(counters: Sequence[Counter], events: Sequence[OperatorEvent]) -> list[dict[str, Any]]:
    trace = []
    start_us = 0.0
    for layer, event in zip(counters, events, strict=True):
        trace.append(
            {
                "name": event.name,
                "cat": event.type,
                "ph": "X",
                "pid": 0,
                "tid": 0,
                "ts": start_us,
                "dur": event.time_us,
                "args": {"type": event.type, "kernel": layer["kernel"]},
            }
        )
        start_us += event.time_us
    return trace
