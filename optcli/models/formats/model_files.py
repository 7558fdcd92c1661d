"""Which format a model file is in: by its suffix, and by what is in it where formats share one."""

from __future__ import annotations

import zipfile
from pathlib import Path

from optcli.artifact import Format
from optcli.errors import InputError, raised_as, strerror
from optcli.files import regular_files
from optcli.settings.references import WEIGHTS_SUFFIXES

WEIGHTS = "weights"

_BY_SUFFIX = {
    ".onnx": Format.ONNX,
    ".ort": Format.ORT,
    ".xml": Format.OPENVINO,
    ".pt2": Format.EXPORTED,
    ".pt": Format.TORCHSCRIPT,
    ".pth": Format.TORCHSCRIPT,
    ".ptl": Format.TORCHSCRIPT,
    ".ts": Format.TORCHSCRIPT,
    ".jit": Format.TORCHSCRIPT,
    ".torchscript": Format.TORCHSCRIPT,
    ".plan": Format.TENSORRT,
    ".engine": Format.TENSORRT,
    ".trt": Format.TENSORRT,
    ".pte": Format.EXECUTORCH,
    ".tflite": Format.LITERT,
    ".mlpackage": Format.COREML,
    ".mlmodel": Format.COREML,
}
SUFFIXES = (*_BY_SUFFIX, *(each for each in WEIGHTS_SUFFIXES if each not in _BY_SUFFIX))
WANTED = "an .onnx, .ort, .pt2, .pte, .tflite, OpenVINO .xml or TorchScript .pt file"


def suffixes(format: Format) -> tuple[str, ...]:
    """The suffixes that files of a format usually have."""
    return tuple(suffix for suffix, kind in _BY_SUFFIX.items() if kind == format)


def format_of(path: Path) -> str | None:
    """The format of a file, `weights` for one of tensors alone, None for what is no model.

    A file that torch wrote is recognized by its content, whatever it is called; a file that is not
    there, or that is no whole archive, by its suffix. Nothing of the file is loaded.
    """
    suffix = path.suffix.lower()
    by_suffix = _BY_SUFFIX.get(suffix)
    if by_suffix in (None, Format.EXPORTED, Format.TORCHSCRIPT):
        by_content = archived(path)
        if by_content is not None:
            return by_content.value
    if suffix in WEIGHTS_SUFFIXES and path.exists():
        return WEIGHTS
    return by_suffix.value if by_suffix is not None else None


def require_mark(path: Path, mark: bytes, refused: str, hint: str) -> None:
    """Raise `InputError` unless a flatbuffer says `mark` of itself, behind its first four bytes."""
    message = f"the file {path.name} cannot be read"
    with (
        raised_as(InputError, message, of=OSError, reason=strerror, place=str(path), hint=hint),
        regular_files.opened(path) as stream,
    ):
        mark_there = stream.read(8)[4:]
    if mark_there != mark:
        message = f"{refused}: it does not begin as such a file does"
        raise InputError(message, place=str(path), hint=hint)


def archived(path: Path) -> Format | None:
    """The format of an archive that torch wrote; None for weights, and for any other file."""
    try:
        with regular_files.opened(path) as stream, zipfile.ZipFile(stream) as archive:
            names = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    if any("/data/aotinductor/" in name for name in names):
        return Format.AOTI
    if any(name.endswith("serialized_exported_program.json") or "/models/" in name for name in names):
        return Format.EXPORTED
    if any(name.endswith("constants.pkl") for name in names) and any("/code/" in n for n in names):
        return Format.TORCHSCRIPT
    return None
