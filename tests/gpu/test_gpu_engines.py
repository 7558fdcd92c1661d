"""Engines on a real GPU: right outputs, right times, in every way they can be run.

With TensorRT where this interpreter or OPTCLI_TENSORRT_PYTHON's has it, and with TensorRT-RTX.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from needs import needs

from optcli import runners
from optcli.artifact import Artifact, Format
from optcli.errors import RunnerError
from optcli.measure.latency import process
from optcli.measure.latency.messages import Command, MeasureRequest
from optcli.models.engines import child, driver, sidecar
from optcli.models.engines.job import EngineJob
from optcli.settings import TensorSpec

pytestmark = pytest.mark.gpu

SIDE = 32
SPEC = TensorSpec(name="image", shape=("batch", 3, SIDE, SIDE), batch={"min": 1, "opt": 4, "max": 16})
RNG = np.random.default_rng(0)


@pytest.fixture(params=["tensorrt", "tensorrt_rtx"])
def product(request):
    """A product that can be used here; skips with what is missing."""
    needs("gpu")
    needs("tensorrt", request.param)
    if request.param == "tensorrt_rtx":
        needs("tensorrt-rtx for this gpu")
    return request.param


@pytest.fixture
def built(product, tmp_path):
    """`built(model, *spans)`: an engine of an ONNX model as an artifact, a profile for each span."""

    def build(model: Path, *spans: tuple[int, int, int]) -> Artifact:
        folder = tmp_path / f"engine-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        wanted = [
            {
                "image": {
                    edge: [size, *SPEC.concrete(1)[1:]]
                    for edge, size in zip(("min", "opt", "max"), span, strict=True)
                }
            }
            for span in spans
        ]
        python = child.interpreter(product)
        here = child.run("optcli.models.engines.bindings:describe", {"product": product}, python=python)
        job = EngineJob(
            product,
            str(model),
            str(folder / sidecar.PLAN),
            profiles=wanted,
            strongly_typed=here["strong_typing"],
            flags={"TF32": False},
        )
        made = child.run("optcli.models.engines.building:build", asdict(job), python=python)
        device = made["device"]
        about = sidecar.Sidecar(
            product=product,
            version=made["version"],
            plan_sha256=sidecar.sha256_of(folder / sidecar.PLAN),
            plan_bytes=made["plan_bytes"],
            onnx_sha256=sidecar.sha256_of(model),
            precision="fp32",
            gpu=device["name"],
            compute_capability=device["compute_capability"],
            profiles=tuple(wanted),
        )
        sidecar.write(folder, about)
        return Artifact("k", Format(product), folder, "fp32", made["plan_bytes"], "d")

    return build


@pytest.fixture(scope="session")
def classifier(tmp_path_factory):
    """Three convolutions and a classifier, seeded, for a batch of any size."""
    from onnx import helper

    rng = np.random.default_rng(1)
    nodes, weights, before, channels = [], [], "image", 3
    for index, wide in enumerate((16, 32, 32)):
        nodes += [
            helper.make_node(
                "Conv", [before, f"w{index}"], [f"c{index}"], pads=[1, 1, 1, 1], strides=[2, 2]
            ),
            helper.make_node("Relu", [f"c{index}"], [f"r{index}"]),
        ]
        scale = (9 * channels) ** -0.5
        weights.append((f"w{index}", scale * rng.standard_normal((wide, channels, 3, 3))))
        before, channels = f"r{index}", wide
    nodes += [
        helper.make_node("GlobalAveragePool", [before], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["logits"]),
    ]
    weights.append(("head", rng.standard_normal((channels, 10))))
    return _saved(tmp_path_factory.mktemp("onnx"), nodes, weights, ["batch", 10])


@pytest.fixture(scope="session")
def chooser(tmp_path_factory):
    """Where its input is positive: how many places that are depends on the values."""
    from onnx import helper

    nodes = [
        helper.make_node("Relu", ["image"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["logits"]),
    ]
    return _saved(tmp_path_factory.mktemp("onnx"), nodes, [], [4, "count"], whole=True)


def _saved(folder, nodes, weights, shape, *, whole=False):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    kind = TensorProto.INT64 if whole else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", kind, shape)],
        [numpy_helper.from_array(np.float32(values), name) for name, values in weights],
    )
    # What TensorRT 8.6 reads, too.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def images(batch):
    return RNG.standard_normal((batch, 3, SIDE, SIDE)).astype("float32")


def wanted(model, image):
    """What ONNX Runtime computes on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(None, {"image": image})[0]


