"""A build that measures and judges an engine: on the fake driver, in another interpreter.

Everything between the recipe and the report is real but TensorRT and the GPU.
"""

import json
import textwrap

import fake_tensorrt
import numpy as np
import pytest
from fake_driver import interpreter
from report_forms import text

from optcli import environment
from optcli.measure import latency
from optcli.models.engines import child
from optcli.results import Report

PASS = """\
import hashlib, json
from typing import ClassVar
from optcli.artifact import Artifact, Format
from optcli.models.engines import sidecar
from optcli.passes import Job, Made, Pass


class Engine(Pass):
    \"\"\"Writes what the fake TensorRT runs: twice the input.\"\"\"

    accepts: ClassVar[tuple[Format, ...]] = (Format.ONNX,)

    def produces(self, source: Format) -> Format:
        return Format.TENSORRT

    def run(self, source: Artifact, job: Job) -> Made:
        shape = [-1, 3, 4, 4]
        plan = json.dumps(
            {
                "tensors": [
                    {"name": "image", "mode": "INPUT", "shape": shape},
                    {"name": "twice", "mode": "OUTPUT", "shape": shape},
                ],
                "profiles": [{"image": [[1, 3, 4, 4], [2, 3, 4, 4], [4, 3, 4, 4]]}],
            }
        ).encode()
        (job.out / sidecar.PLAN).write_bytes(plan)
        about = sidecar.Sidecar(
            product="tensorrt",
            version="10.16.1.11",
            plan_sha256=hashlib.sha256(plan).hexdigest(),
            plan_bytes=len(plan),
            onnx_sha256="0" * 64,
            precision="fp16",
            gpu="Fake GPU 0",
            compute_capability="9.0",
        )
        sidecar.write(job.out, about)
        return Made("fp16")
"""
RECIPE = """\
version: 1
name: twice
model: {source: "onnx:model.onnx"}
inputs:
  - {name: image, dtype: float32, shape: [batch, 3, 4, 4], batch: {min: 1, opt: 2, max: 4}}
latency: {launches: 1, rounds: 2, calls: 2, warmup: 1, max_seconds: 1, threads: 1, batch_sizes: [1, 4]}
data:
  evaluation: {source: "imagefolder:images", prepare: {scale: 0.004}}
variants:
  plain: []
  engine: {passes: ["./engine.py:Engine"], runner: {name: tensorrt, python: "PYTHON"}}
"""


def write_twice(path):
    import onnx
    from onnx import TensorProto, helper

    shape = ["batch", 3, 4, 4]
    graph = helper.make_graph(
        [helper.make_node("Add", ["image", "image"], ["twice"])],
        "twice",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("twice", TensorProto.FLOAT, shape)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture
def built(project, tmp_path, fake_cuda, monkeypatch):
    monkeypatch.setattr(environment, "has_gpu", lambda: True)
    monkeypatch.delenv(child.PYTHON, raising=False)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    python = interpreter(elsewhere, fake_cuda)
    write_twice(project.folder / "model.onnx")
    (project.folder / "engine.py").write_text(textwrap.dedent(PASS))
    (project.folder / "recipe.yaml").write_text(RECIPE.replace("PYTHON", python))
    return project.build()


@pytest.mark.long
@pytest.mark.slow
def test_both_regions_are_measured_and_outputs_are_compared(built, project):
    engine = built.variants["engine"]
    assert engine.status == "built", engine.reason
    assert [(row.region, row.batch_size) for row in engine.latency] == [
        ("host", 1),
        ("host", 4),
        ("device", 1),
        ("device", 4),
    ]
    assert all(row.p50_ms.value == pytest.approx(fake_tensorrt.MS) for row in engine.latency[2:])
    assert all(row.peak_memory_bytes > 0 for row in engine.latency[:2])
    assert engine.accuracy.output_error.max_abs < 1e-6
    runner = engine.runner
    assert (runner["provider"], runner["version"]) == ("TensorRT", "10.16.1.11")
    assert (runner["cuda_graphs"], runner["profile"]) == ("on", 0)
    assert [row.region for row in built.variants["plain"].latency] == ["host", "host"]
    assert built.exit_code == 0

    folder = project.artifacts / "twice"
    again = Report.model_validate_json((folder / "report.json").read_text())
    assert again.variants["engine"].latency == engine.latency
    regions = [row["region"] for row in json.loads(again.to_json())["variants"]["engine"]["latency"]]
    assert regions == ["host", "host", "device", "device"]
    series = latency.load(folder / "samples.npz").series
    (kept,) = (each for each in series if (each.name, each.batch_size) == ("engine", 4))
    assert np.all(kept.device_ns == round(fake_tensorrt.MS * 1e6))
    assert "device ms" in text(built)

    cached = project.build()
    assert cached.variants["engine"].latency == engine.latency
    assert not project.measured
