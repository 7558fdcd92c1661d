"""PT2E: integers where they belong, close to FP32, and compiled to integer kernels by AOTInductor."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from pydantic import ValidationError
from tiny_networks import INPUTS, Noise, apply, feed, job, sqnr_db, torch_artifact

from optcli import environment
from optcli.errors import StepError
from optcli.models.formats import exported as exported_format
from optcli.passes.aot_inductor import AotInductor
from optcli.passes.export import Export
from optcli.passes.quantize_pt2e import QuantizePt2e
from optcli.pipeline import check
from optcli.runners.aoti import AotiRunner
from optcli.runners.torch import TorchRunner

pytestmark = pytest.mark.slow
IMAGE = INPUTS["Conv"]


@pytest.fixture(scope="module")
def conv(tmp_path_factory):
    return torch_artifact(tmp_path_factory.mktemp("conv"), "Conv")


@pytest.fixture(scope="module")
def quantized(conv, tmp_path_factory):
    return quantize(conv, tmp_path_factory.mktemp("int8") / "made")


def quantize(source, out, inputs=IMAGE, **options):
    more = {} if options.get("dynamic") else {"calibration": Noise(inputs)}
    return apply(QuantizePt2e(**{"strict": True, **options}), source, out, inputs, **more)


def output(runner, artifact, values, inputs=IMAGE):
    with runner.open(artifact, inputs) as model:
        return next(iter(model.run(values).values()))


@pytest.mark.long
def test_aot_inductor_computes_all_of_it_on_integers(conv, quantized, tmp_path):
    assert quantized.precision == "int8"
    assert quantized.facts["quantized_operators"] == {"conv2d": 4, "linear": 1}
    assert quantized.facts["calibration_samples"] == 8
    package = apply(AotInductor(), quantized, tmp_path / "aoti", IMAGE)
    assert package.facts["integer_kernels"] == 5
    assert package.precision == "int8"
    for size in (1, 4, 12):
        values = feed(IMAGE, size, seed=99)
        wanted = output(TorchRunner(threads=1), conv, values)
        assert sqnr_db(wanted, output(TorchRunner(threads=1), quantized, values)) > 30
        assert sqnr_db(wanted, output(AotiRunner(threads=1), package, values)) > 30
    checked = check.against_parent(package, quantized, IMAGE, None, 1e-4, 1)
    assert checked["tolerance"] == check.INTEGER_TOLERANCE
    with pytest.raises(StepError, match="does not compute what its parent computes"):
        check.against_parent(package, scaled(quantized, tmp_path / "scaled"), IMAGE, None, 1e-4, 1)


def scaled(artifact, folder):
    """The same program with the scales of its last layer tripled: some other network."""
    import torch

    program = exported_format.open(artifact.path)
    last = [name for name in program.state_dict if name.startswith("_scale")][-1]
    with torch.no_grad():
        program.state_dict[last].mul_(3)
    folder.mkdir()
    exported_format.save(program, folder)
    return replace(artifact, path=folder)


@pytest.mark.long
def test_a_process_that_only_compiles_knows_the_integer_kernels(quantized, tmp_path):
    """What quantizes registers them with Inductor; a build compiles in another process."""
    command = f"""
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from torch._inductor import codecache
from optcli.models.formats import exported, torch_compiled

class Generated(BaseException):
    pass

def generated(*_, **__):
    raise Generated

program = exported.open(Path({str(quantized.path)!r}))
codecache.AotCodeCompiler.compile = generated  # what g++ makes of the code is not asked here
try:
    with torch.no_grad():
        torch._inductor.aot_compile(
            program.module(),
            (torch.ones(4, 3, 16, 16),),
            options={{"freezing": True, **torch_compiled.instructions()}},
        )
except Generated:
    pass
