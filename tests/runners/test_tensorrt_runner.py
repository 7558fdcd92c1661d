"""The runners of engines on the fake driver: here, and in another interpreter."""

import sys

import fake_tensorrt
import numpy as np
import pytest
from fake_driver import LONG, SHORT, engine, interpreter, plan

from optcli import runners
from optcli.artifact import Artifact, Format
from optcli.errors import RunnerError
from optcli.measure.latency import process
from optcli.measure.latency.messages import Command, MeasureRequest
from optcli.models.engines import child, driver, sidecar
from optcli.results import flags
from optcli.settings import TensorSpec

IMAGE = TensorSpec(name="image", shape=("batch", 3), batch={"min": 1, "opt": 4, "max": 8})
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch):
    monkeypatch.delenv(child.PYTHON, raising=False)


@pytest.fixture(params=["here", "elsewhere"])
def settings(request, cuda, fake_cuda, tmp_path, monkeypatch):
    """Options of `tensorrt` that find the fake: in this interpreter, or in another."""
    if request.param == "elsewhere":
        return {"python": interpreter(tmp_path, fake_cuda)}
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt)
    return {}


def artifact(folder, content=None, *, format=Format.TENSORRT, outputs=("logits",), **about):
    return Artifact(
        "k", format, engine(folder, content, **about), "fp16", 10, "d", {"outputs": list(outputs)}
    )


def opened(found, settings, name="tensorrt", **options):
    return runners.find(name)(**settings, **options).open(found, (IMAGE,))


@pytest.mark.slow
def test_it_runs_an_engine(settings, tmp_path):
    with opened(artifact(tmp_path / "engine"), settings) as runner:
        for batch in (1, 8, 4, 4):
            image = RNG.standard_normal((batch, 3)).astype("float32")
            assert np.array_equal(runner.run({"image": image})["logits"], 2 * image)
            assert runner.device_ms() == pytest.approx(fake_tensorrt.MS)


@pytest.mark.slow
def test_calls_elsewhere_are_timed_there(settings, tmp_path):
    with opened(artifact(tmp_path / "engine"), settings) as runner:
        runner.run({"image": np.ones((2, 3), "float32")})
        assert (runner.host_ns() is not None) is bool(settings)


def test_what_is_effective_is_read_back(settings, tmp_path):
    found = artifact(tmp_path / "engine", plan(profiles=(SHORT, LONG)), gpu="NVIDIA H100")
    with opened(found, settings) as runner:
        about = runner.effective()
        assert {
            name: about[name] for name in ("precision", "provider", "version", "gpu", "profiles")
        } == {
            "precision": "fp16",
            "provider": "TensorRT",
            "version": "10.16.1.11",
            "gpu": "Fake GPU 0",
            "profiles": 2,
        }
        assert about.get("python") == settings.get("python")
        assert about["flags"] == [
            flags.built_on_other_gpu(built_on="NVIDIA H100", gpu="Fake GPU 0").model_dump()
        ]
        runner.run({"image": np.ones((40, 3), "float32")})
        assert runner.observed() == {
            "cuda_graphs": "on",
            "device_times": "in the graph",
            "profile": 1,
        }


def test_options_arrive(settings, tmp_path):
    found = artifact(tmp_path / "engine", plan(profiles=(SHORT, LONG)))
    with opened(found, settings, cuda_graphs="off", profile=1) as runner:
        runner.run({"image": np.ones((8, 3), "float32")})
        assert runner.observed() == {
            "cuda_graphs": "off (not wanted)",
            "device_times": "around the launch",
            "profile": 1,
        }


def test_refusals_have_place_and_hint(settings, tmp_path):
    with opened(artifact(tmp_path / "engine"), settings) as runner:
        with pytest.raises(RunnerError, match=r"profile 0 takes \[1, 3\] to \[8, 3\]") as raised:
            runner.run({"image": np.ones((9, 3), "float32")})
        assert "build again" in raised.value.hint


