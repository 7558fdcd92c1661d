"""Cleaner ONNX graphs, and ONNX Runtime's optimizations done ahead of time."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, raised_as
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import ort as ort_format
from optcli.models.onnx_graphs.protobuf import precision_of
from optcli.passes import Job, Made, Pass
from optcli.passes._onnx.models import modern

if TYPE_CHECKING:
    from onnx import ModelProto

Level = Literal["none", "basic", "extended", "all"]
_LEVELS = {"basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "all": "ORT_ENABLE_ALL"}

# A flatbuffer cannot be larger than 2 GiB.
_ORT_BYTES = 2_000_000_000


class OptimizeOnnx(Pass):
    """Simplifies an ONNX graph and, on request, saves ONNX Runtime's optimizations with it.

    onnxslim folds constants and takes needless operators out. `to: ort` writes ONNX Runtime's own
    format, optimized for this machine's CPU: it loads faster, and runs in ONNX Runtime only.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.ONNX,)
    needs: ClassVar[Needs] = Needs(("onnx", "onnxruntime", "onnxslim"))
    tolerance: ClassVar[float | None] = 1e-4
    device_bound: ClassVar[bool] = True

    to: Literal["onnx", "ort"] = Field("onnx", description="the format to write")
    simplify: bool = Field(True, description="fold constants and drop needless operators, by onnxslim")
    level: Level | None = Field(
        None,
        description="ONNX Runtime's optimizations to save: `basic` stays plain ONNX; `extended` fuses "
        "into operators of its own; `all` also lays data out for this CPU; default: `none` for onnx, "
        "`all` for ort",
    )

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.to == "ort" and self.level == "none":
            raise ValueError("`to: ort` saves ONNX Runtime's optimizations: `level: none` has none")
        if self.to == "onnx" and not self.simplify and self.level in (None, "none"):
            raise ValueError("`simplify: false` leaves nothing to do: set `level: basic`")
        return self

    def produces(self, source: Format) -> Format:
        return Format.ORT if self.to == "ort" else Format.ONNX

    def run(self, source: Artifact, job: Job) -> Made:
        model = modern(onnx_format.open(source.path), 7, job, "older ones cannot be read")
        before = Counter(node.op_type for node in model.graph.node)
        if self.simplify:
            job.progress(None, "simplifying")
            model = _slim(model)
        level = self.level or ("all" if self.to == "ort" else "none")
        if level != "none" and precision_of(model) == "bf16":
            raise StepError(
                "ONNX Runtime has no bfloat16 on the CPU: it cannot optimize this model",
                hint="leave out `level:` and `to: ort`, or put optimize_onnx before convert_precision",
            )
        if level == "none":
            onnx_format.save(model, job.out)
        else:
            job.progress(None, "optimizing in ONNX Runtime")
            _optimize(model, level, self.to, job)
        facts: dict[str, Any] = {
            "simplified": self.simplify,
            "optimization_level": level,
            "operators_before": sum(before.values()),
        }
        if self.to == "ort":
            kinds = ort_format.operators(job.out)
            facts["operator_types"] = sorted(kinds)
        else:
            after = Counter(node.op_type for node in onnx_format.outline(job.out).graph.node)
            facts["operators_after"] = sum(after.values())
            facts["removed"] = dict(sorted((before - after).items()))
            kinds = {
                f"{node.domain}::{node.op_type}"
                for node in onnx_format.outline(job.out).graph.node
                if node.domain not in ("", "ai.onnx")
            }
        own = sorted(kind for kind in kinds if "::" in kind)
        facts["runs_in_onnxruntime_only"] = bool(own) or self.to == "ort"
        facts["hardware_specific"] = any("nchwc" in kind for kind in own)
        return Made(facts=facts)


def _slim(model: ModelProto) -> ModelProto:
    import onnxslim

    with (
        raised_as(StepError, "onnxslim failed", hint="set `simplify: false` and a `level:`"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        slim = onnxslim.slim(model)
    assert slim is not None
    return slim


def _optimize(model: ModelProto, level: str, to: str, job: Job) -> None:
    import onnxruntime

    if to == "ort" and model.ByteSize() > _ORT_BYTES:
        raise StepError(
            f"the model has {model.ByteSize() / 1e9:.1f} GB, the format ort holds 2 GB",
            hint="set `to: onnx`",
        )
    with tempfile.TemporaryDirectory(dir=job.work_folder) as folder:
        onnx_format.save(model, Path(folder))
        file = ort_format.FILE if to == "ort" else onnx_format.FILE
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job.threads
        options.log_severity_level = 3
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, _LEVELS[level])
        options.optimized_model_filepath = os.fspath(job.out / file)
        if to == "ort":
            options.add_session_config_entry("session.save_model_format", "ORT")
        elif (Path(folder) / onnx_format.DATA).exists():
            name = "session.optimized_model_external_initializers_file_name"
            options.add_session_config_entry(name, onnx_format.DATA)
        hint = "set a lower `level:`, or look into the log"
        with raised_as(StepError, "ONNX Runtime cannot optimize the model", hint=hint):
            onnxruntime.InferenceSession(
                os.fspath(Path(folder) / onnx_format.FILE), options, providers=["CPUExecutionProvider"]
            )
