"""A model on disk: its format, where it lies and what made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from optcli.files import regular_files
from optcli.settings import TensorSpec

# What optcli lays beside an artifact that it hands out: what made it, and its digest.
ABOUT = "artifact.json"


class Format(StrEnum):
    """How a model is written. Each has one module of the same name in `optcli/models/formats/`."""

    TORCH = "torch"
    EXPORTED = "exported"
    TORCHSCRIPT = "torchscript"
    AOTI = "aoti"
    ONNX = "onnx"
    ORT = "ort"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    TENSORRT_RTX = "tensorrt_rtx"
    EXECUTORCH = "executorch"
    LITERT = "litert"
    COREML = "coreml"


# Formats whose files are, or may hold, code that runs when they are opened.
CODE = frozenset({Format.TORCH, Format.AOTI, Format.TENSORRT, Format.TENSORRT_RTX})
# Formats whose files are made for one CPU or GPU, and run on no other.
NATIVE = frozenset({Format.AOTI, Format.ORT, Format.TENSORRT, Format.TENSORRT_RTX})
# Formats that hold programs: from elsewhere they are opened in confined workers, or with `--trust`. A
# scan reads what they unpickle and import: their modules have `doubts`, and open those with trust.
SCANNED = frozenset({Format.EXPORTED, Format.TORCHSCRIPT})
# The fact that holds the doubts of a scan: every artifact that descends from it inherits them.
UNPROVEN = "unproven"
# The fact that holds, by batch size, how many weights (`weights`) are packed anew on every call, their
# share of all elements (`share`) and of the time of a call (`share_of_time`); None: not known.
PACKS_EACH_CALL = "packs_each_call"
# The fact that holds which batch goes to which model, where an artifact has several (`Routes`).
ROUTES = "routes"
# The fact that names the operators that a quantizing pass kept in floating point because values of
# different range meet there, behind the last layers.
OUTPUT_TAIL = "output_tail_in_floating_point"
# The fact that lists the outputs of the model as it came from its source: name, dtype and shape of
# each, and what the first one held where it was run (`outputs.of_facts` reads it).
OUTPUT_TENSORS = "output_tensors"
# The fact that holds the layers that such a pass kept in floating point because integers would ruin
# them: by name, the SQNR of their output in dB.
RUINED_LAYERS = "ruined_layers_in_floating_point"
# The fact that names the kinds of operators that such a pass kept in floating point because the runtime
# has no fast kernel for their integers.
SLOW_INTEGERS = "slow_integers_in_floating_point"
# The fact that holds what an accuracy is expected by: `by` says who has it, and the others are its
# figures as fractions, by metric.
EXPECTED = "expected_accuracy"
# The facts of a model that prepares its images itself: its inputs, in place of the recipe's, and what
# of the preparation is inside, `values` or `all`.
EMBEDDED_INPUTS, EMBEDDED_STEPS = "embedded_inputs", "embedded_steps"
# The fact of a model that decodes its detections itself: how its rows are read, as in `postprocess`.
EMBEDDED_POSTPROCESS = "embedded_postprocess"
# A smaller share is not reported: it may be a first layer of one channel.
_COSTLY_SHARE, _COSTLY_TIME = 0.01, 0.03


@dataclass(frozen=True)
class Artifact:
    """A model on disk.

    `path` is a folder whose file names are fixed by the format (`formats/<format>.py`). `key` is the
    hash of everything that made it, `digest` the hash of what was written. `facts` is plain JSON
    data: what made it, its parent's key, the names of its outputs, what a reader must import.
    `foreign` says that it came from elsewhere, or was made of what did: it is opened in a worker that
    can only read. `trusted` says that whoever runs this trusts it.
    Both are of this run: the store keeps neither.
    """

    key: str
    format: Format
    path: Path
    precision: str
    size_bytes: int
    digest: str
    facts: dict[str, Any] = field(default_factory=dict)
    foreign: bool = False
    trusted: bool = False


def costly_packing(facts: Mapping[str, Any]) -> dict[int, int]:
    """By batch size: how many weights are packed on every call, where that costs time.

    Facts of a report from elsewhere may be anything: entries of another form are left out.
    """
    record = facts.get(PACKS_EACH_CALL)
    costly: dict[int, int] = {}
    for size, entry in (record if isinstance(record, dict) else {}).items():
        figures = entry if isinstance(entry, dict) else {}
        weights, share, of_time = (figures.get(k) for k in ("weights", "share", "share_of_time"))
        if not (isinstance(share, int | float) and isinstance(of_time, int | float)):
            continue
        is_size = str(size).isdecimal() and len(str(size)) < 10
        if is_size and isinstance(weights, int) and share >= _COSTLY_SHARE and of_time >= _COSTLY_TIME:
            costly[int(size)] = weights
    return costly


def own_inputs(facts: Mapping[str, Any], inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The inputs of a model: its own where facts say that it prepares its images, else the recipe's.

    Facts of an artifact from elsewhere may be anything: those of another form are left out.
    """
    try:
        return tuple(TensorSpec.model_validate(each) for each in facts[EMBEDDED_INPUTS])
    except (KeyError, TypeError, ValidationError):
        return tuple(inputs)


def pixels_name(name: str) -> str:
    """The input of a model that prepares its images itself, in place of the input of this name."""
    return f"{name}_pixels"


def has_own_model(facts: Mapping[str, Any], batch_size: int) -> bool:
    """Whether a batch of this size goes to a model that was compiled for this size alone."""
    routes = facts.get(ROUTES)
    fixed = routes.get("fixed") if isinstance(routes, dict) else None
    return isinstance(fixed, list | tuple) and batch_size in fixed


class _Step(BaseModel):
    step: str
    key: str
    inputs: list[TensorSpec] = []


class _About(BaseModel):
    key: str
    digest: str
    format: Format
    precision: str
    size_bytes: int = Field(ge=0)
    made_by: list[_Step] = Field(min_length=1)
    facts: dict[str, Any]


def described(folder: Path) -> dict[str, Any]:
    """What `artifact.json` says of the artifact in a folder.

    Raises OSError where it cannot be read or is no regular file, ValueError where it says something
    else.
    """
    record: dict[str, Any] = regular_files.json_of(folder / ABOUT)
    try:
        _About.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{where}: {first['msg']}") from None
    return record
