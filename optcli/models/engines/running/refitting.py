"""Weights into an engine whose plan has none: from the ONNX model that lies beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.models.engines import EngineError, messages
from optcli.models.engines.bindings import Bindings
from optcli.models.engines.messages import LogLine

# Where a pass leaves the model of a stripped plan, below the engine's folder.
MODEL = Path("weights") / "model.onnx"


def refit(bindings: Bindings, engine: Any, log: Any, lines: Sequence[LogLine], model: Path) -> None:
    """Put the weights of an ONNX model into an engine. Raises `EngineError` where one is not there."""
    if not bindings.has("OnnxParserRefitter"):
        raise EngineError(
            f"{bindings.title} cannot put weights into an engine, wanted TensorRT 10 or newer",
            hint="build it again without `strip_weights`",
        )
    if not model.is_file():
        raise EngineError(
            "the engine holds no weights, and the model that has them is not beside it",
            place=os.fspath(model),
            hint="copy the whole folder of the engine, or build it again",
        )
    refitter = bindings.module.Refitter(engine, log)
    parser = bindings.module.OnnxParserRefitter(refitter, log)
    if not parser.refit_from_file(os.fspath(model)):
        errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise _failed("the weights do not fit the engine", errors, lines, model)
    if not refitter.refit_cuda_engine():
        raise _failed("the engine lacks weights", refitter.get_missing_weights(), lines, model)


def _failed(what: str, details: Sequence[str], lines: Sequence[LogLine], model: Path) -> EngineError:
    named = f": {', '.join(details[:5])}" if details else ""
    return messages.explained(
        f"{what}{named}", lines, place=os.fspath(model), hint="build the engine again"
    )
