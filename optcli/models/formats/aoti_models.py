"""The compiled models of one AOTInductor package, and which of them a batch goes to.

A package holds `model`, which takes any batch size that the recipe names, or models of one batch size
each (`batch_8`), or both. The order of sizes is that of the first input's first dimension.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from optcli.errors import RunnerError
from optcli.models.formats.torch_calls import flatten_outputs

if TYPE_CHECKING:
    import torch

# What torch calls the model of a package that has one; here it is the one for any batch size.
ANY_SIZE = "model"
_FIXED = re.compile(r"batch_(\d+)")


def name_of(batch_size: int) -> str:
    """What the model of one batch size is called in a package."""
    return f"batch_{batch_size}"


@dataclass(frozen=True)
class BatchPart:
    """Some rows of a batch and the model they go to, filled up to `size` rows."""

    model: str
    rows: int
    size: int


@dataclass(frozen=True)
class Routes:
    """Which model a batch goes to.

    `fixed` are the sizes that have a model of their own, ascending. A batch in between is filled up to
    the next of them from `padded_from[next]` rows on, else it goes to the model for any size. One above
    the largest goes there too, or with `pieces` in several parts. The size of the batch is the first
    one of the input with the number `input`.
    """

    fixed: tuple[int, ...] = ()
    any_size: bool = True
    padded_from: Mapping[int, int] = field(default_factory=dict)
    pieces: bool = False
    input: int = 0

    @staticmethod
    def of_names(names: Sequence[str]) -> Routes:
        """The routes for a package of which only the names of its models are known."""
        sizes = sorted(int(match[1]) for name in names if (match := _FIXED.fullmatch(name)))
        any_size = ANY_SIZE in names
        padded_from = {} if any_size else dict.fromkeys(sizes, 1)
        return Routes(tuple(sizes), any_size, padded_from, pieces=not any_size)

    def to_record(self) -> dict[str, Any]:
        """Plain JSON data; `from_record` reads it back."""
        record: dict[str, Any] = TypeAdapter(Routes).dump_python(self, mode="json")
        return record

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Routes:
        """The routes that `to_record` wrote."""
        return TypeAdapter(Routes).validate_python(record)

    def parts(self, size: int) -> list[BatchPart]:
        """Where a batch goes; several parts are computed one after the other."""
        if size in self.fixed:
            return [BatchPart(name_of(size), size, size)]
        following = next((each for each in self.fixed if each > size), None)
        if following is not None:
            if self.padded_from.get(following, following) <= size:
                return [BatchPart(name_of(following), size, following)]
        elif self.fixed and self.pieces:
            largest = self.fixed[-1]
            return [BatchPart(name_of(largest), largest, largest), *self.parts(size - largest)]
        if not self.any_size:
            raise RunnerError(
                f"the package has no model for a batch of {size}, only for {list(self.fixed)}",
                hint="name the size under `latency.batch_sizes`, or set `shapes: auto`; build again",
            )
        return [BatchPart(ANY_SIZE, size, size)]

    def compiled_for(self) -> str:
        """In words: `any batch size`, `batch size 1, 8`, `batch size 1, 8 and any other`."""
        if not self.fixed:
            return "any batch size"
        sizes = ", ".join(map(str, self.fixed))
        return f"batch size {sizes}{' and any other' if self.any_size else ''}"

    def said(self, size: int) -> str:
        """In words: `own model`, `any size`, `padded to 8`, `8 + 8 + 4 padded to 8`."""
        parts = self.parts(size)
        if parts == [BatchPart(ANY_SIZE, size, size)]:
            return "any size"
        if parts == [BatchPart(name_of(size), size, size)]:
            return "own model"
        if len(parts) == 1:
            return f"padded to {parts[0].size}"
        texts = [
            f"{part.rows} padded to {part.size}" if part.rows < part.size else str(part.rows)
            for part in parts
        ]
        return " + ".join(texts)


@dataclass(frozen=True)
class Models:
    """The loaded models: call it with one tensor per input. `seen` has the parts of sizes that came."""

    loaded: Mapping[str, Callable[..., Any]]
    routes: Routes
    seen: dict[int, list[BatchPart]] = field(default_factory=dict)

    def routed(self, routes: Routes) -> Models:
        """The same models on other routes."""
        return Models(self.loaded, routes)

    def any_size_only(self) -> Models:
        """The model for any size, at every size."""
        return self.routed(Routes())

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """What the program gives: a tensor, or a tuple of tensors."""
        if not self.routes.fixed:
            return self.loaded[ANY_SIZE](*tensors)
        size = tensors[self.routes.input].shape[0]
        parts = self.seen.get(size)
        if parts is None:
            parts = self.seen[size] = self.routes.parts(size)
        if len(parts) == 1 and parts[0].rows == parts[0].size:
            return self.loaded[parts[0].model](*tensors)
        return self._joined(parts, tensors)

    def _joined(self, parts: Sequence[BatchPart], tensors: Sequence[torch.Tensor]) -> Any:
        import torch

        outputs: list[list[torch.Tensor]] = []
        start, result = 0, None
        for part in parts:
            rows = (_filled(each[start : start + part.rows], part.size) for each in tensors)
            result = self.loaded[part.model](*rows)
            outputs.append([each[: part.rows] for each in flatten_outputs(result).values()])
            start += part.rows
        joined = [torch.cat(each) if len(each) > 1 else each[0] for each in zip(*outputs, strict=True)]
        return joined[0] if isinstance(result, torch.Tensor) else tuple(joined)


def _filled(rows: torch.Tensor, size: int) -> torch.Tensor:
    """The rows, with the last one repeated until there are `size` of them."""
    import torch

    missing = size - rows.shape[0]
    if not missing:
        return rows
    return torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])
