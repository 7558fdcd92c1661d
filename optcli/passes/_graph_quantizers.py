"""torchao's quantizers for PyTorch graphs, configured; and what they made of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import GraphModule
    from torchao.quantization.pt2e.quantizer import QuantizationConfig, Quantizer

# What exporters put before the path of a module: strict mode, and the wrapper of `_tracing.flat`.
_PREFIXES = ("L['self'].", "model.")


def quantizer(
    kind: str,
    *,
    dynamic: bool,
    reduce_range: bool,
    per_channel: bool,
    histogram: bool,
    ignored: Collection[str],
) -> Quantizer:
    """The quantizer for the Inductor kernels of a kind of CPU, `x86` or `arm`.

    Dynamic, it takes linear layers alone: the kernels have no dynamic convolution. `ignored` are
    modules as `module_names` gives them.
    """
    import torch
    from torchao.quantization.pt2e.quantizer import arm_inductor_quantizer as arm
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    if kind == "arm":
        made = arm.ArmInductorQuantizer()
        config = arm.get_default_arm_inductor_quantization_config(is_dynamic=dynamic)
    else:
        made = x86.X86InductorQuantizer()
        config = x86.get_default_x86_inductor_quantization_config(
            is_dynamic=dynamic, reduce_range=reduce_range
        )
    config = _adapted(config, dynamic, per_channel, histogram)
    for name in ignored:
        for prefix in ("", _PREFIXES[-1]):
            made.set_module_name_qconfig(prefix + name, None)
    if dynamic:
        made.set_module_type_qconfig(torch.nn.Linear, config)
    else:
        made.set_global(config)
    return made


def keep_single_channels(graph: GraphModule) -> list[str]:
    """Keep convolutions of one channel in floating point; gives the names of their nodes.

    Where sizes are dynamic Inductor takes the output of such a one for contiguous
    (torch/_inductor/mkldnn_ir.py), its integer kernel writes it with the channels last: the values get
    mixed up. A grey image's first layer is the usual case, and a cheap one.
    """
    import torch
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    kept = [
        node
        for node in graph.graph.nodes
        if node.target is torch.ops.aten.conv2d.default and node.args[0].meta["val"].shape[1] == 1
    ]
    x86._annotate_nodes_not_quantize(kept)
    return [node.name for node in kept]


def module_names(graph: GraphModule) -> set[str]:
    """The modules that the graph's nodes come from, as the network names them."""
    found: set[str] = set()
    for node in graph.graph.nodes:
        for path, _ in node.meta.get("nn_module_stack", {}).values():
            name = str(path)
            for prefix in _PREFIXES:
                name = name.removeprefix(prefix)
            if name and name != "L['self']":
                found.add(name)
    return found


def count_quantized(graph: GraphModule) -> Counter[str]:
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


def drop_unused(graph: GraphModule) -> None:
    """Take out what nothing reads any more: the FP32 weights that integers stand for now."""
    import torch

    graph.graph.eliminate_dead_code()
    read = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    nested = [
        name
        for name, module in graph.named_modules()
        if name and isinstance(module, torch.fx.GraphModule)
    ]
    for name in [*dict(graph.named_parameters()), *dict(graph.named_buffers())]:
        if name not in read and not any(name.startswith(f"{inner}.") for inner in nested):
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
