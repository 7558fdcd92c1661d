"""PyTorch's runners on a GPU, as far as it can be known without one: order of copies, what is refused.

The fake stream holds copies back until somebody waits for it, as a GPU may.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import MissingError, RunnerError
from optcli.models.formats import torch_devices
from optcli.runners import _pytorch, find
from optcli.runners._pytorch import TorchCudaCalls

pytestmark = pytest.mark.slow

PYTORCH = ["torch", "torchscript", "aoti"]


class Stream:
    """Work in its order, done when somebody waits."""

    current = None

    def __init__(self, log):
        self.log, self.work = log, []

    def synchronize(self):
        self.log.append("wait for the stream")
        self.drain()

    def drain(self):
        work, self.work = self.work, []
        for each in work:
            each()

    def __enter__(self):
        Stream.current = self
        return self

    def __exit__(self, *_):
        Stream.current = None


class Event:
    def __init__(self, log, stream):
        self.log, self.stream = log, stream

    def record(self, stream):
        assert stream is self.stream
        self.log.append("event")

    def synchronize(self):
        self.log.append("wait for the event")
        self.stream.drain()

    def elapsed_time(self, stop):
        return 1.5


@pytest.fixture
def gpu(monkeypatch):
    """The calls, on the CPU's memory, and what happened, in order."""
    log: list[str] = []
    stream = Stream(log)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(log, stream))
    monkeypatch.setattr(torch.cuda, "stream", lambda each: each)

    def empty(count, dtype, device):
        return torch.full((count,), -1, dtype=dtype)

    def copy(target, source):
        log.append("copy")
        assert Stream.current is stream, "a copy on another stream is in no order with the rest"
        stream.work.append(lambda: target.copy_(source))

    monkeypatch.setattr(_pytorch, "_empty", empty)
    monkeypatch.setattr(_pytorch, "_copy", copy)
    return TorchCudaCalls("cuda:0"), log


def doubled(calls, tensor):
    """A computation that the GPU does when its turn comes."""
    made = torch.zeros_like(tensor)
    Stream.current.work.append(lambda: made.copy_(tensor * 2))
    return made


def test_a_call_copies_in_computes_between_events_and_waits_before_it_reads(gpu):
    calls, log = gpu
    image = calls.send("image", np.array([[1.0, 2.0]], np.float32))
    result = calls.compute(lambda: doubled(calls, image))
    assert calls.receive({"output": result})["output"].tolist() == [[2.0, 4.0]]
    assert log == ["copy", "event", "event", "wait for the event", "copy", "wait for the stream"]
    assert calls.device_ms() == 1.5


def test_there_is_no_time_before_something_was_computed(gpu):
    assert gpu[0].device_ms() is None


def test_what_is_still_being_copied_is_not_written_over(gpu):
    calls, log = gpu
    first = calls.send("image", np.array([1.0], np.float32))
    calls.send("other", np.array([7.0], np.float32))
    assert "wait for the stream" not in log, "different inputs do not wait for each other"
    kept: list[float] = []
    Stream.current = None
    with calls.stream():
        Stream.current.work.append(lambda: kept.append(float(first)))
    calls.send("image", np.array([2.0], np.float32))
    assert log == ["copy", "copy", "wait for the stream", "copy"]
    assert kept == [1.0]


def test_the_array_may_be_changed_at_once_and_results_stay(gpu):
    calls, _ = gpu
    array = np.array([1.0, 2.0], np.float32)
    image = calls.send("image", array)
    array[:] = 0
    first = calls.receive({"y": calls.compute(lambda: doubled(calls, image))})["y"]
    image = calls.send("image", np.array([5.0, 6.0], np.float32))
    calls.receive({"y": calls.compute(lambda: doubled(calls, image))})
    assert first.tolist() == [2.0, 4.0]


def test_memory_is_used_again_and_grows(gpu):
    calls, _ = gpu
    small = calls.send("image", np.zeros((2, 3), np.float32)).data_ptr()
    assert calls.send("image", np.ones((3, 2), np.float32)).data_ptr() == small
    large = calls.send("image", np.ones((4, 3), np.float32))
    assert large.shape == (4, 3)
    whole = calls.send("image", np.ones((2, 3), np.int64))
    assert whole.dtype == torch.int64, "another type has memory of its own"


def test_bfloat16_comes_back_as_float32_and_a_result_may_be_empty(gpu):
    calls, _ = gpu
    found = calls.receive(
        {"half": torch.ones(2, dtype=torch.bfloat16), "none": torch.empty(0, 4, dtype=torch.int32)}
    )
    assert (found["half"].dtype, found["half"].tolist()) == (np.float32, [1.0, 1.0])
    assert (found["none"].shape, found["none"].dtype) == ((0, 4), np.int32)


def artifact(**facts):
    return Artifact("key", Format.TORCH, None, "fp32", 0, "", facts)


def test_auto_is_what_it_was_compiled_for(monkeypatch):
    monkeypatch.setattr(torch_devices, "require", lambda device: f"there: {device}")
    assert _pytorch.chosen("auto", artifact()) == "there: cpu"
    assert _pytorch.chosen("auto", artifact(device="cuda")) == "there: cuda"
    assert _pytorch.chosen("cuda:1", artifact()) == "there: cuda:1"
    assert _pytorch.chosen("cuda:1", artifact(device="cuda")) == "there: cuda:1"
    with pytest.raises(RunnerError, match="compiled for cuda, and the runner is to run it on cpu"):
        _pytorch.chosen("cpu", artifact(device="cuda"))
    with pytest.raises(RunnerError, match="compiled for cpu"):
        _pytorch.chosen("cuda", artifact(device="cpu"))


@pytest.mark.parametrize(
    ("cuda", "count", "says"),
    [(None, 0, "without CUDA"), ("13.0", 0, "sees no GPU"), ("13.0", 2, "there is no cuda:2")],
)
def test_a_gpu_that_is_not_there_never_becomes_the_cpu(monkeypatch, cuda, count, says):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(MissingError, match=says) as found:
        torch_devices.require("cuda:2")
    assert found.value.hint
    assert torch_devices.require("cpu") == "cpu"
    if count:
        assert torch_devices.require("cuda") == "cuda:0"


@pytest.mark.parametrize("name", PYTORCH)
def test_asking_for_a_gpu_needs_one(name):
    kind = find(name)
    assert kind(device="cuda").requires() == Needs(kind.needs.packages, gpu=True)
    assert kind(device="cuda:3").requires().gpu
    assert not kind().requires().gpu
    assert not kind(device="cpu").requires().gpu


@pytest.mark.parametrize("name", PYTORCH)
@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CUDA", ""])
def test_other_words_are_no_devices(name, device):
    with pytest.raises(ValueError, match="device"):
        find(name)(device=device)


def test_fp32_is_fp32_unless_tf32_is_asked_for():
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        torch_devices.exact()
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)
        torch_devices.exact(tf32=True)
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@pytest.mark.parametrize("name", PYTORCH)
def test_rounded_factors_are_said_where_they_are(name):
    def precision(made: str, device: str, **options):
        runner = find(name)(**options)
        runner._device = device
        return runner._precision_of(made)

    assert precision("fp32", "cuda:0", tf32=True) == "tf32"
    assert precision("fp32", "cuda:0") == "fp32"
    assert precision("fp32", "cpu", tf32=True) == "fp32"
    assert precision("fp16", "cuda:0", tf32=True) == "fp16"
