"""The newer exporter to ONNX, built on torch.export: what passes that write ONNX share."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.errors import StepError
from optcli.models.formats import onnx
from optcli.models.formats.onnx import Weight
from optcli.models.onnx_graphs.protobuf import input_names, output_names
from optcli.passes import Job
from optcli.passes._torch.tracing import IMPORTS_AHEAD as TRACING
from optcli.passes._torch.tracing import trace
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch
    from onnx import ModelProto
    from torch.export import ExportedProgram
    from torch.fx import Node

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")

# Of aten.convNd: the weight and the bias among its arguments.
_WEIGHT, _BIAS = 1, 2


@dataclass(frozen=True)
class _NormalizedLayer:
    """A convolution and the normalization behind it, by their arguments; None: there is none."""

    convolution: Node
    weight: Node
    bias: Node | None
    scale: Node | None
    shift: Node | None
    mean: Node
    variance: Node
    epsilon: float

    @property
    def parameters(self) -> list[Node]:
        """Those arguments that hold numbers."""
        everything = (self.weight, self.bias, self.scale, self.shift, self.mean, self.variance)
        return [each for each in everything if each is not None]


# As `imports_ahead`: the exporter, and the operators that it knows.
IMPORTS_AHEAD = (
    *TRACING,
    "torch.onnx._internal.exporter._torchlib.ops",
    "onnxscript.function_libs.torch_lib.ops",
)


def program_of(model: torch.nn.Module, job: Job) -> ExportedProgram:
    """What torch.export makes of a network that `flat` gave, by running it, else by its bytecode.

    Where it runs, `len(x)` is a number, which fixes the batch.
    """
    try:
        return trace(model, job, strict=False)
    except StepError:
        with suppress(Exception):
            return trace(model, job, strict=True)
        raise
    except Exception:
        return trace(model, job, strict=True)


def onnx_of_program(
    program: ExportedProgram, inputs: Sequence[TensorSpec], outputs: Sequence[str]
) -> ModelProto:
    """The ONNX model of an exported program, as `parts_of_program` gives it, with its weights."""
    model, weights = parts_of_program(program, inputs, outputs)
    onnx.fill_in(model, weights)
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
        fold(program)
    _copy_attention(program)
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
    model, weights = onnx.take_apart(made.model)
    _name_dimensions(model, inputs)
    _drop_traces(model)
    return model, weights


def _copy_attention(program: ExportedProgram) -> None:
    """Copy what attention gives: decomposed, it lies otherwise in memory.

    A view that was recorded of it would be refused, so it may copy as well.
    """
    import torch

    aten, graph = torch.ops.aten, program.graph
    made = [node for node in graph.nodes if node.target is aten.scaled_dot_product_attention.default]
    for node in made:
        with graph.inserting_after(node):
            form = {"memory_format": torch.contiguous_format}
            copy = graph.call_function(aten.clone.default, (node,), form)
        copy.meta = dict(node.meta)
        others = {copy, graph.output_node()}
        node.replace_all_uses_with(copy, lambda user, others=others: user not in others)
    for node in graph.nodes if made else ():
        if node.target is aten.view.default:
            node.target = aten.reshape.default


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
    graph, scopes_key = model.graph, "pkg.torch.onnx.name_scopes"
    functions = [node for function in model.functions for node in function.node]
    for item in (*graph.node, *graph.input, *graph.output, *graph.value_info, *functions):
        scopes = [entry.value for entry in item.metadata_props if entry.key == scopes_key]
        del item.metadata_props[:]
        for scope in scopes:
            item.metadata_props.add(key=scopes_key, value=scope)


def fold(program: ExportedProgram) -> int:
    """Fold what can be folded, in place; returns how many were.

    That is in FP32, behind a convolution that nobody else reads, whose weights nobody else reads. The
    network that was exported keeps its own weights.
    """
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    graph, state = program.graph, program.state_dict
    folded = 0
    for node in list(graph.nodes):
        pair = _pair(node)
        if pair is None:
            continue
        names = [_name(each, targets, state) for each in pair.parameters]
        bias = next((each for each in (pair.bias, pair.shift, pair.mean) if _is_own(each)), None)
        if None in names or bias is None or not _is_own(pair.weight):
            continue
        _fold_weights(pair, targets, state, bias)
        arguments = [*pair.convolution.args, None][: max(len(pair.convolution.args), _BIAS + 1)]
        arguments[_BIAS] = bias
        pair.convolution.args = tuple(arguments)
        node.replace_all_uses_with(pair.convolution)
        graph.erase_node(node)
        folded += 1
    if folded:
        program.graph_module.recompile()
    return folded


def _pair(node: Node) -> _NormalizedLayer | None:
    """The pair that ends in a node, where it is batch normalization that does not learn."""
    import torch

    aten = torch.ops.aten
    if node.op != "call_function" or node.target is not aten.batch_norm.default:
        return None
    arguments: tuple[Any, ...] = node.args
    data, scale, shift, mean, variance, training, _, epsilon, *_ = arguments
    packets = {getattr(aten, name) for name in _CONVOLUTIONS}
    is_convolution = (
        data.op == "call_function" and getattr(data.target, "overloadpacket", None) in packets
    )
    if training or mean is None or not is_convolution or len(data.users) != 1 or data.kwargs:
        return None
    if any(user.op == "output" for user in node.users):  # the program's signature names it
        return None
    bias = data.args[_BIAS] if len(data.args) > _BIAS else None
    return _NormalizedLayer(
        data, data.args[_WEIGHT], bias, scale, shift, mean, variance, float(epsilon)
    )


def _name(node: Node, targets: dict[str, str | None], state: dict[str, Any]) -> str | None:
    """The name of a parameter or buffer in FP32; None where the node is none."""
    import torch

    name = targets.get(node.name) if node.op == "placeholder" else None
    value = state.get(name) if name is not None else None
    return name if value is not None and value.dtype == torch.float32 else None


def _is_own(node: Node | None) -> bool:
    """Whether a parameter has one reader."""
    return node is not None and len(node.users) == 1


def _fold_weights(
    pair: _NormalizedLayer, targets: dict[str, Any], state: dict[str, torch.Tensor], bias: Node
) -> None:
    """Give the convolution the weights and the bias that make the normalization needless."""
    import torch

    def value(node: Node | None, otherwise: float) -> torch.Tensor:
        if node is None:
            return torch.tensor(otherwise, dtype=torch.float64)
        return state[targets[node.name]].detach().double()

    with torch.no_grad():
        scale = value(pair.scale, 1.0) / torch.sqrt(value(pair.variance, 1.0) + pair.epsilon)
        shift = (value(pair.bias, 0.0) - value(pair.mean, 0.0)) * scale + value(pair.shift, 0.0)
        weight = state[targets[pair.weight.name]].detach()
        by_channel = scale.float().reshape(-1, *[1] * (weight.dim() - 1))
        state[targets[pair.weight.name]] = torch.nn.Parameter(weight * by_channel, requires_grad=False)
        state[targets[bias.name]] = torch.nn.Parameter(shift.float(), requires_grad=False)
