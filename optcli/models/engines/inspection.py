"""Layers of networks and engines as plain data, the same for every version of TensorRT.

A network is what the parser understood; an engine is what the builder made of it, fused and with
kernels chosen. Only the engine says in which precision a layer is really computed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from optcli.models.engines.bindings import Bindings, dimensions, enum_name

# The parser's names of layers that multiply, and what people call them.
PRODUCTS = {
    "CONVOLUTION": "convolutions",
    "DECONVOLUTION": "deconvolutions",
    "MATRIX_MULTIPLY": "matrix products",
}
PRECISIONS = {
    "FLOAT": "fp32", "FP32": "fp32", "HALF": "fp16", "FP16": "fp16", "BF16": "bf16",
    "BFLOAT16": "bf16", "INT8": "int8", "FP8": "fp8", "INT4": "int4", "FP4": "fp4",
    "INT32": "int32", "INT64": "int64", "BOOL": "bool", "UINT8": "uint8",
}  # fmt: skip


def network(parsed: Any) -> dict[str, Any]:
    """A parsed network: `inputs`, `outputs` and `layers`, with names, types, shapes and producers."""
    layers = [parsed.get_layer(index) for index in range(parsed.num_layers)]
    return {
        "inputs": [_tensor(parsed.get_input(index)) for index in range(parsed.num_inputs)],
        "outputs": [_tensor(parsed.get_output(index)) for index in range(parsed.num_outputs)],
        "layers": [_layer(layer) for layer in layers],
    }


def _layer(layer: Any) -> dict[str, Any]:
    inputs = [layer.get_input(index) for index in range(layer.num_inputs)]
    outputs = [layer.get_output(index) for index in range(layer.num_outputs)]
    return {
        "name": layer.name,
        "type": enum_name(layer.type),
        "inputs": [tensor.name for tensor in inputs if tensor is not None],
        "outputs": [tensor.name for tensor in outputs if tensor is not None],
        "precision": _precision(enum_name(outputs[0].dtype)) if outputs and outputs[0] else "",
    }


def _tensor(tensor: Any) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": _precision(enum_name(tensor.dtype)),
        "shape": dimensions(tensor.shape),
    }


def quantized(layers: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Which products of a parsed network read nothing but dequantized tensors, by `yes` and `no`."""
    producers = {name: layer for layer in layers for name in layer["outputs"]}
    products: dict[str, list[str]] = {"yes": [], "no": []}
    for layer in layers:
        if layer["type"] in PRODUCTS:
            origins = [_origin(name, producers) for name in layer["inputs"][:2]]
            sound = bool(origins) and all(each == "DEQUANTIZE" for each in origins)
            products["yes" if sound else "no"].append(layer["name"])
    return products


def _origin(name: str, producers: Mapping[str, Mapping[str, Any]]) -> str:
    """The type of the layer that makes a tensor, seen through those that only move or cast it."""
    layer = producers.get(name)
    while layer is not None and layer["type"] in ("SHUFFLE", "CAST", "IDENTITY") and layer["inputs"]:
        layer = producers.get(layer["inputs"][0])
    return "" if layer is None else str(layer["type"])


def engine(bindings: Bindings, opened: Any) -> dict[str, Any]:
    """A deserialized engine, by its inspector: see `described`."""
    inspector = opened.create_engine_inspector()
    as_json = bindings.member("LayerInformationFormat", "JSON")
    return described(inspector.get_engine_information(as_json))


def described(text: str) -> dict[str, Any]:
    """What an inspector's JSON says: layers and counts.

    Each of `layers` has name, type, precision, tactic, metadata and reformat. Without detailed
    profiling verbosity layers are bare names, and `detailed` is false. `reformats` counts those that
    only change how a tensor lies in memory, or its type.
    """
    # TensorRT 8.6 separates the names of merged layers by bare control characters.
    content = json.loads(text, strict=False)
    listed = content.get("Layers", [])
    layers = [_engine_layer(each) for each in listed]
    precisions = Counter(layer["precision"] for layer in layers if layer["precision"])
    for layer in layers:
        named = "reformatting copynode" in layer["name"].lower()
        layer["reformat"] = named or layer["type"].lower() == "reformat"
    return {
        "detailed": any(isinstance(each, dict) for each in listed),
        "layers": layers,
        "reformats": sum(layer["reformat"] for layer in layers),
        "precisions": dict(sorted(precisions.items())),
    }


