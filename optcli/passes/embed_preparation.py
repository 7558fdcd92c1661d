"""Preparation inside of the model: it takes pixels of uint8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from optcli.artifact import EMBEDDED_INPUTS, EMBEDDED_STEPS, Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.models.onnx_graphs.interface import graphs
from optcli.passes import Job, Made, Pass
from optcli.passes._onnx.models import modern
from optcli.passes._onnx.preparation import FILTERS, OPSET, Steps
from optcli.settings import SymbolRange, TensorSpec, fed

if TYPE_CHECKING:
    from onnx import ModelProto
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
    have one size. Quantize before this pass. OpenVINO models get OpenVINO's own operators, ONNX models
    those of ONNX.
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

    def produces(self, source: Format) -> Format:
        return source

    def run(self, source: Artifact, job: Job) -> Made:
        steps = _steps(job)
        spec = _image_input(job.inputs, steps)
        last = (self.layout == "nhwc", _is_last(spec, steps))
        channels = _channels(spec, last=last[1])
        pixels = self._pixels(spec, channels, last=last[1])
        inputs = [pixels if each is spec else each for each in job.inputs]
        if source.format == Format.ONNX:
            model = modern(onnx_format.open(source.path), OPSET, job, "Resize has no antialias before")
            self._into_onnx(model, spec, pixels, steps, last, channels)
            onnx_format.save(model, job.out)
        else:
            network = openvino_format.open(source.path)
            openvino_format.save(self._into_openvino(network, spec, pixels, steps, last[1]), job.out)
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
            name=f"{spec.name}_pixels",
            dtype="uint8",
            shape=(spec.shape[0], *shape),
            ranges=used,
            range=(0, 255),
        )

    def _into_onnx(
        self,
        model: ModelProto,
        spec: TensorSpec,
        pixels: TensorSpec,
        steps: Mapping[str, Any],
        last: tuple[bool, bool],
        channels: int,
    ) -> None:
        """Write the steps in front of the graph; what was its input is a tensor inside now."""
        import numpy as np
        from onnx import TensorProto, helper

        graph = model.graph
        names = {value.name for each in graphs(graph) for value in (*each.input, *each.value_info)}
        if pixels.name in names:
            raise StepError(f"the model has a tensor {pixels.name!r}", hint="rename it in the file")
        written = Steps(f"{spec.name}/preparation")
        written.prepared(
            pixels.name,
            spec.name,
            steps,
            all_steps=self.size is not None,
            last=last,
            channels=channels,
            dtype=np.dtype(spec.dtype),
        )
        own = next(value for value in graph.input if value.name == spec.name)
        graph.value_info.append(own)
        place = list(graph.input).index(own)
        value = helper.make_tensor_value_info(pixels.name, TensorProto.UINT8, list(pixels.shape))
        inputs = [*graph.input[:place], value, *graph.input[place + 1 :]]
        del graph.input[:]
        graph.input.extend(inputs)
        nodes = [*written.nodes, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        graph.initializer.extend(written.constants)

    def _into_openvino(
        self, model: Model, spec: TensorSpec, pixels: TensorSpec, steps: Mapping[str, Any], last: bool
    ) -> Model:
        """The same by OpenVINO's PrePostProcessor, which resizes to one size."""
        import numpy as np
        import openvino
        from openvino.preprocess import ColorFormat, PrePostProcessor, ResizeAlgorithm

        resizes = self.size is not None
        if resizes and not (isinstance(steps["resize"], list | tuple) and not steps["letterbox"]):
            raise StepError(
                "OpenVINO's PrePostProcessor resizes to [height, width] alone, found another step",
                hint="leave `size` out: channel order, scale, mean and std are inside then",
            )
        step = PrePostProcessor(model)
        own = step.input(spec.name)
        own.tensor().set_element_type(openvino.Type.u8).set_layout(openvino.Layout(self.layout.upper()))
        own.tensor().set_shape([-1 if isinstance(n, str) else n for n in pixels.shape])
        own.model().set_layout(openvino.Layout("NHWC" if last else "NCHW"))
        if resizes:
            kinds = {
                "bilinear": ResizeAlgorithm.RESIZE_BILINEAR_PILLOW,
                "bicubic": ResizeAlgorithm.RESIZE_BICUBIC_PILLOW,
                "nearest": ResizeAlgorithm.RESIZE_NEAREST,
            }
            height, width = steps["resize"]
            own.preprocess().resize(kinds[steps["interpolation"]], height, width)
        if steps["channel_order"] == "bgr":
            own.tensor().set_color_format(ColorFormat.RGB)
            own.preprocess().convert_color(ColorFormat.BGR)
        if resizes and steps["crop"] is not None:
            whole = round if steps["crop_rounding"] == "even" else int
            starts = [
                whole((have - want) / 2)
                for have, want in zip(steps["resize"], steps["crop"], strict=True)
            ]
            ends = [start + size for start, size in zip(starts, steps["crop"], strict=True)]
            low, high = ([0, *starts, 0], [2**31 - 1, *ends, 2**31 - 1])
            if self.layout == "nchw":
                low, high = [0, 0, *starts], [2**31 - 1, 2**31 - 1, *ends]
            own.preprocess().crop(low, high)
        own.preprocess().convert_element_type(openvino.Type(np.dtype(spec.dtype)))
        mean = [value / steps["scale"] for value in steps["mean"]]
        std = [value / steps["scale"] for value in steps["std"]]
        if any(mean):
            own.preprocess().mean(mean[0] if len(mean) == 1 else mean)
        if any(value != 1 for value in std):
            own.preprocess().scale(std[0] if len(std) == 1 else std)
        built = step.build()
        built.input(spec.name).get_tensor().set_names({pixels.name})
        return built


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
