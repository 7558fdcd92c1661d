"""ExecuTorch programs: `model.pte`, a network that was lowered ahead of time for a phone or a board.

The method `forward` takes one tensor per input, by position in the recipe's order, and gives its
outputs in the order of the artifact's output names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from optcli.errors import InputError, raised_as
from optcli.models.formats.model_files import require_mark

if TYPE_CHECKING:
    from executorch.extension.pybindings.portable_lib import ExecuTorchMethod

FILE = "model.pte"
METHOD = "forward"

# What a program says of itself, behind its first four bytes.
_MARK = b"ET12"

# PyTorch's numbers of element types.
_DTYPES = {0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32"}
_DTYPES |= {7: "float64", 11: "bool", 15: "bfloat16"}


class ProgramTensor(NamedTuple):
    """An input or output of a program."""

    dtype: str
    sizes: tuple[int, ...]


def open(folder: Path) -> ExecuTorchMethod:
    """The program's method, loaded: every operator and every backend that it calls is here.

    Raises `InputError` where the file is damaged, or calls for a backend that this runtime lacks.
    """
    path = folder / FILE
    hint = "build it again with to_executorch; the log has ExecuTorch's own words"
    message = "ExecuTorch cannot load the program"
    require_mark(path, _MARK, message, hint)
    with raised_as(InputError, message, place=str(path), hint=hint):
        runtime = _runtime()
        whole = runtime.Verification.InternalConsistency
        program = runtime._load_program(os.fspath(path), program_verification=whole)
        names = [program.get_method_name(place) for place in range(program.num_methods())]
        if METHOD not in names:
            raise ValueError(f"it has no method {METHOD!r}, only {sorted(names)}")
        return program.load_method(METHOD)


def tensors(method: ExecuTorchMethod) -> tuple[list[ProgramTensor], list[ProgramTensor]]:
    """Element type and sizes of the inputs and of the outputs; a size that varies is its largest."""
    about = method.method_meta()
    inputs = [about.input_tensor_meta(place) for place in range(about.num_inputs())]
    outputs = [about.output_tensor_meta(place) for place in range(about.num_outputs())]
    return [_tensor(each) for each in inputs], [_tensor(each) for each in outputs]


def computes(method: ExecuTorchMethod, sizes: Sequence[Sequence[int]]) -> bool:
    """Whether the program takes inputs of these sizes; it does not say itself which of them vary."""
    import torch

    taken, _ = tensors(method)
    types = [getattr(torch, each.dtype, torch.float32) for each in taken]
    zeros = [torch.zeros(tuple(each), dtype=dtype) for each, dtype in zip(sizes, types, strict=True)]
    try:
        method(zeros)
    except RuntimeError:
        return False
    return True


def backends(folder: Path) -> list[str]:
    """The backends of this runtime that the program hands parts of the network to.

    It names each where it calls it, and none is loaded without all of them.
    """
    content = (folder / FILE).read_bytes()
    names = _runtime()._get_registered_backend_names()
    return sorted(name for name in names if f"{name}\0".encode() in content)


def set_threads(count: int) -> int:
    """Have ExecuTorch compute with as many threads in this process; gives how many it took."""
    runtime = _runtime()
    runtime._unsafe_reset_threadpool(count)
    return int(runtime._threadpool_get_thread_count())


def _tensor(about: Any) -> ProgramTensor:
    kind = int(about.dtype())
    return ProgramTensor(_DTYPES.get(kind, f"type {kind}"), tuple(about.sizes()))


def _runtime() -> Any:
    """ExecuTorch's runtime by itself.

    Its public names lie in `executorch.runtime`, which imports the exporter and PyTorch's compiler too:
    seconds on a server, most of a minute on a board.
    """
    import torch  # noqa: F401 - its libraries must be loaded before
    from executorch.extension.pybindings import _C

    return _C