def test_an_engine_of_another_version_is_refused(settings, tmp_path):
    with pytest.raises(RunnerError, match=r"TensorRT 11\.4\.0\.106 built this engine") as raised:
        opened(artifact(tmp_path / "engine", version="11.4.0.106"), settings)
    assert raised.value.place.endswith(sidecar.PLAN)
    assert "optcli build" in raised.value.hint


def test_outputs_come_in_the_models_order(settings, tmp_path):
    content = plan().replace(b'"name": "logits"', b'"name": "other"')
    found = artifact(tmp_path / "engine", content)  # names that the artifact does not have
    with opened(found, settings) as runner:
        assert list(runner.run({"image": np.ones((2, 3), "float32")})) == ["other"]


@pytest.mark.slow
def test_it_is_measured_in_both_regions(settings, tmp_path):
    """Through the process that measures, with times of the other interpreter where it is there."""
    found = artifact(tmp_path / "engine")
    asked = MeasureRequest(
        artifact=found,
        inputs=(IMAGE,),
        runner="tensorrt",
        options=settings,
        feeds=None,
        batch_sizes=(1, 8),
        seed=0,
    )
    measuring = process.MeasuringProcess(asked)
    try:
        measuring.answer(Command("open"))
        warm = measuring.answer(Command("warm", 8, 3, 60.0))
        timed = measuring.answer(Command("round", 8, 4, lead_in=1))
        elsewhere = measuring._runner.remote_peak_bytes()
        held = measuring.answer(Command("memory"))
    finally:
        measuring.close()
    assert warm.first_ms > 0
    assert len(timed.ns) == 4
    assert timed.device_ns == (round(fake_tensorrt.MS * 1e6),) * 4
    assert held.observed["cuda_graphs"] == "on"
    assert (elsewhere > 0) is bool(settings)
    assert held.peak_memory_bytes >= elsewhere


def test_nothing_is_run_that_was_not_opened():
    with pytest.raises(RunnerError, match="holds no engine"):
        runners.find("tensorrt")().run({})
    runners.find("tensorrt")().close()


@pytest.mark.slow
def test_the_environment_names_the_interpreter(monkeypatch, cuda, fake_cuda, tmp_path):
    kind = runners.find("tensorrt")
    assert kind().requires() == kind.needs
    python = interpreter(tmp_path, fake_cuda)
    monkeypatch.setenv(child.PYTHON, python)
    assert kind().requires().python == python
    assert kind().requires().packages == ()
    assert kind().requires().gpu
    assert kind(python="/other").requires().python == "/other"
    with opened(artifact(tmp_path / "engine"), {}) as runner:
        assert runner.effective()["python"] == python


def test_tensorrt_rtx_is_a_runner_of_its_own(cuda, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", fake_tensorrt.as_rtx())
    monkeypatch.setenv(child.PYTHON, "/no/such/python")  # holds TensorRT, and no other product
    kernels = tmp_path / "kernels"
    found = artifact(
        tmp_path / "engine",
        format=Format.TENSORRT_RTX,
        product="tensorrt_rtx",
        version="1.7.1.116",
        compute_capability=None,
        gpu=None,
    )
    with opened(found, {}, "tensorrt_rtx", kernel_cache=str(kernels)) as runner:
        image = RNG.standard_normal((4, 3)).astype("float32")
        assert np.array_equal(runner.run({"image": image})["logits"], 2 * image)
        assert runner.effective()["provider"] == "TensorRT-RTX"
        assert runner.observed()["cuda_graphs"] == "on (TensorRT-RTX's own)"
    assert kernels.read_bytes() == b"kernels"


def test_an_engine_of_the_one_is_none_of_the_other(cuda, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt)
    found = artifact(tmp_path / "engine", product="tensorrt_rtx", version="1.7.1.116")
    with pytest.raises(
        RunnerError, match=r"TensorRT-RTX 1\.7\.1\.116 built this engine, and TensorRT 10"
    ):
        opened(found, {})


def test_without_a_gpu_it_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "LIBRARY", "libno-such-driver.so.1")
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt)
    with pytest.raises(RunnerError, match="no NVIDIA driver") as raised:
        opened(artifact(tmp_path / "engine"), {})
    assert "nvidia-smi" in raised.value.hint
