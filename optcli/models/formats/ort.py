"""ONNX Runtime's own format: `model.ort`, a graph that was optimized before it was saved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.errors import InputError, raised_as
from optcli.models.formats.model_files import require_mark
from optcli.models.formats.onnx import session

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

FILE = "model.ort"

# What a flatbuffer of the format says of itself, behind its first four bytes.
_MARK = b"ORTM"


def open(folder: Path) -> InferenceSession:
    """The model in a session on the CPU. Raises `InputError` where ONNX Runtime does not load it."""
    path = folder / FILE
    message, hint = "this is not a valid ORT model", "build it again with optimize_onnx"
    require_mark(path, _MARK, message, hint)
    with raised_as(InputError, message, place=str(path), hint=hint):
        return session(path)


def operators(folder: Path) -> set[str]:
    """Types of the operators in the model; those of other domains as `domain::type`."""
    import onnxruntime.tools.ort_format_model  # noqa: F401 -- it makes the next import possible
    from onnxruntime.tools.ort_format_model.ort_model_processor import OrtFormatModelProcessor

    domains: dict[str, dict[int, set[str]]] = {}
    OrtFormatModelProcessor(os.fspath(folder / FILE), domains, None).process()
    return {
        kind if domain == "ai.onnx" else f"{domain}::{kind}"
        for domain, versions in domains.items()
        for kinds in versions.values()
        for kind in kinds
    }


def is_quantized(folder: Path) -> bool:
    """Whether some operator computes on integers that stand for other values."""
    names = {kind.rpartition("::")[2] for kind in operators(folder)}
    return any("Quantize" in name or name.startswith("QLinear") for name in names)
