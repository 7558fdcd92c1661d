"""ONNX Runtime and OpenVINO: copies in and out, settings read back, no silent fall-back."""

import numpy as np
import pytest
from needs import needs
from pydantic import ValidationError
from tiny_networks import INPUTS, apply, artifact, feed, torch_artifact

from optcli.artifact import Format
from optcli.errors import MissingError, RunnerError, StepError
from optcli.models.formats import openvino as openvino_format
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.to_openvino import ToOpenvino
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
RUNNERS = [OnnxruntimeRunner, OpenvinoRunner]
IMAGE = INPUTS["Conv"]


@pytest.fixture(scope="module")
def onnx(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return apply(
        ExportOnnx(exporter="torchscript"), torch_artifact(folder, "Conv"), folder / "onnx", IMAGE
    )


@pytest.mark.parametrize("kind", RUNNERS)
def test_outputs_are_copies(onnx, kind):
    values = feed(IMAGE, 2)
    with kind(threads=1).open(onnx, IMAGE) as model:
        first = model.run(values)["output"]
        kept = first.copy()
        values["image"][:] = 0
        assert not np.array_equal(model.run(values)["output"], kept)
        assert np.array_equal(first, kept)


def test_openvino_has_its_own_copy_of_inputs(onnx):
    values = feed(IMAGE, 2)
    with OpenvinoRunner(threads=1).open(onnx, IMAGE) as model:
        kept = model.run(values)["output"]
        values["image"][:] = 0  # what was bound stays bound
        model.execute()
        assert np.array_equal(model.fetch()["output"], kept)


@pytest.mark.parametrize("kind", RUNNERS)
def test_batch_sizes_may_change_between_calls(onnx, kind):
    with kind(threads=1).open(onnx, IMAGE) as model:
        single = model.run(feed(IMAGE, 1))["output"]
        for size in (4, 1, 12, 4):
            values = feed(IMAGE, size, seed=size)
            assert model.run(values)["output"].shape == (size, 5)
        assert np.allclose(model.run(feed(IMAGE, 1))["output"], single, atol=1e-6)


@pytest.mark.parametrize("kind", RUNNERS)
def test_arrays_that_do_not_lie_in_one_piece_are_taken(onnx, kind):
    whole = feed(IMAGE, 2)["image"]
    turned = np.asfortranarray(whole)
    with kind(threads=1).open(onnx, IMAGE) as model:
        wanted = model.run({"image": whole})["output"]
        assert np.array_equal(model.run({"image": turned})["output"], wanted)


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_wrong_shape_is_a_runner_error(onnx, kind):
    with kind(threads=1).open(onnx, IMAGE) as model, pytest.raises(RunnerError):
        model.run({"image": np.ones((1, 4, 16, 16), np.float32)})


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_file_that_is_no_model_is_a_runner_error(tmp_path, kind):
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(RunnerError, match="cannot load"):
        kind(threads=1).open(artifact(tmp_path, Format.ONNX), IMAGE)


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_closed_runner_says_so(onnx, kind):
    model = kind(threads=1).open(onnx, IMAGE)
    model.close()
    with pytest.raises(RunnerError, match="no model"):
        model.execute()


def test_onnx_runtime_reads_its_settings_back(onnx):
    with OnnxruntimeRunner(threads=2, optimization_level="basic").open(onnx, IMAGE) as model:
        found = model.effective()
    assert found["provider"] == "CPUExecutionProvider"
    assert (found["precision"], found["threads"], found["optimization_level"]) == ("fp32", 2, "basic")
    assert found["version"]


def test_a_provider_that_is_not_there_is_an_error_not_a_fall_back(onnx):
    needs("no gpu")
    with pytest.raises((MissingError, RunnerError), match="provider cuda") as failure:
        OnnxruntimeRunner(provider="cuda").open(onnx, IMAGE)
    assert failure.value.hint


def test_openvino_computes_in_fp32_unless_told_otherwise(onnx):
    with OpenvinoRunner(threads=1).open(onnx, IMAGE) as model:
        found = model.effective()
    assert (found["precision"], found["provider"], found["hint"]) == ("fp32", "CPU", "latency")
    assert (found["threads"], found["streams"]) == (1, 1)


@pytest.mark.parametrize("device", ["AUTO", "AUTO:CPU"])
def test_openvino_says_which_device_computes(onnx, device):
    with OpenvinoRunner(threads=1, device=device).open(onnx, IMAGE) as model:
        said = model.effective()
        answers = model.run(feed(IMAGE, 2))
    assert (said["provider"], said["precision"], said["threads"]) == ("CPU", "fp32", 1)
    assert said["device"]
    with OpenvinoRunner(threads=1).open(onnx, IMAGE) as model:
        np.testing.assert_allclose(answers["output"], model.run(feed(IMAGE, 2))["output"], rtol=1e-4)


@pytest.mark.parametrize("device", ["GPU.7", "NPU", "AUTO:NPU,CPU"])
def test_openvino_refuses_a_device_that_is_not_there_with_those_that_are(onnx, device, monkeypatch):
    core = openvino_format.core()

    class Present:
        available_devices = ("CPU", "GPU.0")

        def __getattr__(self, name):
            return getattr(core, name)

    monkeypatch.setattr(openvino_format, "core", Present)
    with pytest.raises(MissingError, match=r"no device (GPU\.7|NPU) here, only CPU, GPU\.0"):
        OpenvinoRunner(device=device).open(onnx, IMAGE)


@pytest.mark.parametrize("device", ["cpu", "GPU.x", "TPU", "AUTO:"])
def test_a_device_that_openvino_has_no_name_for_is_refused_in_the_recipe(device):
    with pytest.raises(ValidationError):
        OpenvinoRunner(device=device)


def test_openvino_in_bfloat16_is_another_computation_and_said(onnx):
    from optcli.environment import cpu

    if "avx512_bf16" not in cpu()["flags"]:
        with pytest.raises(RunnerError, match="wanted bf16"):
            OpenvinoRunner(precision="bf16", threads=1).open(onnx, IMAGE)
        return
    values = feed(IMAGE, 2)
    with (
        OpenvinoRunner(precision="bf16", threads=1).open(onnx, IMAGE) as model,
        OpenvinoRunner(threads=1).open(onnx, IMAGE) as exact,
    ):
        assert model.effective()["precision"] == "bf16"
        assert not np.array_equal(model.run(values)["output"], exact.run(values)["output"])


def test_openvino_can_be_asked_for_throughput(onnx):
    with OpenvinoRunner(hint="throughput", streams=2, threads=2).open(onnx, IMAGE) as model:
        found = model.effective()
        assert (found["hint"], found["streams"]) == ("throughput", 2)
        assert model.run(feed(IMAGE, 3))["output"].shape == (3, 5)


@pytest.mark.parametrize("pinned", [True, False])
def test_openvino_pins_threads_unless_told_otherwise(onnx, pinned):
    with OpenvinoRunner(threads=1, pin_threads=pinned).open(onnx, IMAGE) as model:
        assert model._usual.compiled.get_property("ENABLE_CPU_PINNING") is pinned


def test_openvino_says_what_to_do_about_operators_of_onnx_runtime(tmp_path):
    from onnx import TensorProto, helper, save

    x = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 16, 16])
    y = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", 3, 16, 16])
    node = helper.make_node("Inverse", ["image"], ["output"], domain="com.microsoft")
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "own", [x], [y])
    save(helper.make_model(graph, opset_imports=domains, ir_version=8), tmp_path / "model.onnx")
    made = artifact(tmp_path, Format.ONNX)
    OnnxruntimeRunner(threads=1).open(made, IMAGE).close()
    with pytest.raises(RunnerError, match="Inverse") as found:
        OpenvinoRunner(threads=1).open(made, IMAGE)
    assert "set `runner: onnxruntime`" in found.value.hint
    assert "model: No conversion rule" in found.value.message
    with pytest.raises(StepError) as refused:
        apply(ToOpenvino(), made, tmp_path / "made", IMAGE)
    assert refused.value.hint == found.value.hint


