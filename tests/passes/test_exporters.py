"""Exports from PyTorch: right at every batch size, under the recipe's names, or a clear error."""

import numpy as np
import pytest
from tiny_networks import INPUTS, Heard, apply, artifact, feed, job, largest_error, torch_artifact

from optcli.artifact import Format
from optcli.errors import StepError
from optcli.models.formats import exported as exported_format
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import input_names, input_shapes, opset_of
from optcli.passes._torch.onnx_exporting import parts_of_program
from optcli.passes.export import Export
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.to_openvino import ToOpenvino
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
BATCHES = (1, 2, 4, 12)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", ["Conv", "Pair", "Attention"])
def test_onnx_computes_what_the_network_does(tmp_path, name, exporter):
    inputs, source = INPUTS[name], torch_artifact(tmp_path, name)
    made = apply(ExportOnnx(exporter=exporter), source, tmp_path / "onnx", inputs)
    assert largest_error(OnnxruntimeRunner(threads=1), made, source, inputs, BATCHES) < 1e-5
    model = onnx_format.open(made.path)
    assert input_names(model) == tuple(spec.name for spec in inputs)
    assert input_shapes(model) == {spec.name: spec.shape for spec in inputs}
    assert made.facts["exporter"] == exporter
    assert made.facts["opset"] == opset_of(model)


@pytest.mark.long
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["Conv", "Pair", "Attention"])
def test_programs_compute_what_the_network_does_on_the_way_to_others(tmp_path, name, strict):
    inputs, source = INPUTS[name], torch_artifact(tmp_path, name)
    program = apply(Export(strict=strict), source, tmp_path / "exported", inputs)
    onnx = apply(ExportOnnx(), program, tmp_path / "onnx", inputs)
    assert largest_error(OnnxruntimeRunner(threads=1), onnx, source, inputs, BATCHES) < 1e-5
    direct = apply(ToOpenvino(), program, tmp_path / "direct", inputs)
    through_onnx = apply(ToOpenvino(), onnx, tmp_path / "through", inputs)
    for made in (direct, through_onnx):
        assert largest_error(OpenvinoRunner(threads=1), made, source, inputs, BATCHES) < 1e-5


def test_attention_may_be_joined_by_a_copy_or_a_view():
    import torch

    class Biased(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.queries = torch.nn.Linear(32, 96)
            self.bias = torch.nn.Parameter(torch.zeros(1, 2, 16, 16))

        def forward(self, tokens):
            size = tokens.shape[0]
            parts = self.queries(tokens).chunk(3, -1)
            heads = (each.view(size, 16, 2, 16).transpose(1, 2) for each in parts)
            mask = self.bias + torch.zeros(size, 1, 16, 16)
            joined = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask)
            return joined.transpose(1, 2).contiguous().view(size, 16, -1)

    spec = TensorSpec(name="tokens", shape=("batch", 16, 32))
    sizes = ({0: torch.export.Dim("batch", min=1, max=32)},)
    program = torch.export.export(Biased().eval(), (torch.zeros(2, 16, 32),), dynamic_shapes=sizes)
    model, _ = parts_of_program(program, (spec,), ("joined",))
    assert input_shapes(model) == {"tokens": ("batch", 16, 32)}


def test_other_symbols_than_the_batch_are_dynamic(tmp_path):
    inputs, source = INPUTS["Pair"], torch_artifact(tmp_path, "Pair")
    made = apply(ExportOnnx(), source, tmp_path / "onnx", inputs)
    with OnnxruntimeRunner(threads=1).open(made, inputs) as model:
        for height, width in [(8, 24), (24, 8), (9, 13)]:
            values = {
                "image": np.ones((3, 3, height, width), np.float32),
                "mask": np.ones((3, 1), np.float32),
            }
            assert model.run(values)["map"].shape == (3, 4, height, width)


def test_neither_export_holds_a_path_of_this_machine(tmp_path):
    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path, "Conv")
    for one, name in ((ExportOnnx(), "model.onnx"), (Export(strict=False), "model.pt2")):
        made = apply(one, source, tmp_path / name, inputs)
        assert b".py" not in (made.path / name).read_bytes()


def test_a_network_that_fixes_the_batch_is_named_with_the_symbol(tmp_path):
    inputs, source = INPUTS["OneBatchOnly"], torch_artifact(tmp_path, "OneBatchOnly")
    for one in (Export(strict=False), Export(strict=True), ExportOnnx(exporter="dynamo")):
        with pytest.raises(StepError, match="batch = 4 only, wanted 1 to 12") as failure:
            one.run(source, job(source, tmp_path / f"{one!r}"[:20] / str(one.model_dump()), inputs))
        assert "write 4 instead of batch" in failure.value.hint


