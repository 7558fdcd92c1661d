"""Into exported programs (`.pt2` of torch.export): the operators of their graph, one call counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.models.formats import exported as exported_format
from optcli.models.formats.torch_calls import flatten_outputs
from optcli.scaffold.inspection import _torch_calls as calls
from optcli.scaffold.inspection.findings import as_folder, most_of, operators
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def look(path: Path, inputs: Sequence[TensorSpec], *, trust: bool = False) -> dict[str, Any]:
    """Look into a program. Raises `InputError` and `TrustError`."""
    import torch

    with as_folder(path, {exported_format.FILE: path}) as folder:
        program = exported_format.open(folder, trust=trust)
    names = [spec.name for spec in inputs] or list(program.graph_signature.user_inputs)
    feed = _feed(program, inputs, names)
    outputs = _values(program, program.graph_signature.user_outputs)
    counts: Counter[tuple[str, str]] = Counter()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        first = value[0] if isinstance(value, tuple | list) and value else value
        if node.op == "call_function" and isinstance(first, torch.Tensor):
            name = str(node.target).rpartition(".")[0] or str(node.target)
            counts[name, calls.short_name(first.dtype)] += 1
    findings: dict[str, Any] = {
        "facts": {"bounds": _bounds(program)},
        "inputs": [_tensor(n, v) for n, v in zip(names, feed[1], strict=True)],
        "outputs": [
            _tensor("output" if len(outputs) == 1 else f"output_{number}", value)
            for number, value in enumerate(outputs)
        ],
        "operators": operators(counts),
        **calls.parameters(dict(program.named_parameters()) or program.state_dict),
    }
    findings["precision"] = most_of(findings["parameters_by_type"])
    module = program.module()
    counted, _ = calls.counted(lambda: flatten_outputs(module(*feed[0].values())), feed[0])
    return {**findings, "operations": counted["operations"]}


def _feed(
    program: ExportedProgram, inputs: Sequence[TensorSpec], names: Sequence[str]
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Tensors to call it with, and the program's own descriptions of its inputs."""
    import torch

    values = list(_values(program, program.graph_signature.user_inputs))
    if inputs:
        return calls.example(inputs), values
    feed = {
        name: torch.zeros([_smallest(size, program) for size in value.shape], dtype=value.dtype)
        for name, value in zip(names, values, strict=True)
    }
    return feed, values


def _values(program: ExportedProgram, names: Sequence[Any]) -> list[torch.Tensor]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return [value for name in names if (value := values.get(str(name))) is not None]


def _bounds(program: ExportedProgram) -> dict[str, list[int]]:
    """The least and the largest size of every symbol that is bounded, by its name in the shapes."""
    bounds = {}
    for symbol, span in program.range_constraints.items():
        # torch.export writes 2 where nothing was said: it leaves 0 and 1 to luck.
        low, high = int(span.lower), int(min(2**31, span.upper))
        bounds[str(symbol)] = [low if low > 2 else 1, high]
    return bounds


def _smallest(size: Any, program: ExportedProgram) -> int:
    """A size that varies at the smallest that its range allows, but no less than 1."""
    if isinstance(size, int):
        return size
    limits = {str(symbol): span for symbol, span in program.range_constraints.items()}
    span = limits.get(str(size))
    return max(1, int(span.lower)) if span is not None else int(size.node.hint)


def _tensor(name: str, value: torch.Tensor) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else str(size) for size in value.shape]
    return {"name": name, "dtype": str(value.dtype).removeprefix("torch."), "shape": shape}
