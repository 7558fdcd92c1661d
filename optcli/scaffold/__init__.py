"""A first recipe for a model: its inputs found by looking, variants that make sense on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.artifact import SCANNED
from optcli.errors import InputError, MissingError, UsageError, did_you_mean
from optcli.models import sources
from optcli.models.formats import model_files, torch_libraries
from optcli.models.sources._file import FileSource
from optcli.models.sources.hf import RANDOM
from optcli.outputs import Guess, guess
from optcli.scaffold import overriding
from optcli.scaffold.data import described
from optcli.scaffold.known_layouts import Data
from optcli.scaffold.looking import Looked, SourceLookRequest
from optcli.scaffold.text import DraftModel, Preparing, prepared, why_not_judged, written
from optcli.scaffold.variants import offered
from optcli.scaffold.wording import InputText, relative, safe_name, sized
from optcli.settings import Settings, TensorSpec, batched, require_batch
from optcli.workers import confinement, run

_TIMEOUT_S = 600.0
_ONE_IMAGE = "the batch is fixed at 1: an input of the model says the size of one image"


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
    overrides: Sequence[str] = (),
    trust: bool = False,
) -> Draft:
    """Write a recipe for a model, to be put into `folder`; paths in it are relative to that.

    `what` is a source as recipes write it, or the path of a model file; its paths are relative to the
    current folder. `inputs` are found by looking where none are given. `data` is a folder of images:
    by class, beside masks, or with COCO's annotations. `overrides` are `key=value` as with `--set`;
    those of `model.arguments` and `model.weights` decide what is looked at. `trust` says that the
    person knows who made the file. Raises `UsageError`, `InputError`, `TrustError` and `MissingError`.
    """
    values = overriding.parsed(overrides)
    named, target = _named(what)
    own = weights  # a path that is there, else an entry's name
    if weights is not None and Path(weights).is_file():
        own = relative(Path(weights), folder)
    chosen: Any = values.get("model.weights")
    weights_key = ""
    if isinstance(chosen, Mapping):
        chosen, weights_key = chosen.get("file"), str(chosen.get("key", ""))
    if chosen is not None:
        own = str(chosen)
    if named == "hf" and own is None and not target.endswith(".onnx"):
        own = (
            None if torch_libraries.weights_of(torch_libraries.snapshot(target, Path.cwd())) else RANDOM
        )
    is_path = _is_file(named) or named in ("hf", "python")
    model = DraftModel(
        f"{named}:{_relative(target, folder) if is_path else target}",
        own,
        overriding.arguments_of(values),
    )
    place = folder / own if own is not None and (folder / own).is_file() else own
    source = sources.named(
        f"{named}:{target}", Path.cwd(), None if place is None else str(place), dict(model.arguments)
    )
    kind, source = source.kind, source.model_copy(update={"trust": trust, "weights_key": weights_key})
    # Looked at from here: the recipe's folder need not be there yet.
    for part, message, hint in source.problems():
        raise InputError(message, place=f"{part} of {what}", hint=hint)
    for missing in environment.missing(source.needs):
        raise MissingError(missing.what, place=what, hint=missing.hint)
    images = described(data, folder) if data is not None else None
    looked, arguments = _looked(kind, source, inputs, images)
    specs = sized(looked.inputs)
    if images is not None:
        require_batch(next((each for each in specs if len(each.shape) == 4), specs[0]))
    one = () if batched(specs) == batched(looked.inputs) else (_ONE_IMAGE,)
    resized = arguments != dict(model.arguments)  # to as many classes as the data have
    cached = None if own or "num_classes" in arguments else looked.cached
    trained = bool(own not in (None, RANDOM) or cached or looked.trained)
    model = DraftModel(model.source, own, arguments, cached, trained)
    outputs = guess(
        looked.outputs,
        specs,
        metadata=looked.metadata,
        probe=looked.probe,
        classes=images.classes if images is not None else None,
    )
    own_weights = named != "hf" and own not in (None, "DEFAULT")  # a folder's preparation is its own
    preparing = prepared(specs, outputs, looked.prepare, own_weights=own_weights)
    variants = offered(source.format, attention=looked.attention, calibrated=images is not None)
    name = safe_name(
        Path(target).stem if _is_file(kind) else Path(target).name if kind == "hf" else target
    )
    text = written(name, model, specs, outputs, preparing, images, variants)
    return Draft(
        recipe=overriding.written_into(text, values),
        name=name,
        source=model.source,
        inputs=specs,
        variants=tuple(each.name for each in variants if not each.reason),
        notes=(*looked.notes, *one, *_notes(model, outputs, preparing, images, values, resized)),
    )


def _looked(
    kind: str, source: sources.Source, inputs: tuple[TensorSpec, ...], images: Data | None
) -> tuple[Looked, dict[str, Any]]:
    """What is found in the model, and its arguments: with as many classes as the data have.

    That is tried where nobody said how many, and the weights are not of another number.
    """

    def look(arguments: dict[str, Any]) -> Looked:
        named = source.model_copy(update={"arguments": arguments})
        request = SourceLookRequest(kind, named.model_dump(mode="json"), inputs)
        confined = () if source.foreign else None
        if source.foreign and source.format in SCANNED and not source.trust:
            confinement.require_whole(f"{kind}:{source.target}")
        return run(
            "optcli.scaffold.looking:look",
            request,
            Looked,
            timeout_s=_TIMEOUT_S,
            confined=confined,
            reads=Path(source.target) if _is_file(kind) else f"{kind}:{source.target}",
        )

    own_arguments = dict(source.arguments)
    classes = images.classes if images is not None and images.kind != "boxes" else None
    resized_arguments = {**own_arguments, "num_classes": classes}
    if _is_file(kind) or kind == "hf" or classes is None or "num_classes" in own_arguments:
        return look(own_arguments), own_arguments
    try:
        looked = look(own_arguments)
    except InputError:
        if source.weights is None:
            raise
        with suppress(InputError):  # weights of a network with as many classes
            return look(resized_arguments), resized_arguments
        raise
    count = guess(looked.outputs, looked.inputs).count
    fewer = images is not None and images.kind == "pixels" and (count or 0) >= classes
    enough = count == classes or fewer
    if source.weights is None and count is not None and not enough:
        with suppress(InputError):  # a callable of the user's own need not have the argument
            return look(resized_arguments), resized_arguments
    return looked, own_arguments


def _notes(
    model: DraftModel,
    outputs: Guess,
    preparing: Preparing,
    images: Data | None,
    values: Mapping[str, Any],
    resized: bool,
) -> Iterator[str]:
    if images is None:
        return
    yield from images.notes
    if resized:
        yield (
            f"the data have {images.classes} classes: the model is made with num_classes:"
            f" {images.classes}" + ("" if model.weights else ", and its weights are random: name yours")
        )
    if outputs.note:
        yield outputs.note
    why = why_not_judged(model, outputs, images)
    if why and not any(key.split(".")[0] == "accuracy" for key in values):
        yield f"accuracy is not judged: {why}"
    set_here = any(key.startswith("data.") and ".prepare" in key for key in values)
    if preparing.guess and not set_here:
        yield f"`prepare:` is a guess, check it: {preparing.guess}"


def _is_file(kind: str) -> bool:
    """Whether sources of a kind are one file."""
    return issubclass(sources.find(kind), FileSource)


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
    if format == model_files.WEIGHTS:
        raise UsageError(
            "these are weights without a network",
            place=what,
            hint=f"name the network too: optcli init torchvision:NAME --weights {what}",
        )
    if format is not None:
        raise UsageError(
            f"this is a finished {format} model, and recipes begin with what it was made of",
            place=what,
            hint=f"`optcli inspect {what}` looks into it, `optcli bench` measures it; an .onnx, .pt2,"
            " OpenVINO .xml or TorchScript file begins a recipe",
        )
    if (Path(what) / torch_libraries.CONFIG).is_file():
        return "hf", what
    if Path(what).is_dir():
        models = [each for each in Path(what).iterdir() if each.suffix.lower() in model_files.SUFFIXES]
        near = ", ".join(sorted(each.name for each in models)[:5])
        hint = f"name a file in it: {near}" if near else "a folder of data is named with --data"
        raise UsageError("this is a folder, wanted a model", place=what, hint=hint)
    if not colon and what.isidentifier():
        hint = f"write torchvision:{what} or timm:{what}"
        raise UsageError(f"{what!r} does not say where the model comes from", place="WHAT", hint=hint)
    kinds = ", ".join(sources.names())
    usual = "such as torchvision:resnet50, timm:resnet50, python:model.py:Net or model.onnx"
    raise UsageError(
        f"{what!r} is no model: wanted a model's file, or KIND:WHAT with a kind of {kinds}",
        place="WHAT",
        hint=did_you_mean(what, _models_beside(what), usual),
    )


def _models_beside(what: str) -> list[str]:
    """The model files in the folder where one was looked for."""
    with suppress(OSError):  # there is no such folder, or nobody may read it
        files = list(Path(what).parent.iterdir())
        return sorted(str(each) for each in files if each.suffix.lower() in model_files.SUFFIXES)
    return []


def _relative(target: str, folder: Path) -> str:
    """A path relative to the current folder, as one relative to the recipe's; modules stay."""
    if os.path.isdir(target):
        return target if os.path.isabs(target) else relative(Path(target), folder)
    file, colon, name = target.rpartition(":") if ".py:" in target else (target, "", "")
    if not colon and "/" not in target and "." in target and not Path(target).suffix:
        return target
    if not Path(file).suffix or os.path.isabs(file):
        return target
    return f"{relative(Path(file), folder)}{colon}{name}"
