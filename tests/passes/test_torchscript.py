"""TorchScript: right at every batch size, deprecated said once, and what it cannot do in words."""

import warnings

import pytest
from pydantic import ValidationError
from tiny_networks import INPUTS, Heard, apply, artifact, job, largest_error, torch_artifact

from optcli.artifact import Format
from optcli.errors import StepError
from optcli.passes.quantize_dynamic import QuantizeDynamic
from optcli.passes.torchscript import Torchscript
from optcli.runners.torchscript import TorchscriptRunner

pytestmark = pytest.mark.slow
BATCHES = (1, 2, 4, 12)


@pytest.mark.parametrize(
    "options",
    [{}, {"freeze": False}, {"method": "script"}, {"optimize_for_inference": True}],
    ids=lambda options: "-".join(options) or "default",
)
@pytest.mark.parametrize("name", ["Conv", "Attention"])
def test_it_computes_what_the_network_does(tmp_path, name, options):
    inputs, source = INPUTS[name], torch_artifact(tmp_path, name)
    made = apply(Torchscript(**options), source, tmp_path / "made", inputs)
    assert largest_error(TorchscriptRunner(threads=1), made, source, inputs, BATCHES) < 1e-5
    with TorchscriptRunner(threads=2).open(made, inputs) as model:
        effective = model.effective()
    assert (effective["precision"], effective["threads"]) == ("fp32", 2)
    wanted = options.get("optimize_for_inference", False)
    assert made.facts["optimize_for_inference"] == effective["optimize_for_inference"] == wanted


@pytest.mark.parametrize("method", ["trace", "script"])
def test_inputs_in_another_order_and_nested_outputs(tmp_path, method):
    inputs, source = INPUTS["Pair"], torch_artifact(tmp_path, "Pair")
    made = apply(Torchscript(method=method), source, tmp_path / "made", inputs)
    assert largest_error(TorchscriptRunner(threads=1), made, source, inputs, (1, 3)) < 1e-5


def test_deprecation_is_said_once_and_not_by_torch(tmp_path):
    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path, "Conv")
    heard = Heard()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = apply(Torchscript(), source, tmp_path / "made", inputs, observer=heard)
        with TorchscriptRunner(threads=1).open(made, inputs):
            pass
    assert [text.startswith("PyTorch calls torch.jit deprecated") for text in heard.warnings] == [True]
    assert not [each for each in told if "deprecated" in str(each.message)]


OTHERS = """
import torch

class Numbers(torch.nn.Module):
    def forward(self, image):
        return image.reshape(int(image.shape[0]), -1) * 2

class Generator(torch.nn.Module):
    def forward(self, image):
        yield image
"""


def other(folder, name):
    """One of the networks above as an artifact."""
    from optcli.models.formats import torch as torch_format
    from optcli.models.formats.torch_build import build

    (folder / "code").mkdir()
    (folder / "code" / "others.py").write_text(OTHERS)
    source = {"kind": "python", "reference": f"others.py:{name}", "arguments": {}}
    description = torch_format.Description(source=source, inputs=INPUTS["Conv"])
    torch_format.save(build(source, folder / "code"), folder / "a", description, folder / "code")
    return artifact(folder / "a", Format.TORCH)


def test_what_cannot_be_scripted_names_the_other_method(tmp_path):
    source = other(tmp_path, "Generator")
    with pytest.raises(StepError, match=r"torch\.jit\.script failed") as failure:
        Torchscript(method="script").run(source, job(source, tmp_path / "made", INPUTS["Conv"]))
    assert "method: trace" in failure.value.hint


def test_a_batch_that_the_code_makes_a_number_of_is_said_and_can_be_scripted(tmp_path):
    inputs, source = INPUTS["Conv"], other(tmp_path, "Numbers")
    with pytest.raises(StepError, match="holds at batch size 2 alone") as failure:
        Torchscript().run(source, job(source, tmp_path / "traced", inputs))
    assert "method: script" in failure.value.hint
    made = apply(Torchscript(method="script"), source, tmp_path / "made", inputs)
    assert largest_error(TorchscriptRunner(threads=1), made, source, inputs, BATCHES) == 0


def test_what_tracing_makes_constant_is_counted(tmp_path):
    source = torch_artifact(tmp_path, "Conv")
    assert apply(Torchscript(), source, tmp_path / "m", INPUTS["Conv"]).facts["fixed_decisions"] == 0


def test_optimizing_without_freezing_is_refused():
    with pytest.raises(ValidationError, match="leave freeze on"):
        Torchscript(freeze=False, optimize_for_inference=True)


def test_layers_that_are_quantized_dynamically_are_called_so(tmp_path):
    inputs, source = INPUTS["Attention"], torch_artifact(tmp_path, "Attention")
    dynamic = apply(QuantizeDynamic(engine="eager"), source, tmp_path / "dynamic", inputs)
    made = apply(Torchscript(), dynamic, tmp_path / "made", inputs)
    with TorchscriptRunner(threads=1).open(made, inputs) as model:
        assert model.effective()["precision"] == made.precision == "int8-dynamic"