def test_a_network_that_counts_its_images_takes_any_batch(tmp_path):
    inputs, source = INPUTS["Counted"], torch_artifact(tmp_path, "Counted")
    made = apply(ExportOnnx(exporter="dynamo"), source, tmp_path / "onnx", inputs)
    assert largest_error(OnnxruntimeRunner(threads=1), made, source, inputs, BATCHES) < 1e-5


def test_sizes_that_must_be_even_are_said_and_exported(tmp_path):
    inputs, source = INPUTS["Halves"], torch_artifact(tmp_path, "Halves")
    heard = Heard()
    made = apply(Export(strict=False), source, tmp_path / "exported", inputs, observer=heard)
    assert any("height" in warning and "2*" in warning for warning in heard.warnings)
    import torch

    module = exported_format.open(made.path).module()
    assert module(torch.ones(1, 3, 8, 16)).shape == (1, 3, 8, 16)


@pytest.mark.parametrize(
    ("opset", "exporter"), [(13, "torchscript"), (17, "torchscript"), (20, "dynamo")]
)
def test_the_opset_asked_for_is_made(tmp_path, opset, exporter):
    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path, "Conv")
    one = ExportOnnx(opset=opset, exporter=exporter)
    made = apply(one, source, tmp_path / "onnx", inputs)
    assert opset_of(onnx_format.open(made.path)) == opset
    assert largest_error(OnnxruntimeRunner(threads=1), made, source, inputs, (1, 4)) < 1e-5


def test_an_opset_that_the_exporter_cannot_make_is_an_error(tmp_path):
    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path, "Conv")
    with pytest.raises(StepError, match="wanted 13"):
        ExportOnnx(opset=13, exporter="dynamo").run(source, job(source, tmp_path / "a", inputs))


def test_automatic_choices_are_tried_in_turn():
    assert [each.exporter for each in ExportOnnx().attempts()] == ["dynamo", "torchscript"]
    old = ExportOnnx(opset=17).attempts()  # such as TensorRT 8.6 wants
    assert [each.exporter for each in old] == ["torchscript", "dynamo"]
    assert ExportOnnx(exporter="torchscript").attempts() == (ExportOnnx(exporter="torchscript"),)
    assert [each.strict for each in Export().attempts()] == [False, True]
    assert Export(strict=True).attempts() == (Export(strict=True),)


def test_tracing_cannot_start_from_a_program(tmp_path):
    program = artifact(tmp_path, Format.EXPORTED)
    with pytest.raises(StepError, match="cannot read an exported program"):
        ExportOnnx(exporter="torchscript").run(program, job(program, tmp_path / "a", INPUTS["Conv"]))


def test_large_weights_go_beside_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_format, "ONE_FILE_BYTES", 2000)
    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path, "Conv")
    for exporter in ("dynamo", "torchscript"):
        made = apply(ExportOnnx(exporter=exporter), source, tmp_path / exporter, inputs)
        assert {file.name for file in made.path.iterdir()} == {"model.onnx", "model.onnx.data"}
        assert largest_error(OnnxruntimeRunner(threads=1), made, source, inputs, (1, 4)) < 1e-5


def test_to_openvino_keeps_names_sizes_and_precision(tmp_path, shared):
    from tiny_networks import onnx_file

    from optcli.models.formats import openvino as openvino_format
    from optcli.settings import TensorSpec

    source = onnx_file(shared / "models" / "mobilenet_v3_small_fashion.onnx", tmp_path / "onnx")
    inputs = (TensorSpec(name="input", shape=("batch", 3, 64, 64)),)
    made = apply(ToOpenvino(), source, tmp_path / "openvino", inputs)
    model = openvino_format.open(made.path)
    assert openvino_format.input_names(model) == ("input",)
    assert openvino_format.output_names(model) == ("logits",)
    assert model.inputs[0].get_partial_shape()[0].is_dynamic
    values = feed(inputs, 3)
    with (
        OnnxruntimeRunner(threads=1).open(source, inputs) as wanted,
        OpenvinoRunner(threads=1).open(made, inputs) as found,
    ):
        wanted, found = wanted.run(values)["logits"], found.run(values)["logits"]
    assert np.abs(wanted - found).max() < 1e-5 * np.abs(wanted).max()


def test_openvino_takes_no_quantized_program(tmp_path):
    source = artifact(tmp_path, Format.EXPORTED, precision="int8")
    with pytest.raises(StepError, match="cannot convert a PyTorch graph that is int8") as found:
        apply(ToOpenvino(), source, tmp_path / "made", INPUTS["Conv"])
    assert "quantize_nncf behind it" in found.value.hint
