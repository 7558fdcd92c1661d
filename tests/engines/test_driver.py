"""CUDA's driver: what is said where there is none, and what it gives where there is one."""

import numpy as np
import pytest

from optcli.models.engines import EngineError, driver
from optcli.models.engines.driver import Buffer, CudaError, CudaEvent, CudaGraph, Gpu, Stream


@pytest.fixture
def nothing(monkeypatch):
    monkeypatch.setattr(driver, "LIBRARY", "libno-such-driver.so.1")


def test_without_a_driver_nothing_is_present_and_the_reason_is_said(nothing):
    assert driver.present() is False
    assert "there is no NVIDIA driver here" in driver.absence().message
    with pytest.raises(EngineError, match="no NVIDIA driver") as raised:
        driver.require()
    assert "nvidia-smi" in raised.value.hint


def test_a_library_that_is_no_driver_is_said_to_be_too_old(monkeypatch):
    driver._open.cache_clear()
    monkeypatch.setattr(driver, "LIBRARY", "libm.so.6")
    assert driver.present() is False
    assert "too old" in driver.absence().message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "said", "hint"),
    [
        (100, "no GPU (CUDA_ERROR_NO_DEVICE, 100)", "CUDA_VISIBLE_DEVICES"),
        (803, "different versions (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)", "restart"),
        (804, "compatibility library does not support this GPU", "update the driver"),
        (34, "stub", "LD_LIBRARY_PATH"),
        (999, "cuInit failed: unknown error (CUDA_ERROR_UNKNOWN, 999)", ""),
        (77, "cuInit failed: unknown error (CUDA error, 77)", ""),
    ],
)
def test_a_driver_that_cannot_start_says_why(cuda, monkeypatch, number, said, hint):
    monkeypatch.setenv("FAKE_CUDA_INIT", str(number))
    assert driver.present() is False
    found = driver.absence()
    assert said in found.message
    assert hint in found.hint
    assert found.number == number


def test_a_driver_that_failed_is_asked_again(cuda, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_INIT", "802")
    assert not driver.present()
    monkeypatch.delenv("FAKE_CUDA_INIT")
    assert driver.present()


def test_a_driver_without_a_gpu(cuda, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "0")
    assert not driver.present()
    assert driver.absence().name == "CUDA_ERROR_NO_DEVICE"
    assert driver.devices() == ()


def test_gpus_are_described(cuda, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "2")
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n")
    monkeypatch.setattr(driver, "_VERSION_FILES", (str(tmp_path / "none"), str(version)))
    assert driver.present()
    assert driver.require(1) == driver.CudaDevice(
        1, "Fake GPU 1", "9.0", 80 * 2**30, "13.0", "580.65.06"
    )
    with pytest.raises(EngineError, match="no GPU 2: this machine has 2"):
        driver.require(2)


def test_the_drivers_version_may_not_be_told(monkeypatch, tmp_path):
    monkeypatch.setattr(driver, "_VERSION_FILES", (str(tmp_path / "none"),))
    assert driver.driver_version() is None


def test_values_go_to_the_gpu_and_back(cuda):
    before = cuda.fake_allocated()
    gpu = Gpu(0)
    stream, one = Stream(gpu), Buffer(gpu)
    one.reserve(12)
    one.array((3,), np.dtype("float32"))[...] = [1, 2, 3]
    one.to_device(12, stream)
    one.array((3,), np.dtype("float32"))[...] = 0
    one.to_host(12, stream)
    stream.synchronize()
    assert one.array((3,), np.dtype("float32")).tolist() == [1, 2, 3]
    assert one.address != one.host_address
    gpu.close()
    assert cuda.fake_allocated() == before


def test_a_buffer_only_grows(cuda):
    gpu = Gpu(0)
    one = Buffer(gpu)
    one.reserve(0)
    assert one.address
    one.reserve(100)
    address = one.address
    one.reserve(50)
    assert (one.address, one.size_bytes) == (address, 100)
    gpu.close()


def test_events_tell_milliseconds(cuda):
    gpu = Gpu(0)
    stream, one, buffer = Stream(gpu), (CudaEvent(gpu), CudaEvent(gpu)), Buffer(gpu)
    buffer.reserve(4)
    one[0].record(stream)
    buffer.to_device(4, stream)
    one[1].record(stream)
    assert one[1].since_ms(one[0]) == 100.0
    gpu.close()


def test_memory_that_is_not_there_is_an_error_with_cudas_name(cuda):
    gpu = Gpu(0)
    with pytest.raises(CudaError) as raised:
        Buffer(gpu).reserve(2**60)
    assert raised.value.name == "CUDA_ERROR_OUT_OF_MEMORY"
    assert "out of memory" in raised.value.message
    assert "smaller batches" in raised.value.hint
    gpu.close()


def test_a_failed_recording_leaves_the_stream_usable(cuda):
    before = cuda.fake_allocated()
    gpu = Gpu(0)
    stream = Stream(gpu)

    def refuses():
        raise EngineError("no")

    with pytest.raises(EngineError, match="no"):
        CudaGraph(gpu, stream, refuses)
    with pytest.raises(CudaError, match="INVALIDATED"):
        CudaGraph(gpu, stream, lambda: _swallowed(stream))
    stream.synchronize()
    gpu.close()
    assert cuda.fake_allocated() == before


def _swallowed(stream):
    """What breaks a recording although nobody hears of it."""
    with pytest.raises(CudaError, match="UNSUPPORTED"):
        stream.synchronize()
