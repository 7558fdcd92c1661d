"""torchao's quantizers for PyTorch graphs, configured; and what they made of a graph."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from optcli import environment
from optcli.artifact import OUTPUT_TAIL, Artifact, Format
from optcli.errors import OptcliError, StepError, first_line
from optcli.models.formats import exported as exported_format
from optcli.models.formats import torch as torch_format
from optcli.passes import Job
from optcli.passes._quantization import output_tails
from optcli.passes._quantization.calibration import ModelInput
from optcli.passes._torch.tracing import DependsOnValuesError, flat, trace

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule
    from torchao.quantization.pt2e.quantizer import QuantizationConfig, Quantizer

# With these a sum of products of 8-bit integers does not saturate.
_FULL_RANGE = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})

# What exporters put before the path of a module: strict mode, and the wrapper of `_tracing.flat`.
_PREFIXES = ("L['self'].", "model.")


@dataclass
class TracedGraph:
    """A graph to quantize; `facts` says how it was traced and what must stay in floating point."""

    graph: GraphModule
    facts: dict[str, Any]


def graph_of(
    source: Artifact,
    job: Job,
    strict: bool | None,
    output_tail: output_tails.OutputTail,
    *,
    inductor: bool = True,
) -> TracedGraph:
    """The graph of a torch or exported artifact, ready to be quantized.

    `inductor`: what its integer kernels compute wrongly stays in floating point. `strict` None traces
    the bytecode, which tells calls of a shared module apart, and runs the code where that fails. Raises
    `StepError`.
    """
    facts: dict[str, Any] = {"imports": [exported_format.QUANTIZED]}
    if source.format == Format.EXPORTED:
        graph = exported_format.open(source.path, trust=source.trusted).module()
    else:
        model = flat(torch_format.open(source.path), job.inputs)
        graph, facts["strict"] = _traced(model, job, strict)
    if inductor:
        _subtract_numbers(graph)
    if inductor and any(spec.symbols for spec in job.inputs):
        in_floats = _single_channels(graph)
        _keep_in_floats(graph, in_floats)
        if in_floats:
            facts["kept_in_fp32"] = dict.fromkeys(in_floats, "its input has one channel")
    tail = output_tails.in_graph(graph) if output_tail == "float" else []
    _keep_in_floats(graph, tail)
    facts[OUTPUT_TAIL] = tail
    return TracedGraph(graph, facts)


def _traced(model: torch.nn.Module, job: Job, strict: bool | None) -> tuple[GraphModule, bool]:
    for attempt in (True, False) if strict is None else (strict,):
        try:
            return trace(model, job, strict=attempt).module(), attempt
        except Exception as error:
            if isinstance(error, OptcliError) and not isinstance(error, DependsOnValuesError):
                raise
            failed = error
            traceback.print_exc()  # into the step's log
    if isinstance(failed, DependsOnValuesError):
        raise failed
    raise StepError(
        f"torch.export failed: {first_line(failed)}",
        hint="the log shows the line of the network that it cannot follow",
    ) from failed


def write_graph(graph: GraphModule, job: Job) -> dict[str, int]:
    """Write a quantized graph as an exported program; gives how many operators of a kind are quantized.

    Raises `StepError` where there is none.
    """
    job.progress(None, "writing the quantized graph")
    counts = _count_quantized(graph)
    if not counts:
        raise StepError(
            "nothing in this model can be quantized: static quantization takes convolutions and linear "
            "layers, dynamic quantization linear layers alone",
            hint="ignore fewer modules, or remove the pass",
        )
    _drop_unused(graph)
    exported_format.save(trace(graph, job, strict=False), job.out)
    return dict(sorted(counts.items()))


def not_told_apart(source: Artifact, error: Exception) -> StepError:
    """The refusal of a graph whose layers a quantizer cannot find."""
    return StepError(
        f"the quantizer cannot tell the layers of this graph apart: {first_line(error)}",
        hint="remove `export` before this pass, or set `export: {strict: true}`"
        if source.format == Format.EXPORTED
        else "use a module of its own for each call of a layer that is called twice",
    )


def graph_inputs(job: Job) -> list[ModelInput]:
    """What the graph takes; a batch that must have several samples is calibrated with as many."""
    inputs = []
    for spec in job.inputs:
        first, *others = (size if isinstance(size, int) else None for size in spec.shape)
        least = spec.batch_range().min
        batch = least if first is None and least > 1 else first
        inputs.append(ModelInput(spec.name, spec.dtype, (batch, *others)))
    return inputs


def this_cpu() -> str:
    """The kind of quantizer for this machine, `x86` or `arm`."""
    return "arm" if environment.cpu()["machine"] in ("aarch64", "arm64") else "x86"


def saturates(kind: str) -> bool:
    """Whether sums of products of 8-bit integers saturate on this CPU, so that 7 bits are used."""
    return kind == "x86" and not _FULL_RANGE.intersection(environment.cpu()["flags"])


def quantizer(
    kind: str,
    ignored: Collection[str],
    *,
    reduce_range: bool,
    dynamic: bool = False,
    per_channel: bool = True,
    histogram: bool = True,
) -> Quantizer:
    """The quantizer for the Inductor kernels of a kind of CPU, `x86` or `arm`, or for `xnnpack`.

    Dynamic, it takes linear layers alone: the kernels have no dynamic convolution. `ignored` are
    modules as `module_names` gives them.
    """
    import torch
    from torchao.quantization.pt2e.quantizer import arm_inductor_quantizer as arm
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    if kind == "xnnpack":
        return _of_xnnpack(ignored, dynamic, per_channel, histogram)
    if kind == "arm":
        configured = arm.ArmInductorQuantizer()
        config = arm.get_default_arm_inductor_quantization_config(is_dynamic=dynamic)
    else:
        configured = x86.X86InductorQuantizer()
        config = x86.get_default_x86_inductor_quantization_config(
            is_dynamic=dynamic, reduce_range=reduce_range
        )
    config = _adapted(config, dynamic, per_channel, histogram)
    for name in ignored:
        for prefix in ("", _PREFIXES[-1]):
            configured.set_module_name_qconfig(prefix + name, None)
    if dynamic:
        configured.set_module_type_qconfig(torch.nn.Linear, config)
    else:
        configured.set_global(config)
    return configured


def _of_xnnpack(
    ignored: Collection[str], dynamic: bool, per_channel: bool, histogram: bool
) -> Quantizer:
    import torch
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack

    configured = xnnpack.XNNPACKQuantizer()
    config = xnnpack.get_symmetric_quantization_config(is_per_channel=per_channel, is_dynamic=dynamic)
    config = _adapted(config, dynamic, True, histogram)
    for name in ignored:
        for prefix in ("", _PREFIXES[-1]):
            configured.set_module_name(prefix + name, None)
    if dynamic:
        return configured.set_module_type(torch.nn.Linear, config)
    return configured.set_global(config)


def _subtract_numbers(graph: GraphModule) -> None:
    """Write `x + 3` as `x - -3`, which is the same.

    The quantizers take every sum behind a convolution for one of two tensors, and fail on a number.
    """
    import torch

    aten = torch.ops.aten
    differences = {aten.add.Tensor: aten.sub.Tensor, aten.add_.Tensor: aten.sub_.Tensor}
    for node in graph.graph.nodes:
        if node.target in differences and not isinstance(node.args[1], torch.fx.Node):
            number = node.args[1] * node.kwargs.get("alpha", 1)
            node.target, node.args, node.kwargs = differences[node.target], (node.args[0], -number), {}
            for name in ("source_fn_stack", "torch_fn"):  # by which they know a sum
                node.meta.pop(name, None)


def _keep_in_floats(graph: GraphModule, names: Collection[str]) -> None:
    """Have a quantizer leave the nodes of these names as they are."""
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    x86._annotate_nodes_not_quantize([node for node in graph.graph.nodes if node.name in {*names}])


def _single_channels(graph: GraphModule) -> list[str]:
    """The names of convolutions of one channel, which must stay in floating point.

    Where sizes are dynamic Inductor takes the output of such a one for contiguous
    (torch/_inductor/mkldnn_ir.py), its integer kernel writes it with the channels last: the values get
    mixed up. A grey image's first layer is the usual case, and a cheap one.
    """
    import torch

    return [
        node.name
        for node in graph.graph.nodes
        if node.target is torch.ops.aten.conv2d.default and node.args[0].meta["val"].shape[1] == 1
    ]


def module_names(graph: GraphModule) -> set[str]:
    """The modules that the graph's nodes come from, as the network names them."""
    names: set[str] = set()
    for node in graph.graph.nodes:
        for path, _ in node.meta.get("nn_module_stack", {}).values():
            name = str(path)
            for prefix in _PREFIXES:
                name = name.removeprefix(prefix)
            if name and name != "L['self']":
                names.add(name)
    return names


