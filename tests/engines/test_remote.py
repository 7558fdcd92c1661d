"""Executions in a second interpreter: a real process, with the fake driver and TensorRT over there."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import fake_tensorrt
import numpy as np
import pytest
from fake_driver import engine, interpreter, plan

from optcli.models.engines import EngineError, child
from optcli.models.engines.running import shared_arrays
from optcli.models.engines.running.remote import RemoteExecution
from optcli.models.engines.running.shared_arrays import SharedArrays, SharedFolder

RNG = np.random.default_rng(0)


@pytest.fixture
def python(fake_cuda, tmp_path):
    return interpreter(tmp_path, fake_cuda)


@pytest.fixture
def opened(python, tmp_path):
    found = []

    def make(content=None, **options):
        folder = engine(tmp_path / "artifact", content)
        job = {"folder": str(folder), "product": "tensorrt", **options}
        found.append(RemoteExecution(job, python))
        return found[-1]

    yield make
    for each in found:
        each.close()


def call(execution, image):
    execution.bind({"image": image})
    execution.execute()
    return execution.fetch()["logits"]


@pytest.mark.slow
def test_arrays_go_there_and_back(opened):
    execution = opened()
    assert execution.inputs == {"image": np.dtype("float32")}
    for batch in (1, 8, 4, 4):
        image = RNG.standard_normal((batch, 3)).astype("float32")
        assert np.array_equal(call(execution, image), 2 * image)


@pytest.mark.slow
def test_outputs_are_copies(opened):
    execution = opened()
    image = np.ones((2, 3), "float32")
    first = call(execution, image)
    call(execution, 5 * image)
    assert np.array_equal(first, 2 * image)


@pytest.mark.slow
def test_large_batches_after_small_ones(opened):
    wide = {"shape": [-1, 70_000]}
    profile = {"image": [[1, 70_000], [4, 70_000], [8, 70_000]]}
    content = plan(image=wide, output=wide, profiles=()).replace(
        b'"profiles": []', b'"profiles": [' + str(profile).replace("'", '"').encode() + b"]"
    )
    execution = opened(content)
    for batch in (1, 8, 2):
        image = RNG.standard_normal((batch, 70_000)).astype("float32")
        assert np.array_equal(call(execution, image), 2 * image)


@pytest.mark.slow
def test_times_are_taken_over_there(opened):
    execution = opened()
    assert execution.host_ns() is None
    before = time.perf_counter_ns()
    call(execution, np.ones((2, 3), "float32"))
    around_ns = time.perf_counter_ns() - before
    assert 0 < execution.host_ns() < around_ns
    assert execution.device_ms() == pytest.approx(fake_tensorrt.MS)
    execution.bind({"image": np.ones((2, 3), "float32")})
    assert execution.host_ns() is None  # of the last call, not of the one before


@pytest.mark.slow
def test_what_runs_there_is_described(opened):
    found = opened(cuda_graphs="off").describe()
    assert (found["version"], found["gpu"]) == ("10.16.1.11", "Fake GPU 0")
    assert found["cuda_graphs"] == "off (not wanted)"


@pytest.mark.slow
def test_memory_is_counted_over_there(opened):
    execution = opened()
    before = execution.peak_bytes()
    assert before > 0  # NumPy, if nothing else
    call(execution, np.ones((8, 3), "float32"))
    assert execution.peak_bytes() >= before


@pytest.mark.slow
def test_errors_come_over_with_place_and_hint(opened):
    execution = opened()
    with pytest.raises(EngineError, match=r"profile 0 takes \[1, 3\] to \[8, 3\]") as raised:
        call(execution, np.ones((9, 3), "float32"))
    assert "inputs" in raised.value.hint
    image = np.ones((2, 3), "float32")  # and it goes on afterwards
    assert np.array_equal(call(execution, image), 2 * image)


@pytest.mark.slow
def test_an_engine_of_something_else_is_refused_over_there(python, tmp_path):
    folder = engine(tmp_path / "artifact", version="8.6.0")
    with pytest.raises(EngineError, match=r"TensorRT 8\.6\.0 built this engine") as raised:
        RemoteExecution({"folder": str(folder), "product": "tensorrt"}, python)
    assert str(folder) in raised.value.place


@pytest.mark.slow
def test_a_crash_is_an_error_with_the_last_words(opened):
    with pytest.raises(EngineError, match=r"aborted \(SIGABRT, exit 134\): CUDA error 700") as raised:
        opened(plan(crash=True))
    assert "TensorRT said: [E] Error Code 1: Cuda Runtime (cudaError 700" in raised.value.message


@pytest.mark.slow
def test_a_crash_in_a_call_is_an_error_and_so_is_what_follows(opened):
    execution = opened()
    os.kill(execution._process.pid, signal.SIGSEGV)
    with pytest.raises(EngineError, match="segmentation fault"):
        call(execution, np.ones((2, 3), "float32"))
    execution.close()
    with pytest.raises(EngineError, match="the engine was closed"):
        call(execution, np.ones((2, 3), "float32"))


@pytest.mark.slow
def test_without_a_gpu_over_there(tmp_path, fake_cuda):
    python = interpreter(tmp_path, fake_cuda, FAKE_CUDA_DEVICES="0")
    folder = engine(tmp_path / "artifact")
    with pytest.raises(EngineError, match="the NVIDIA driver is here, and no GPU"):
        RemoteExecution({"folder": str(folder), "product": "tensorrt"}, python)


def test_an_interpreter_that_is_not_there(tmp_path):
    with pytest.raises(EngineError, match="cannot be started: No such file") as raised:
        RemoteExecution({"folder": str(tmp_path), "product": "tensorrt"}, str(tmp_path / "none"))
    assert child.PYTHON in raised.value.hint


@pytest.mark.slow
def test_nothing_is_left_when_it_is_closed(opened):
    execution = opened()
    pid, folder = execution._process.pid, execution._folder.path
    execution.close()
    execution.close()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_a_killed_process_left_goes_with_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(
        shared_arrays, "_ENOUGH_BYTES", 1 << 62
    )  # not in memory, where others have theirs
    living = SharedFolder()
    left, young, others = (tmp_path / name for name in ("optcli-engine-x", "optcli-engine-y", "mine"))
    for each in (left, young, others):
        each.mkdir()
        (each / "inputs").write_bytes(b"x")
    for each in (left, others, living.path):
        os.utime(each, (0, 0))
    (tmp_path / "optcli-engine-z").symlink_to(others)
    SharedFolder().remove()
    assert [each.exists() for each in (left, young, others, living.path)] == [False, True, True, True]
    living.remove()
    assert not living.path.exists()
    assert (others / "inputs").exists()


def test_it_ends_with_its_parent_even_in_native_code(tmp_path, python):
    """The parent is killed while the other process hangs in TensorRT."""
    folder = engine(tmp_path / "artifact", plan(hang=True))
    script = textwrap.dedent(
        f"""
        from optcli.models.engines import child
        from optcli.models.engines.running import remote
        begin = child.start
        def start(*arguments):
            process = begin(*arguments)
            print(process.pid, flush=True)
            return process
        child.start = start
        remote.RemoteExecution({{"folder": {str(folder)!r}, "product": "tensorrt"}}, {python!r})
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert _gone(pid)


def _gone(pid):
    for _ in range(3000):  # half a minute at most, and a moment on any machine
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True  # ended, and its new parent has not looked yet
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_an_empty_array_crosses(tmp_path):
    layout = SharedArrays(tmp_path / "file").write(
        {"some": np.ones((2, 3), "float32"), "none": np.empty((0, 4), "int64"), "one": np.float16(3)}
    )
    found = SharedArrays(tmp_path / "file").read(layout)
    assert found["some"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert found["none"].shape == (0, 4)
    assert (found["one"].shape, float(found["one"])) == ((), 3.0)


def test_no_room_for_arrays_is_an_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(EngineError, match="no room for 64 bytes") as raised:
        SharedArrays(tmp_path / "file").write({"x": np.ones(4, "float32")})
    assert "smaller batches" in raised.value.hint
