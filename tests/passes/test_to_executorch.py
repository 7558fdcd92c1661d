"""ExecuTorch: a network as it is, and quantized for XNNPACK, in the runtime of phones."""

import subprocess
import sys
from dataclasses import replace

import pytest
from tiny_networks import Noise, apply, feed, job, largest_error, reference, sqnr_db, torch_artifact

from optcli.artifact import RUINED_LAYERS, Format
from optcli.errors import InputError, RunnerError, StepError
from optcli.models.formats import executorch as executorch_format
from optcli.models.sources.executorch import ExecutorchSource
from optcli.passes.quantize_pt2e import QuantizePt2e
from optcli.passes.to_executorch import ToExecutorch
from optcli.runners.executorch import ExecutorchRunner
from optcli.runners.torch import TorchRunner
from optcli.scaffold.inspection import executorch as inspection
from optcli.settings import TensorSpec

pytestmark = pytest.mark.long
# Where a range is lost it ends at 15.
IMAGE = (TensorSpec(name="image", shape=("batch", 3, 16, 16), ranges={"batch": {"max": 40, "opt": 4}}),)


@pytest.fixture(scope="module")
def conv(tmp_path_factory):
    return torch_artifact(tmp_path_factory.mktemp("conv"), "Conv")


@pytest.fixture(scope="module")
def lowered(conv, tmp_path_factory):
    return apply(ToExecutorch(), conv, tmp_path_factory.mktemp("pte") / "made", IMAGE)


def test_it_computes_what_the_network_does_at_every_batch_size_of_the_recipe(conv, lowered):
    assert lowered.format == Format.EXECUTORCH
    assert largest_error(ExecutorchRunner(threads=1), lowered, conv, IMAGE, (1, 2, 4, 40)) < 1e-5
    with ExecutorchRunner(threads=1).open(lowered, IMAGE) as model:
        said = model.effective()
        with pytest.raises(RunnerError, match="ExecuTorch failed"):
            model.run(feed(IMAGE, 41))
    assert (said["provider"], said["threads"], said["precision"]) == ("XnnpackBackend", 1, "fp32")


def test_a_softmax_by_rows_behind_a_convolution_is_right(tmp_path):
    """XNNPACK has channels last there, and took it over the channels."""
    network = torch_artifact(tmp_path, "Rows")
    made = apply(ToExecutorch(), network, tmp_path / "made", IMAGE)
    assert largest_error(ExecutorchRunner(threads=1), made, network, IMAGE, (1, 3)) < 1e-5
    assert not [name for name in made.facts["outside_the_backend"] if "softmax" in name]


def test_what_runs_outside_of_the_backend_is_named(lowered, conv, tmp_path):
    assert lowered.facts["delegates"] >= 1
    assert not [name for name in lowered.facts["outside_the_backend"] if "convolution" in name]
    plain = apply(ToExecutorch(backend="portable"), conv, tmp_path / "plain", IMAGE)
    assert plain.facts["delegates"] == 0
    assert "second" in plain.facts["outside_the_backend"]["aten.convolution"]
    found = inspection.look(lowered.path, IMAGE)
    assert [each["shape"] for each in found["inputs"]] == [["batch", 3, 16, 16]]
    assert found["facts"]["bounds"] == {"batch": [1, 40]}
    kinds = {each["type"]: each["precision"] for each in found["operators"]}
    assert kinds["XnnpackBackend"] == "backend"


def test_int8_for_xnnpack_runs_on_integers(conv, tmp_path):
    quantized = apply(
        QuantizePt2e(quantizer="xnnpack"), conv, tmp_path / "int8", IMAGE, calibration=Noise(IMAGE)
    )
    made = apply(ToExecutorch(), quantized, tmp_path / "pte", IMAGE)
    assert made.precision == "int8"
    assert not [name for name in made.facts["outside_the_backend"] if "convolution" in name]
    values = feed(IMAGE, 4, seed=99)
    with ExecutorchRunner(threads=1).open(made, IMAGE) as model:
        answers = model.run(values)["output"]
    assert sqnr_db(reference(conv, IMAGE, values)["output"], answers) > 25


def test_what_is_quantized_for_other_kernels_is_refused(conv, tmp_path):
    other = replace(conv, facts={**conv.facts, "quantizer": "x86"})
    with pytest.raises(StepError, match="quantized for the x86 kernels of Inductor") as refused:
        ToExecutorch().run(other, job(other, tmp_path / "out", IMAGE))
    assert "quantizer: xnnpack" in refused.value.hint


def test_a_program_is_opened_without_what_exports_and_compiles_programs(lowered):
    program = (
        "import sys; from pathlib import Path; from optcli.models.formats import executorch as format\n"
        f"format.open(Path({str(lowered.path)!r}))\n"
        "print({'executorch.exir', 'torch._inductor', 'torch._dynamo'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("cut", [0, 30, 200, 3000])
def test_a_damaged_file_is_refused(lowered, tmp_path, cut):
    content = (lowered.path / executorch_format.FILE).read_bytes()
    (tmp_path / executorch_format.FILE).write_bytes(content[:cut])
    with pytest.raises(InputError, match="ExecuTorch cannot load the program"):
        executorch_format.open(tmp_path)


def test_a_file_of_its_own_is_measured_as_it_is(lowered, tmp_path):
    source = ExecutorchSource(target=str(lowered.path / executorch_format.FILE), folder=tmp_path)
    (tmp_path / "out").mkdir()
    written = source.write(tmp_path / "out", IMAGE)
    assert written.outputs == ("output_0",)
    wrong = TensorSpec(name="image", shape=("batch", 3, 16, 20), ranges=IMAGE[0].ranges)
    with pytest.raises(InputError, match="dimension 3 of image is 16 in the file, 20 in the recipe"):
        source.write(tmp_path / "out", (wrong,))
    one = TensorSpec(name="image", shape=(1, 3, 16, 16))
    assert source.write(tmp_path / "out", (one,)).outputs == ("output_0",)


@pytest.mark.parametrize("kind", ["xnnpack", "x86"])
def test_a_layer_that_integers_would_ruin_computes_in_floats(kind, tmp_path):
    """One channel of the stem is 300 times as large as the others of what a depthwise layer reads."""
    network = torch_artifact(tmp_path, "Loud")
    values, runner, decibels = feed(IMAGE, 4, seed=99), TorchRunner(threads=1), {}
    for limit in (None, 20.0):
        quantize = QuantizePt2e(quantizer=kind, least_layer_sqnr=limit)
        made = apply(quantize, network, tmp_path / str(limit), IMAGE, calibration=Noise(IMAGE))
        assert list(made.facts[RUINED_LAYERS]) == (["depthwise"] if limit else [])
        assert made.facts["quantized_operators"] == {"conv2d": 2 if limit else 4}
        if limit and kind == "xnnpack":
            made = apply(ToExecutorch(), made, tmp_path / "pte", IMAGE)
            assert not [name for name in made.facts["outside_the_backend"] if "convolution" in name]
            runner = ExecutorchRunner(threads=1)
        with runner.open(made, IMAGE) as model:
            output = model.run(values)["output"]
        decibels[limit] = sqnr_db(reference(network, IMAGE, values)["output"], output)
    assert decibels[20.0] > 25 > 15 > decibels[None], decibels


def test_where_no_layer_is_left_the_layers_are_named(conv, tmp_path):
    strict = QuantizePt2e(quantizer="xnnpack", least_layer_sqnr=200.0)
    with pytest.raises(StepError, match=r"no layer is left to quantize.*second \("):
        apply(strict, conv, tmp_path / "int8", IMAGE, calibration=Noise(IMAGE))
