"""A network with fake quantizers as the beginning of a training, as NNCF puts them."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from optcli.errors import StepError, raised_as
from optcli.models.formats import openvino as openvino_format
from optcli.models.formats.torch_calls import arguments
from optcli.passes import Job
from optcli.passes._quantization import output_tails
from optcli.passes._quantization.calibration import CalibrationFeeds
from optcli.passes._quantization.nncf_of_graphs import quiet
from optcli.passes._torch.fake_quantizers import fake_quantizer

if TYPE_CHECKING:
    import numpy as np
    import torch

# Attention in one call. Runtimes take it apart, with a product by a constant between the quantized
# values and their product: integers there would be made and never multiplied.
_ATTENTION = "scaled_dot_product_attention"


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
    hint = "put export_onnx and quantize_nncf in the place of this pass"

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
