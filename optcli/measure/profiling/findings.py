"""What a profile says in words: findings, the largest share first, and the document that shows it.

Thresholds say from which share of the time on something is worth a sentence; they are choices:

    overhead    15 %   of compute lies outside of operators: the framework, its calls, kernel launches
    unexplained 15 %   of compute is in no operator's usual time and not between operators
    quantize     5 %   in QuantizeLinear and DequantizeLinear that no integer operator has absorbed
    reformat     5 %   in changing layout or type: Reorder, Transpose, Cast, Convert, copies
    copies      15 %   of a call is spent copying inputs in and outputs out
    decode             reading, decoding and preparing a batch takes longer than the call itself
    opaque      50 %   in generated code that the profiler does not tell apart
    hot                nothing of these: which type of operator the time goes to
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from optcli.measure.profiling.profiler import OPAQUE
from optcli.measure.profiling.record import Finding, Profile
from optcli.results.document import Document, Items, Section, table_of_texts

OVERHEAD = 0.15
UNEXPLAINED = 0.15
QUANTIZE = 0.05
REFORMAT = 0.05
COPIES = 0.15
OPAQUE_FROM = 0.5
MOST = 3

_QUANTIZE = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "FakeQuantize", "Quantize"}
_QUANTIZE_TORCH = ("quantize_per", "dequantize_per", "aten::quantize", "aten::dequantize")
_REFORMAT = {
    *("ReorderInput", "ReorderOutput", "Reorder", "Transpose", "Cast", "Convert", "MemcpyToHost"),
    *("MemcpyFromHost", "Permute", "aten::copy_", "aten::_to_copy", "aten::clone", "aten::contiguous"),
    *("aten::mkldnn_reorder_conv2d_weight", "aten::_reorder", "aten::to_dense", "aten::to_mkldnn"),
}
_COMPILE = {
    "torch": "compile it, so that Python leaves the call: the pass aot_inductor, or export_onnx",
    "torchscript": "compile it ahead: the pass aot_inductor, or export_onnx",
}


def findings(profile: Profile) -> tuple[Finding, ...]:
    """The three that matter most, the largest share first; at least one where operators are known."""
    looks: Sequence[Callable[[Profile], Finding | None]] = (
        decode_bound,
        overhead,
        unexplained,
        unfused,
        reformat,
        copies,
        opaque,
    )
    ranked = [finding for look in looks if (finding := look(profile)) is not None]
    ranked.sort(key=lambda each: (each.kind != "decode", -each.share))
    if len(ranked) < MOST and (finding := hot(profile)) is not None:
        ranked.append(finding)
    return tuple(ranked[:MOST])


def decode_bound(profile: Profile) -> Finding | None:
    """Getting a batch ready takes longer than computing it."""
    ready_ms = profile.stage_ms("read", "prepare")
    call_ms = profile.stage_ms("copy in", "compute", "copy out")
    if ready_ms is None or call_ms is None or ready_ms <= call_ms:
        return None
    read_ms = profile.stage_ms("read") or 0.0
    return Finding(
        kind="decode",
        share=ready_ms / (ready_ms + call_ms),
        message=f"decode-bound: reading and preparing a batch takes {_ms(ready_ms)} in one thread"
        f" (reading and decoding {_ms(read_ms)}), the call itself {_ms(call_ms)}{_unsure(profile)}",
        action=f"prepare in {math.ceil(ready_ms / call_ms)} processes beside the model, or smaller"
        " images: a faster model alone gains little",
    )


def overhead(profile: Profile) -> Finding | None:
    """Time outside of operators: the interpreter, dispatch, kernel launches.

    Where the machine is unsteady and the runtime gives means alone, waiting for a core cannot be told
    from the framework's own time: nothing is said.
    """
    if profile.operators_ms is None or profile.outside_ms is None:
        return None
    if profile.flags and profile.statistic == "mean":
        return None
    share = profile.outside_ms / profile.whole_ms
    if share < OVERHEAD:
        return None
    count = sum(each.calls for each in profile.operators)
    each_us = profile.outside_ms / count * 1e3 if count else 0.0
    name = str(profile.runner.get("name"))
    larger = f"more images a call: try --batch-size {max(8, profile.batch_size * 4)}"
    return Finding(
        kind="overhead",
        share=share,
        message=f"framework overhead: {_percent(share)} of compute, {_ms(profile.outside_ms)} of"
        f" {_ms(profile.whole_ms)}, lies outside of the {count:.0f} operators"
        f" ({each_us:.1f} µs for each of them){_unsure(profile)}",
        action=_COMPILE.get(name, larger) if not profile.runner.get("compile") else larger,
    )


def unexplained(profile: Profile) -> Finding | None:
    """Time of a usual call that neither a usual operator nor the framework accounts for."""
    if profile.unexplained_ms is None or profile.unexplained_ms < UNEXPLAINED * profile.whole_ms:
        return None
    share = profile.unexplained_ms / profile.whole_ms
    return Finding(
        kind="unexplained",
        share=share,
        message=f"unexplained: {_percent(share)} of compute, {_ms(profile.unexplained_ms)} of"
        f" {_ms(profile.whole_ms)}, is in no operator's usual time and not between operators: calls are"
        f" held up, each in another place, as by other work on the machine{_unsure(profile)}",
        action="profile again when the machine is quiet; shares and milliseconds of operators hold for"
        " calls that nothing holds up",
    )


def unfused(profile: Profile) -> Finding | None:
    """QuantizeLinear and DequantizeLinear that remain as operators of their own."""
    operators = []
    for operator in profile.operators:
        decomposed = "decomposed" in operator.type
        kind = operator.type.rpartition("::")[2] if decomposed else operator.type
        if kind in _QUANTIZE or kind.startswith(_QUANTIZE_TORCH):
            operators.append(operator)
    share = sum(operator.share for operator in operators)
    if share < QUANTIZE:
        return None
    count = sum(operator.calls for operator in operators)
    torch = profile.runner.get("name") == "torch"
    return Finding(
        kind="quantize",
        share=share,
        message=f"unfused Q/DQ: {count:.0f} operators that only quantize or dequantize take"
        f" {_percent(share)}, {_ms(sum(operator.time_ms for operator in operators))};"
        f" the slowest is {max(operators, key=lambda operator: operator.time_ms).name}",
        action="let aot_inductor follow: eager PyTorch computes quantized graphs in floats"
        if torch
        else "`optcli inspect` lists what stayed in floats between them: quantize those too, or leave"
        " their neighbours out (ignored_names)",
    )


def reformat(profile: Profile) -> Finding | None:
    """Operators that only change layout or type."""
    operators = [operator for operator in profile.operators if operator.type in _REFORMAT]
    share = sum(operator.share for operator in operators)
    if share < REFORMAT:
        return None
    kinds: dict[str, float] = defaultdict(float)
    for operator in operators:
        kinds[operator.type] += operator.calls
    listed = ", ".join(f"{count:.0f} {kind}" for kind, count in kinds.items())
    return Finding(
        kind="reformat",
        share=share,
        message=f"reformat: {listed} take {_percent(share)}, {_ms(sum(e.time_ms for e in operators))};"
        f" they change layout or type and compute nothing; the slowest is"
        f" {max(operators, key=lambda operator: operator.time_ms).name}",
        action=_reformat_action(set(kinds)),
    )


def _reformat_action(kinds: set[str]) -> str:
    if kinds & {"ReorderInput", "ReorderOutput"}:
        return "try runner: {optimization_level: extended}, which keeps the plain layout, and compare"
    if kinds & {"Cast", "Convert", "aten::_to_copy"}:
        return "feed the type that the network computes in, or keep one precision throughout"
    if kinds & {"Transpose", "Permute"}:
        return "export the network with the layout that its inputs have"
    return "keep one layout throughout: the pass channels_last, or contiguous inputs"


def copies(profile: Profile) -> Finding | None:
    """Copying inputs in and outputs out."""
    moved_ms = profile.stage_ms("copy in", "copy out")
    call_ms = profile.stage_ms("copy in", "compute", "copy out")
    if moved_ms is None or not call_ms or moved_ms / call_ms < COPIES:
        return None
    share = moved_ms / call_ms
    into_ms = profile.stage_ms("copy in") or 0.0
    return Finding(
        kind="copies",
        share=share,
        message=f"copies: {_percent(share)} of a call, {_ms(moved_ms)}, is copying inputs in"
        f" ({_ms(into_ms)}) and outputs out ({_ms(moved_ms - into_ms)})",
        action="send uint8 images and scale them inside the model, or return less than all outputs",
    )


def opaque(profile: Profile) -> Finding | None:
    """Generated code that the profiler sees as one piece."""
    operators = [operator for operator in profile.operators if operator.type == OPAQUE]
    share = sum(operator.share for operator in operators)
    if share < OPAQUE_FROM:
        return None
    return Finding(
        kind="opaque",
        share=share,
        message=f"{_percent(share)} of compute is compiled code, one piece to torch.profiler",
        action="profile the variant that it was compiled from (eager), or the same network in ONNX"
        " Runtime, for times by operator",
    )


def hot(profile: Profile) -> Finding | None:
    """Which type of operator the time goes to."""
    kinds: dict[str, float] = defaultdict(float)
    for operator in profile.operators:
        if operator.type != OPAQUE:
            kinds[operator.type] += operator.share
    if not kinds:
        return None
    kind = max(kinds, key=lambda name: kinds[name])
    members = [operator for operator in profile.operators if operator.type == kind]
    slowest = max(members, key=lambda operator: operator.time_ms)
    precisions = {operator.precision for operator in members}
    quantizable = precisions <= {"fp32", None} and kind.startswith(
        ("Conv", "MatMul", "Gemm", "FullyConnected", "aten::mkldnn_convolution", "aten::addmm")
    )
    return Finding(
        kind="hot",
        share=kinds[kind],
        message=f"{_percent(kinds[kind])} of compute is {kind} ({len(members)} of them); the slowest,"
        f" {slowest.name}, takes {_percent(slowest.share)}",
        action=_hot_action(kind, quantizable),
    )


def _hot_action(kind: str, quantizable: bool) -> str:
    if kind == "aten::_slow_conv2d_forward":
        return (
            "PyTorch takes its plain convolution for inputs this small: a larger batch (--batch-size 8)"
            " or export_onnx has a faster one"
        )
    if quantizable:
        return "INT8 or fewer channels make these faster: quantize_nncf, prune"
    return "a smaller network, or smaller inputs, make these faster"


def _unsure(profile: Profile) -> str:
    return "; the machine was too unsteady to rely on it" if profile.flags else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value >= 0.001 else f"{1e3 * value:.1g} µs"


_TYPES = 8
_TYPE_HEADS = ("type", "precision", "calls", "ms", "share")
_INFLATED = 1.05


def document(profile: Profile, top: int) -> Document:
    """Stages, types, the `top` slowest operators, findings and notes."""
    runner = profile.runner
    shown = profile.operators[:top]
    slowest = [(_short(one.name), one.type, f"{one.time_ms:.3f}", _share(one.share)) for one in shown]
    findings = [f"{each.message}. {each.action}" for each in profile.findings]
    doubts = [flag.text for flag in profile.flags]
    return Document(
        title=(
            f"{profile.recipe}, {profile.variant}: {runner.get('name')}, {runner.get('precision')},"
            f" {runner.get('threads')} threads, batch size {profile.batch_size}, {profile.inputs}"
        ),
        sections=[
            Section("Stages", [table_of_texts(("stage", "ms", "share"), _stages(profile))]),
            Section(
                "Compute by type",
                [table_of_texts(_TYPE_HEADS, _types(profile), (0, 1))],
            ),
            Section(
                f"Slowest {len(shown)} of {len(profile.operators)} operators",
                [table_of_texts(("operator", "type", "ms", "share"), slowest, (0, 1))],
            ),
            Section("Findings", [Items(findings)]),
            Section("Notes", [Items(profile.notes)]),
            Section("Doubts", [Items(doubts)], tone="inconclusive"),
        ],
        footer=list(_footer(profile)),
    )


def _stages(profile: Profile) -> list[tuple[str, str, str]]:
    total = sum(stage.time_ms for stage in profile.stages)
    return [
        (stage.name, f"{stage.time_ms:.4f}", _share(stage.time_ms / total)) for stage in profile.stages
    ]


def _types(profile: Profile) -> Iterator[tuple[str, ...]]:
    if profile.operators_ms is None or profile.outside_ms is None:
        return
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for operator in profile.operators:
        row = sums[operator.type, operator.precision or ""]
        row[0] += operator.calls
        row[1] += operator.time_ms
        row[2] += operator.share
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    rest = ordered[_TYPES:]
    rows = ordered[:_TYPES]
    if rest:
        others = [sum(row[place] for _, row in rest) for place in range(3)]
        rows.append(((f"{len(rest)} others", ""), others))
    for (kind, precision), (calls, time_ms, share) in rows:
        yield kind, precision, f"{calls:.0f}", f"{time_ms:.3f}", _share(share)
    for label, rest_ms in _rest(profile):
        of = "" if rest_ms < 0 else _share(rest_ms / profile.whole_ms)
        yield label, "", "", f"{rest_ms:.3f}", of


def _rest(profile: Profile) -> Iterator[tuple[str, float]]:
    """What is not in operators, and the sum: compute as it is timed without a profiler."""
    yield "outside of operators", profile.outside_ms or 0.0
    if profile.unexplained_ms is not None:
        slower = profile.unexplained_ms < 0
        yield "added by the profiler" if slower else "unexplained", profile.unexplained_ms
        yield "compute", profile.wall_ms


def _footer(profile: Profile) -> Iterator[str]:
    if not any(stage.name == "read" for stage in profile.stages):
        yield "The build has no data: reading and preparing were not measured."
    if profile.profiler and profile.operators_ms is not None:
        adds = profile.profiler_adds
        cost = "adds less than the noise" if adds is None else f"adds {100 * adds:.0f} % to a call"
        inflated = ""
        if profile.operators_ms > _INFLATED * profile.wall_ms:
            inflated = " It makes operators slower than the whole call: read shares, not milliseconds."
        yield (
            f"Operators by {profile.profiler}, {profile.statistic} of {profile.calls} calls:"
            f" {profile.operators_ms:.3f} ms in all; compute takes {profile.wall_ms:.3f} ms without the"
            f" profiler, which {cost}.{inflated}"
        )
    if profile.trace:
        yield f"Trace for chrome://tracing or ui.perfetto.dev: {profile.trace}"


def _share(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _short(name: str) -> str:
    return name if len(name) <= 48 else f"{name[:22]}...{name[-23:]}"
