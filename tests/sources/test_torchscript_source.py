"""TorchScript files as sources: taken as they are, quantized ones known for what they are."""

import numpy as np
import pytest
import torch

from optcli.artifact import Artifact, Format
from optcli.errors import InputError
from optcli.files.digest import FileDigests
from optcli.models.formats import torchscript as torchscript_format
from optcli.models.sources.torchscript import TorchscriptSource
from optcli.runners.torchscript import TorchscriptRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
INPUTS = (TensorSpec(name="image", shape=("batch", 3, 8, 8)),)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = (
            torch.ao.quantization.QuantStub(),
            torch.ao.quantization.DeQuantStub(),
        )
        self.conv, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 4)

    def forward(self, image):
        x = self.head(torch.relu(self.conv(self.quant(image))).mean((2, 3)))
        return {"logits": self.dequant(x)}


def written(folder, model, **arguments):
    with torchscript_format.quiet():
        made = torch.jit.freeze(torch.jit.trace(model, torch.ones(2, 3, 8, 8), strict=False))
        torch.jit.save(made, folder / "net.pt")
    return TorchscriptSource(target="net.pt", folder=folder, **arguments)


def taken(source, tmp_path, inputs=INPUTS):
    out = tmp_path / "out"
    out.mkdir()
    found = source.write(out, inputs)
    facts = {"outputs": list(found.outputs)}
    return found, Artifact("k", Format.TORCHSCRIPT, out, found.precision, 0, "", facts)


def test_a_file_is_taken_as_it_is(tmp_path):
    torch.manual_seed(0)
    model = Net().eval()
    found, artifact = taken(written(tmp_path, model), tmp_path)
    assert (found.outputs, found.precision) == (("logits",), "fp32")
    image = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)
    with TorchscriptRunner(threads=1).open(artifact, INPUTS) as runner:
        logits = runner.run({"image": image})["logits"]
    with torch.no_grad():
        np.testing.assert_allclose(logits, model(torch.from_numpy(image))["logits"], atol=1e-5)


@pytest.mark.parametrize(("way", "says"), [("static", "int8"), ("dynamic", "int8-dynamic")])
def test_a_quantized_file_runs_and_says_int8(tmp_path, way, says):
    from torch.ao import quantization

    torch.manual_seed(0)
    model = Net().eval()
    with torchscript_format.quiet():
        if way == "static":
            model.qconfig = quantization.get_default_qconfig("x86")
            prepared = quantization.prepare(model)
            prepared(torch.randn(4, 3, 8, 8))
            quantized = quantization.convert(prepared)
        else:
            quantized = quantization.quantize_dynamic(model, {torch.nn.Linear})
    found, artifact = taken(written(tmp_path, quantized), tmp_path)
    assert found.precision == says
    with TorchscriptRunner(threads=1).open(artifact, INPUTS) as runner:
        assert runner.effective()["precision"] == says
        assert runner.run({"image": np.ones((5, 3, 8, 8), np.float32)})["logits"].shape == (5, 4)


def test_other_inputs_than_the_files_are_said(tmp_path):
    source = written(tmp_path, Net().eval())
    with pytest.raises(InputError, match=r"takes 1 inputs \(image\), the recipe has 2"):
        taken(source, tmp_path, (*INPUTS, TensorSpec(name="mask", shape=("batch", 1))))
    with pytest.raises(InputError, match="does not take the recipe's inputs"):
        source.write(tmp_path / "out", (TensorSpec(name="image", shape=("batch", 1, 8, 8)),))


def test_problems_are_seen_without_opening_anything(tmp_path):
    source = written(tmp_path, Net().eval())
    assert source.problems() == []
    assert source.ingredients(FileDigests())["file"]
    wrong = TorchscriptSource(target="nett.pt", folder=tmp_path, weights="w.pth", arguments={"a": 1})
    assert [where for where, _, _ in wrong.problems()] == ["source", "weights", "arguments"]
    assert "net.pt" in wrong.problems()[0][2]
    source.file.write_bytes(b"")
    assert "is empty" in source.problems()[0][1]


def test_a_pass_that_cannot_take_it_says_so_before_anything_runs(tmp_path):
    from optcli.errors import RecipeError
    from optcli.recipe import load

    written(tmp_path, Net().eval())
    (tmp_path / "recipe.yaml").write_text(
        "version: 1\nname: measured\nmodel: {source: 'torchscript:net.pt'}\n"
        "inputs: [{name: image, shape: [batch, 3, 8, 8]}]\n"
        "variants: {plain: [], onnx: [export_onnx]}\n"
    )
    with pytest.raises(RecipeError) as failure:
        load(tmp_path / "recipe.yaml")
    assert "export_onnx reads torch or exported, but the model comes as torchscript" in str(
        failure.value
    )
