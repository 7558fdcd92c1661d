"""ONNX from PyTorch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, raised_as
from optcli.models.formats import exported as exported_format
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import opset_of
from optcli.passes import Job, Made, Pass
from optcli.passes._torch.networks import network
from optcli.passes._torch.onnx_exporting import (
    IMPORTS_AHEAD,
    parts_of_program,
    program_of,
    quiet_exporters,
    require_names,
)
from optcli.passes._torch.tracing import example, flat, plain_attention
from optcli.settings import TensorSpec
from optcli.workers import libraries

if TYPE_CHECKING:
    import torch
    from onnx import ModelProto
    from torch.export import ExportedProgram

# Older ones the newer exporter makes by converting what it has, which few networks allow.
_DYNAMO_OPSET = 18


class ExportOnnx(Pass):
    """Exports a PyTorch network to ONNX.

    Sizes that the recipe's `inputs` write as symbols stay dynamic; inputs and outputs keep the
    recipe's names. The newer exporter, built on torch.export, is tried first, then the one built on
    TorchScript; for opsets below 18 in the other order. The result is compared with the network either
    way.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH, Format.EXPORTED)
    needs: ClassVar[Needs] = Needs(("torch", "onnx", "onnxscript"))
    tolerance: ClassVar[float | None] = 1e-4
    computes_on_one_core: ClassVar[bool] = True
    imports_ahead: ClassVar[tuple[str, ...]] = IMPORTS_AHEAD

    opset: int | None = Field(
        None, ge=13, description="version of the operator set; default: the exporter's own choice"
    )
    exporter: Literal["auto", "dynamo", "torchscript"] = Field(
        "auto",
        description="`dynamo`: by torch.export; `torchscript`: by tracing; `auto`: in this order, or "
        "for an opset below 18 in the other",
    )
    optimize: bool = Field(True, description="fold constants and simplify the graph")

    def produces(self, source: Format) -> Format:
        return Format.ONNX

    def attempts(self) -> tuple[Pass, ...]:
        if self.exporter != "auto":
            return (self,)
        order: tuple[Literal["dynamo", "torchscript"], ...] = ("dynamo", "torchscript")
        if self.opset is not None and self.opset < _DYNAMO_OPSET:
            order = ("torchscript", "dynamo")
        return tuple(self.model_copy(update={"exporter": exporter}) for exporter in order)

    def run(self, source: Artifact, job: Job) -> Made:
        exporter = "torchscript" if self.exporter == "torchscript" else "dynamo"
        outputs = tuple(source.facts["outputs"])
        hint = "if the other `exporter:` was not tried yet, set that; else look into the log"
        failing = raised_as(StepError, f"the {exporter} exporter failed", hint=hint)
        with failing, quiet_exporters(), libraries.without_collections():
            if exporter == "torchscript":
                model, weights = self._by_tracing(source, job, outputs), None
            else:
                program = _program(source, job)
                model, weights = parts_of_program(
                    program, job.inputs, outputs, self.opset, self.optimize
                )
        require_names(model, [spec.name for spec in job.inputs], outputs)
        opset = opset_of(model)
        if self.opset is not None and opset != self.opset:
            raise StepError(
                f"the {exporter} exporter made opset {opset}, wanted {self.opset}",
                hint=f"set `opset: {opset}`, or `exporter: torchscript` for an older one",
            )
        onnx_format.save(model, job.out, weights=weights)
        return Made(facts={"exporter": exporter, "opset": opset})

    def _by_tracing(self, source: Artifact, job: Job, outputs: Sequence[str]) -> ModelProto:
        import torch

        if source.format == Format.EXPORTED:
            raise StepError(
                "the torchscript exporter cannot read an exported program",
                hint="set `exporter: dynamo`, or take the pass `export` out",
            )
        model = flat(network(source), job.inputs)
        with tempfile.TemporaryDirectory(dir=job.work_folder) as folder:
            with torch.no_grad(), plain_attention():
                torch.onnx.export(
                    model,
                    example(job.inputs),
                    os.fspath(Path(folder, onnx_format.FILE)),
                    dynamo=False,
                    input_names=[spec.name for spec in job.inputs],
                    output_names=list(outputs),
                    dynamic_axes=_dynamic_axes(model, job.inputs, outputs),
                    opset_version=self.opset,
                    do_constant_folding=self.optimize,
                )
            return onnx_format.open(Path(folder))


def _program(source: Artifact, job: Job) -> ExportedProgram:
    if source.format == Format.EXPORTED:
        return exported_format.open(source.path, trust=source.trusted)
    return program_of(flat(network(source), job.inputs), job)


def _dynamic_axes(
    model: torch.nn.Module, inputs: Sequence[TensorSpec], outputs: Sequence[str]
) -> dict[str, dict[int, str]]:
    """The dimensions that vary, by name; an output's first one where it follows the batch."""
    import torch

    tensors = example(inputs)
    axes = {
        spec.name: {
            index: size
            for index, size in enumerate(spec.shape)
            if isinstance(size, str) and spec.ranges[size].min < spec.ranges[size].max
        }
        for spec in inputs
    }
    first = next((index for index, spec in enumerate(inputs) if axes[spec.name].get(0)), None)
    if first is not None:
        batch = axes[inputs[first].name][0]
        with torch.no_grad(), plain_attention():
            results = model(*tensors)
        results = (results,) if isinstance(results, torch.Tensor) else results
        for name, result in zip(outputs, results, strict=True):
            if result.dim() and result.shape[0] == tensors[first].shape[0]:
                axes[name] = {0: batch}
    return axes
