"""What a model file says of its inputs beside what the recipe says, with the block to paste."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from optcli.errors import InputsError
from optcli.settings import TensorSpec

Shape = tuple[int | str | None, ...]


class DeclaredDifference(NamedTuple):
    """One difference in words. `is_fixed`: the file has one size where the recipe's varies."""

    said: str
    is_fixed: bool = False


def refused(
    wrong: Sequence[DeclaredDifference],
    declared: Mapping[str, tuple[str, Shape]],
    path: Path,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> InputsError:
    """The error for inputs that differ; `declared` has type and shape of the file's, by name.

    `ranges` has the least and the largest size of those symbols that are bounded.
    """
    lines = [_line(name, dtype, shape, ranges or {}) for name, (dtype, shape) in declared.items()]
    fixed = any(each.is_fixed for each in wrong)
    hint = "paste this into the recipe" + (
        ", or export the model again with a dynamic size" if fixed else ""
    )
    return InputsError(
        f"the recipe's inputs are not those of the file: {'; '.join(each.said for each in wrong)}",
        place=str(path),
        hint="\n".join([f"{hint}:", "inputs:", *lines]),
    )


def differences(spec: TensorSpec, dtype: str, shape: Shape) -> list[DeclaredDifference]:
    """How an input of the recipe differs from the file's element type and shape."""
    name = spec.name
    wrong = []
    if dtype != spec.dtype:
        wrong.append(DeclaredDifference(f"{name} is {dtype} in the file, {spec.dtype} in the recipe"))
    if len(shape) != len(spec.shape):
        counts = f"{len(shape)} dimensions in the file, {len(spec.shape)} in the recipe"
        return [*wrong, DeclaredDifference(f"{name} has {counts}")]
    for index, (size, wanted) in enumerate(zip(shape, spec.shape, strict=True)):
        if not isinstance(size, int):
            continue
        what = f"dimension {index} of {name}" if index else f"the batch of {name}"
        if isinstance(wanted, str):
            difference = f"{what} is fixed at {size} in the file, {wanted!r} in the recipe"
            wrong.append(DeclaredDifference(difference, is_fixed=True))
        elif wanted != size:
            wrong.append(DeclaredDifference(f"{what} is {size} in the file, {wanted} in the recipe"))
    return wrong


def _line(name: str, dtype: str, shape: Shape, ranges: Mapping[str, tuple[int, int]]) -> str:
    """The line for one input that a person can paste into the recipe."""
    sizes: list[str] = []
    spans: dict[str, str] = {}
    for index, size in enumerate(shape):
        if isinstance(size, int):
            sizes.append(str(size))
            continue
        plain = re.sub(r"\W", "_", size or "")
        usable = plain.isidentifier() and plain != "batch"
        sizes.append("batch" if index == 0 else plain if usable else f"size_{index}")
        if size is not None and size in ranges:
            low, high = ranges[size]
            spans[sizes[-1]] = f", {sizes[-1]}: {{min: {low}, max: {high}}}"
    tail = "".join(spans.values())
    return f"  - {{name: {name!r}, dtype: {dtype}, shape: [{', '.join(sizes)}]{tail}}}"
