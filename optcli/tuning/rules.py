"""Rules of thumb: what the search tries first, and why; measurements behind them are named.

They decide the order alone: every candidate is measured here before anything is said of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from optcli import environment
from optcli.tuning.space import RUNTIMES, Parameters, Space

TRANSFORMER, CONVOLUTIONAL = "transformer", "convolutional"
ANOTHER_OPTION = "another option of the quantizer or the runner, of the best network"
ANOTHER_RUNTIME = "the best network in another runtime or precision"
_BY_HAND, _PEERS = "benchmarks/results/by_hand.json", "benchmarks/results/tune.json"


@dataclass(frozen=True)
class TrialRule:
    """Parameters to try, and why."""

    parameters: Parameters
    why: str


def reference(space: Space) -> TrialRule:
    """What every trial is timed beside: the network as it is, in the first runtime, in FP32."""
    runtime = space.runtimes[0]
    precision = "fp32" if "fp32" in space.precisions[runtime] else space.precisions[runtime][0]
    parameters = _parameters(space, runtime, precision)
    if "threads" in parameters:
        parameters["threads"] = max(space.threads)
    return TrialRule(parameters, "what the others are compared with")


def starts(space: Space) -> Iterator[TrialRule]:
    """What is tried before anything is searched, the most promising first."""
    isa = environment.isa()
    slower = f"this CPU ({isa}) needs two instructions for 8-bit multiply-add, so INT8 gains less"
    for runtime, quantizer, faster in (
        (
            "openvino",
            "quantize_nncf",
            f"OpenVINO's INT8 was the fastest form of 8 of 9 networks on AVX512-VNNI ({_BY_HAND})",
        ),
        (
            "onnxruntime",
            "quantize_onnxruntime",
            "ONNX Runtime's INT8, made by hand, was the fastest INT8 of MobileNetV3 at batch size 1"
            f" ({_PEERS})",
        ),
    ):
        if "int8" in space.precisions.get(runtime, ()):
            why = slower if environment.sums_saturate(isa) else faster
            yield TrialRule(_parameters(space, runtime, "int8", quantizer=quantizer), why)
    if "int8" in space.precisions.get("openvino", ()) and space.rests("openvino")[0]:
        why = "FP32 for what is not quantized: some networks convert between INT8 and bf16 too often"
        yield TrialRule(
            _parameters(space, "openvino", "int8", quantizer="quantize_nncf", rest=None), why
        )
    for precision in ("bf16", "fp16"):
        if precision in space.precisions.get("openvino", ()):
            why = "16 bits need no calibration and lose little; some networks gain as much as by INT8"
            yield TrialRule(_parameters(space, "openvino", precision), why)
    for runtime in ("openvino", "onnxruntime"):
        if "fp32" in space.precisions.get(runtime, ()):
            why = "the network as it is in each runtime: which one has the better kernels for it"
            yield TrialRule(_parameters(space, runtime, "fp32"), why)
    if "int8" in space.precisions.get("openvino", ()):
        for preset, why in (
            ("performance", "symmetric activations cost less where they are accurate enough"),
            ("mixed", "asymmetric activations suit swish and GELU"),
        ):
            more = {"quantizer": "quantize_nncf", "preset": preset}
            yield TrialRule(_parameters(space, "openvino", "int8", **more), why)
    if "int8" in space.precisions.get("onnxruntime", ()):
        more = {"quantizer": "quantize_nncf"}
        why = "NNCF corrects biases, which quantize_static does not"
        yield TrialRule(_parameters(space, "onnxruntime", "int8", **more), why)
    if "int8-dynamic" in space.precisions.get("onnxruntime", ()):
        why = "ranges found at run time need no calibration; matrix products alone gain by it"
        yield TrialRule(_parameters(space, "onnxruntime", "int8-dynamic"), why)
    for runtime in (each for each in space.runtimes if each not in RUNTIMES):
        for precision in space.precisions.get(runtime, ()):
            more = {"quantizer": space.quantizers(runtime)[0]} if precision == "int8" else {}
            why = "a runtime of phones and boards, which the recipe names"
            yield TrialRule(_parameters(space, runtime, precision, **more), why)
    if space.recipe.tune.objective == "size":
        for runtime in ("openvino", "onnxruntime"):
            if "int8-weights" in space.precisions.get(runtime, ()):
                why = "the files shrink to a quarter, and activations stay in float"
                yield TrialRule(_parameters(space, runtime, "int8-weights"), why)


def slow_starts(space: Space) -> Iterator[TrialRule]:
    """What takes a compiler a minute: tried where there is time left for it."""
    for precision in ("int8", "fp32"):
        if precision in space.precisions.get("pytorch", ()):
            more = {"quantizer": "quantize_pt2e"} if precision == "int8" else {}
            why = "AOTInductor compiles the network for this machine, which takes a minute"
            yield TrialRule(_parameters(space, "pytorch", precision, **more), why)


def further(space: Space, known: Parameters) -> Iterator[TrialRule]:
    """A network with each pass of `tune.passes`, with one of their values after the other."""
    listed = [list(_valued(name, space.recipe.tune.passes[name])) for name in space.further]
    for chosen in itertools.chain.from_iterable(itertools.zip_longest(*listed)):
        if chosen is not None:
            passes = {**known.get("passes", {}), **chosen}
            yield TrialRule({**known, "passes": passes}, "a pass of tune.passes, on the best network")


def _valued(name: str, options: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Parameters]]:
    for values in itertools.product(*options.values()):
        yield {name: dict(zip(options, values, strict=True))}


def variations(space: Space, known: Parameters, making: Sequence[str]) -> Iterator[TrialRule]:
    """A network with one option changed, or as it is in another runtime or precision.

    `making` names the parameters that say how it was cut and trained.
    """
    for option, values in space.options(known).items():
        for value in values:
            yield TrialRule({**known, option: value}, ANOTHER_OPTION)
    if known.get("aware_s"):  # what it trained is of this runtime
        return
    made = {key: known[key] for key in (*making, "passes") if key in known}
    for runtime in space.runtimes:
        for precision in space.precisions[runtime]:
            for quantizer in space.quantizers(runtime) if precision == "int8" else (None,):
                more = {"quantizer": quantizer} if quantizer else {}
                parameters = _parameters(space, runtime, precision, **more)
                yield TrialRule({**parameters, **made}, ANOTHER_RUNTIME)


def shapes() -> Iterator[Parameters]:
    """Shares of blocks and channels to remove, whose speed is looked at before anything is trained.

    Below half a millisecond the number of layers costs more than their width: 70 % of the channels of
    MobileNetV3-small gone gave 1.19 times the speed at batch size 1. So depth comes first. ResNet-20
    and MobileNetV3-small came back inside a point with 3 of 7 and 3 of 6 blocks gone.
    """
    depths = ((0.5, 0.0), (0.34, 0.0), (0.67, 0.0), (0.5, 0.4), (0.17, 0.0), (0.34, 0.3))
    widths = ((0.0, 0.5), (0.0, 0.3), (0.0, 0.7))
    both = ((0.67, 0.4), (0.84, 0.0), (0.84, 0.5))
    for blocks, width in (*depths, *widths, *both):
        yield {"blocks": blocks, "width": width}


def training(family: str | None, *, detects: bool = False) -> Parameters:
    """How a cut network is trained, by its family, and by whether it is a detector.

    On ResNet-20 with three blocks gone, rates of 0.001 to 0.003 and the outputs of the teacher's blocks
    won back 1 to 2 points more than the defaults of `finetune`; a vision transformer took 0.0005. A
    YOLOX without batch norms won nothing back with 0.002, and as much with 0.00005 as with 0.0005.
    """
    rate = 0.0005 if family == TRANSFORMER or detects else 0.002
    return {"rate": rate, "feature_weight": 1.0}


def _parameters(space: Space, runtime: str, precision: str, **more: Any) -> Parameters:
    chosen: Parameters = {"runtime": runtime, "precision": precision, **more}
    if space.recipe.tune.objective == "cost" and len(space.threads) > 1:
        chosen["threads"] = min(space.threads)
    if precision == "int8":
        chosen.setdefault("rest", space.rests(runtime)[0])
    if runtime in ("openvino", "onnxruntime"):
        chosen["shapes"] = "static"
    return chosen
