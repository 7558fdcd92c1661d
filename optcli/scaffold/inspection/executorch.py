"""Into ExecuTorch programs: inputs, outputs, what a backend computes and what plain kernels do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, counted, raised_as
from optcli.models.formats import executorch as executorch_format
from optcli.models.formats.executorch import ProgramTensor
from optcli.scaffold.inspection.findings import as_folder, operators
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    from executorch.exir.schema import ExecutionPlan
    from executorch.extension.pybindings.portable_lib import ExecuTorchMethod

_BATCH = "batch"


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a `.pte`, or into a folder with one. Raises `InputError`."""
    with as_folder(path, {executorch_format.FILE: path}) as folder:
        method = executorch_format.open(folder)
        taken, given = executorch_format.tensors(method)
        largest = _largest_batch(method)
        backends = executorch_format.backends(folder)
        content = (folder / executorch_format.FILE).read_bytes()
    from executorch.exir._serialize._program import deserialize_pte_binary

    with raised_as(InputError, "ExecuTorch cannot read the program", place=str(path)):
        (plan,) = [
            each
            for each in deserialize_pte_binary(content).program.execution_plan
            if each.name == executorch_format.METHOD
        ]
    names = [spec.name for spec in inputs]
    if len(names) != len(taken):
        names = [f"input_{place}" for place in range(len(taken))]
    outputs = [f"output_{place}" for place in range(len(given))]
    parts = Counter(delegate.id for delegate in plan.delegates)
    notes = [
        f"{name} computes {counted(count, 'part')} of the network"
        for name, count in sorted(parts.items())
    ]
    return {
        "inputs": [_record(*each, largest) for each in zip(names, taken, strict=True)],
        "outputs": [_record(*each, largest) for each in zip(outputs, given, strict=True)],
        "operators": operators(_calls(plan)),
        "facts": {"backends": backends, "bounds": {_BATCH: [1, largest]} if largest else {}},
        "notes": [*notes, "sizes other than the batch are given as their largest"],
    }


def _calls(plan: ExecutionPlan) -> Counter[tuple[str, str]]:
    """What runs outside of every backend, and the calls of backends, each how often."""
    counts: Counter[tuple[str, str]] = Counter()
    for chain in plan.chains:
        for instruction in chain.instructions:
            call = instruction.instr_args
            if hasattr(call, "op_index"):
                counts[plan.operators[call.op_index].name, "plain kernel"] += 1
            elif hasattr(call, "delegate_index"):
                counts[plan.delegates[call.delegate_index].id, "backend"] += 1
    return counts


def _largest_batch(method: ExecuTorchMethod) -> int:
    """The most images in a batch; 0 where the program takes one batch size alone."""
    sizes = [each.sizes for each in executorch_format.tensors(method)[0]]
    largest = {each[0] for each in sizes if each}
    if len(largest) != 1 or largest == {1}:
        return 0
    one_image = [(1, *each[1:]) if each else each for each in sizes]
    return largest.pop() if executorch_format.computes(method, one_image) else 0


def _record(name: str, tensor: ProgramTensor, largest_batch: int) -> dict[str, Any]:
    shape: list[int | str] = list(tensor.sizes)
    if largest_batch and shape[:1] == [largest_batch]:
        shape[0] = _BATCH
    return {"name": name, "dtype": tensor.dtype, "shape": shape}
