"""Programs of torch.export: `exported:models/detector.pt2`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from optcli.artifact import Format
from optcli.environment import Needs
from optcli.models.formats import exported as exported_format
from optcli.models.formats import torch as torch_format
from optcli.models.formats.torch_calls import Arguments
from optcli.models.sources import SourceFacts, _file, _network
from optcli.models.sources._file import DeclaredDifference, FileSource, Shape
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_UNBOUNDED = 2**31


class ExportedSource(FileSource):
    """A network in a `.pt2` file that torch.export.save wrote; the file is taken as it is."""

    format: ClassVar[Format] = Format.EXPORTED
    needs: ClassVar[Needs] = Needs(("torch",))
    what: ClassVar[str] = "an exported program"

    def write(self, out: Path, inputs: Sequence[TensorSpec]) -> SourceFacts:
        import torch

        shutil.copyfile(self.file, out / exported_format.FILE)
        with _file.errors_of(self.file, out):
            program = exported_format.open(out, trust=self.trust)
        _check_inputs(program, inputs, self.file)
        network = program.module()
        call = Arguments(tuple(spec.name for spec in inputs))
        facts = {
            "source": f"exported:{self.file.name}",
            "parameters": sum(value.numel() for value in network.parameters()),
            "torch": torch.__version__,
        }
        outputs = _network.call_names(network, inputs, call)
        return SourceFacts(outputs, torch_format.precision(network), facts)


def _check_inputs(program: ExportedProgram, inputs: Sequence[TensorSpec], path: Path) -> None:
    """Raise `InputError`, with the block to paste, where the recipe's inputs are not the program's."""
    names = _names(program, path)
    declared, ranges = _declared_inputs(program, names, path)
    recipe_names = [spec.name for spec in inputs]
    wrong: list[DeclaredDifference] = []
    if len(recipe_names) != len(names):
        difference = (
            f"the file takes {len(names)} ({', '.join(names)}), the recipe has {len(recipe_names)}"
        )
        wrong.append(DeclaredDifference(difference))
    elif set(recipe_names) == set(names) and recipe_names != names:
        wrong.append(DeclaredDifference(f"they come in the order {', '.join(names)} in the file"))
    else:
        # Inputs are given by position, so names may differ.
        for spec, name in zip(inputs, names, strict=True):
            dtype, shape = declared[name]
            wrong.extend(_file.differences(spec, dtype, shape))
            wrong.extend(_out_of_range(spec, shape, ranges))
    if wrong:
        raise _file.refused_inputs(wrong, declared, path, ranges)


def _names(program: ExportedProgram, path: Path) -> list[str]:
    """The inputs' names in order. Raises `InputError` for those that go by name or are no tensors."""
    positional, keyword = program.call_spec.in_spec.children()
    if keyword.num_leaves:
        names = ", ".join(map(str, keyword.context))
        message = f"the program takes inputs by name ({names}), wanted all of them by position"
        hint = "export the network again by position: torch.export.export(model, (a, b))"
        raise _file.wrong(path, message, hint)
    inputs = [str(name) for name in program.graph_signature.user_inputs]
    if positional.num_leaves != len(inputs) or len(inputs) != positional.num_children:
        message = "the program takes lists, dictionaries or numbers, wanted one tensor per argument"
        hint = "export a module around the network whose forward() takes tensors alone"
        raise _file.wrong(path, message, hint)
    return inputs


def _declared_inputs(
    program: ExportedProgram, names: Sequence[str], path: Path
) -> tuple[dict[str, tuple[str, Shape]], dict[str, tuple[int, int]]]:
    """Element type and shape of every input, and the bounds of the symbols in the shapes."""
    import torch

    declared: dict[str, tuple[str, Shape]] = {}
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in names:
            continue
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            raise _file.no_tensor(path, node.name)
        shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
        declared[node.name] = (str(value.dtype).removeprefix("torch."), shape)
    ranges: dict[str, tuple[int, int]] = {}
    for symbol, span in program.range_constraints.items():
        low, high = int(span.lower), min(_UNBOUNDED, span.upper)
        # torch.export writes 2 where nothing was said: it leaves 0 and 1 to luck.
        if low > 2 or high < _UNBOUNDED:
            ranges[str(symbol)] = (low if low > 2 else 1, int(high))
    return {name: declared[name] for name in names}, ranges


def _out_of_range(
    spec: TensorSpec, shape: Shape, ranges: dict[str, tuple[int, int]]
) -> list[DeclaredDifference]:
    wrong = []
    for index, (size, wanted) in enumerate(zip(shape, spec.shape, strict=False)):
        if not isinstance(size, str) or size not in ranges:
            continue
        low, high = ranges[size]
        least, most = (
            (spec.ranges[wanted].min, spec.ranges[wanted].max)
            if isinstance(wanted, str)
            else (wanted, wanted)
        )
        if least < low or most > high:
            span = f"{least} to {most}" if least < most else str(least)
            what = wanted if isinstance(wanted, str) else f"dimension {index}"
            difference = f"{what} of {spec.name} is {low} to {high} in the file, {span} in the recipe"
            wrong.append(DeclaredDifference(difference))
    return wrong
