"""OpenVINO models: `openvino:models/detector.xml`, with the weights in the `.bin` beside it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from optcli.artifact import OUTPUT_TENSORS, Format
from optcli.environment import Needs
from optcli.files.digest import FileDigests
from optcli.models.formats import exporter_metadata
from optcli.models.formats import openvino as openvino_format
from optcli.models.sources import SourceFacts, _file
from optcli.models.sources._file import DeclaredDifference, FileSource
from optcli.settings import TensorSpec

_WEIGHTS_HINT = "copy the .bin file beside the .xml file"


class OpenvinoSource(FileSource):
    """A model in an `.xml` file, with its weights in a `.bin` of the same name.

    The recipe may fix sizes that the file leaves open.
    """

    format: ClassVar[Format] = Format.OPENVINO
    needs: ClassVar[Needs] = Needs(("openvino",))
    what: ClassVar[str] = "an OpenVINO model"

    @property
    def bin(self) -> Path:
        """The file of weights, absolute."""
        return self.file.with_suffix(".bin")

    def problems(self) -> list[tuple[str, str, str]]:
        problems = super().problems()
        if not problems and (missing := _file.absent(self.bin, (".bin",))):
            problems.append(("source", f"its weights: {missing[0]}", _WEIGHTS_HINT))
        return problems

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        return {**super().ingredients(digests), "weights": digests.of(self.bin)}

    def write(self, out: Path, inputs: Sequence[TensorSpec]) -> SourceFacts:
        if missing := _file.absent(self.bin, (".bin",)):
            raise _file.wrong(self.file, f"its weights: {missing[0]}", _WEIGHTS_HINT)
        shutil.copyfile(self.file, out / openvino_format.FILE)
        shutil.copyfile(self.bin, out / openvino_format.WEIGHTS)
        with _file.errors_of(self.file, out):
            model = openvino_format.open(out)
        names = openvino_format.input_names(model)
        taken = {
            name: openvino_format.tensor(name, port)
            for name, port in zip(names, model.inputs, strict=True)
        }
        wrong = []
        if {spec.name for spec in inputs} != {*taken}:
            listed = ", ".join(spec.name for spec in inputs)
            wrong.append(
                DeclaredDifference(f"the file takes {', '.join(names)}, the recipe has {listed}")
            )
        else:
            for spec in inputs:
                shape = _sizes(taken[spec.name]["shape"], spec)
                wrong += _file.differences(spec, taken[spec.name]["dtype"], shape)
        if wrong:
            declared = {
                name: (each["dtype"], tuple(each["shape"] or ())) for name, each in taken.items()
            }
            raise _file.refused_inputs(wrong, declared, self.file)
        if any(_fixes(spec, taken[spec.name]["shape"]) for spec in inputs):
            try:
                model.reshape(openvino_format.shapes(inputs))
            except RuntimeError as error:
                message = f"it does not take the recipe's sizes: {openvino_format.reason(error)}"
                hint = "write sizes that fit its layers, or leave them open by a name"
                raise _file.wrong(self.file, message, hint) from error
            for name in (openvino_format.FILE, openvino_format.WEIGHTS):
                (out / name).unlink()  # the weights are mapped: writing over them would change them
            openvino_format.save(model, out)
        outputs = openvino_format.output_names(model)
        facts = {
            "source": f"openvino:{self.file.name}",
            OUTPUT_TENSORS: [*map(openvino_format.tensor, outputs, model.outputs)],
            **exporter_metadata.fact(exporter_metadata.of_openvino(model)),
        }
        return SourceFacts(outputs, openvino_format.stored_precision(model), facts)


def _fixes(spec: TensorSpec, shape: Sequence[int | None] | None) -> bool:
    """Whether the recipe fixes a size that the file leaves open."""
    pairs = zip(spec.shape, _sizes(shape, spec), strict=True)
    return any(isinstance(wanted, int) and size is None for wanted, size in pairs)


def _sizes(shape: Sequence[int | None] | None, spec: TensorSpec) -> tuple[int | None, ...]:
    """The sizes of an input; all open where the file leaves even their number open."""
    return (None,) * len(spec.shape) if shape is None else tuple(shape)
