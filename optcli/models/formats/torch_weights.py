"""Weights on disk, read without ever running code that a file may hold.

In a checkpoint, as programs of training write it, they lie in an entry of any name (`state_dict`,
`net`, `ema.module`), under names with any prefix that a wrapper gave them (`module.`, `_orig_mod.`,
`model.` of Lightning). Which of the groups of tensors in a file are the network's follows from their
names and shapes. A key names a group: the entries that lead to it, and the prefix of its names, joined
by dots.
"""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from argparse import Namespace
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any

from optcli.artifact import Format
from optcli.errors import InputError, TrustError, did_you_mean, excerpt, first_line
from optcli.models.formats import model_files, torch_archive, torch_modules

if TYPE_CHECKING:
    import torch

    State = dict[str, torch.Tensor]

SAFETENSORS, PICKLED = "weights.safetensors", "weights.pth"
COUNTER = "num_batches_tracked"
SAVE = "save them with torch.save(model.state_dict(), FILE) or safetensors, and name that file"
# Whole networks as their libraries save them, by the module of their class: pickles of code.
_EXPORTS = {
    "ultralytics": "yolo export model={file} format=onnx",
    "models.yolo": "python export.py --weights {file} --include onnx",
}

_DEEPEST = 5
# Words in the keys of averaged weights, by which most programs evaluate.
_AVERAGED = frozenset({"ema", "swa", "averaged", "shadow"})


