"""What can be said of an engine where none can be built: the checks before, and a parser's opinion."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from optcli.engines import EngineError, child, driver
from optcli.errors import StepError
from optcli.formats import onnx as onnx_format
from optcli.passes._engine_constraints import violations

_TOLD = 3
_TIMEOUT_S = 300.0


def checked(source: Path) -> list[str]:
    """One sentence per finding on the ONNX model in a folder: what it is quantized to, what is parsed.

    Without a GPU that is all there is to say; nothing raises.
    """
    return [*_constraints(source), parsed(source, parser_here())]


def parser_here() -> str | None:
    """The product whose parser works here: TensorRT with a driver, TensorRT-RTX with none; or None."""
    if driver.present() and importlib.util.find_spec("tensorrt") is not None:
        return "tensorrt"
    return "tensorrt_rtx" if importlib.util.find_spec("tensorrt_rtx") is not None else None


def parsed(source: Path, product: str | None) -> str:
    """What the product's parser makes of the model: which of its nodes it takes."""
    if product is None:
        return (
            "operators are not checked: no TensorRT with a parser is here (the extra trt-rtx has one)"
        )
    outline = onnx_format.outline(source)
    nodes = [[node.name, node.op_type] for node in outline.graph.node]
    job = {"product": product, "onnx": str(source / onnx_format.FILE), "nodes": nodes}
    try:
        found = child.run(
            "optcli.engines.coverage:job",
            job,
            python=child.interpreter(product),
            timeout_s=_TIMEOUT_S,
        )
    except EngineError as error:
        return f"operators are not checked: {error.message}"
    refused = found["refused"]
    parser = f"{found['parser']}'s parser"
    if not refused:
        return f"{parser} takes all {len(nodes)} nodes"
    told = "; ".join(f"{one['operator']} {one['node']!r}: {one['why']}" for one in refused[:_TOLD])
    more = f"; and {len(refused) - _TOLD} more" if len(refused) > _TOLD else ""
    return (
        f"{parser} does not take {told}{more}; of {len(nodes)} nodes, those behind were not looked at"
    )


def _constraints(source: Path) -> Iterator[str]:
    try:
        model = onnx_format.open(source)
    except StepError as error:
        yield error.message
        return
    found = violations(model)
    if found:
        more = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
        told = "; ".join(str(each) for each in found[:_TOLD])
        yield f"TensorRT cannot take how it is quantized: {told}{more} ({found[0].hint})"
    elif onnx_format.precision(model) in ("int8", "fp8"):
        yield f"its quantization to {onnx_format.precision(model)} is as TensorRT wants it"