def _count_quantized(graph: GraphModule) -> Counter[str]:
    """How many convolutions, linear layers and matrix products multiply quantized tensors."""
    import torch

    aten = torch.ops.aten
    products = {aten.conv1d, aten.conv2d, aten.conv3d, aten.linear, aten.matmul, aten.bmm}
    return Counter(
        node.target.overloadpacket.__name__
        for node in graph.graph.nodes
        if getattr(node.target, "overloadpacket", None) in products
        and all(_is_dequantized(source) for source in node.args[:2])
    )


def _drop_unused(graph: GraphModule) -> None:
    """Take out what nothing reads any more: the FP32 weights that integers stand for now."""
    import torch

    graph.graph.eliminate_dead_code()
    read = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    # Graphs within the graph, and modules that it calls (NNCF's SmoothQuant), read what is theirs.
    whole = {str(node.target) for node in graph.graph.nodes if node.op == "call_module"} | {
        name
        for name, module in graph.named_modules()
        if name and isinstance(module, torch.fx.GraphModule)
    }
    for name in [*dict(graph.named_parameters()), *dict(graph.named_buffers())]:
        if name not in read and not any(name.startswith(f"{inner}.") for inner in whole):
            owner, _, attribute = name.rpartition(".")
            delattr(graph.get_submodule(owner), attribute)
    graph.recompile()


