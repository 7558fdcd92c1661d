"""TorchScript files: `torchscript:models/detector.pt`, quantized ones among them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from optcli.artifact import Format
from optcli.environment import Needs
from optcli.errors import InputError
from optcli.models.formats import torchscript as torchscript_format
from optcli.models.sources import SourceFacts, _network
from optcli.models.sources._file import FileSource
from optcli.settings import TensorSpec


class TorchscriptSource(FileSource):
    """A network in a TorchScript file; the file is taken as it is, to be measured and compared."""

    format: ClassVar[Format] = Format.TORCHSCRIPT
    needs: ClassVar[Needs] = Needs(("torch",))
    what: ClassVar[str] = "a TorchScript file"

    def write(self, out: Path, inputs: Sequence[TensorSpec]) -> SourceFacts:
        import torch

        model = torchscript_format.read(self.file, trust=self.trust)
        names = torchscript_format.parameters(model)
        required = torchscript_format.required(model)
        if not len(required) <= len(inputs) <= len(names):
            raise InputError(
                f"the file takes {len(required)} inputs ({', '.join(required)}), "
                f"the recipe has {len(inputs)}",
                place=str(self.file),
                hint="list them under inputs: in this order, each with name, dtype and shape",
            )
        call = torchscript_format.arguments(model, inputs)
        outputs = _network.call_names(model, inputs, call)
        shutil.copyfile(self.file, out / torchscript_format.FILE)
        facts = {
            "source": f"torchscript:{self.file.name}",
            "parameters": sum(value.numel() for value in model.parameters()),
            "torch": torch.__version__,
        }
        return SourceFacts(outputs, torchscript_format.precision(model), facts)
