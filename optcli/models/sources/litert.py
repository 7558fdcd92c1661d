"""LiteRT models: `litert:models/detector.tflite`, to be measured, judged and quantized."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from optcli.artifact import Format
from optcli.environment import Needs
from optcli.models.formats import litert as litert_format
from optcli.models.sources import SourceFacts, _file
from optcli.models.sources._file import DeclaredDifference, FileSource
from optcli.settings import TensorSpec


class LitertSource(FileSource):
    """A model in a `.tflite` file; the file is taken as it is.

    An input of integers with a scale may be float32 in the recipe: the runner converts its values.
    """

    format: ClassVar[Format] = Format.LITERT
    needs: ClassVar[Needs] = Needs(("ai_edge_litert",))
    what: ClassVar[str] = "a LiteRT model"

    def write(self, out: Path, inputs: Sequence[TensorSpec]) -> SourceFacts:
        shutil.copyfile(self.file, out / litert_format.FILE)
        with _file.errors_of(self.file, out):
            taken, given = litert_format.tensors(litert_format.open(out))
        counts = litert_format.operator_counts(out / litert_format.FILE)
        by_name = {each.name: each for each in taken}
        if {spec.name for spec in inputs} == {*by_name}:
            taken = [by_name[spec.name] for spec in inputs]
        wrong = []
        if len(inputs) != len(taken):
            wrong.append(
                DeclaredDifference(f"the file takes {len(taken)}, the recipe has {len(inputs)}")
            )
        else:
            for spec, tensor in zip(inputs, taken, strict=True):
                dtype = spec.dtype if tensor.scale and spec.dtype == "float32" else tensor.dtype
                # A batch that varies is computed piece by piece.
                shape = tensor.sizes if spec.batch_symbol is None else (None, *tensor.sizes[1:])
                wrong += _file.differences(spec, dtype, shape)
        if wrong:
            declared = {each.name: (each.dtype, each.sizes) for each in taken}
            raise _file.refused_inputs(wrong, declared, self.file)
        outputs = tuple(each.name for each in given)
        facts = {"source": f"litert:{self.file.name}"}
        return SourceFacts(outputs, litert_format.precision(counts), facts)
