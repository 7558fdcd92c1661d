"""Passes refuse networks that are compiled or quantized, where the result would not be what it says."""

import pytest
from tiny_networks import INPUTS, artifact, job, torch_artifact

from optcli import passes
from optcli.artifact import Format
from optcli.errors import StepError
from optcli.models.formats import torch as torch_format

QUANTIZED = {"name": "quantize", "engine": "torchao", "kind": "weights", "modules": ["head"]}
COMPILED = {"name": "compile", "mode": "default", "dynamic": True, "freezing": True, "batch_sizes": []}
READ_FLOATS = ["export", "export_onnx", "aot_inductor", "torchscript", "prune", "sparsify", "finetune"]
READ_ANY = ["channels_last", "quantize_dynamic", "weights_only", "torch_compile"]


@pytest.fixture
def after(tmp_path):
    """A network as an artifact that a transform has been at, as far as its description says."""

    def make(record):
        made = torch_artifact(tmp_path, "Conv")
        (folder := tmp_path / "after").mkdir()
        text = torch_format.read(made.path).after(record).model_dump_json(by_alias=True)
        (folder / torch_format.DESCRIPTION).write_text(text)
        return artifact(folder, Format.TORCH)

    return make


def run(name, source, tmp_path):
    one = passes.find(name)()
    for attempt in one.attempts()[:1]:
        attempt.run(source, job(source, tmp_path / "made", INPUTS["Conv"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", READ_FLOATS + READ_ANY)
def test_nothing_follows_torch_compile(after, tmp_path, name):
    with pytest.raises(StepError, match="compiled already") as found:
        run(name, after(COMPILED), tmp_path)
    assert "torch_compile last" in found.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("name", READ_FLOATS)
def test_what_torchao_quantized_is_not_exported_or_trained(after, tmp_path, name):
    with pytest.raises(StepError, match="quantized already") as found:
        run(name, after(QUANTIZED), tmp_path)
    assert "behind export_onnx" in found.value.hint