def _engine_layer(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict):
        return {"name": str(entry), "type": "", "precision": "", "tactic": "", "metadata": ""}
    inputs = entry.get("Inputs") or entry.get("Outputs") or []
    weights = entry.get("Weights")
    types = [weights.get("Type", "")] if isinstance(weights, dict) else []
    for each in inputs:
        if isinstance(each, dict):  # older versions put the type at the end of `Format/Datatype`
            kind = each.get("Datatype") or each.get("DataType") or each.get("Format/Datatype", "")
            types.append(str(kind))
    return {
        "name": entry.get("Name", ""),
        "type": entry.get("LayerType", ""),
        "precision": next((each for each in map(_precision, types) if each), ""),
        "tactic": entry.get("TacticName") or str(entry.get("TacticValue", "") or ""),
        "metadata": entry.get("Metadata", ""),
    }


def _precision(text: str) -> str:
    words = re.findall(r"[A-Za-z]+\d*", text.upper())
    return next((PRECISIONS[word] for word in words if word in PRECISIONS), "")


def expectation(
    requested: str, parsed: Mapping[str, Any], inspected: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Whether layers that multiply are computed in what was asked for, and why not.

    With an engine's own layers `by` is `engine`; without a GPU it is `network`: what the parsed network
    would let the builder do, no more. Gives `asked`, `by`, `kind`, `total`, `matching` and `text`.
    """
    layers = parsed["layers"]
    products = [layer for layer in layers if layer["type"] in PRODUCTS]
    kinds = {PRODUCTS[layer["type"]] for layer in products}
    kind = kinds.pop() if len(kinds) == 1 else "convolutions and matrix products"
    sound = quantized(layers)
    if inspected is not None and inspected["detailed"]:
        by, precisions = "engine", {each["name"]: _computed(each, inspected) for each in products}
    else:
        by, precisions = "network", {each["name"]: str(each["precision"]) for each in products}
        precisions |= dict.fromkeys(sound["yes"], "int8")
    wanted = {"tf32": "fp32"}.get(requested, requested)
    matching = [name for name, precision in precisions.items() if precision == wanted]
    others = Counter(precisions[name] or "unknown" for name in precisions if name not in matching)
    text = f"you asked for {requested.upper()}; {len(matching)} of {len(precisions)} {kind} run in it"
    if by == "network":
        text = text.replace("run in it", "can run in it (by the parsed network, without a GPU)")
    silent = [name for name, precision in precisions.items() if not precision]
    if len(silent) < sum(others.values()):
        known = {name: precision for name, precision in precisions.items() if precision}
        other_precisions = ", ".join(sorted(set(others) - {"unknown"}))
        text += f", the others in {other_precisions}{_because(wanted, by, known, sound)}"
    if silent:
        who = "the inspector" if by == "engine" else "the parsed network"
        text += f"; {who} names no precision of {len(silent)} ({', '.join(silent[:3])})"
    return {
        "asked": requested,
        "by": by,
        "kind": kind,
        "total": len(precisions),
        "matching": len(matching),
        "others": dict(sorted(others.items())),
        "text": text,
    }


def _computed(layer: Mapping[str, Any], inspected: Mapping[str, Any]) -> str:
    """The precision of the engine's layer that a layer of the network went into."""
    name = re.escape(layer["name"])
    whole = re.compile(rf"(?<![\w/.]){name}(?![\w/.])")
    for candidate in inspected["layers"]:
        if candidate["reformat"]:
            continue
        if whole.search(candidate["name"]) or whole.search(candidate["metadata"]):
            return str(candidate["precision"])
    return ""


def _because(
    wanted: str, by: str, precisions: Mapping[str, str], sound: Mapping[str, Sequence[str]]
) -> str:
    others = [name for name, precision in precisions.items() if precision != wanted]
    first = ", ".join(others[:3])
    if wanted in ("int8", "fp8"):
        bare = [name for name in others if name in sound["no"]]
        if bare:
            return (
                f", because no QuantizeLinear and DequantizeLinear stand before {len(bare)} of them "
                f"({', '.join(bare[:3])})"
            )
    if by == "engine":
        return f", because the builder found other kernels faster, or none for it ({first})"
    return f", because the model computes them so ({first})"
