"""ONNX Runtime on a real GPU: the CPU's outputs, with and without CUDA graphs, and times."""

from __future__ import annotations

import agreement
import pytest
from needs import missing, needs
from tiny_networks import INPUTS, apply, torch_artifact

from optcli.errors import OptcliError
from optcli.models.formats.onnxruntime_providers import PROVIDERS, preload
from optcli.passes import find as find_pass
from optcli.runners.onnxruntime import OnnxruntimeRunner

pytestmark = pytest.mark.gpu

SPECS = INPUTS["Conv"]
PLUG_IN = PROVIDERS["tensorrt_rtx"].plugin


@pytest.fixture
def onnx(gpu, tmp_path):
    needs("onnxruntime for gpus")
    needs("provider libraries", "cuda")
    preload()
    network = torch_artifact(tmp_path / "network", "Conv")
    return apply(find_pass("export_onnx")(), network, tmp_path / "onnx", SPECS)


def agree(artifact, allowed, sizes=(1, 3, 1, 3, 2), **options):
    with (
        OnnxruntimeRunner(threads=1, **options).open(artifact, SPECS) as tried,
        OnnxruntimeRunner(threads=1).open(artifact, SPECS) as right,
    ):
        return agreement.agree(tried, right, allowed=allowed, sizes=sizes)


@pytest.mark.parametrize("graphs", [False, True])
def test_it_agrees_with_the_cpu(onnx, gpu, graphs):
    found = agree(onnx, 1e-4, provider="cuda", cuda_graphs=graphs)
    assert (found["provider"], found["gpu"]) == ("CUDAExecutionProvider", gpu.name)
    assert (found["precision"], found["cuda_graphs"]) == ("fp32", graphs)
    assert found["operators"]["CUDAExecutionProvider"] > 0


def test_tf32_is_said(onnx):
    assert agree(onnx, 1e-2, provider="cuda", tf32=True)["precision"] == "tf32"


def test_half_precision(onnx, tmp_path):
    half = apply(find_pass("convert_precision")(), onnx, tmp_path / "half", SPECS)
    assert agree(half, 1e-2, provider="cuda")["precision"].startswith("fp16")


@pytest.mark.parametrize(
    ("provider", "wanted"),
    [
        ("tensorrt", [("provider libraries", "tensorrt")]),
        (
            "tensorrt_rtx",
            [("package", PLUG_IN), ("tensorrt-rtx for this gpu",)],
        ),
    ],
)
def test_tensorrt_runs_or_says_why_not(onnx, provider, wanted):
    if any(missing(*need) for need in wanted):
        with pytest.raises(OptcliError, match=f"provider {provider}") as failure:
            OnnxruntimeRunner(provider=provider).open(onnx, SPECS)
        assert failure.value.hint
        return
    with OnnxruntimeRunner(provider=provider).open(onnx, SPECS) as runner:
        assert runner.effective()["provider"] == PROVIDERS[provider].name
    agree(onnx, 1e-2, provider=provider)
