"""What an exporter wrote into a model's file of what the model is, as facts of an artifact.

Ultralytics writes the task, the names of the classes and the size of images: into ONNX's
`metadata_props`, and into OpenVINO's `rt_info` under `model_info`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto
    from openvino import Model

FACT = "exporter_metadata"  # `exporter` is what `export_onnx` calls the one that it used
_KEYS = ("task", "names", "imgsz", "stride", "batch", "kpt_shape")
_MOST_CHARACTERS = 1_000_000


def of_onnx(model: ModelProto) -> dict[str, str]:
    """The entries of an ONNX file that say what the model is."""
    return _known({each.key: each.value for each in model.metadata_props})


def of_openvino(model: Model) -> dict[str, str]:
    """The entries of an OpenVINO model that say what it is."""
    paths = {key: ["model_info", key] for key in _KEYS}
    return _known(
        {k: str(model.get_rt_info(p).astype(str)) for k, p in paths.items() if model.has_rt_info(p)}
    )


def _known(entries: Mapping[str, str]) -> dict[str, str]:
    return {k: entries[k] for k in _KEYS if len(entries.get(k, "")) in range(1, _MOST_CHARACTERS)}


def facts_of_onnx(model: ModelProto) -> dict[str, Any]:
    """The fact of an artifact: the entries and the outputs that they speak of; none without a task."""
    from onnx import helper

    outputs = []
    for value in model.graph.output:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or dim.dim_param or None for dim in tensor.shape.dim]
        dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)) if tensor.elem_type else ""
        outputs.append({"name": value.name, "dtype": dtype, "shape": shape})
    return fact(of_onnx(model), outputs)


def fact(metadata: Mapping[str, str], outputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fact of an artifact with these entries; `outputs` are name, dtype and shape of each."""
    if "task" not in metadata:
        return {}
    keys = ("name", "dtype", "shape")
    return {
        FACT: {
            "metadata": dict(metadata),
            "outputs": [{key: each[key] for key in keys} for each in outputs],
        }
    }