counted = counters["inductor"]
assert counted["qconv_unary_lower_count"] == 4, counted
"""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", command], check=True, env=environment)


def test_only_integers_are_kept(conv, quantized):
    program = exported_format.open(quantized.path)
    weights = {name: value.dtype for name, value in program.state_dict.items() if value.ndim > 1}
    assert {str(dtype) for dtype in weights.values()} == {"torch.int8"}


@pytest.mark.parametrize("kind", ["x86", "arm"])
def test_numbers_may_be_added_to_layers(tmp_path, kind):
    """As in hand-written activations, and in fastvit: the quantizers take every sum for two tensors."""
    source = torch_artifact(tmp_path, "Numbers")
    quantized = quantize(source, tmp_path / "made", quantizer=kind, least_layer_sqnr=None)
    assert quantized.facts["quantized_operators"] == {"conv2d": 3, "linear": 1}
    values = feed(IMAGE, 4, seed=9)
    wanted = output(TorchRunner(threads=1), source, values)
    assert sqnr_db(wanted, output(TorchRunner(threads=1), quantized, values)) > 25


@pytest.mark.parametrize(
    "options",
    [
        {"method": "minmax"},
        {"per_channel": False},
        {"reduce_range": not environment.sums_saturate(environment.isa())},  # not the default
        {"quantizer": "arm"},
    ],
)
def test_options_keep_it_close(conv, quantized, tmp_path, options):
    made = quantize(conv, tmp_path / "made", **options)
    values = feed(IMAGE, 4, seed=99)
    wanted = output(TorchRunner(threads=1), conv, values)
    assert sqnr_db(wanted, output(TorchRunner(threads=1), made, values)) > 30
    programs = [exported_format.open(each.path) for each in (quantized, made)]
    if options == {"per_channel": False}:
        scales = [value for name, value in programs[1].state_dict.items() if "_scale" in name]
        assert all((value == value[0]).all() for value in scales)
    else:
        assert str(programs[0].graph) != str(programs[1].graph)


@pytest.mark.long
def test_dynamic_needs_no_samples_and_takes_linear_layers_alone(conv, tmp_path):
    assert QuantizePt2e(dynamic=True).roles() == ()
    assert QuantizePt2e().roles() == ("calibration",)
    made = quantize(conv, tmp_path / "made", dynamic=True)
    assert made.precision == "int8-dynamic"
    assert made.facts["quantized_operators"] == {"linear": 1}
    values = feed(IMAGE, 4, seed=99)
    wanted = output(TorchRunner(threads=1), conv, values)
    assert sqnr_db(wanted, output(TorchRunner(threads=1), made, values)) > 30
    package = apply(AotInductor(shapes="dynamic"), made, tmp_path / "aoti", IMAGE)
    assert package.facts["integer_kernels"] == 1
    no_linear = torch_artifact(tmp_path / "pair", "Pair")
    with pytest.raises(StepError, match="nothing in this model can be quantized"):
        quantize(no_linear, tmp_path / "none", INPUTS["Pair"], dynamic=True)


def test_modules_are_kept_by_name_or_pattern(conv, tmp_path):
    made = quantize(conv, tmp_path / "made", ignored_modules=("le*", "head"))
    assert made.facts["quantized_operators"] == {"conv2d": 3}
    with pytest.raises(StepError, match="fits no module") as failure:
        quantize(conv, tmp_path / "b", ignored_modules=("secnd",))
    assert "'second'" in failure.value.hint


@pytest.mark.long
def test_exported_programs_attention_and_several_inputs(conv, tmp_path):
    program = apply(Export(strict=True), conv, tmp_path / "exported", IMAGE)
    made = quantize(program, tmp_path / "made")
    assert made.facts["quantized_operators"] == {"conv2d": 4, "linear": 1}
    pair = torch_artifact(tmp_path / "pair", "Pair")
    made = quantize(pair, tmp_path / "pair8", INPUTS["Pair"], samples=3)
    assert made.facts["calibration_samples"] == 3
    with TorchRunner(threads=1).open(made, INPUTS["Pair"]) as model:
        assert list(model.run(feed(INPUTS["Pair"], 3))) == ["map", "sums.0", "sums.1"]
    tokens = INPUTS["Attention"]
    attention = torch_artifact(tmp_path / "attention", "Attention")
    made = quantize(attention, tmp_path / "attention8", tokens)
    values = feed(tokens, 3, seed=9)
    wanted = output(TorchRunner(threads=1), attention, values, tokens)
    assert sqnr_db(wanted, output(TorchRunner(threads=1), made, values, tokens)) > 20


@pytest.mark.long
def test_grey_images_are_right_once_compiled_for_any_batch_size(tmp_path):
    """The integer kernel of a layer with one channel writes what Inductor reads in another order."""
    inputs, source = INPUTS["Grey"], torch_artifact(tmp_path, "Grey")
    made = quantize(source, tmp_path / "made", inputs)
    assert list(made.facts["kept_in_fp32"].values()) == ["its input has one channel"]
    assert made.facts["quantized_operators"] == {"conv2d": 2, "linear": 1}
    package = apply(AotInductor(shapes="dynamic"), made, tmp_path / "aoti", inputs)
    for size in (1, 4):
        values = feed(inputs, size, seed=9)
        wanted = output(TorchRunner(threads=1), source, values, inputs)
        assert sqnr_db(wanted, output(AotiRunner(threads=1), package, values, inputs)) > 30


def test_the_range_depends_on_the_cpu_unless_told(monkeypatch):
    for flags, wanted in ((["avx2"], True), (["avx2", "avx_vnni"], False), (["avx512_vnni"], False)):
        monkeypatch.setattr(environment, "cpu", lambda: {"machine": "x86_64", "flags": flags})  # noqa: B023
        assert QuantizePt2e()._reduce_range() is wanted
        assert QuantizePt2e(reduce_range=not wanted)._reduce_range() is not wanted
    monkeypatch.setattr(environment, "cpu", lambda: {"machine": "aarch64", "flags": []})
    assert QuantizePt2e()._quantizer() == "arm"
    assert QuantizePt2e()._reduce_range() is False
    assert QuantizePt2e.device_bound


@pytest.mark.long
def test_what_cannot_work_says_why(conv, quantized, tmp_path):
    def fails(match, pass_, source):
        with pytest.raises(StepError, match=match) as failure:
            pass_.run(source, job(source, tmp_path / match[:9], IMAGE, calibration=Noise(IMAGE)))
        return failure.value

    again = fails("the model is int8", QuantizePt2e(strict=True), quantized)
    assert "FP32" in again.hint
    floats = fails("none of the quantized layers", AotInductor(freezing=False), quantized)
    assert "freezing" in floats.hint
    for options in ({"samples": 4}, {"method": "minmax"}):
        with pytest.raises(ValidationError, match="does without"):
            QuantizePt2e(dynamic=True, **options)
