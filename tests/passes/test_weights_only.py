"""Weight-only: smaller files that stay close in the runtimes that serve them."""

import pytest
from pydantic import ValidationError
from tiny_networks import INPUTS, apply, feed, job, onnx_file, sqnr_db, torch_artifact

from optcli.errors import StepError
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.to_openvino import ToOpenvino
from optcli.passes.weights_only import WeightsOnly
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.runners.torch import TorchRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
TOKENS, IMAGE = INPUTS["Attention"], INPUTS["Conv"]


def output(runner, artifact, values, inputs):
    with runner.open(artifact, inputs) as model:
        assert model.effective()["precision"] == artifact.precision
        return next(iter(model.run(values).values()))


def bytes_in(artifact):
    return sum(path.stat().st_size for path in artifact.path.iterdir())


# Model, its input's size, options, signal to noise in dB, largest size as a part of the FP32 file's.
REAL = [
    ("vit_tiny_fashion", 32, {}, 33, 0.45),
    ("vit_tiny_fashion", 32, {"symmetric": False}, 33, 0.45),
    ("vit_tiny_fashion", 32, {"bits": 4}, 15, 0.36),
    ("vit_tiny_fashion", 32, {"bits": 4, "four_bit_ratio": 0.5}, 15, 0.42),
    ("mobilenet_v3_small_fashion", 64, {}, 30, 0.45),
    ("mobilenet_v3_small_fashion", 64, {"symmetric": False}, 30, 0.45),
    ("mobilenet_v3_small_fashion", 64, {"bits": 4, "group_size": 32}, 15, 0.36),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "size", "options", "bound_db", "bound_size"), REAL)
def test_real_models_in_both_runtimes(tmp_path, shared, name, size, options, bound_db, bound_size):
    inputs = (TensorSpec(name="input", shape=("batch", 3, size, size)),)
    onnx = onnx_file(shared / "models" / f"{name}.onnx", tmp_path / "onnx")
    values = feed(inputs, 4, seed=9)
    expected = output(OnnxruntimeRunner(threads=2), onnx, values, inputs)
    openvino = apply(ToOpenvino(), onnx, tmp_path / "openvino", inputs)
    for source, runner in ((onnx, OnnxruntimeRunner(threads=2)), (openvino, OpenvinoRunner(threads=2))):
        made = apply(WeightsOnly(**options), source, tmp_path / f"{source.format}-made", inputs)
        assert made.precision == f"int{options.get('bits', 8)}-weights"
        assert sum(made.facts["quantized_weights"].values()) > 20
        assert sqnr_db(expected, output(runner, made, values, inputs)) > bound_db
        assert bytes_in(made) < bound_size * bytes_in(source)


def test_blocks_of_new_opsets_lie_along_the_right_dimension(tmp_path, shared):
    """From opset 21 on NNCF writes blocks of its own for layers whose weights stand transposed."""
    import onnx
    from onnx import version_converter

    inputs = (TensorSpec(name="input", shape=("batch", 3, 32, 32)),)
    old = onnx_file(shared / "models" / "vit_tiny_fashion.onnx", tmp_path / "old")
    newer = version_converter.convert_version(onnx.load(old.path / "model.onnx"), 21)
    onnx.save(newer, tmp_path / "newer.onnx")
    source = onnx_file(tmp_path / "newer.onnx", tmp_path / "new")
    made = apply(WeightsOnly(bits=4), source, tmp_path / "made", inputs)
    values = feed(inputs, 4, seed=9)
    expected = output(OnnxruntimeRunner(threads=2), source, values, inputs)
    assert sqnr_db(expected, output(OnnxruntimeRunner(threads=2), made, values, inputs)) > 15


@pytest.mark.parametrize("options", [{}, {"group_size": 16}])
def test_networks_in_pytorch_come_back_exactly(tmp_path, options):
    source = torch_artifact(tmp_path, "Attention")
    made = apply(WeightsOnly(**options), source, tmp_path / "made", TOKENS)
    assert made.precision == "int8-weights"
    assert made.facts["quantized_operators"] == {"Linear": 3}
    values = feed(TOKENS, 3, seed=9)
    wanted = output(TorchRunner(threads=1), source, values, TOKENS)
    found = output(TorchRunner(threads=1), made, values, TOKENS)
    assert 25 < sqnr_db(wanted, found) < 120
    assert (found == output(TorchRunner(threads=1), made, values, TOKENS)).all()


def test_layers_are_kept_by_name(tmp_path):
    source = torch_artifact(tmp_path, "Conv")
    onnx = apply(ExportOnnx(exporter="dynamo"), source, tmp_path / "onnx", IMAGE)
    made = apply(WeightsOnly(), onnx, tmp_path / "all", IMAGE)
    assert sum(made.facts["quantized_weights"].values()) == 5
    kept = apply(WeightsOnly(ignored_names=("*onv*",)), onnx, tmp_path / "kept", IMAGE)
    assert sum(kept.facts["quantized_weights"].values()) == 1


def test_what_cannot_work_says_why(tmp_path):
    source = torch_artifact(tmp_path, "Conv")
    onnx = apply(ExportOnnx(exporter="dynamo"), source, tmp_path / "onnx", IMAGE)

    def fails(match, artifact, **options):
        with pytest.raises(StepError, match=match) as failure:
            WeightsOnly(**options).run(artifact, job(artifact, tmp_path / match[:12], IMAGE))
        assert failure.value.hint

    fails("keeps weights of 4 bits in bytes", source, bits=4)
    fails("8-bit weights are symmetric", source, symmetric=False)
    fails("does not read the 4-bit", onnx, bits=4, symmetric=False)
    fails("one scale per output channel", onnx, group_size=16)
    fails("no weights to quantize", onnx, ignored_names=("*",))
    fails("fits no module", onnx, ignored_names=("nothing_like_it",))
    fails("the model is int8-weights", apply(WeightsOnly(), onnx, tmp_path / "again", IMAGE))
    with pytest.raises(ValidationError, match="bits: 4"):
        WeightsOnly(four_bit_ratio=0.5)
    pair = torch_artifact(tmp_path / "pair", "Pair")
    with pytest.raises(StepError, match="no linear layers"):
        apply(WeightsOnly(), pair, tmp_path / "pair8", INPUTS["Pair"])
