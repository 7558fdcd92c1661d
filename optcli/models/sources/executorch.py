"""ExecuTorch programs: `executorch:models/detector.pte`, to be measured and compared."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from optcli.artifact import Format
from optcli.environment import Needs
from optcli.models.formats import executorch as executorch_format
from optcli.models.sources import SourceFacts, _file
from optcli.models.sources._file import DeclaredDifference, FileSource
from optcli.settings import TensorSpec, batch_range


class ExecutorchSource(FileSource):
    """A program in a `.pte` file; the file is taken as it is. Its inputs go by position."""

    format: ClassVar[Format] = Format.EXECUTORCH
    needs: ClassVar[Needs] = Needs(("executorch", "torch"))
    what: ClassVar[str] = "an ExecuTorch program"

    def write(self, out: Path, inputs: Sequence[TensorSpec]) -> SourceFacts:
        shutil.copyfile(self.file, out / executorch_format.FILE)
        with _file.errors_of(self.file, out):
            method = executorch_format.open(out)
        taken, given = executorch_format.tensors(method)
        names = [spec.name for spec in inputs]
        wrong = []
        if len(names) != len(taken):
            wrong.append(
                DeclaredDifference(f"the file takes {len(taken)}, the recipe has {len(names)}")
            )
            names = [f"input_{place}" for place in range(len(taken))]
        else:
            smallest = [spec.concrete(batch_range(inputs).min) for spec in inputs]
            fits = executorch_format.computes(method, smallest)
            for spec, tensor in zip(inputs, taken, strict=True):
                # What varies in the recipe is bounded in the file: the runtime refuses what is larger.
                shape: _file.Shape = tensor.sizes
                if len(shape) == len(spec.shape):
                    pairs = zip(spec.shape, tensor.sizes, strict=True)
                    shape = tuple(s if isinstance(s, str) else size for s, size in pairs)
                    shape = (None, *shape[1:]) if fits else shape
                wrong += _file.differences(spec, tensor.dtype, shape)
        if wrong:
            declared = {name: (each.dtype, each.sizes) for name, each in zip(names, taken, strict=True)}
            raise _file.refused_inputs(wrong, declared, self.file)
        outputs = tuple(f"output_{place}" for place in range(len(given)))
        facts = {"source": f"executorch:{self.file.name}"}
        return SourceFacts(outputs, "unknown", facts)
