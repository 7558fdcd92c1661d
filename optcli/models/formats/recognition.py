"""The format of a folder of model files, read from the files and never from a description of them."""

from __future__ import annotations

import zipfile
from pathlib import Path

from optcli.artifact import Format
from optcli.files import regular_files
from optcli.models.formats import coreml, executorch, litert, onnx, openvino, ort, torch, torchscript
from optcli.models.formats.exported import FILE as _PACKAGE

_FILES = {
    torch.DESCRIPTION: Format.TORCH,
    torchscript.FILE: Format.TORCHSCRIPT,
    onnx.FILE: Format.ONNX,
    ort.FILE: Format.ORT,
    openvino.FILE: Format.OPENVINO,
    executorch.FILE: Format.EXECUTORCH,
    litert.FILE: Format.LITERT,
    coreml.MANIFEST: Format.COREML,
}
# How files begin. An ONNX file has no mark of its own, so it must not have another's.
_MARKS = {
    Format.TORCHSCRIPT: (b"PK\x03\x04",),
    Format.ORT: (),
    Format.EXECUTORCH: (),
    Format.LITERT: (),
    Format.COREML: (b"{",),
    Format.OPENVINO: (b"<", b"\xef\xbb\xbf<"),
}
_OTHERS = (b"PK\x03\x04", b"\x7fELF", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"#!")
_CODE = (".py", ".pyc", ".so", ".dll", ".dylib", ".plan")


def recognized(folder: Path) -> Format | None:
    """The one format whose file lies in the folder; None where there is none, or there are several.

    Files of code beside a format that has none make it None as well.
    """
    formats = {format for name, format in _FILES.items() if (folder / name).is_file()}
    if (folder / _PACKAGE).is_file():
        formats.add(_of_package(folder / _PACKAGE))
    for format in (Format.TENSORRT, Format.TENSORRT_RTX):
        if (folder / "model.plan").is_file() and _product(folder) == format:
            formats.add(format)
    if len(formats) != 1:
        return None
    (format,) = formats
    return format if _is_alike(folder, format) else None


def _is_alike(folder: Path, format: Format) -> bool:
    if format not in (Format.TORCH, Format.TENSORRT, Format.TENSORRT_RTX) and any(
        path.suffix.casefold() in _CODE for path in folder.rglob("*")
    ):
        return False
    name = next((name for name, kind in _FILES.items() if kind == format), None)
    if name is None or format == Format.TORCH:
        return True
    with (folder / name).open("rb") as stream:
        head = stream.read(16)
    marks = _MARKS.get(format, ())
    return head.startswith(marks) if marks else not head.startswith(_OTHERS)


def _of_package(path: Path) -> Format:
    """A `.pt2` with anything compiled in it is a package of AOTInductor, however it is spelled."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.casefold() for name in archive.namelist()]
    except (OSError, ValueError, zipfile.BadZipFile):
        names = []
    compiled = any("/data/aotinductor/" in name or name.endswith(".so") for name in names)
    return Format.AOTI if compiled else Format.EXPORTED


def _product(folder: Path) -> Format | None:
    """Which TensorRT an engine's sidecar says it is of."""
    from optcli.models.engines import sidecar

    try:
        record = regular_files.json_of(folder / sidecar.FILE)
    except (OSError, ValueError):
        return None
    product = str(record.get("product")) if isinstance(record, dict) else ""
    return Format.TENSORRT_RTX if product == "tensorrt_rtx" else Format.TENSORRT
