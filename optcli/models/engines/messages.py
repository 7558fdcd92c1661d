"""What TensorRT says in its log, and what that means to whoever reads it.

Its calls return None, or end the process, and only the log says why. The texts are those of 8.6 to 11.4
and TensorRT-RTX 1.7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from optcli.models.engines import EngineError

_LETTERS = {"INTERNAL_ERROR": "F", "ERROR": "E", "WARNING": "W", "INFO": "I", "VERBOSE": "V"}


class LogLine(NamedTuple):
    """One line of TensorRT's log; `severity` is F, E, W, I or V."""

    severity: str
    text: str

    def __str__(self) -> str:
        return f"[{self.severity}] {self.text}"


class Meaning(NamedTuple):
    """What a text of TensorRT's means, and one action that mends it."""

    text: str
    hint: str


def collector(module: Any, heard: Callable[[LogLine], None]) -> Any:
    """A logger for the module's Builder and Runtime that hands on every line."""

    class Log(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            # An exception here would end the process.
            name = str(getattr(severity, "name", severity)).rpartition(".")[2]
            heard(LogLine(_LETTERS.get(name, "I"), str(msg).strip()))

    return Log()


def last_errors(lines: Sequence[LogLine], count: int = 4) -> list[str]:
    """The last errors of a log, else its last warnings, each once, in order."""
    for severities in ("FE", "W"):
        errors = list(dict.fromkeys(str(line) for line in lines if line.severity in severities))
        if errors:
            return errors[-count:]
    return []


def meaning(lines: Sequence[LogLine]) -> Meaning | None:
    """The meaning of the first known line: the lines that follow it are mostly its consequences.

    TensorRT-RTX complains of a missing driver in every build without a GPU: that explains a failure
    only where nothing else does.
    """
    relevant = [line for line in lines if line.severity in "FE" or _NO_DRIVER in line.text]
    for patterns in (_MEANINGS, (_CUDA,)):
        for line in relevant:
            for pattern, what, hint in patterns:
                if match := re.search(pattern, line.text, re.DOTALL):
                    groups = {name: text.strip() for name, text in match.groupdict("?").items()}
                    return Meaning(what.format(**groups), hint.format(**groups))
    return None


def explained(
    message: str, lines: Sequence[LogLine], *, place: str = "", hint: str = ""
) -> EngineError:
    """An error with what TensorRT's log means, where that is known, and its last lines."""
    cause = meaning(lines)
    if cause is not None and cause.text not in message:
        message = f"{message}: {cause.text}"
    last = last_errors(lines)
    if last:
        message += "\n  TensorRT said: " + "\n  TensorRT said: ".join(text[:500] for text in last)
    return EngineError(message, place=place, hint=hint or (cause.hint if cause else ""), lines=last)


_NO_DRIVER = "CUDA initialization failure"
_CUDA = (
    rf"({_NO_DRIVER} with error: |cudaError )(?P<number>\d+)",
    "CUDA error {number}: the driver is missing, has no GPU, or is older than what TensorRT wants",
    "run where `nvidia-smi` shows a GPU, with a driver for this TensorRT's CUDA",
)
_REBUILD = "build the engine again here"
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (
        r"magicTag(Read)? == k\w*MAGIC_TAG failed",
        "this is no engine of this product: another file, or one that another product built",
        _REBUILD,
    ),
    (r"header\.size == blobSize failed", "the engine file is truncated", _REBUILD),
    (
        r"VERSION failed.*Current Version: (?P<here>\d+), Serialized Engine Version: (?P<there>\d+)",
        "another version of TensorRT built this engine: serialization version {there}, here {here}",
        _REBUILD,
    ),
    (
        r"not compatible with this version of TensorRT, expecting library version (?P<here>\S+) "
        r"got (?P<there>[^\s,]+)",
        "TensorRT {there} built this engine, and TensorRT {here} is here",
        _REBUILD,
    ),
    (
        r"incompatible device, expecting compute (?P<here>[\d.]+) got compute (?P<there>[\d.]+)",
        "the engine was built for compute capability {there}, and the GPU here has {here}",
        _REBUILD,
    ),
    (
        r"cannot run on this GPU, which has compute capability (?P<here>[\d.]+)\. Supported compute "
        r"capabilities: (?P<known>[\d.> ]+)\. TensorRT-RTX does not support",
        "TensorRT-RTX knows GPUs of compute capability {known}, and the GPU here has {here}",
        "build an engine of TensorRT itself: `tensorrt_engine`",
    ),
    (
        r"no optimization profile has been defined",
        "sizes of the inputs vary, and no optimization profile says how far",
        "give every symbol of the inputs a range in the recipe: `batch: {{min: 1, opt: 8, max: 32}}`",
    ),
    (
        r"Invalid optimization profiles for input tensors (?P<names>.+?), please",
        "an optimization profile of {names} is not min <= opt <= max",
        "put the sizes in order",
    ),
    (
        r"Dimension mismatch for tensor (?P<name>\S+) and profile (?P<profile>\d+)\. At dimension axis "
        r"(?P<axis>\d+), profile has min=(?P<low>-?\d+).*but tensor has (?P<size>\d+)",
        "the ONNX model fixes dimension {axis} of {name} to {size}, and profile {profile} says {low}",
        "give the profile the size that the model has, or export the model with that size dynamic",
    ),
    (
        r"Failed to parse the ONNX model|MODEL_DESERIALIZE_FAILED",
        "this is no ONNX model",
        "name a file that `onnx.load` reads",
    ),
    (
        r"Non-zero zero point is not supported|shiftIsAllZeros",
        "the model is quantized asymmetrically, and TensorRT takes zero points of 0 only",
        "quantize with `target: tensorrt`: quantize_nncf or quantize_onnxruntime",
    ),
    (
        r"Plugin not found|No importer registered for op: (?P<operator>\w+)",
        "the parser knows no such operator",
        "express it in operators that TensorRT has, or run the model with another runtime",
    ),
    (
        r"Unable to load library: (?P<library>libnvinfer_lean\S*)",
        "a version-compatible engine carries the lean runtime, and {library} is not here",
        "install tensorrt-lean of the same version, or leave `version_compatible` off",
    ),
    (
        r"Unable to load library: (?P<library>\S+)",
        "{library} cannot be loaded",
        "complete the installation of TensorRT",
    ),
    (
        r"graph_jit\.cpp.*CUDA_SUCCESS",
        "with these options the builder needs a GPU, and found none",
        "build refittable and weight-stripped engines on a machine with a GPU",
    ),
    (
        r"(?i)out of ?memory|OutOfMemory|insufficient memory",
        "the GPU's memory was not enough for the build",
        "set `workspace_mib` lower, build with smaller shapes, or free the GPU",
    ),
    (
        r"Could not find any implementation for node (?P<node>.+?)[.\n]",
        "no kernel was found for {node} within these limits and precisions",
        "raise `workspace_mib`, or keep that layer in fp32 with `ignored_names`",
    ),
    (
        r"(?i)cancel",
        "the build was cancelled",
        "run it again: nothing of it was kept",
    ),
)
