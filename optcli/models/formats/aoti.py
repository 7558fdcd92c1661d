"""AOTInductor packages: `model.pt2`, a zip with shared libraries that hold code and weights.

It holds `model`, which takes any batch size that the recipe names, or models of one batch size each
(`batch_8`), or both; `Routes` says which of them a batch goes to. A library runs as soon as it is
loaded: open a package only from the own store, after its digest was checked, or where the person said
that they trust it.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from optcli.errors import InputError, RunnerError, TrustError, first_line
from optcli.files.folders import require_executable
from optcli.models.formats import torch_devices
from optcli.models.formats.torch_calls import flatten_outputs

if TYPE_CHECKING:
    import torch

FILE = "model.pt2"
_MEMBER = re.compile(r"(?:^|/)data/aotinductor/([^/]+)/")

# What torch calls the model of a package that has one; here it is the one for any batch size.
ANY_SIZE = "model"
_FIXED = re.compile(r"batch_(\d+)")


def check(folder: Path) -> None:
    """Raise `InputError` where `model.pt2` is no complete package; nothing in it is loaded or run.

    `TrustError` where a member would be unpacked outside its folder.
    """
    path = folder / FILE
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            damaged = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(
            f"this is not an AOTInductor package: {first_line(error)}",
            place=str(path),
            hint="build it again with aot_inductor",
        ) from error
    for name in names:
        member = PurePosixPath(name)
        if member.is_absolute() or ".." in member.parts or "\\" in name:
            raise TrustError(
                f"the package would write outside its folder: {name!r}",
                place=str(path),
                hint="build it again with aot_inductor",
            )
    if damaged is not None:
        raise InputError(
            f"the package is damaged at {damaged!r}", place=str(path), hint="build it again"
        )
    if not _models(names):
        raise InputError(
            "the package holds no compiled model", place=str(path), hint="build it with aot_inductor"
        )


def models(folder: Path) -> dict[str, int]:
    """The names of the compiled models and the bytes of each; nothing is loaded."""
    sizes_bytes: dict[str, int] = {}
    with zipfile.ZipFile(folder / FILE) as archive:
        names = _models(archive.namelist())
        for member in archive.infolist():
            match = _MEMBER.search(member.filename)
            if match is not None and match[1] in names:
                sizes_bytes[match[1]] = sizes_bytes.get(match[1], 0) + member.file_size
    return sizes_bytes


def _models(names: Sequence[str]) -> list[str]:
    """The names of the models that have a library, in the order of the members."""
    matches = (_MEMBER.search(name) for name in names if name.endswith(".so"))
    return list(dict.fromkeys(match[1] for match in matches if match))


def write(folder: Path, files: Mapping[str, Sequence[Any]]) -> None:
    """Write the package from what AOTInductor left for each model, by the models' names."""
    from torch._inductor.package import package_aoti

    package_aoti(os.fspath(folder / FILE), {name: list(each) for name, each in files.items()})


def open(folder: Path, device: str = "cpu", routes: Mapping[str, Any] | None = None) -> Models:
    """The compiled models: call them with one tensor per input. Runs native code of the package.

    torch unpacks it into a temporary folder of its own; nothing is written beside it. `device` is
    `cpu` or `cuda:N`, of the kind that it was compiled for; `routes` is the artifact's fact of that
    name, where it has one. Raises `MissingError` where nothing can run from that folder.
    """
    require_executable(tempfile.gettempdir())
    kind, _, number = device.partition(":")
    if kind == torch_devices.CUDA:
        import torch

        torch.cuda.init()
    index = int(number or -1)
    path, names = os.fspath(folder / FILE), list(models(folder))
    loaded = {name: _loaded(path, name, index) for name in names}
    model_routes = Routes.of_names(names) if routes is None else Routes.from_record(routes)
    return Models(loaded, model_routes)


def _loaded(path: str, name: str, index: int) -> Callable[..., Any]:
    """One model of a package, by what `torch._inductor.aoti_load_package` wraps.

    That function imports torch's compiler first, and may call g++ to find out about the processor. Its
    models read their own description on every call. What that takes: benchmarks/README.md.
    """
    import torch
    from torch.utils import _pytree as pytree

    try:
        loader = torch._C._aoti.AOTIModelPackageLoader(path, name, False, 1, index)
    except (AttributeError, TypeError, RuntimeError):
        # Another version of torch, or an operator that torch's compiler registers. For everything else
        # the public function raises its own error.
        from torch._inductor.package import load_package

        public: Callable[..., Any] = load_package(path, name, device_index=index)
        return public
    outputs = pytree.treespec_loads(loader.get_call_spec()[1])

    def model(*tensors: torch.Tensor) -> Any:
        return pytree.tree_unflatten(loader.boxed_run([*tensors]), outputs)

    return model


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

    def route_of(self, size: int) -> str:
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

    def any_size_only(self) -> Models:
        """The model for any size, at every size."""
        return Models(self.loaded, Routes())

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
