"""Preparation inside of the model: it takes pixels of uint8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from optcli.artifact import EMBEDDED_INPUTS, EMBEDDED_STEPS, Artifact, Format, pixels_name
from optcli.environment import Needs
from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.models.onnx_graphs.protobuf import graphs
from optcli.passes import Job, Made, Pass
from optcli.passes._onnx.models import modern
from optcli.passes._onnx.preparation import FILTERS, OPSET, Steps, antialias, antialiased
from optcli.settings import SymbolRange, TensorSpec, fed

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto
    from openvino import Model

_CHANNELS = (1, 3)
_RANK = 4
# Sides of photographs that a model of any size takes.
_SIDES = {
    "image_height": SymbolRange(min=1, opt=480, max=8192),
    "image_width": SymbolRange(min=1, opt=640, max=8192),
}
_HINT = "write the step into the images beforehand, or leave the pass out"


class EmbedPreparation(Pass):
    """Puts the recipe's preparation into the model, which then takes pixels of uint8.

    Channel order, scale, mean and std are inside, and with `size` also resize, crop and letterbox. A
    client sends a quarter of the bytes. What decodes an image stays outside: JPEG, the orientation of
    EXIF, and grey from colours. Resizing equals Pillow's within one grey level. All images of a batch
    have one size, and one image is a batch of one. Quantize before this pass.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.ONNX, Format.OPENVINO)
    needs: ClassVar[Needs] = Needs(("onnx",))
    reads_preparation: ClassVar[bool] = True

    size: Literal["any"] | tuple[int, int] | None = Field(
        None,
        description="[height, width] of the images that go in, or `any`: resize, crop and letterbox are"
        " inside then; default: the network's own size, and they stay outside",
    )
    layout: Literal["nhwc", "nchw"] = Field("nhwc", description="order of the dimensions of the pixels")

    def run(self, source: Artifact, job: Job) -> Made:
        steps = _steps(job)
        spec = _image_input(job.inputs, steps)
        last = (self.layout == "nhwc", _is_last(spec, steps))
        channels = _channels(spec, last=last[1])
        pixels = self._pixels(spec, channels, last=last[1])
        inputs = [pixels if each is spec else each for each in job.inputs]
        written = Steps(f"{spec.name}/preparation")
        written.prepared(
            pixels.name,
            spec.name,
            steps,
            all_steps=self.size is not None,
            last=last,
            channels=channels,
            dtype=spec.dtype,
        )
        if source.format == Format.ONNX:
            model = modern(onnx_format.open(source.path), OPSET, job, "Resize has no antialias before")
            _into_onnx(model, spec, pixels, written)
            onnx_format.save(model, job.out)
        else:
            network = openvino_format.open(source.path)
            _into_openvino(network, spec, pixels, written)
            openvino_format.save(network, job.out)
        facts = {
            EMBEDDED_INPUTS: [each.model_dump(mode="json") for each in inputs],
            EMBEDDED_STEPS: "values" if self.size is None else "all",
        }
        return Made(facts=facts)

    def _pixels(self, spec: TensorSpec, channels: int, *, last: bool) -> TensorSpec:
        """The input of the new model."""
        ranges = dict(spec.ranges)
        sizes: Sequence[int | str] = spec.shape[1:3] if last else spec.shape[2:]
        if self.size == "any":
            sizes, ranges = tuple(_SIDES), ranges | _SIDES
        elif self.size is not None:
            sizes = self.size
        shape = (*sizes, channels) if self.layout == "nhwc" else (channels, *sizes)
        used = {name: ranges[name] for name in (spec.shape[0], *sizes) if name in ranges}
        return TensorSpec(
            name=pixels_name(spec.name),
            dtype="uint8",
            shape=(spec.shape[0], *shape),
            ranges=used,
            range=(0, 255),
        )


def _into_onnx(model: ModelProto, spec: TensorSpec, pixels: TensorSpec, written: Steps) -> None:
    """Write the steps in front of the graph; what was its input is a tensor inside now."""
    graph = model.graph
    names = {value.name for each in graphs(graph) for value in (*each.input, *each.value_info)}
    if pixels.name in names:
        raise StepError(f"the model has a tensor {pixels.name!r}", hint="rename it in the file")
    own = next(value for value in graph.input if value.name == spec.name)
    graph.value_info.append(own)
    inputs = [_value(pixels) if each is own else each for each in graph.input]
    del graph.input[:]
    graph.input.extend(inputs)
    nodes = [*written.nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(written.constants)


def _into_openvino(model: Model, spec: TensorSpec, pixels: TensorSpec, written: Steps) -> None:
    """The same in OpenVINO, which reads the steps as a model of ONNX."""
    from onnx import helper

    graph = helper.make_graph(
        written.nodes, "preparation", [_value(pixels)], [_value(spec)], written.constants
    )
    steps = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    prepared = openvino_format.core().read_model(steps.SerializeToString())
    antialias(prepared, antialiased(steps))
    own = model.input(spec.name)
    (result,) = prepared.get_results()
    own.replace(result.input_value(0))
    model.remove_parameter(own.get_node())
    model.add_parameters(prepared.get_parameters())
    model.validate_nodes_and_infer_types()


def _value(spec: TensorSpec) -> ValueInfoProto:
    import numpy as np
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return helper.make_tensor_value_info(spec.name, kind, list(spec.shape))


def _steps(job: Job) -> Mapping[str, Any]:
    """The steps of the recipe, those that can be written as operators. Raises `StepError`."""
    steps = job.preparation
    if steps is None:
        raise StepError(
            "the recipe's data declare no `prepare`: nobody knows what to embed",
            hint="declare it under data: {evaluation: {prepare: ...}}",
        )
    if steps["range"] is not None:
        raise StepError("`range` is for images of more than 8 bits, and pixels are uint8", hint=_HINT)
    resizes = any(steps[name] is not None for name in ("resize", "multiple_of", "letterbox"))
    if resizes and steps["interpolation"] not in FILTERS:
        wanted = ", ".join(FILTERS)
        raise StepError(f"wanted interpolation {wanted}, found {steps['interpolation']}", hint=_HINT)
    return steps


def _image_input(inputs: Sequence[TensorSpec], steps: Mapping[str, Any]) -> TensorSpec:
    """The input that takes the image. Raises `StepError`."""
    images = [spec for spec in fed(inputs) if len(spec.shape) == _RANK]
    if len(fed(inputs)) != 1 or len(images) != 1 or steps["layout"] == "hw":
        raise StepError(
            "wanted one input [batch, channels, height, width], found "
            + "; ".join(f"{spec.name} {list(spec.shape)}" for spec in inputs),
            hint=_HINT,
        )
    if images[0].dtype == "uint8":
        raise StepError("the model takes uint8 already", hint="leave the pass out")
    return images[0]


def _is_last(spec: TensorSpec, steps: Mapping[str, Any]) -> bool:
    if steps["layout"] is not None:
        return str(steps["layout"]).endswith("hwc")
    return spec.shape[-1] in _CHANNELS and spec.shape[1] not in _CHANNELS


def _channels(spec: TensorSpec, *, last: bool) -> int:
    channels = spec.shape[-1] if last else spec.shape[1]
    if channels not in _CHANNELS:
        raise StepError(f"wanted an input with 1 or 3 channels, found {channels}", hint=_HINT)
    return int(channels)
