"""Variants of small networks, as a build would have left them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from optcli.artifact import Artifact, Format
from optcli.pipeline.model_files.built_variant import BuiltVariant, Samples
from optcli.results import ArtifactSummary
from optcli.runners import DEFAULTS, find
from optcli.settings import TensorSpec

IMAGE = {"name": "image", "shape": ("batch", 3, 4, 4), "batch": {"min": 1, "opt": 2, "max": 8}}


def onnx_model(
    folder: Path,
    inputs: dict[str, list[int | str]],
    dtype: str = "FLOAT",
    output: str = "logits",
) -> None:
    """A network that adds up each row of every input: `[batch]` rows of one value."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    folder.mkdir(parents=True, exist_ok=True)
    kind = getattr(TensorProto, dtype)
    rows = next(iter(inputs.values()))[0]
    shape = numpy_helper.from_array(np.array([0, -1], np.int64), "flat_shape")
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    nodes, sums = [], []
    for name in inputs:
        nodes.append(helper.make_node("Reshape", [name, "flat_shape"], [f"{name}_flat"]))
        nodes.append(helper.make_node("ReduceSum", [f"{name}_flat", "axes"], [f"{name}_sum"]))
        sums.append(f"{name}_sum")
    nodes.append(helper.make_node("Sum" if dtype == "FLOAT" else "Identity", sums, [output]))
    graph = helper.make_graph(
        nodes,
        "sums",
        [helper.make_tensor_value_info(name, kind, size) for name, size in inputs.items()],
        [helper.make_tensor_value_info(output, kind, [rows, 1])],
        [shape, axes],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, folder / "model.onnx")


def variant(
    folder: Path, format: Format, *specs: dict, runner: dict | None = None, **facts
) -> BuiltVariant:
    options = {"threads": 1, **(runner or {})}
    name = options.pop("name", DEFAULTS[format])
    artifact = Artifact("key", format, folder, facts.pop("precision", "fp32"), 1, "digest", facts)
    return BuiltVariant(
        name="small",
        summary=ArtifactSummary(
            key="key",
            format=format.value,
            path="small",
            precision="fp32",
            size_bytes=1,
            digest="digest",
        ),
        artifact=artifact,
        inputs=tuple(TensorSpec.model_validate(spec) for spec in specs),
        runner=find(name).model_validate(options),
        runner_name=name,
        options=options,
        effective={"name": name, "threads": 1, "version": "1.0"},
        samples=Samples(),
    )
