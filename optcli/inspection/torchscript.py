"""Into TorchScript archives: the operators of their graph, read without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.errors import InputError, first_line
from optcli.inspection import _torch_calls as calls
from optcli.inspection.findings import operators
from optcli.settings import TensorSpec

_PLUMBING = ("Constant", "ListConstruct", "TupleConstruct", "GetAttr", "ListUnpack", "TupleUnpack")


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a file, or into the `model.pt` of a folder. Raises `InputError` for a damaged one."""
    import torch

    file = path / "model.pt" if path.is_dir() else path
    try:
        module = torch.jit.load(str(file), map_location="cpu")
    except RuntimeError as error:
        raise InputError(
            f"torch cannot read this TorchScript file: {first_line(error)}",
            place=str(file),
            hint="save it again with torch.jit.save",
        ) from error
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    graph = module.inlined_graph
    seen: Counter[tuple[str, str]] = Counter()
    for node in _nodes(graph):
        if not node.kind().endswith(_PLUMBING):
            seen[node.kind().replace("::", "."), "unknown"] += 1
    names = [value.debugName().split(".")[0] for value in list(graph.inputs())[1:]]
    known = [{"name": spec.name, "dtype": spec.dtype, "shape": spec.shape} for spec in inputs]
    found = calls.parameters(state)
    by_type = found["parameters_by_type"]
    return {
        **found,
        "precision": max(by_type, key=lambda kind: by_type[kind]) if by_type else None,
        "inputs": known or [{"name": name, "dtype": "unknown", "shape": None} for name in names],
        "operators": operators(seen),
        "notes": ["TorchScript keeps no types and sizes: operations are not counted"],
    }


def _nodes(graph: Any) -> list[Any]:
    found = []
    for node in graph.nodes():
        found.append(node)
        for block in node.blocks():
            found.extend(_nodes(block))
    return found
