"""OpenVINO's own format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import OptcliError, StepError
from optcli.models.formats import exported as exported_format
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.passes import Job, Made, Pass
from optcli.passes._onnx.preparation import antialias, antialiased
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    from openvino import Model


class ToOpenvino(Pass):
    """Converts ONNX models and exported programs to OpenVINO's format.

    Weights stay as they are, inputs and outputs keep their names. Sizes that the recipe leaves open
    stay open. The pass simplifies operators that only compute shapes.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.ONNX, Format.EXPORTED)
    needs: ClassVar[Needs] = Needs(("openvino",))
    # Its kernels sum in an order of their own: a sound YOLOX-nano differs by 1.2e-4 from ONNX Runtime.
    tolerance: ClassVar[float | None] = 1e-3

    def produces(self, source: Format) -> Format:
        return Format.OPENVINO

    def run(self, source: Artifact, job: Job) -> Made:
        if source.format == Format.EXPORTED and source.precision.startswith("int"):
            raise StepError(
                f"OpenVINO cannot convert a PyTorch graph that is {source.precision}",
                hint="put to_openvino first, and quantize_nncf behind it",
            )
        openvino_format.forbid_telemetry()
        try:
            if source.format == Format.ONNX:
                model = _from_onnx(source, job.inputs)
            else:
                model = _from_program(source, job.inputs)
        except OptcliError:
            raise
        except Exception as error:  # its front ends raise classes of their own
            raise StepError(
                f"OpenVINO cannot convert the model: {openvino_format.reason(error)}",
                hint=openvino_format.unknown_operators_hint(error)
                or "the log holds OpenVINO's whole message",
            ) from error
        openvino_format.save(model, job.out)
        return Made()


def _from_onnx(source: Artifact, inputs: Sequence[TensorSpec]) -> Model:
    """Convert an ONNX model, with the sizes that the recipe fixes.

    Just reading the file would leave everything that works out shapes in the graph: NNCF would quantize
    some of it, and the CPU would compute it at each call.
    """
    import openvino

    model = openvino.convert_model(source.path / onnx_format.FILE, input=openvino_format.shapes(inputs))
    antialias(model, antialiased(onnx_format.outline(source.path)))
    return model


def _from_program(source: Artifact, inputs: Sequence[TensorSpec]) -> Model:
    """Convert an exported program; name what OpenVINO only numbers, fix the sizes that it lets vary."""
    import openvino
    from openvino import _offline_transformations

    model = openvino.convert_model(exported_format.open(source.path, trust=source.trusted))
    for port, spec in zip(model.inputs, inputs, strict=True):
        port.get_tensor().set_names({spec.name})
    model.reshape(openvino_format.shapes(inputs))
    _fold_known_shapes(model)
    # It simplified the graph before the sizes were fixed: once more, with what is known now.
    _offline_transformations.apply_moc_transformations(model, cf=False, smart_reshape=True)
    _round_pools_plainly(model)
    for port, name in zip(model.outputs, source.facts["outputs"], strict=True):
        port.get_tensor().set_names({name})
    return model


def _fold_known_shapes(model: Model) -> None:
    """Work out now what only depends on sizes that are known.

    The converter keeps all that reads a size from being folded. Of a Swin-T half of the operators were
    such, the masks of its windows among them, and NNCF quantized some.
    """
    import numpy as np
    from openvino import opset13
    from openvino.passes import ConstantFolding, Manager

    for node in model.get_ordered_ops():
        if node.get_type_name() == "ShapeOf" and node.input(0).get_partial_shape().is_static:
            sizes = np.array(
                list(node.input(0).get_shape()), node.output(0).get_element_type().to_dtype()
            )
            node.output(0).replace(opset13.constant(sizes).output(0))
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(model)


def _round_pools_plainly(model: Model) -> None:
    """Write `ceil` for PyTorch's own rounding of sizes, where both give the same size.

    OpenVINO 2026.4 computes a MaxPool that rounds as PyTorch does in float, also in an INT8 network,
    and so are convolutions behind it: SqueezeNet 1.1 gained nothing by INT8.
    """
    for node in model.get_ops():
        if node.get_type_name() != "MaxPool":
            continue
        attributes = node.get_attributes()
        if attributes.get("rounding_type") == "ceil_torch" and _never_starts_outside(attributes):
            node.set_attribute("rounding_type", "ceil")
    model.validate_nodes_and_infer_types()


def _never_starts_outside(attributes: Mapping[str, Any]) -> bool:
    """Whether no window begins behind the input, whatever its size: PyTorch leaves those out."""
    names = ("kernel", "dilations", "strides", "pads_end")
    sizes = zip(*(attributes[name] for name in names), strict=True)
    return all(stride + pad <= (kernel - 1) * dilation + 1 for kernel, dilation, stride, pad in sizes)
