"""ONNX models brought to a newer opset, and held to what they computed before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.errors import StepError, first_line, raised_as
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import graphs, precision_of
from optcli.passes import Job

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto

# Largest difference allowed, as a fraction of the largest output. The same kernels compute both models;
# in half precision they round.
_TOLERANCE = 1e-4
_HALF_TOLERANCE = 5e-3

# Before this opset Resize (once Upsample) knew one way to find the pixel that a result comes from.
_RESIZE_OPSET = 11


def upgraded(model: ModelProto, opset: int, target: int, job: Job) -> ModelProto:
    """The model at the opset `target`; `opset` is the one that it has.

    Both are run on noise. Raises `StepError` where onnx cannot upgrade it, or changes what it computes.
    """
    from onnx import version_converter

    hint = f"export the model again with opset {target} or newer"
    try:
        converted = version_converter.convert_version(model, target)
    except Exception as error:
        raise StepError(
            f"the model has opset {opset}, wanted is {target}, and onnx cannot upgrade it: "
            f"{first_line(error)}",
            hint=hint,
        ) from error
    if opset < _RESIZE_OPSET <= target:
        _resize_as_before(converted)
    difference = _difference(model, converted, job)
    allowed = _TOLERANCE if precision_of(model) == "fp32" else _HALF_TOLERANCE
    if not difference <= allowed:
        raise StepError(
            f"the model has opset {opset}, wanted is {target}, and what onnx makes of it computes "
            f"something else: its outputs differ by {difference:.2g} of the largest",
            hint=hint,
        )
    return converted


def _resize_as_before(model: ModelProto) -> None:
    """Say how old models resized: onnx 1.23 leaves it out, and newer operators do it differently."""
    from onnx import helper

    before = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    for graph in graphs(model.graph):
        for node in graph.node:
            if node.op_type == "Resize":
                names = {attribute.name for attribute in node.attribute}
                node.attribute.extend(
                    helper.make_attribute(key, text) for key, text in before.items() if key not in names
                )


def _difference(before: ModelProto, after: ModelProto, job: Job) -> float:
    """Largest |difference| of any output, of its largest value; 0 where it cannot be found out.

    Models too large for one message are not compared, nor those that do not run on noise.
    """
    import numpy as np

    if onnx_format.is_large(before):
        return 0.0
    feed = noise(job)
    try:
        outputs_before = _outputs(before, feed, job.threads)
    except Exception:
        return 0.0
    hint = "export the model again with a newer opset"
    with raised_as(StepError, "the model does not run any more at a newer opset", hint=hint):
        outputs_after = _outputs(after, feed, job.threads)
    worst = 0.0
    for a, b in zip(outputs_before, outputs_after, strict=True):
        if not isinstance(a, np.ndarray) or a.dtype.kind not in "fiub" or not a.size:
            continue
        if a.shape != b.shape:
            return float("inf")
        reference, other = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(reference)
        if finite.any():
            scale = float(np.abs(reference[finite]).max()) or 1.0
            differs = float(np.abs(reference[finite] - other[finite]).max()) / scale
            worst = max(worst, differs if np.isfinite(differs) else np.inf)
    return worst


def noise(job: Job) -> dict[str, np.ndarray]:
    """Random numbers within the range of every input, at its usual batch size; whole ones are 0."""
    import numpy as np

    generator = np.random.default_rng(job.seed)
    feed: dict[str, np.ndarray] = {}
    for spec in job.inputs:
        shape = spec.concrete(spec.batch_range().opt)
        values = np.zeros(shape)
        if "float" in spec.dtype and spec.range is not None:
            values = generator.uniform(*spec.range, shape)
        elif "float" in spec.dtype:
            values = generator.standard_normal(shape)
        feed[spec.name] = values.astype(spec.dtype)
    return feed


def _outputs(model: ModelProto, feed: dict[str, np.ndarray], threads: int) -> list[np.ndarray]:

    return list(onnx_format.session(model.SerializeToString(), threads).run(None, feed))
