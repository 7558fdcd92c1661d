"""PyTorch's runners and what is compiled for them, on a real GPU: the CPU's outputs, and times."""

from __future__ import annotations

import os

import agreement
import numpy as np
import pytest
from needs import needs
from tiny_networks import INPUTS, apply, feed, torch_artifact

from optcli.artifact import Format
from optcli.measure.latency.machine_state import GpuMemory
from optcli.passes import find as find_pass
from optcli.runners import find

pytestmark = pytest.mark.gpu

SPECS = INPUTS["Conv"]


@pytest.fixture
def network(gpu, tmp_path):
    return torch_artifact(tmp_path / "network", "Conv")


def agree(artifact, source, *, allowed=1e-4, sizes=(1, 2, 5), **options):
    """Hold a runner on the GPU against eager PyTorch on the CPU; gives what it says of itself."""
    name = {Format.TORCHSCRIPT: "torchscript", Format.AOTI: "aoti"}.get(artifact.format, "torch")
    with (
        find(name)(threads=1, **options).open(artifact, SPECS) as tried,
        find("torch")(threads=1, device="cpu", compile=False).open(source, SPECS) as right,
    ):
        return agreement.agree(tried, right, allowed=allowed, sizes=sizes)


def test_eager(network, gpu):
    found = agree(network, network, device="cuda")
    assert (found["provider"], found["gpu"]) == ("cuda:0", gpu.name)
    assert (found["precision"], found["compute_capability"]) == ("fp32", gpu.compute_capability)


def test_tf32_is_said(network):
    assert agree(network, network, allowed=1e-2, device="cuda", tf32=True)["precision"] == "tf32"


@pytest.mark.parametrize(("precision", "allowed"), [("fp16", 1e-2), ("bf16", 5e-2)])
def test_autocast_with_the_channels_last(network, precision, allowed):
    options = {"device": "cuda", "autocast": precision, "channels_last": True}
    found = agree(network, network, allowed=allowed, **options)
    assert (found["precision"], found["channels_last"]) == (precision, True)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_by_the_runner(network, mode):
    assert agree(network, network, device="cuda", compile=mode)["compile"] == mode


def test_compiled_by_the_pass_and_started_warm(network, tmp_path):
    one = find_pass("torch_compile")(device="cuda")
    made = apply(one, network, tmp_path / "made", SPECS, device="cuda", batch_sizes=(1, 2))
    found = agree(made, network)
    assert found["provider"] == "cuda:0", "auto is what it was compiled for"
    assert found["kernels_compiled_at_load"] == 0


def test_compiled_ahead(network, tmp_path):
    one = find_pass("aot_inductor")(device="cuda")
    made = apply(one, network, tmp_path / "made", SPECS, device="cuda")
    assert agree(made, network)["provider"] == "cuda:0"


@pytest.mark.parametrize("traced", ["cpu", "cuda"])
def test_torchscript(network, tmp_path, traced):
    one = find_pass("torchscript")(device=traced)
    made = apply(one, network, tmp_path / "made", SPECS, device=traced)
    assert agree(made, network, device="cuda")["provider"] == "cuda:0"


def test_exported_programs(network, tmp_path):
    made = apply(find_pass("export")(), network, tmp_path / "made", SPECS)
    assert agree(made, network, device="cuda")["provider"] == "cuda:0"


def test_what_was_bound_may_change_and_what_was_fetched_stays(network):
    with find("torch")(threads=1, device="cuda").open(network, SPECS) as runner:
        values = feed(SPECS, 2)
        wanted = runner.run(values)
        runner.bind(values)
        for array in values.values():
            array[:] = 0
        runner.execute()
        found = runner.fetch()
        runner.run(values)
        for key, array in wanted.items():
            np.testing.assert_array_equal(found[key], array)


def test_memory_through_nvml(gpu):
    needs("package", "pynvml")
    import torch

    memory = GpuMemory.here()
    assert memory is not None, f"NVML does not tell, in process {os.getpid()}"
    held = torch.ones(256 * 1024**2, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    memory.look()
    assert memory.peak_bytes >= held.numel()
