"""What `optcli inspect` was asked about: a path, a recipe, or a variant of the last build."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optcli.artifact import ABOUT, Format, described
from optcli.errors import InputError, UsageError, did_you_mean
from optcli.files import regular_files
from optcli.models import sources
from optcli.models.engines.sidecar import PLAN
from optcli.models.formats import model_files
from optcli.recipe import load

# What a folder without artifact.json may hold, by the file that tells it.
_MODEL_FILES = {"model.onnx": Format.ONNX, "model.xml": Format.OPENVINO, "model.json": Format.TORCH}
_WANTED = (
    f"an artifact's folder, {model_files.WANTED}, weights, a recipe, or a variant of the last build"
)


@dataclass(frozen=True)
class Target:
    """What to look into. `path` is a folder for an artifact or for `torch`, else the model's file.

    `format` is the format's name, `weights` for a bare file of tensors, or `recipe`. `trusted` where
    a person said so, `own` where the own store holds the very same, and did not fetch it where it is
    code. `descends` says that it, or what it was made from, was fetched from a remote store.
    """

    name: str
    kind: str
    format: str
    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    trusted: bool = False
    own: bool = False
    descends: bool = False

    @property
    def only_read(self) -> bool:
        """Whether looking into it runs no code of the model's, so that its worker only reads."""
        if self.format == "recipe":
            recipe = load(self.path)
            return recipe.model.in_folder(recipe.folder).foreign
        return self.format != Format.TORCH


def resolve(target: str, artifacts: Path) -> Target:
    """The target that a word on the command line names. Raises `UsageError` and `InputError`."""
    path = Path(target).expanduser()
    if path.is_dir():
        return _folder(target, path.absolute())
    if path.exists():
        return _file(target, path.absolute())
    kind, colon, place = target.partition(":")
    if colon and kind in sources.names():
        return _source(target, kind, Path(place).expanduser())
    return _variant(target, artifacts)


def _source(target: str, kind: str, path: Path) -> Target:
    """A model as recipes write it: one of a single file is that file, whatever it is called."""
    if kind not in list(Format):  # a network in Python: it takes inputs to look into it
        raise UsageError(
            "a network in Python can be inspected only with the inputs of a recipe",
            place=target,
            hint=f"optcli init {target} --out recipe.yaml, then optcli inspect recipe.yaml",
        )
    if not path.is_file():
        raise UsageError(
            "there is no such file", place=target, hint="paths are relative to this folder"
        )
    return Target(target, "file", kind, path.absolute())


def _folder(target: str, path: Path) -> Target:
    about = path / ABOUT
    if about.exists():
        try:
            record = described(path)
            return Target(target, "artifact", str(Format(record["format"])), path, record)
        except (OSError, ValueError) as error:
            raise InputError(
                f"this does not describe an artifact: {error}", place=str(about), hint="build again"
            ) from error
    if model_files.format_of(path) == Format.COREML:  # a model that is a folder
        return Target(target, "file", str(Format.COREML), path)
    for name, format in _MODEL_FILES.items():
        if (path / name).is_file():
            where = path if format == Format.TORCH else path / name
            return Target(target, "file", str(format), where)
    models = [each for each in sorted(path.iterdir()) if each.suffix.lower() in model_files.SUFFIXES]
    inside = ", ".join(each.name for each in models[:5])
    variants = [each.parent.name for each in sorted(path.glob("*/artifact.json"))]
    hint = f"name one of its files: {inside}" if inside else f"wanted {_WANTED}"
    if variants:
        hint = f"name one of its variants: {', '.join(variants)}"
    raise UsageError("this folder is no artifact", place=str(path), hint=hint)


def _file(target: str, path: Path) -> Target:
    suffix = path.suffix.lower()
    wrong = regular_files.problem(path, target)
    if wrong:
        raise InputError(wrong, place=target, hint="name a file")
    if suffix in (".yaml", ".yml"):
        load(path)
        return Target(target, "recipe", "recipe", path)
    if not os.access(path, os.R_OK):
        raise InputError("the file cannot be read", place=str(path), hint="look at its permissions")
    if suffix in model_files.SUFFIXES and path.stat().st_size == 0:
        raise InputError("the file is empty", place=str(path), hint="copy or export it again")
    format = model_files.format_of(path)
    if format is None:
        raise UsageError(
            f"cannot tell what kind of model {path.name} is", place=str(path), hint=f"wanted {_WANTED}"
        )
    # The plan alone does not describe an engine of an artifact.
    if path.name == PLAN and (path.parent / ABOUT).is_file():
        return _folder(target, path.parent)
    return Target(target, "file", format, path)


def _variant(target: str, artifacts: Path) -> Target:
    recipe, _, variant = target.rpartition("/")
    descriptions = sorted(
        artifacts.glob(f"{recipe or '*'}/*/artifact.json"), key=lambda path: path.stat().st_mtime
    )
    named = [path.parent for path in descriptions if path.parent.name == variant]
    if named:
        return _folder(target, named[-1].absolute())
    variants = list(dict.fromkeys(path.parent.name for path in descriptions))
    hint = did_you_mean(variant, variants) if variants else f"wanted {_WANTED}"
    path = Path(target)
    if path.suffix.lower() in (*model_files.SUFFIXES, ".yaml", ".yml"):  # a file was meant
        near = sorted(each.name for each in path.parent.glob(f"*{path.suffix}"))[:5]
        hint = f"there are: {', '.join(near)}" if near else f"wanted {_WANTED}"
    raise UsageError(f"there is no file, folder or variant {target!r}", place=target, hint=hint)
