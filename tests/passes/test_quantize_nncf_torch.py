"""NNCF's algorithms on PyTorch graphs, for AOTInductor."""

import pytest
from tiny_networks import INPUTS, Heard, Noise, apply, feed, job, sqnr_db, torch_artifact

from optcli.artifact import Format
from optcli.errors import StepError
from optcli.passes.aot_inductor import AotInductor
from optcli.passes.export import Export
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.runners.aoti import AotiRunner
from optcli.runners.torch import TorchRunner

pytestmark = pytest.mark.slow
IMAGE, TOKENS = INPUTS["Conv"], INPUTS["Attention"]


@pytest.fixture(scope="module")
def conv(tmp_path_factory):
    return torch_artifact(tmp_path_factory.mktemp("conv"), "Conv")


def quantize(source, out, inputs=IMAGE, count=8, **options):
    heard, noise = Heard(), Noise(inputs, count)
    made = apply(QuantizeNncf(**options), source, out, inputs, calibration=noise, observer=heard)
    assert heard.fractions
    assert made.format is Format.EXPORTED
    return made


def output(runner, artifact, values, inputs=IMAGE):
    with runner.open(artifact, inputs) as model:
        assert model.effective()["precision"] == artifact.precision
        return next(iter(model.run(values).values()))


@pytest.mark.long
def test_a_network_is_quantized_and_compiled_to_integer_kernels(conv, tmp_path, capfd):
    made = quantize(conv, tmp_path / "made")
    assert made.precision == "int8"
    assert made.facts["quantized_operators"] == {"conv2d": 4, "linear": 1}
    assert capfd.readouterr().out == ""
    package = apply(AotInductor(shapes="dynamic"), made, tmp_path / "aoti", IMAGE)
    assert package.facts["integer_kernels"] == 5
    for size in (1, 12):
        values = feed(IMAGE, size, seed=9)
        wanted = output(TorchRunner(threads=1), conv, values)
        assert sqnr_db(wanted, output(AotiRunner(threads=1), package, values)) > 30


@pytest.mark.long
def test_exported_programs_and_full_bias_correction(conv, tmp_path):
    program = apply(Export(strict=True), conv, tmp_path / "exported", IMAGE)
    values = feed(IMAGE, 4, seed=9)
    wanted = output(TorchRunner(threads=1), conv, values)
    for fast in (True, False):
        made = quantize(program, tmp_path / f"made-{fast}", fast_bias_correction=fast)
        assert sqnr_db(wanted, output(TorchRunner(threads=1), made, values)) > 30


@pytest.mark.long
def test_smooth_quant_changes_a_transformer_and_keeps_it_close(tmp_path):
    source = torch_artifact(tmp_path, "Attention")
    values = feed(TOKENS, 3, seed=9)
    wanted = output(TorchRunner(threads=1), source, values, TOKENS)
    found = {}
    for smooth in (True, False):
        options = {"model_type": "transformer", "smooth_quant": smooth}
        made = quantize(source, tmp_path / f"{smooth}", TOKENS, count=64, **options)
        assert made.facts["smooth_quant"] is smooth
        found[smooth] = output(TorchRunner(threads=1), made, values, TOKENS)
        assert sqnr_db(wanted, found[smooth]) > 20
    assert (found[True] != found[False]).any()


def test_several_inputs_in_the_networks_order(tmp_path):
    inputs = INPUTS["Pair"]
    source = torch_artifact(tmp_path, "Pair")
    made = quantize(source, tmp_path / "made", inputs)
    values = feed(inputs, 3, seed=9)
    wanted = output(TorchRunner(threads=1), source, values, inputs)
    assert sqnr_db(wanted, output(TorchRunner(threads=1), made, values, inputs)) > 25


def test_modules_are_kept_and_what_does_nothing_is_refused(conv, tmp_path):
    kept = quantize(conv, tmp_path / "kept", ignored_names=("le*", "head"))
    assert kept.facts["quantized_operators"] == {"conv2d": 3}

    def fails(match, **options):
        folder = tmp_path / match[:9]
        with pytest.raises(StepError, match=match) as failure:
            QuantizeNncf(**options).run(conv, job(conv, folder, IMAGE, calibration=Noise(IMAGE)))
        assert failure.value.hint

    fails("`target` does nothing", target="gpu")
    fails("`ignored_types` does nothing", ignored_types=("Conv",))
    fails("fits no module", ignored_names=("nothing_like_it",))
