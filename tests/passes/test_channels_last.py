"""channels_last: another layout, the same results, kept by whoever opens the artifact."""

import pytest
import torch
from tiny_networks import INPUTS, Heard, apply, largest_error, torch_artifact

from optcli.models.formats import torch as torch_format
from optcli.passes.aot_inductor import AotInductor
from optcli.passes.channels_last import ChannelsLast
from optcli.passes.export_onnx import ExportOnnx
from optcli.runners.aoti import AotiRunner
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.torch import TorchRunner

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["Conv", "Pair"])
def test_the_layout_is_kept_and_the_result_the_same(tmp_path, name):
    inputs, source = INPUTS[name], torch_artifact(tmp_path, name)
    made = apply(ChannelsLast(), source, tmp_path / "made", inputs)
    weights = [value for value in torch_format.open(made.path).parameters() if value.ndim == 4]
    assert weights
    assert all(value.is_contiguous(memory_format=torch.channels_last) for value in weights)
    assert made.facts["convolutions"] == len(weights)
    assert largest_error(TorchRunner(threads=1), made, source, inputs, (1, 3)) < 1e-5
    with TorchRunner(threads=1).open(made, inputs) as model:
        assert model.effective()["channels_last"] is True
        model.bind({spec.name: torch.ones(spec.concrete(2)).numpy() for spec in inputs})
        images = [value for value in model._bound[0] if value.ndim == 4]
        assert all(value.is_contiguous(memory_format=torch.channels_last) for value in images)


def test_the_runner_can_be_told_otherwise(tmp_path):
    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path, "Conv")
    made = apply(ChannelsLast(), source, tmp_path / "made", inputs)
    with TorchRunner(threads=1, channels_last=False).open(made, inputs) as model:
        assert model.effective()["channels_last"] is False
        assert all(value.is_contiguous() for value in model._model.parameters())


def test_other_passes_go_on_from_it(tmp_path):
    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path, "Conv")
    made = apply(ChannelsLast(), source, tmp_path / "made", inputs)
    onnx = apply(ExportOnnx(), made, tmp_path / "onnx", inputs)
    assert largest_error(OnnxruntimeRunner(threads=1), onnx, source, inputs, (1, 4)) < 1e-5


@pytest.mark.long
def test_images_of_one_channel_are_compiled_rightly(tmp_path):
    inputs, source = INPUTS["Grey"], torch_artifact(tmp_path, "Grey")
    made = apply(ChannelsLast(), source, tmp_path / "made", inputs)
    package = apply(AotInductor(), made, tmp_path / "aoti", inputs)
    assert largest_error(AotiRunner(threads=1), package, source, inputs, (1, 2, 8)) < 1e-5


def test_a_network_that_gains_nothing_says_so(tmp_path):
    inputs, source, heard = INPUTS["Attention"], torch_artifact(tmp_path, "Attention"), Heard()
    made = apply(ChannelsLast(), source, tmp_path / "made", inputs, observer=heard)
    assert len(heard.warnings) == 1
    assert "no convolutions" in heard.warnings[0]
    assert largest_error(TorchRunner(threads=1), made, source, inputs, (2,)) == 0
