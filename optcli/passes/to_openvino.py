"""OpenVINO's own format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import OptcliError, StepError
from optcli.formats import exported as exported_format
from optcli.formats import onnx as onnx_format
from optcli.formats import openvino as openvino_format
from optcli.passes import Job, Made, Pass
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    from openvino import Model


class ToOpenvino(Pass):
    """Converts ONNX models and exported programs to OpenVINO's format.

    Weights stay as they are, dynamic sizes stay dynamic, inputs and outputs keep their names.
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
        core = openvino_format.core()
        try:
            if source.format == Format.ONNX:
                model = core.read_model(str(source.path / onnx_format.FILE))
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


def _from_program(source: Artifact, inputs: Sequence[TensorSpec]) -> Model:
    """Convert an exported program; name what OpenVINO only numbers, fix the sizes that it lets vary."""
    import openvino

    model = openvino.convert_model(exported_format.open(source.path, trust=source.trusted))
    for port, spec in zip(model.inputs, inputs, strict=True):
        port.get_tensor().set_names({spec.name})
    shapes = {
        spec.name: openvino.PartialShape([-1 if isinstance(size, str) else size for size in spec.shape])
        for spec in inputs
    }
    model.reshape(shapes)
    for port, name in zip(model.outputs, source.facts["outputs"], strict=True):
        port.get_tensor().set_names({name})
    return model