def _is_dequantized(node: Any) -> bool:
    return "dequantize" in str(getattr(node, "target", ""))


def _adapted(
    config: QuantizationConfig, dynamic: bool, per_channel: bool, histogram: bool
) -> QuantizationConfig:
    from torchao.quantization.pt2e import MinMaxObserver

    # The smallest scale, as the quantizers' own configurations have it.
    eps = 2**-12
    if not per_channel:
        observer = _one_scale_class().with_args(eps=eps)
        weight = replace(config.weight, observer_or_fake_quant_ctr=observer)
        config = replace(config, weight=weight)
    if not (dynamic or histogram):
        observer = MinMaxObserver.with_args(eps=eps)
        activation = replace(config.input_activation, observer_or_fake_quant_ctr=observer)
        config = replace(config, input_activation=activation, output_activation=activation)
    return config


@cache
def _one_scale_class() -> type[Any]:
    """The class is made at first use: a base class cannot be imported lazily."""
    from torchao.quantization.pt2e import PerChannelMinMaxObserver

    class OneScale(PerChannelMinMaxObserver):  # type: ignore[misc]
        """The same scale for every channel. The graph still has one each: kernels want it so."""

        def calculate_qparams(self) -> Any:
            self.min_val.fill_(self.min_val.min())
            self.max_val.fill_(self.max_val.max())
            return super().calculate_qparams()

    return OneScale