@pytest.mark.parametrize("batch", [1, "batch"])
def test_outputs_whose_rows_are_no_batch_are_known_by_the_file(tmp_path, batch):
    """A detector of one image gives as many rows as it finds; `one` has a row for the image."""
    from onnx import TensorProto, helper, save

    size = [batch, 3]
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["found"]),
        helper.make_node("Relu", ["x"], ["one"]),
    ]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [
            helper.make_tensor_value_info("found", TensorProto.INT64, ["n", 2]),
            helper.make_tensor_value_info("one", TensorProto.FLOAT, size),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, tmp_path / "model.onnx")
    spec = TensorSpec(name="x", shape=(1, 3))
    onnx = artifact(tmp_path, Format.ONNX)
    openvino = apply(ToOpenvino(), onnx, tmp_path / "openvino", (spec,))
    for kind, each in ((OnnxruntimeRunner, onnx), (OpenvinoRunner, openvino)):
        with kind(threads=1).open(each, (spec,)) as runner:
            # The conversion fixes the batch; in the ONNX file `n` may be another name for it.
            unknown = kind is OnnxruntimeRunner and batch == "batch"
            assert runner.without_batch() == (set() if unknown else {"found"})
            outputs = runner.run({"x": np.array([[0.0, 2.0, 3.0]], np.float32)})
            assert outputs["found"].tolist() == [[0, 1], [0, 2]]