def write(model: torch.nn.Module, folder: Path) -> None:
    """Write a network's state: as safetensors, or as `weights.pth` where that cannot hold it.

    Tied tensors are written once; the file's metadata says under which names.
    """
    import torch
    from safetensors.torch import save_file

    state = torch_modules.state(model)
    plain = all(type(value) in (torch.Tensor, torch.nn.Parameter) for value in state.values())
    if not plain or any(
        value.layout != torch.strided or value.is_quantized for value in state.values()
    ):
        torch.save(state, folder / PICKLED)
        return
    stored: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    written: State = {}
    for name, value in state.items():
        mark = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if value.numel() and mark in stored:
            tied[name] = stored[mark]
            continue
        stored[mark] = name
        written[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    save_file(written, folder / SAFETENSORS, {"tied": json.dumps(tied, sort_keys=True)})


def read_own(folder: Path) -> State:
    """The state that `write` wrote. Raises `InputError`."""
    from safetensors import SafetensorError, safe_open

    if (folder / PICKLED).exists():
        return _unpickled(folder / PICKLED)  # type: ignore[no-any-return]
    path = folder / SAFETENSORS
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            tied = json.loads((file.metadata() or {}).get("tied", "{}"))
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(
            f"the weights cannot be read: {first_line(error)}", place=str(path), hint="build again"
        ) from error
    return {**state, **{name: state[first] for name, first in tied.items()}}


def tensors_in(path: Path) -> Any:
    """What a user's file of weights holds: tensors in plain containers.

    Raises `TrustError` for a file that holds more, `InputError` for one that is missing or damaged.
    """
    if not path.is_file():
        raise InputError("there is no such weights file", place=str(path), hint="correct model.weights")
    return _read_safetensors(path) if path.suffix == ".safetensors" else _unpickled(path)


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(
            f"this is not a whole safetensors file: {first_line(error)}",
            place=str(path),
            hint="copy it again",
        ) from error


def _unpickled(path: Path) -> Any:
    """What torch reads with `weights_only`: tensors and plain containers, nothing that runs."""
    import torch

    _refuse_torchscript(path)
    if zipfile.is_zipfile(path):  # torch itself checks the older form
        with torch_archive.opened(path, "a sound file of torch.save"):
            pass
    try:
        with torch.serialization.safe_globals(_plain_values()):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        with path.open("rb") as stream:  # as pickles of protocol 2 and later begin
            is_pickle = stream.read(1) == pickle.PROTO
        if name is None and not is_pickle:
            raise _damaged(path, "it is no file of tensors") from error
        needs = f"it wants to call {name[1]}" if name else "it is a plain pickle"
        raise TrustError(
            f"the weights hold more than tensors, which can run code: {needs}",
            place=str(path),
            hint=_hint(path, name[1] if name else ""),
        ) from error
    except Exception as error:  # bytes that are no pickle fail in every way there is
        raise _damaged(path, f"{type(error).__name__} {first_line(error)}") from error


def _plain_values() -> list[Any]:
    """What training programs save beside weights, and what runs no code when it is read.

    Their options (`argparse.Namespace`), paths, and scalars of NumPy such as the best accuracy.
    """
    import numpy as np

    scalar = np.float32(0).__reduce__()[0]
    modules = ("numpy.core.multiarray", "numpy._core.multiarray")
    scalars = [(scalar, f"{module}.scalar") for module in modules]
    kinds = [type(np.dtype(code)) for code in "?bhilBHILefd"]
    return [Namespace, PosixPath, *scalars, np.dtype, *kinds]


def _hint(path: Path, called: str) -> str:
    """How to come to weights, or to another file, from a pickle that wants to call something."""
    for module, command in _EXPORTS.items():
        if called.startswith(f"{module}."):
            model = f"onnx:{path.with_suffix('.onnx').name}"
            return (
                f"this is a whole network: export it where it was trained with"
                f" `{command.format(file=path.name)}`, and write `source: {model}`"
            )
    return SAVE


def _damaged(path: Path, text: str) -> InputError:
    size = path.stat().st_size if path.exists() else 0
    reason = text.strip().splitlines()[0] if text.strip() else "it ends too early"
    return InputError(
        f"the weights ({size} bytes) are damaged or no PyTorch file: {reason}",
        place=str(path),
        hint="copy or download the file again",
    )


def _refuse_torchscript(path: Path) -> None:
    if model_files.archived(path) == Format.TORCHSCRIPT:
        raise InputError(
            "this is a TorchScript archive, wanted weights",
            place=str(path),
            hint="save the weights alone: torch.save(torch.jit.load(FILE).state_dict(), 'weights.pth')",
        )


def load_into(model: torch.nn.Module, state: State, place: str = "", classes: str = "") -> None:
    """Load a state strictly. Raises `InputError` that names the first tensors that do not fit.

    `classes` is the argument that sets the number of classes, for the hint.
    """
    expected = torch_modules.state(model)
    # Modules keep a version in a state dict, by which they read older ones; safetensors have none.
    completed: Any = OrderedDict(state)
    completed._metadata = getattr(state, "_metadata", None) or expected._metadata
    for name, value in expected.items():
        if name.endswith(COUNTER):  # weights of PyTorch before 0.4.1 lack it
            completed.setdefault(name, value)
    try:
        model.load_state_dict(completed, strict=True)
        return
    except (RuntimeError, ValueError) as error:
        failed = error
    missing = [name for name in expected if name not in completed]
    unexpected = [name for name in state if name not in expected]
    shapes = {
        name: (tuple(state[name].shape), tuple(expected[name].shape))
        for name in expected
        if name in state and hasattr(expected[name], "shape") and not fits(state[name], expected[name])
    }
    parts = []
    if shapes:
        named = [f"{name} is {list(a)}, the model has {list(b)}" for name, (a, b) in shapes.items()]
        parts.append(f"wrong shapes: {_first(named, '; ')}")
    if missing:
        parts.append(f"missing: {_first(missing)}")
    if unexpected:
        parts.append(f"not in the model: {_first(unexpected)}")
    raise InputError(
        f"the weights do not fit the model; {'; '.join(parts) or first_line(failed)}",
        place=place,
        hint=_fit_hint(shapes, missing, any(name in expected for name in state), classes),
    ) from failed


def fits(value: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether a tensor has the shape of the one that it is to replace."""
    from torch.nn.parameter import is_lazy

    return bool(is_lazy(expected)) or value.shape == expected.shape


def _fit_hint(shapes: dict[str, Any], missing: list[str], matched: bool, classes: str) -> str:
    rows = {(a[0], b[0]) for a, b in shapes.values() if a and b and a[1:] == b[1:]}
    if len(rows) == 1 and len(shapes) <= 2 and not missing:
        count, wanted = rows.pop()
        setting = f"set model.arguments.{classes}: {count}" if classes else f"build it for {count}"
        return f"the weights have {count} classes, the model {wanted}: {setting}"
    if not matched:
        return "no name matches: these are the weights of another network, or wrapped in another one"
    return (
        "these are the weights of another network or of another variant of it: correct model.arguments"
    )


def _first(names: list[str], separator: str = ", ", count: int = 3) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return separator.join(names[:count]) + more


@dataclass(frozen=True)
class Checkpoint:
    """The groups of tensors in a file, by key. `key` is what the recipe says, if it does."""

    path: Path
    groups: Mapping[str, State]
    key: str = ""

    def renamed(self, rename: Callable[[str], str]) -> Checkpoint:
        """The same with other names of tensors."""
        groups = {
            key: {rename(name): value for name, value in group.items()}
            for key, group in self.groups.items()
        }
        return replace(self, groups=groups)

    def load_into(self, model: torch.nn.Module, classes: str = "") -> str:
        """Load a network's weights; returns the key of the group that they are, "" for a bare file.

        `classes` is the argument that sets the number of classes, for a hint. Raises `InputError` where
        no group fits, or where several do and the recipe does not say which.
        """
        expected = torch_modules.state(model)
        fitting = dict(self._fitting(expected))
        if self.key and self.key in fitting:
            fitting = {self.key: fitting[self.key]}
        _drop_copies(fitting)
        if len(fitting) > 1:
            raise self._ambiguous("several sets of weights in the file fit the model", [*fitting])
        if not fitting:
            load_into(model, self._nearest(expected), str(self.path), classes)
        key, state = fitting.popitem()
        averaged = None if self.key else self._other_average(key, state)
        if averaged is not None:
            message = f"beside weights that fit the model the file holds averaged ones in {averaged!r}"
            raise self._ambiguous(message, [key])
        load_into(model, state, str(self.path), classes)
        return key

    def _ambiguous(self, message: str, keys: list[str]) -> InputError:
        chosen = next((key for key in keys if _is_averaged(key)), keys[0])
        listed = excerpt(", ".join(key or "(the top)" for key in keys), 200)
        return InputError(
            f"{message}; found: {listed}",
            place=str(self.path),
            hint=f"say which: weights: {{file: {self.path.name}, key: {chosen}}}",
        )

    def _fitting(self, expected: State) -> Iterator[tuple[str, State]]:
        """Groups with every tensor of the network and no other, under names without their prefix."""
        required = {name for name in expected if not name.endswith(COUNTER)}
        for key, group in self.groups.items():
            counts = _prefixes(group, required)
            whole = [prefix for prefix, count in counts.items() if count == len(required)]
            for prefix in whole:
                inner = [other for other in whole if len(other) > len(prefix)]
                inside = {
                    name.removeprefix(prefix): value
                    for name, value in group.items()
                    if name.startswith(prefix) and not name.startswith(tuple(inner))
                }
                if inside.keys() <= expected.keys() and all(
                    fits(value, expected[name]) for name, value in inside.items()
                ):
                    state = group if len(inside) == len(group) and not prefix else inside
                    yield _joined(key, prefix), state

    def _nearest(self, expected: State) -> State:
        """The group that most of the network's names are in, or else the largest one."""
        best: tuple[tuple[int, int], State] = ((-1, -1), {})
        for group in self.groups.values():
            for prefix, count in (_prefixes(group, expected) or {"": 0}).items():
                inside = {n.removeprefix(prefix): v for n, v in group.items() if n.startswith(prefix)}
                best = max(best, ((count, len(inside)), inside), key=lambda each: each[0])
        return best[1]

    def _other_average(self, key: str, state: State) -> str | None:
        """The key of averaged weights that are no group of the network's, such as weights in a list."""
        if _is_averaged(key) or not key:
            return None
        least = sum(value.numel() for value in state.values()) // 2
        sizes = {k: sum(value.numel() for value in group.values()) for k, group in self.groups.items()}
        others = (k for k, size in sizes.items() if _is_averaged(k) and size > least)
        return next(others, None)


def read_checkpoint(path: Path, key: str = "") -> Checkpoint:
    """A user's file of weights. Raises `TrustError` for one that holds what can run code.

    `InputError` for one that is missing, damaged or without weights, or has nothing under the key.
    """
    content = tensors_in(path)
    groups = dict(_groups(content, ""))
    if not groups:
        what = "an empty dict" if content == {} else f"a {type(content).__name__}"
        raise InputError(f"the file holds {what} without a state dict", place=str(path), hint=SAVE)
    chosen = dict(_under(groups, key)) if key else groups
    if not chosen:
        raise InputError(
            f"the file has no weights under {key!r}",
            place=str(path),
            hint=did_you_mean(key, [*groups], f"it has: {excerpt(', '.join(groups), 200)}"),
        )
    return Checkpoint(path, chosen, key)


def _groups(content: Any, key: str, depth: int = 0) -> Iterator[tuple[str, State]]:
    """The mappings and lists in a file that hold tensors, at any depth."""
    import torch

    if isinstance(content, list | tuple):
        content = dict(enumerate(content))
    if not isinstance(content, Mapping) or depth > _DEEPEST:
        return
    tensors = {str(name): v for name, v in content.items() if isinstance(v, torch.Tensor)}
    if tensors:
        # A state dict keeps the versions of its modules.
        yield key, content if tensors.keys() == content.keys() else tensors  # type: ignore[misc]
    for name, value in content.items():
        yield from _groups(value, _joined(key, str(name)), depth + 1)


def _prefixes(group: State, names: Any) -> Counter[str]:
    """How many of the names the group has under which prefix."""
    counts: Counter[str] = Counter()
    for name in group:
        parts = name.split(".")
        for at in range(len(parts)):
            if ".".join(parts[at:]) in names:
                counts["".join(f"{part}." for part in parts[:at])] += 1
    return counts


def _under(groups: Mapping[str, State], key: str) -> Iterator[tuple[str, State]]:
    """The groups that a key leads to, or the part of a group whose names begin with its end."""
    for at, group in groups.items():
        if f"{at}.".startswith(f"{key}."):
            yield at, group
        elif not at or key.startswith(f"{at}."):
            prefix = f"{key.removeprefix(at).removeprefix('.')}."
            inside = {n.removeprefix(prefix): v for n, v in group.items() if n.startswith(prefix)}
            if inside:
                yield key, inside


def _drop_copies(groups: dict[str, State]) -> None:
    """Leave one of several groups that hold the same values."""
    import torch

    for key in [*groups][1:]:
        state = groups[key]
        for other in [*groups][: [*groups].index(key)]:
            if all(torch.equal(value, groups[other][name]) for name, value in state.items()):
                del groups[key]
                break


def _is_averaged(key: str) -> bool:
    return not _AVERAGED.isdisjoint(re.split(r"[._]", key.lower()))


def _joined(*parts: str) -> str:
    return ".".join(part.strip(".") for part in parts if part.strip("."))
