"""A network with fake quantizers as the beginning of a training, as torchao or as NNCF puts them.

torchao's own `prepare_qat_pt2e` keeps batch norms apart, and its switch between training and evaluation
gives each the default epsilon: MobileNetV3, whose epsilon is another, would compute something else.
Here batch norms are folded first, as `quantize_pt2e` does, and the observers of `prepare_pt2e` give way
to fake quantizers once they have seen the calibration data.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from optcli.artifact import Artifact
from optcli.errors import StepError, raised_as
from optcli.models.formats import openvino as openvino_format
from optcli.models.formats import torch_modules
from optcli.models.formats.torch_calls import arguments
from optcli.passes import Job
from optcli.passes._quantization import output_tails
from optcli.passes._quantization.calibration import CalibrationFeeds
from optcli.passes._quantization.graph_quantizers import (
    graph_of,
    module_names,
    not_told_apart,
    quantizer,
    saturates,
    this_cpu,
    write_graph,
)
from optcli.passes._quantization.nncf_of_graphs import quiet
from optcli.passes._quantization.output_tails import OutputTail
from optcli.passes._torch.fake_quantizers import fake_quantizer, is_fake_quantizer
from optcli.passes._torch.networks import matching

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch.fx import GraphModule

# Attention in one call. Runtimes take it apart, with a product by a constant between the quantized
# values and their product: integers there would be made and never multiplied.
_ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True)
class TrainableGraph:
    """A graph with fake quantizers, as a module that trains; `facts` says how it was traced."""

    model: torch.nn.Module
    facts: dict[str, Any]
    _graph: GraphModule
    _observers: dict[str, torch.nn.Module]

    def write(self, job: Job) -> dict[str, int]:
        """Write it as an exported program; how many operators of a kind compute on integers.

        Raises `StepError` where there is none.
        """
        import torch
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

        with torch.no_grad():
            for name, observer in self._observers.items():
                learned = self._graph.get_submodule(name)
                _fix(observer, learned)
                self._graph.set_submodule(name, observer)
            with raised_as(StepError, "torchao cannot quantize this graph"):
                converted = convert_pt2e(self._graph)
            return write_graph(converted, job)


def trainable_graph(
    source: Artifact,
    job: Job,
    feeds: CalibrationFeeds,
    outputs: Sequence[str],
    ignored: Collection[str],
    output_tail: OutputTail,
) -> TrainableGraph:
    """The graph of a torch artifact, calibrated, with fake quantizers for the kernels of this CPU.

    `outputs` are the names of its outputs, in order, `ignored` patterns of modules that stay in
    floating point. Raises `StepError`.
    """
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    kind = this_cpu()
    with torch.no_grad():
        traced = graph_of(source, job, None, output_tail)
        in_floats = matching(tuple(ignored), module_names(traced.graph), "ignored_modules")
        configured = quantizer(kind, in_floats, reduce_range=saturates(kind))
        try:
            graph = prepare_pt2e(traced.graph, configured)
        except Exception as error:
            raise not_told_apart(source, error) from error
        for feed in feeds:
            graph(*(torch.from_numpy(feed[spec.name]) for spec in job.inputs))
        observers = _observers(graph)
        for name, observer in observers.items():
            graph.set_submodule(name, _learned(observer))
    for value in torch_modules.parameters(graph):
        value.requires_grad_(value.is_floating_point())
    facts = {**traced.facts, "quantizer": kind, "reduce_range": saturates(kind)}
    return TrainableGraph(_named_class()(graph, tuple(outputs)), facts, graph, observers)


def _observers(graph: GraphModule) -> dict[str, torch.nn.Module]:
    from torchao.quantization.pt2e.observer import ObserverBase

    named = torch_modules.named_modules(graph)
    return {name: module for name, module in named if _sees(module, ObserverBase)}


def _sees(module: torch.nn.Module, kind: type[Any]) -> bool:
    """Whether a module is an observer of values that become integers."""
    import torch

    return isinstance(module, kind) and module.dtype in (torch.int8, torch.uint8)


def _learned(observer: Any) -> torch.nn.Module:
    scale, zero_point = observer.calculate_qparams()
    axis = observer.ch_axis if scale.numel() > 1 else None
    return fake_quantizer(scale, zero_point, observer.quant_min, observer.quant_max, axis)


def _fix(observer: Any, learned: Any) -> None:
    """Have an observer say what was learned."""
    assert is_fake_quantizer(learned)
    dtype = observer.calculate_qparams()[1].dtype
    parameters = learned.scale.detach(), learned.zero_point.to(dtype=dtype)
    observer.calculate_qparams = lambda: parameters


@cache
def _named_class() -> type[Any]:
    """The class is made at first use: a base class cannot be imported lazily."""
    import torch

    class Named(torch.nn.Module):  # type: ignore[misc]
        """A graph that gives its outputs by name. Training changes nothing of what it computes."""

        def __init__(self, graph: GraphModule, outputs: tuple[str, ...]) -> None:
            super().__init__()
            self.graph = graph
            self._outputs = outputs

        def forward(self, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
            values = self.graph(*tensors)
            values = (values,) if isinstance(values, torch.Tensor) else values
            return dict(zip(self._outputs, values, strict=True))

        def train(self, mode: bool = True) -> Any:
            self.training = mode  # a graph's own modules refuse to be switched
            return self

    return Named


def trainable_network(
    model: torch.nn.Module,
    job: Job,
    feeds: CalibrationFeeds,
    options: dict[str, Any],
    ignored: Collection[str],
    half_range: bool,
    output_tail: output_tails.OutputTail,
) -> tuple[torch.nn.Module, list[str]]:
    """A copy of a network, calibrated, with fake quantizers where NNCF puts integers.

    `options` are those of `nncf.quantize`; `ignored` are modules that stay in floating point.
    `half_range` gives weights 7 bits. The second value names the operators of the output tail that
    stay in floating point. Raises `StepError`.
    """
    openvino_format.forbid_telemetry()
    import nncf
    from nncf.quantization.advanced_parameters import OverflowFix
    from nncf.torch.function_hook import get_hook_storage

    call = arguments(model, job.inputs)

    def tensors(feed: dict[str, np.ndarray]) -> Any:
        import torch

        positional, keyword = call.split({name: torch.from_numpy(v) for name, v in feed.items()})
        if keyword:
            return dict(zip(call.positional, positional, strict=True)) | keyword
        return positional[0] if len(positional) == 1 else positional

    parameters = options["advanced_parameters"]
    parameters.overflow_fix = OverflowFix.ENABLE if half_range else OverflowFix.DISABLE
    tail = _tail(model, tensors(next(iter(feeds)))) if output_tail == "float" else []
    scope = nncf.IgnoredScope(
        names=tail,
        types=[_ATTENTION],
        patterns=[f"^{re.escape(name.replace('.', '/'))}/.*" for name in sorted(ignored)],
        validate=False,
    )
    hint = (
        "set `to: exported` to quantize the graph of torch.export with torchao, "
        "or put export_onnx and quantize_nncf in the place of this pass"
    )

    def quantized_network() -> Any:
        return nncf.quantize(model, nncf.Dataset(feeds, tensors), **{**options, "ignored_scope": scope})

    with raised_as(StepError, "NNCF failed", hint=hint), quiet(), _without_compiling():
        try:
            quantized = quantized_network()
        except IndexError:  # it has no statistics of layers behind a normalization that it cannot fold
            job.warn("NNCF cannot correct the biases of this network: the training begins without that")
            parameters.disable_bias_correction = True
            quantized = quantized_network()
    storage = get_hook_storage(quantized)
    # Values that are concatenated share a quantizer, which then has several names.
    replaced: dict[torch.nn.Module, torch.nn.Module] = {}
    for name, shared in list(storage.named_hooks(remove_duplicate=False)):
        if shared not in replaced:
            replaced[shared] = _fake_quantizer_of(shared)
        storage.set_submodule(name, replaced[shared])
    return quantized, tail


def _tail(model: torch.nn.Module, example: Any) -> list[str]:
    from nncf.torch.function_hook import wrap_model
    from nncf.torch.function_hook.nncf_graph.nncf_graph_builder import build_nncf_graph

    with quiet():
        return output_tails.in_nncf(build_nncf_graph(wrap_model(copy.deepcopy(model)), example))


def _fake_quantizer_of(quantizer: Any) -> torch.nn.Module:
    """Our fake quantizer in the place of NNCF's, with the same integers."""
    low, high, scale, zero_point = quantizer.get_parameters_for_torch_fq()
    if quantizer.is_half_range:
        low, high = -63, 63
    elif quantizer.narrow_range:
        low = -127
    shape = quantizer.scale_shape
    axis = max(range(len(shape)), key=lambda index: shape[index]) if quantizer.per_channel else None
    return fake_quantizer(scale, zero_point, low, high, axis)


@contextmanager
def _without_compiling() -> Iterator[None]:
    """Have NNCF round in plain PyTorch.

    It would compile an extension in C++ otherwise, in the user's cache, and give up after a minute.
    Calibration rounds little; the training rounds with fake quantizers of our own.
    """
    from nncf.torch.quantization.extensions import QuantizedFunctionsCPU
    from nncf.torch.quantization.reference import torch_executor

    before = QuantizedFunctionsCPU._loaded_namespace
    QuantizedFunctionsCPU._loaded_namespace = SimpleNamespace(
        Quantize_forward=torch_executor.forward, Quantize_backward=torch_executor.backward
    )
    try:
        yield
    finally:
        QuantizedFunctionsCPU._loaded_namespace = before
