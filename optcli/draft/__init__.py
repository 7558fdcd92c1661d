"""A first recipe for a model: its inputs found by looking, variants that make sense on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from optcli import environment, sources
from optcli.draft.data import Data, described
from optcli.draft.text import written
from optcli.draft.variants import offered
from optcli.draft.wording import InputText, safe_name
from optcli.errors import InputError, MissingError, UsageError
from optcli.formats import model_files
from optcli.settings import Settings, TensorSpec
from optcli.workers import run

__all__ = ["Draft", "InputText", "draft"]

_TIMEOUT_S = 600.0


class Draft(Settings):
    """The text of a recipe, and what was found out on the way."""

    recipe: str
    name: str
    source: str
    inputs: tuple[TensorSpec, ...]
    variants: tuple[str, ...]
    notes: tuple[str, ...] = ()


def draft(
    what: str,
    folder: Path,
    *,
    inputs: tuple[TensorSpec, ...] = (),
    weights: str | None = None,
    data: Path | None = None,
) -> Draft:
    """Write a recipe for a model, to be put into `folder`; paths in it are relative to that.

    `what` is a source as recipes write it, or the path of a model file; its paths are relative to the
    current folder. `inputs` are found by looking where none are given. `data` is a folder of images.
    Raises `UsageError`, `InputError` and `MissingError`.
    """
    kind, target = _named(what)
    # Looked at from here: the recipe's folder need not be there yet.
    source = sources.named(f"{kind}:{target}", Path.cwd(), weights)
    for field, message, hint in source.problems():
        raise InputError(message, place=f"{field} of {what}", hint=hint)
    for one in environment.missing(source.needs):
        raise MissingError(one.what, place=what, hint=one.hint)
    payload = {
        "kind": kind,
        "source": source.model_dump(mode="json"),
        "inputs": [spec.model_dump(mode="json") for spec in inputs],
    }
    found: dict[str, Any] = run("optcli.draft.looking:look", payload, timeout_s=_TIMEOUT_S)
    specs = tuple(TensorSpec.model_validate(spec) for spec in found["inputs"])
    images: Data | None = described(data, folder) if data is not None else None
    variants = offered(source.format, attention=found["attention"], calibrated=images is not None)
    of_file = kind in ("onnx", "exported", "torchscript")
    name = safe_name(Path(target).stem if of_file else target)
    named = _relative(target, folder) if of_file or kind == "python" else target
    own = None if weights is None else _weights(weights, folder)
    text = written(name, f"{kind}:{named}", own, specs, found, images, variants)
    return Draft(
        recipe=text,
        name=name,
        source=f"{kind}:{named}",
        inputs=specs,
        variants=tuple(each.name for each in variants if not each.reason),
        notes=tuple(found["notes"]),
    )


def _named(what: str) -> tuple[str, str]:
    """Kind and target of a source, from a recipe's notation or from the path of a file."""
    kind, colon, target = what.partition(":")
    if colon and target and kind in sources.names():
        return kind, target
    if ".py:" in what:
        return "python", what
    format = model_files.format_of(Path(what))
    if format in sources.names():
        return str(format), what
    if format is not None:
        raise _begins_no_recipe(what, format)
    if not colon and what.isidentifier():
        hint = f"write torchvision:{what} or timm:{what}"
        raise UsageError(f"{what!r} does not say where the model comes from", place="WHAT", hint=hint)
    kinds = ", ".join(sources.names())
    hint = "such as torchvision:resnet50, timm:resnet50, python:model.py:Net or model.onnx"
    raise UsageError(
        f"{what!r} is no model: wanted KIND:WHAT with a kind of {kinds}", place="WHAT", hint=hint
    )


def _begins_no_recipe(what: str, format: str) -> UsageError:
    """The error for a model file that no source reads."""
    if format == model_files.WEIGHTS:
        return UsageError(
            "these are weights without a network",
            place=what,
            hint=f"name the network too: optcli init torchvision:NAME --weights {what}",
        )
    return UsageError(
        f"this is a finished {format} model, and recipes begin with what it was made of",
        place=what,
        hint=f"`optcli bench {what}` measures it; an .onnx, .pt2 or TorchScript file begins a recipe",
    )


def _relative(target: str, folder: Path) -> str:
    """A path relative to the current folder, as one relative to the recipe's; modules stay."""
    file, colon, name = target.rpartition(":") if ".py:" in target else (target, "", "")
    if not colon and "/" not in target and "." in target and not Path(target).suffix:
        return target
    if not Path(file).suffix or os.path.isabs(file):
        return target
    return f"{os.path.relpath(file, folder)}{colon}{name}"


def _weights(weights: str, folder: Path) -> str:
    """Weights as a recipe names them: a path that is there, else an entry's name."""
    return os.path.relpath(weights, folder) if Path(weights).is_file() else weights
