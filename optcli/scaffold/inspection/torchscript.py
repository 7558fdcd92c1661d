"""Into TorchScript archives: the operators of their graph; a call is counted where inputs are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.models.formats import torchscript as torchscript_format
from optcli.models.formats.torch_calls import flatten_outputs
from optcli.scaffold.inspection import _torch_calls as calls
from optcli.scaffold.inspection.findings import operators
from optcli.settings import TensorSpec

_PLUMBING = ("Constant", "ListConstruct", "TupleConstruct", "GetAttr", "ListUnpack", "TupleUnpack")
# Operators whose products torch's counter does not see.
_HIDDEN = ("mkldnn", "mkldnn_prepacked", "prepacked", "onednn", "quantized", "_quantized")


def look(path: Path, inputs: Sequence[TensorSpec], *, trust: bool = False) -> dict[str, Any]:
    """Look into a file, or into the `model.pt` of a folder.

    Raises `InputError` and `TrustError` as the format does.
    """
    file = path / torchscript_format.FILE if path.is_dir() else path
    model = torchscript_format.read(file, trust=trust)
    graph = model.inlined_graph
    counts: Counter[tuple[str, str]] = Counter()
    for node in torchscript_format.nodes(graph):
        if not node.kind().endswith(_PLUMBING):
            counts[node.kind().replace("::", "."), ""] += 1
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = torchscript_format.parameters(model)
    findings: dict[str, Any] = {
        **calls.parameters(dict(model.named_parameters()) or state),
        "precision": torchscript_format.precision(model),
        "inputs": [{"name": name, "dtype": "unknown", "shape": None} for name in names],
        "operators": operators(counts),
    }
    if not inputs:
        return {
            **findings,
            "notes": ["TorchScript does not record its inputs' shapes: operations are not counted"],
        }
    feed = calls.example(inputs)
    positional, keyword = torchscript_format.arguments(model, inputs).split(feed)
    counted, result = calls.counted(lambda: model(*positional, **keyword), feed)
    findings["inputs"] = [{"name": s.name, "dtype": s.dtype, "shape": s.shape} for s in inputs]
    findings["outputs"] = calls.tensors(flatten_outputs(result), inputs, feed)
    hidden = sorted({kind for kind, _ in counts if kind.partition(".")[0] in _HIDDEN})
    if hidden:
        note = f"operations are not counted: those of {', '.join(hidden[:3])} cannot be seen"
        return {**findings, "notes": [note]}
    return {**findings, "operations": counted["operations"]}
