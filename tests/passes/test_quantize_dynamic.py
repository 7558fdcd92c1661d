"""Dynamic INT8: comes back exactly, stays close, takes what it can and says what it cannot."""

from dataclasses import replace

import pytest
from pydantic import ValidationError
from tiny_networks import (
    INPUTS,
    Heard,
    apply,
    feed,
    job,
    onnx_file,
    sqnr_db,
    torch_artifact,
)

from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import torch as torch_format
from optcli.models.formats.torch_weights import PICKLED
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.quantize_dynamic import QuantizeDynamic
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.torch import TorchRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
TOKENS, IMAGE = INPUTS["Attention"], INPUTS["Conv"]


@pytest.fixture
def attention(tmp_path):
    return torch_artifact(tmp_path, "Attention")


@pytest.fixture
def conv(tmp_path):
    return torch_artifact(tmp_path / "conv", "Conv")


def output(runner, artifact, values, inputs=TOKENS):
    with runner.open(artifact, inputs) as model:
        assert model.effective()["precision"] == artifact.precision
        return next(iter(model.run(values).values()))


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({}, 3),
        ({"per_channel": False}, 3),
        ({"engine": "eager"}, 1),  # the layers of nn.TransformerEncoderLayer are read by its forward()
        ({"engine": "eager", "per_channel": False}, 1),
    ],
)
def test_a_network_comes_back_exactly_from_its_artifact(tmp_path, attention, options, layers):
    import torch

    made = apply(QuantizeDynamic(**options), attention, tmp_path / "made", TOKENS)
    assert made.precision == "int8-dynamic"
    assert made.facts["quantized_operators"] == {"Linear": layers}
    values = feed(TOKENS, 3, seed=9)
    wanted = output(TorchRunner(threads=1), attention, values)
    found = output(TorchRunner(threads=1), made, values)
    assert 20 < sqnr_db(wanted, found) < 120
    again = [torch_format.open(made.path).state_dict() for _ in range(2)]
    stored = torch.load(made.path / PICKLED, weights_only=True)
    assert list(stored) == list(again[0])
    assert (found == output(TorchRunner(threads=1), made, values)).all()


def test_layers_are_taken_and_kept_by_name(tmp_path, attention):
    one = apply(QuantizeDynamic(names=("head",)), attention, tmp_path / "a", TOKENS)
    assert one.facts["quantized_operators"] == {"Linear": 1}
    rest = apply(
        QuantizeDynamic(ignored_names=("*.linear1", "head")), attention, tmp_path / "b", TOKENS
    )
    modules = torch_format.read(rest.path).transforms[-1]["modules"]
    assert modules == ["encoder.layers.0.linear2"]
    with pytest.raises(StepError, match="fits no module"):
        apply(QuantizeDynamic(names=("heads",)), attention, tmp_path / "c", TOKENS)


def test_convolutions_stay_and_it_is_said(tmp_path, conv):
    heard = Heard()
    made = apply(QuantizeDynamic(), conv, tmp_path / "made", IMAGE, observer=heard)
    assert made.facts["kept_in_fp32"] == {"Conv2d": 4}
    assert any("4 convolutions stay in fp32" in warning for warning in heard.warnings)
    pair = torch_artifact(tmp_path / "pair", "Pair")
    with pytest.raises(StepError, match="no linear layers"):
        apply(QuantizeDynamic(), pair, tmp_path / "none", INPUTS["Pair"])
    with pytest.raises(StepError, match="is int8-dynamic"):
        apply(QuantizeDynamic(), made, tmp_path / "again", IMAGE)


def test_onnx_models(tmp_path, attention, conv):
    source = apply(ExportOnnx(exporter="dynamo"), attention, tmp_path / "onnx", TOKENS)
    made = apply(QuantizeDynamic(), source, tmp_path / "made", TOKENS)
    assert made.facts["quantized_operators"]["MatMul"] >= 5
    values = feed(TOKENS, 3, seed=9)
    wanted = output(OnnxruntimeRunner(threads=1), source, values)
    assert sqnr_db(wanted, output(OnnxruntimeRunner(threads=1), made, values)) > 20
    images = apply(ExportOnnx(exporter="dynamo"), conv, tmp_path / "images", IMAGE)
    heard = Heard()
    some = apply(QuantizeDynamic(), images, tmp_path / "some", IMAGE, observer=heard)
    assert some.facts["quantized_operators"] == {"MatMul": 1}
    assert some.facts["kept_in_fp32"] == {"Conv": 4}
    every = apply(QuantizeDynamic(types=("Conv",)), images, tmp_path / "every", IMAGE)
    assert every.facts["quantized_operators"] == {"Conv": 4}
    values = feed(IMAGE, 3, seed=9)
    wanted = output(OnnxruntimeRunner(threads=1), images, values, IMAGE)
    assert sqnr_db(wanted, output(OnnxruntimeRunner(threads=1), every, values, IMAGE)) > 20
    nodes = [
        node.name for node in onnx_format.outline(images.path).graph.node if node.op_type == "Gemm"
    ]
    with pytest.raises(StepError, match="found no MatMul with"):
        QuantizeDynamic(ignored_names=tuple(nodes)).run(images, job(images, tmp_path / "none", IMAGE))


@pytest.mark.parametrize(("name", "size", "bound_db"), [("vit_tiny_fashion", 32, 30)])
def test_a_real_transformer_no_optcli_exported(tmp_path, shared, name, size, bound_db):
    source = onnx_file(shared / "models" / f"{name}.onnx", tmp_path / "onnx")
    inputs = (TensorSpec(name="input", shape=("batch", 3, size, size)),)
    made = apply(QuantizeDynamic(), source, tmp_path / "made", inputs)
    assert made.facts["quantized_operators"] == {"MatMul": 25}
    files = [(each.path / "model.onnx").stat().st_size for each in (source, made)]
    assert files[1] < 0.45 * files[0]
    values = feed(inputs, 8, seed=9)
    wanted = output(OnnxruntimeRunner(threads=2), source, values, inputs)
    assert sqnr_db(wanted, output(OnnxruntimeRunner(threads=2), made, values, inputs)) > bound_db


def test_options_of_two_formats_contradict_each_other():
    with pytest.raises(ValidationError, match="for torch networks"):
        QuantizeDynamic(engine="eager", types=("Conv",))
    for options in (QuantizeDynamic(types=("Conv",)), QuantizeDynamic(engine="eager")):
        assert QuantizeDynamic(**options.model_dump()) == options


def test_a_model_that_does_not_fit_into_one_file_becomes_the_same(tmp_path, attention, monkeypatch):
    source = apply(ExportOnnx(exporter="dynamo"), attention, tmp_path / "onnx", TOKENS)
    wanted = apply(QuantizeDynamic(), source, tmp_path / "one", TOKENS)
    large = tmp_path / "large"
    large.mkdir()
    monkeypatch.setattr(onnx_format, "ONE_FILE_BYTES", 2000)
    onnx_format.save(onnx_format.open(source.path), large)
    assert (large / onnx_format.DATA).exists()
    made = apply(QuantizeDynamic(), replace(source, path=large), tmp_path / "two", TOKENS)
    assert made.facts["quantized_operators"] == wanted.facts["quantized_operators"]
    values = feed(TOKENS, 3, seed=9)
    found = [output(OnnxruntimeRunner(threads=1), each, values) for each in (wanted, made)]
    assert (found[0] == found[1]).all()