def opened(artifact, **options):
    return runners.find(artifact.format.value)(**options).open(artifact, (SPEC,))


@pytest.mark.parametrize("cuda_graphs", ["on", "off"])
def test_outputs_are_those_of_onnx_runtime(built, classifier, cuda_graphs):
    with opened(built(classifier, (1, 4, 16)), cuda_graphs=cuda_graphs) as runner:
        for batch in (1, 4, 4, 16, 2):
            image = images(batch)
            found = runner.run({"image": image})["logits"]
            assert np.allclose(found, wanted(classifier, image), rtol=1e-3, atol=1e-4)


def test_graphs_change_no_bit(built, classifier):
    artifact, image = built(classifier, (1, 4, 16)), images(4)
    found = {}
    for cuda_graphs in ("on", "off"):
        with opened(artifact, cuda_graphs=cuda_graphs) as runner:
            found[cuda_graphs] = [runner.run({"image": image})["logits"] for _ in range(3)]
            state = runner.observed()["cuda_graphs"]
            assert state.startswith(cuda_graphs)
    assert all(np.array_equal(each, found["off"][0]) for each in found["on"] + found["off"])


def test_the_device_is_never_busier_than_the_call_is_long(built, classifier):
    artifact = built(classifier, (1, 4, 16))
    measuring = process.MeasuringProcess(
        MeasureRequest(
            artifact=artifact,
            inputs=(SPEC,),
            runner=artifact.format.value,
            options={},
            feeds=None,
            batch_sizes=(1, 16),
            seed=0,
        )
    )
    try:
        measuring.answer(Command("open"))
        for size in (1, 16):
            measuring.answer(Command("warm", size, 20, 60.0))
            timed = measuring.answer(Command("round", size, 50, lead_in=2))
            pairs = zip(timed.device_ns, timed.ns, strict=True)
            assert all(0 < on_device <= whole for on_device, whole in pairs)
    finally:
        measuring.close()


def test_shapes_outside_the_profile_are_named(built, classifier):
    with opened(built(classifier, (1, 4, 16))) as runner:
        with pytest.raises(RunnerError, match=r"profile 0 takes \[1, 3, 32, 32\] to \[16, 3, 32, 32\]"):
            runner.run({"image": images(17)})
        image = images(3)  # and it goes on
        found = runner.run({"image": image})["logits"]
        assert np.allclose(found, wanted(classifier, image), rtol=1e-3, atol=1e-4)


def test_several_profiles(built, classifier):
    with opened(built(classifier, (1, 1, 2), (4, 8, 16))) as runner:
        for batch, profile in ((1, 0), (16, 1), (8, 1), (2, 0)):
            image = images(batch)
            found = runner.run({"image": image})["logits"]
            assert np.allclose(found, wanted(classifier, image), rtol=1e-3, atol=1e-4)
            assert runner.observed()["profile"] == profile


def test_outputs_whose_size_depends_on_the_data(built, chooser):
    with opened(built(chooser, (1, 1, 2))) as runner:
        for batch in (1, 2, 2):
            image = images(batch)
            assert np.array_equal(runner.run({"image": image})["logits"], wanted(chooser, image))
        empty = runner.run({"image": -np.ones((1, 3, SIDE, SIDE), "float32")})["logits"]
        assert empty.shape[-1] == 0


@pytest.mark.parametrize("product", ["tensorrt"], indirect=True)  # only it is run in other interpreters
def test_another_process_computes_the_same(built, classifier, product):
    artifact, image = built(classifier, (1, 4, 16)), images(4)
    with opened(artifact, python=child.interpreter(product) or sys.executable) as runner:
        for _ in range(3):
            found = runner.run({"image": image})["logits"]
        assert np.allclose(found, wanted(classifier, image), rtol=1e-3, atol=1e-4)
        assert runner.host_ns() / 1e6 >= runner.device_ms() > 0


def test_the_driver_describes_the_gpu(product):
    device = driver.devices()[0]
    assert device.name
    assert float(device.compute_capability) >= 5
    assert device.memory_bytes > 2**30
