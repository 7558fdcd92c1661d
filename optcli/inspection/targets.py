"""What `optcli inspect` was asked about: a path, a recipe, or a variant of the last build."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optcli import sources
from optcli.artifact import CODE, Format
from optcli.engines.sidecar import FILE as SIDECAR
from optcli.engines.sidecar import PLAN
from optcli.errors import InputError, UsageError, did_you_mean
from optcli.recipe import load

WEIGHTS = (".safetensors", ".pth", ".pt", ".th", ".ckpt", ".bin", ".tar")
# What a folder without artifact.json may hold, by the file that tells it.
_MODEL_FILES = {"model.onnx": Format.ONNX, "model.xml": Format.OPENVINO, "model.json": Format.TORCH}
_PLANS = (".plan", ".engine", ".trt")
_WANTED = (
    "an artifact's folder, a .onnx, .pt2, .pt or .xml file, a recipe, or a variant of the last build"
)


@dataclass(frozen=True)
class Target:
    """What to look into. `path` is a folder for an artifact or for `torch`, else the model's file.

    `format` is the format's name, `weights` for a bare file of tensors, or `recipe`. `trusted` where
    the own store holds it, or a person said so.
    """

    name: str
    kind: str
    format: str
    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    trusted: bool = False

    @property
    def only_read(self) -> bool:
        """Whether looking into it runs no code of anybody's, so that its worker can do with reading."""
        if self.format == "recipe":
            return sources.find(load(self.path).model.source.partition(":")[0]).foreign
        return self.format not in CODE

    def to_record(self) -> dict[str, Any]:
        """Plain JSON data for a worker."""
        return {**vars(self), "path": str(self.path)}


def resolve(target: str, artifacts: Path) -> Target:
    """Find what a word on the command line means. Raises `UsageError` and `InputError`."""
    path = Path(target).expanduser()
    if path.is_dir():
        return _folder(target, path.absolute())
    if path.exists():
        return _file(target, path.absolute())
    return _variant(target, artifacts)


def _folder(target: str, path: Path) -> Target:
    about = path / "artifact.json"
    if about.is_file():
        try:
            record = json.loads(about.read_bytes())
            return Target(target, "artifact", str(Format(record["format"])), path, record)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"this does not describe an artifact: {error}", place=str(about), hint="build again"
            ) from error
    for name, format in _MODEL_FILES.items():
        if (path / name).is_file():
            where = path if format == Format.TORCH else path / name
            return Target(target, "file", str(format), where)
    models = [each for each in sorted(path.iterdir()) if each.suffix in _SUFFIXES]
    inside = ", ".join(each.name for each in models[:5])
    variants = [each.parent.name for each in sorted(path.glob("*/artifact.json"))]
    hint = f"name one of its files: {inside}" if inside else f"wanted {_WANTED}"
    if variants:
        hint = f"name one of its variants: {', '.join(variants)}"
    raise UsageError("this folder is no artifact", place=str(path), hint=hint)


def _plan(target: str, path: Path) -> Target:
    """An engine by its plan: what it is stands in the sidecar beside it."""
    if path.name == PLAN and (path.parent / "artifact.json").is_file():
        return _folder(target, path.parent)
    raise UsageError(
        f"{path.name} is an engine without what optcli writes beside one ({SIDECAR}): neither its "
        "version nor its GPU is known",
        place=str(path),
        hint="build it with a recipe: `tensorrt_engine` after `export_onnx`",
    )


def _file(target: str, path: Path) -> Target:
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        load(path)
        return Target(target, "recipe", "recipe", path)
    if suffix in _SUFFIXES and path.stat().st_size == 0:
        raise InputError("the file is empty", place=str(path), hint="copy or export it again")
    if suffix == ".onnx":
        return Target(target, "file", str(Format.ONNX), path)
    if suffix == ".xml":
        return Target(target, "file", str(Format.OPENVINO), path)
    if suffix == ".pt2":
        return Target(target, "file", _exported_or_aoti(path), path)
    if suffix in _PLANS:
        return _plan(target, path)
    if suffix in WEIGHTS:
        kind = str(Format.TORCHSCRIPT) if _is_torchscript(path) else "weights"
        return Target(target, "file", kind, path)
    raise UsageError(
        f"cannot tell what kind of model {path.name} is", place=str(path), hint=f"wanted {_WANTED}"
    )


def _variant(target: str, artifacts: Path) -> Target:
    recipe, _, variant = target.rpartition("/")
    found = sorted(
        artifacts.glob(f"{recipe or '*'}/*/artifact.json"), key=lambda path: path.stat().st_mtime
    )
    named = [path.parent for path in found if path.parent.name == variant]
    if named:
        return _folder(target, named[-1].absolute())
    known = list(dict.fromkeys(path.parent.name for path in found))
    hint = did_you_mean(variant, known) if known else f"wanted {_WANTED}"
    raise UsageError(f"there is no file, folder or variant {target!r}", place=target, hint=hint)


def _names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return []


def _exported_or_aoti(path: Path) -> str:
    compiled = any("/data/aotinductor/" in name for name in _names(path))
    return str(Format.AOTI if compiled else Format.EXPORTED)


def _is_torchscript(path: Path) -> bool:
    names = _names(path)
    return any(name.endswith("constants.pkl") for name in names) and any(
        "/code/" in name for name in names
    )


_SUFFIXES = (".onnx", ".pt2", ".xml", *WEIGHTS)
