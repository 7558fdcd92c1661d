"""Weights on disk, read without ever running code that a file may hold."""

from __future__ import annotations

import json
import pickle
import re
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any

from optcli.artifact import Format
from optcli.errors import InputError, TrustError, first_line
from optcli.models.formats import model_files, storages, torch_modules

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
            f"the weights cannot be read: {error}", place=str(path), hint="build again"
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
            f"this is not a whole safetensors file: {error}", place=str(path), hint="copy it again"
        ) from error


def _unpickled(path: Path) -> Any:
    """What torch reads with `weights_only`: tensors and plain containers, nothing that runs."""
    import torch

    _refuse_torchscript(path)
    storages.check_saved(path)
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
        raise _damaged(path, f"{type(error).__name__} {error}") from error


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
