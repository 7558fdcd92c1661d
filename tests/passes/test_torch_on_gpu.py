"""Passes that compile PyTorch for a GPU, as far as it can be known without one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from needs import needs

from optcli.errors import MissingError
from optcli.models.engines import driver
from optcli.models.formats import torch_devices
from optcli.passes import Traits, find
from optcli.pipeline import plan
from optcli.recipe import RunnerUse
from optcli.runners import find as find_runner
from optcli.workers import messages

COMPILERS = ["torch_compile", "aot_inductor"]
ALL = [*COMPILERS, "torchscript", "finetune"]


@pytest.mark.parametrize("name", ALL)
def test_working_on_a_gpu_needs_one(name):
    kind = find(name)
    assert not Traits.of(kind(), name, "code").needs.gpu
    traits = Traits.of(kind(device="cuda"), name, "code")
    assert traits.needs.gpu
    assert traits.needs.packages == kind.needs.packages
    assert traits.options["device"] == "cuda"
    assert messages.read(Traits, messages.to_record(traits)) == traits


@pytest.mark.parametrize("name", COMPILERS)
def test_what_is_compiled_for_a_gpu_is_for_this_one(name, monkeypatch):
    card = driver.CudaDevice(0, "NVIDIA H200", "9.0", 1, "13.0", "580.65.06")
    monkeypatch.setattr(driver, "present", lambda: True)
    monkeypatch.setattr(driver, "devices", lambda: (card,))
    kind = find(name)
    assert kind().bound_to() == {}
    assert kind(device="cuda").bound_to()["gpu"] == {
        "name": "NVIDIA H200",
        "compute_capability": "9.0",
        "driver": "580.65.06",
    }
    monkeypatch.setattr(driver, "present", lambda: False)
    assert kind(device="cuda").bound_to() == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_without_a_gpu_nothing_is_done_on_the_cpu_instead(name, tmp_path):
    needs("no gpu in torch")
    from tiny_networks import INPUTS, apply, torch_artifact

    source = torch_artifact(tmp_path / "a", "Conv")
    with pytest.raises(MissingError, match=r"no GPU|without CUDA") as failure:
        apply(find(name)(device="cuda"), source, tmp_path / "made", INPUTS["Conv"], device="cuda")
    assert failure.value.hint


def test_headers_of_cuda_are_found_where_pip_has_put_them(monkeypatch, tmp_path):
    monkeypatch.setattr(torch_devices, "exact", lambda: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    for name in ("cu12", "cu13", "cudnn"):
        (tmp_path / name / "include").mkdir(parents=True)
    (tmp_path / "cu12" / "include" / "cuda.h").touch()
    where = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: where)
    monkeypatch.setenv("CUDA_HOME", "/somebody/knows/better")
    torch_devices.prepare_compiling()
    assert torch_devices.os.environ["CUDA_HOME"] == "/somebody/knows/better"
    monkeypatch.delenv("CUDA_HOME")
    torch_devices.prepare_compiling()
    assert torch_devices.os.environ["CUDA_HOME"] == str(tmp_path / "cu12")
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    torch_devices.prepare_compiling()
    assert "CUDA_HOME" not in torch_devices.os.environ


def test_a_driver_without_its_link_can_be_linked(monkeypatch, tmp_path):
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r--p 0 08:01 1 /usr/lib/libc.so.6\n7f02-7f03 r--p 0 00:00 0\n")
    monkeypatch.setenv("LIBRARY_PATH", "/already")
    torch_devices.make_driver_linkable(tmp_path, maps)
    assert torch_devices.os.environ["LIBRARY_PATH"] == "/already"
    maps.write_text(maps.read_text() + "7f04-7f05 r-xp 0 08:01 2 /usr/lib/libcuda.so.580.65.06\n")
    torch_devices.make_driver_linkable(tmp_path, maps)
    assert str((tmp_path / "libcuda.so").readlink()) == "/usr/lib/libcuda.so.580.65.06"
    assert torch_devices.os.environ["LIBRARY_PATH"] == f"/already:{tmp_path}"


@pytest.mark.parametrize(
    ("runner", "options"),
    [
        ("torch", {"device": "cuda"}),
        ("torchscript", {"device": "cuda:1"}),
        ("onnxruntime", {"provider": "cuda"}),
    ],
)
def test_a_variant_whose_runner_asks_for_a_gpu_is_skipped_without_one(monkeypatch, runner, options):
    monkeypatch.setattr("optcli.environment.has_gpu", lambda: False)
    kind = find_runner(runner)
    needs = SimpleNamespace(packages=(), gpu=False)
    step = SimpleNamespace(needs=plan.environment.Needs(needs.packages), format=kind.runs[0])
    use = RunnerUse(name=runner, configured=kind(**options), place="variants.x")
    (missing,) = plan._planned("x", (step,), use, required=True, away=False).missing
    assert missing.what == "no NVIDIA GPU was found"
    plain = RunnerUse(name=runner, configured=kind(), place="variants.x")
    assert plan._planned("x", (step,), plain, required=True, away=False).missing == ()
