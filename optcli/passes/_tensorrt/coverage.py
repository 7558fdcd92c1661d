"""Checks of an engine's model where no engine can be built, among them TensorRT's parser."""

from __future__ import annotations

import importlib.util
import io
import tempfile
from pathlib import Path
from typing import Any

from optcli.artifact import Artifact
from optcli.errors import StepError
from optcli.models.engines import EngineError, child, coverage, driver, profiles
from optcli.models.engines.process import JobChannel
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.interface import input_shapes
from optcli.passes import Job
from optcli.passes._tensorrt.precision import EnginePrecision, Keep, prepare
from optcli.passes._tensorrt.profiles import Wish, profiles_of

_LISTED = 3
_TIMEOUT_S = 300.0


def checked(
    source: Artifact, job: Job, precision: EnginePrecision, keep: Keep, wish: Wish
) -> tuple[str, ...]:
    """Findings on an engine before it is built, a sentence each.

    They are on its profiles, on the model in its precision and quantization, and on the nodes that a
    parser takes. A finding that would fail the build begins with "it would fail".
    """
    findings = [_profiles(source, job, wish)]
    with tempfile.TemporaryDirectory(dir=job.beside, prefix="check-") as folder:
        try:
            prepared = prepare(
                source.path,
                Path(folder),
                precision=precision,
                keep=keep,
                strongly_typed=True,
                product="TensorRT",
                job=job,
            )
        except StepError as error:
            findings.append(
                f"it would fail: {error.message}" + (f" ({error.hint})" if error.hint else "")
            )
        else:
            findings.append(prepared.facts["expectation"])
            findings.append(parsed(Path(folder), parser_here()))
    return tuple(findings)


def _profiles(source: Artifact, job: Job, wish: Wish) -> str:
    shapes = input_shapes(onnx_format.outline(source.path))
    inputs = [{"name": name, "shape": list(shape)} for name, shape in shapes.items()]
    try:
        asked = profiles_of(wish, job)
        profiles.check(asked, inputs, job.batch_sizes)
    except (StepError, EngineError) as error:
        return f"it would fail: {error.message}" + (f" ({error.hint})" if error.hint else "")
    return "its optimization profile fits" if len(asked) == 1 else f"its {len(asked)} profiles fit"


def parser_here() -> str | None:
    """The product whose parser works here: TensorRT with a driver, TensorRT-RTX with none; or None."""
    if driver.present() and importlib.util.find_spec("tensorrt") is not None:
        return "tensorrt"
    return "tensorrt_rtx" if importlib.util.find_spec("tensorrt_rtx") is not None else None


def parsed(source: Path, product: str | None) -> str:
    """Which nodes of the model the product's parser takes, as a sentence."""
    if product is None:
        return (
            "operators are not checked: no TensorRT whose parser works here is installed (install the "
            "extra trt-rtx)"
        )
    outline = onnx_format.outline(source)
    nodes = [[node.name, node.op_type] for node in outline.graph.node]
    job = {"product": product, "onnx": str(source / onnx_format.FILE), "nodes": nodes}
    try:
        covered = _covered(job, child.interpreter(product))
    except EngineError as error:
        return f"operators are not checked: {error.message}"
    refused = covered["refused"]
    parser = f"{covered['parser']}'s parser"
    if not refused:
        return f"{parser} takes all {len(nodes)} nodes"
    listed = "; ".join(
        f"{node['operator']} {node['node']!r}: {node['why']}" for node in refused[:_LISTED]
    )
    more = f"; and {len(refused) - _LISTED} more" if len(refused) > _LISTED else ""
    return (
        f"{parser} does not take {listed}{more}; the model has {len(nodes)} nodes, and those behind "
        "were not checked"
    )


def _covered(job: dict[str, Any], python: str | None) -> dict[str, Any]:
    """What the parser takes, asked in a process of its own. Raises `EngineError`.

    A confined worker cannot start one. It is such a process itself, and asks by itself.
    """
    try:
        answer = child.run(
            "optcli.models.engines.coverage:job", job, python=python, timeout_s=_TIMEOUT_S
        )
    except EngineError as error:
        if python is not None or not isinstance(error.__cause__, PermissionError):
            raise
        return coverage.job(job, JobChannel(io.StringIO()))
    return dict(answer)
