"""ONNX from PyTorch."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import OptcliError, StepError, first_line
from optcli.formats import exported as exported_format
from optcli.formats import onnx as onnx_format
from optcli.onnx_graphs.interface import input_names, opset_of, output_names
from optcli.passes import Job, Made, Pass
from optcli.passes._torch.networks import network
from optcli.passes._torch.tracing import example, flat, plain_attention, trace
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch
    from onnx import ModelProto
    from torch.export import ExportedProgram


class ExportOnnx(Pass):
    """Exports a PyTorch network to ONNX.

    Sizes that the recipe's `inputs` write as symbols stay dynamic; inputs and outputs keep the
    recipe's names. The newer exporter, built on torch.export, is tried first, then the one built on
    TorchScript; the result is compared with the network either way.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH, Format.EXPORTED)
    needs: ClassVar[Needs] = Needs(("torch", "onnx", "onnxscript"))
    tolerance: ClassVar[float | None] = 1e-4

    opset: int | None = Field(
        None, ge=13, description="version of the operator set; default: the exporter's own choice"
    )
    exporter: Literal["auto", "dynamo", "torchscript"] = Field(
        "auto",
        description="`dynamo`: by torch.export; `torchscript`: by tracing; `auto`: in this order",
    )
    optimize: bool = Field(True, description="fold constants and simplify the graph")

    def produces(self, source: Format) -> Format:
        return Format.ONNX

    def attempts(self) -> tuple[Pass, ...]:
        if self.exporter != "auto":
            return (self,)
        order: tuple[Literal["dynamo", "torchscript"], ...] = ("dynamo", "torchscript")
        return tuple(self.model_copy(update={"exporter": exporter}) for exporter in order)

    def run(self, source: Artifact, job: Job) -> Made:
        exporter = "torchscript" if self.exporter == "torchscript" else "dynamo"
        outputs = tuple(source.facts["outputs"])
        try:
            with _quiet():
                if exporter == "torchscript":
                    model = self._by_tracing(source, job, outputs)
                else:
                    model = self._by_torch_export(source, job, outputs)
        except OptcliError:
            raise
        except Exception as error:
            raise StepError(
                f"the {exporter} exporter failed: {first_line(error)}",
                hint="set `exporter:` to the other one, or look into the log",
            ) from error
        _require_names(model, [spec.name for spec in job.inputs], outputs)
        opset = opset_of(model)
        if self.opset is not None and opset != self.opset:
            raise StepError(
                f"the {exporter} exporter made opset {opset}, wanted {self.opset}",
                hint=f"set `opset: {opset}`, or `exporter: torchscript` for an older one",
            )
        onnx_format.save(model, job.out)
        return Made(facts={"exporter": exporter, "opset": opset})

    def _by_torch_export(self, source: Artifact, job: Job, outputs: Sequence[str]) -> ModelProto:
        import torch

        program = torch.onnx.export(
            _program(source, job),
            dynamo=True,
            verbose=False,
            input_names=[spec.name for spec in job.inputs],
            output_names=list(outputs),
            opset_version=self.opset,
            optimize=self.optimize,
        )
        assert program is not None
        model = program.model_proto
        _name_dimensions(model, job.inputs)
        _drop_traces(model)
        return model

    def _by_tracing(self, source: Artifact, job: Job, outputs: Sequence[str]) -> ModelProto:
        import torch

        if source.format == Format.EXPORTED:
            raise StepError(
                "the torchscript exporter cannot read an exported program",
                hint="set `exporter: dynamo`, or take the pass `export` out",
            )
        model = flat(network(source), job.inputs)
        with tempfile.TemporaryDirectory(dir=job.beside) as folder:
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
    model = flat(network(source), job.inputs)
    try:
        return trace(model, job, strict=False)
    except StepError:
        raise
    except Exception:
        return trace(model, job, strict=True)


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
    batch = axes[inputs[0].name].get(0)
    if batch is not None:
        with torch.no_grad(), plain_attention():
            results = model(*tensors)
        results = (results,) if isinstance(results, torch.Tensor) else results
        for name, result in zip(outputs, results, strict=True):
            if result.dim() and result.shape[0] == tensors[0].shape[0]:
                axes[name] = {0: batch}
    return axes


def _name_dimensions(model: ModelProto, inputs: Sequence[TensorSpec]) -> None:
    """Give dynamic dimensions the recipe's names in the place of torch.export's (`s77`)."""
    names: dict[str, str] = {}
    for spec, value in zip(inputs, model.graph.input, strict=True):
        for size, dim in zip(spec.shape, value.type.tensor_type.shape.dim, strict=True):
            if dim.dim_param and isinstance(size, str):
                names[dim.dim_param] = size
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


def _drop_traces(model: ModelProto) -> None:
    """Leave out what torch notes at every node: it holds the paths of this machine.

    The names of the modules stay: they say which layer an operator comes from.
    """
    graph, kept = model.graph, "pkg.torch.onnx.name_scopes"
    functions = [node for function in model.functions for node in function.node]
    for item in (*graph.node, *graph.input, *graph.output, *graph.value_info, *functions):
        scopes = [entry.value for entry in item.metadata_props if entry.key == kept]
        del item.metadata_props[:]
        for scope in scopes:
            item.metadata_props.add(key=kept, value=scope)


def _require_names(model: ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    interface = (input_names(model), output_names(model))
    if interface != (tuple(inputs), tuple(outputs)):
        raise StepError(
            f"the exporter changed the model's interface: found inputs {', '.join(interface[0])} and "
            f"outputs {', '.join(interface[1])}, wanted {', '.join(inputs)} and {', '.join(outputs)}",
            hint="take inputs that the network does not use out of the recipe",
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep both exporters from warning about things that only their authors can change."""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "onnx_ir", "torch.onnx")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
