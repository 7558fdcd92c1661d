"""Opening the network of a torch artifact, for a pass that changes it or exports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from optcli.artifact import Artifact, Format
from optcli.errors import StepError
from optcli.models.formats import exported as exported_format
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_compiled, torch_transforms
from optcli.passes._torch.tracing import flat
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch


def network(source: Artifact, *, eager: bool = False) -> torch.nn.Module:
    """The network in floating point, as Python code, in evaluation mode on the CPU.

    `eager`: layers that `engine: eager` has quantized may be in it. Raises `StepError` for a network
    that is compiled or quantized: what was kept of the one would be lost, and exporters cannot read
    torchao's weights, or quietly make floating-point numbers of them again.
    """
    require_uncompiled(source)
    for record in torch_format.read(source.path).transforms:
        if record["name"] == torch_transforms.QUANTIZE and not (eager and record["engine"] == "eager"):
            raise StepError(
                "the network is quantized already, in a way that PyTorch alone can run",
                hint="put the pass that quantizes last or before torch_compile; for ONNX put it behind "
                "export_onnx, for aot_inductor use quantize_pt2e",
            )
    return torch_format.open(source.path)


def function_of(source: Artifact, inputs: Sequence[TensorSpec]) -> torch.nn.Module:
    """A network, or an exported program, as a function of one tensor per input, in their order."""
    if source.format == Format.EXPORTED:
        program = exported_format.open(source.path, trust=source.trusted)
        return program.module(check_guards=False)
    return flat(network(source), inputs)


def require_uncompiled(source: Artifact) -> None:
    """Raise `StepError` for a network that torch_compile made: its compiled code would be lost."""
    transforms = torch_format.read(source.path).transforms
    if torch_compiled.Compilation.of(transforms) is not None:
        raise StepError(
            "the network is compiled already", hint="put torch_compile last, and use it only once"
        )
