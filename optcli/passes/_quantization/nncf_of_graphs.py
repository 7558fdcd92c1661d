"""What the passes with NNCF share: quiet, PyTorch graphs, and which operators compute on integers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from optcli.artifact import Artifact
from optcli.errors import OptcliError
from optcli.models.formats import openvino as openvino_format
from optcli.models.onnx_graphs.graph import maker, read
from optcli.passes import Job, Made
from optcli.passes._quantization import output_tails, transformers
from optcli.passes._quantization.calibration import CalibrationFeeds, ModelInput
from optcli.passes._quantization.graph_quantizers import (
    graph_inputs,
    graph_of,
    module_names,
    not_told_apart,
    quantizer,
    saturates,
    this_cpu,
    write_graph,
)
from optcli.passes._torch.networks import matching, require_fp32

if TYPE_CHECKING:
    import numpy as np
    import torch
    from nncf.quantization.advanced_parameters import QuantizationParameters
    from onnx import ModelProto
    from openvino import Model


def quantize_graph(
    source: Artifact,
    job: Job,
    samples: int,
    fast_bias_correction: bool,
    transformer: bool | None,
    smooth_quant: bool | None,
    ignored_modules: Sequence[str],
    output_tail: output_tails.OutputTail,
) -> Made:
    """Quantize the graph of a torch or exported artifact for the Inductor kernels of this CPU.

    Where integers go says torchao's quantizer, as in `quantize_pt2e`; ranges, SmoothQuant and the
    correction of biases are NNCF's. `transformer` None looks for attention; SmoothQuant is for those.
    Raises `StepError`.
    """
    require_fp32(source)
    openvino_format.forbid_telemetry()
    import nncf
    import torch
    from nncf.experimental.torch.fx import quantize_pt2e
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    def tensors(feed: dict[str, np.ndarray]) -> tuple[torch.Tensor, ...]:
        inputs = tuple(torch.from_numpy(feed[spec.name]) for spec in job.inputs)
        return inputs[0] if len(inputs) == 1 else inputs

    kind = this_cpu()
    feeds = CalibrationFeeds(job, graph_inputs(job), samples)
    with torch.no_grad():
        traced = graph_of(source, job, None, output_tail)
        attention = transformers.in_graph(traced.graph) if transformer is None else transformer
        smooth = attention if smooth_quant is None else smooth_quant
        ignored = matching(ignored_modules, module_names(traced.graph), "ignored_names")
        configured = quantizer(kind, ignored, reduce_range=saturates(kind))
        try:
            with quiet():
                quantized = quantize_pt2e(
                    traced.graph,
                    configured,
                    nncf.Dataset(feeds, tensors),
                    # NNCF counts what the data set yields: batches.
                    subset_size=len(feeds),
                    fast_bias_correction=fast_bias_correction,
                    smooth_quant=smooth,
                    # By default NNCF averages the extremes of batches, which clips: for a small ViT
                    # with batches of one image that took 28 instead of 37 dB of SQNR.
                    activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,
                )
        except OptcliError:
            raise
        except Exception as error:
            raise not_told_apart(source, error) from error
        counts = write_graph(quantized, job)
    facts = {
        **traced.facts,
        "quantizer": kind,
        "smooth_quant": smooth,
        "calibration_samples": feeds.samples,
        "calibration_batch_size": feeds.batch_size,
        "quantized_operators": counts,
    }
    return Made(precision="int8", facts=facts)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep NNCF from printing: its progress bars go to rich's global console, its log to stdout."""
    import rich

    console, log = rich.get_console(), logging.getLogger("nncf")
    before = (console.quiet, log.level)
    console.quiet = True
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        console.quiet = before[0]
        log.setLevel(before[1])


def data_bytes(model: ModelProto) -> int:
    """Size of the model together with the weights that lie in other files."""
    outside = (
        int(entry.value)
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "length"
    )
    return int(model.ByteSize()) + sum(outside)


def openvino_inputs(model: Model) -> list[ModelInput]:
    """The inputs of an OpenVINO model with their types and shapes, in order."""
    return [
        ModelInput(
            name,
            str(port.get_element_type().to_dtype()),
            tuple(dim.get_length() if dim.is_static else None for dim in port.get_partial_shape()),
        )
        for name, port in zip(openvino_format.input_names(model), model.inputs, strict=True)
    ]


def one_scale() -> QuantizationParameters:
    """Activations of a tensor share one scale."""
    from nncf.quantization.advanced_parameters import QuantizationParameters

    return QuantizationParameters(per_channel=False)


def quantized_in_onnx(model: ModelProto) -> dict[str, str]:
    """Types by name of the operators that read a quantized tensor; what has no name gets a number."""
    return {
        node.name or f"#{number}": node.op_type
        for number, node in enumerate(read(model).graph)
        if node.op_type != "QuantizeLinear"
        and any(maker(value, "DequantizeLinear") is not None for value in node.inputs)
    }


def quantized_in_openvino(model: Model) -> dict[str, str]:
    """Types by name of those that read a quantized tensor, at once or past pooling and the like."""
    quantized: set[str] = set()
    operators: dict[str, str] = {}
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_friendly_name()
        sources = [port.get_source_output().get_node().get_friendly_name() for port in node.inputs()]
        reads = any(source in quantized for source in sources)
        if kind == "FakeQuantize" or (reads and kind in openvino_format.MOVES_VALUES):
            quantized.add(name)
        elif reads and kind != "Result":
            operators[name] = kind
    return operators
