"""The newer exporter to ONNX, built on torch.export: what passes that write ONNX share."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from optcli.errors import StepError
from optcli.formats import onnx_writing
from optcli.formats.onnx_writing import Weight
from optcli.onnx_graphs.interface import input_names, output_names
from optcli.passes import Job
from optcli.passes._torch import batch_norms
from optcli.passes._torch.tracing import IMPORTS_AHEAD as TRACING
from optcli.passes._torch.tracing import trace
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch
    from onnx import ModelProto
    from torch.export import ExportedProgram

# As `imports_ahead`: the exporter, and the operators that it knows.
IMPORTS_AHEAD = (
    *TRACING,
    "torch.onnx._internal.exporter._torchlib.ops",
    "onnxscript.function_libs.torch_lib.ops",
)


def program_of(model: torch.nn.Module, job: Job) -> ExportedProgram:
    """What torch.export makes of a network that `flat` gave, by running it, else by its bytecode."""
    try:
        return trace(model, job, strict=False)
    except StepError:
        raise
    except Exception:
        return trace(model, job, strict=True)


def onnx_of_program(
    program: ExportedProgram,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    opset: int | None = None,
    optimize: bool = True,
) -> ModelProto:
    """The ONNX model of an exported program, as `parts_of_program` gives it, with its weights."""
    model, weights = parts_of_program(program, inputs, outputs, opset, optimize)
    onnx_writing.fill(model, weights)
    return model


def parts_of_program(
    program: ExportedProgram,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    opset: int | None = None,
    optimize: bool = True,
) -> tuple[ModelProto, dict[str, Weight]]:
    """The ONNX model of an exported program, and apart from it the weights, which are not copied.

    Names of inputs, outputs and sizes are the recipe's. `opset` None: the exporter's own choice.
    `optimize` folds constants and simplifies the graph; the program is changed by that.
    """
    import torch

    if optimize:
        batch_norms.fold(program)
    made = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        input_names=[spec.name for spec in inputs],
        output_names=list(outputs),
        opset_version=opset,
        optimize=optimize,
    )
    assert made is not None
    model, weights = onnx_writing.taken_apart(made.model)
    _name_dimensions(model, inputs)
    _drop_traces(model)
    return model, weights


def require_names(model: ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise `StepError` where the exporter gave the model other inputs or outputs."""
    interface = (input_names(model), output_names(model))
    if interface != (tuple(inputs), tuple(outputs)):
        raise StepError(
            f"the exporter changed the model's interface: found inputs {', '.join(interface[0])} and "
            f"outputs {', '.join(interface[1])}, wanted {', '.join(inputs)} and {', '.join(outputs)}",
            hint="take inputs that the network does not use out of the recipe",
        )


@contextmanager
def quiet_exporters() -> Iterator[None]:
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
