"""What can be left in floating point, and what else a quantizing pass can be told: parts of trials.

Groups that lose accuracy in one network after another: the first layer and the last ones (NVIDIA's and
ONNX Runtime's advice for detectors is to exclude the head), what is concatenated (branches of
different ranges share one scale), depthwise convolutions, swish, tensors with a wide range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from optcli.tuning.layers import NetworkOperator

_GATES = frozenset(
    {"Sigmoid", "HardSigmoid", "HardSwish", "HSwish", "HSigmoid", "Swish", "Gelu", "Erf"}
)
_PRODUCT_OF_GATES = frozenset({"Mul", "Multiply"})
_WIDE = 4.0  # times the median width of all tensors


# Passes that can be told which operators to leave in floating point.
QUANTIZING = ("quantize_onnxruntime", "quantize_nncf")


@dataclass(frozen=True)
class Component:
    """A part of a trial: layers that stay in floats, other options of the pass, or both."""

    label: str
    floats: frozenset[str] = frozenset()
    options: dict[str, Any] = field(default_factory=dict, hash=False)


def groups(layers: Sequence[NetworkOperator]) -> list[Component]:
    """The structural groups that the network has, the most promising first."""
    depth = _end_depth(layers)
    components = [
        Component(
            "only convolutions and products quantized", _names(x for x in layers if not x.multiplies)
        ),
        Component("the head in float", _near_outputs(layers, depth)),
        Component(f"the first {depth} layers in float", _near_inputs(layers, depth)),
        Component("the first layer in float", _near_inputs(layers, 1)),
        Component("concatenated branches in float", _concatenated(layers)),
        Component("depthwise convolutions in float", _names(x for x in layers if x.depthwise)),
        Component("swish and similar activations in float", _gated(layers)),
        Component("the last layers in float", _near_outputs(layers, 1)),
        Component("tensors of wide range in float", _wide(layers)),
    ]
    return [each for each in components if each.floats and len(each.floats) < len(layers)]


def calibrations(quantizer: str, options: dict[str, Any]) -> list[Component]:
    """Other ways to find ranges, as far as the pass has them and is not told so already."""
    if quantizer == "quantize_onnxruntime":
        components = [
            Component("ranges by percentile", options={"method": "percentile"}),
            Component("ranges by entropy", options={"method": "entropy", "percentile": None}),
            Component("scales per channel", options={"per_channel": True}),
        ]
    else:
        components = [Component("biases corrected exactly", options={"fast_bias_correction": False})]
        if options.get("target") != "tensorrt":  # which has symmetric ones only
            components.insert(0, Component("asymmetric activations", options={"preset": "mixed"}))
    return [c for c in components if any(options.get(key) != value for key, value in c.options.items())]


def beginnings(layers: Sequence[NetworkOperator]) -> list[Component]:
    """The first 8, 16, ... layers of the way through: noise from there passes everything after it."""
    half = max(_products_before(layers).values(), default=0) // 2
    depths = [8 * 2**power for power in range(6) if 8 * 2**power <= half]
    return [Component(f"the first {d} layers in float", _near_inputs(layers, d)) for d in depths]


def worst(ranking: Sequence[str], count: int) -> Component:
    """The layers that add most error, by a ranking of their names."""
    layers = "layer" if count == 1 else f"{count} layers"
    return Component(f"the worst {layers} in float", frozenset(ranking[:count]))


def _names(layers: Iterable[NetworkOperator]) -> frozenset[str]:
    return frozenset(layer.name for layer in layers)


def _readers(layers: Sequence[NetworkOperator]) -> dict[str, list[NetworkOperator]]:
    readers: dict[str, list[NetworkOperator]] = {}
    for layer in layers:
        for name in layer.inputs:
            readers.setdefault(name, []).append(layer)
    return readers


def _near_outputs(layers: Sequence[NetworkOperator], depth: int) -> frozenset[str]:
    """Layers with at most so many products between them and an output, themselves included."""
    readers = _readers(layers)
    distances: dict[str, int] = {}
    for layer in reversed(layers):  # files list operators in an order in which they can run
        after = [distances[x.name] for name in layer.outputs for x in readers.get(name, ())]
        distances[layer.name] = min(after, default=0) + layer.multiplies
    return frozenset(name for name, distance in distances.items() if distance <= depth)


def _products_before(layers: Sequence[NetworkOperator]) -> dict[str, int]:
    """How many products lie before each layer, on the longest path to it."""
    makers = {name: layer for layer in layers for name in layer.outputs}
    before: dict[str, int] = {}
    for layer in layers:
        sources = [makers[name] for name in layer.inputs if name in makers]
        before[layer.name] = max((before[x.name] + x.multiplies for x in sources), default=0)
    return before


def _end_depth(layers: Sequence[NetworkOperator]) -> int:
    """How many products deep the ends of a network are: an eighth of the way, five at most."""
    return max(2, min(5, max(_products_before(layers).values(), default=0) // 8))


def _near_inputs(layers: Sequence[NetworkOperator], depth: int) -> frozenset[str]:
    """Everything with fewer than so many products before it."""
    return frozenset(name for name, count in _products_before(layers).items() if count < depth)


def _concatenated(layers: Sequence[NetworkOperator]) -> frozenset[str]:
    """Concatenations and what makes their inputs."""
    joins = [layer for layer in layers if layer.kind == "Concat"]
    parts = {name for layer in joins for name in layer.inputs}
    return _names(joins) | _names(x for x in layers if parts.intersection(x.outputs))


def _gated(layers: Sequence[NetworkOperator]) -> frozenset[str]:
    gates = [layer for layer in layers if layer.kind in _GATES]
    gated = {name for layer in gates for name in layer.outputs}
    return _names(gates) | _names(
        x for x in layers if x.kind in _PRODUCT_OF_GATES and gated.intersection(x.inputs)
    )


def _wide(layers: Sequence[NetworkOperator]) -> frozenset[str]:
    """Layers beside the widest values: beyond four times the median, an eighth of all at most."""
    measured = sorted((x for x in layers if x.range), key=lambda x: -(x.range or 0.0))
    if not measured:
        return frozenset()
    limit = _WIDE * median(x.range or 0.0 for x in measured)
    return _names(x for x in measured[: max(1, len(measured) // 8)] if (x.range or 0.0) > limit)
