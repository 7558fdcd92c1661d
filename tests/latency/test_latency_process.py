import gc
import mmap
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from scripted import ScriptedChannel

from optcli.artifact import Artifact, Format
from optcli.measure.latency import feeds, machine_state, process
from optcli.measure.latency.messages import Command, MeasureRequest, Ready
from optcli.results import flags
from optcli.settings import TensorSpec
from optcli.workers import memory as workers_memory

IMAGE = TensorSpec(name="image", shape=("batch", 2), batch={"min": 1, "opt": 2, "max": 8})


@pytest.fixture
def asked(tmp_path, plain_runner):
    np.savez(tmp_path / "probe.npz", image=np.arange(32, dtype=np.float64).reshape(16, 2))
    return MeasureRequest(
        artifact=Artifact("k", Format.ONNX, tmp_path, "fp32", 10, "d"),
        inputs=(IMAGE,),
        runner="plain",
        options={"threads": 2},
        feeds=tmp_path / "probe.npz",
        batch_sizes=(1, 4),
        seed=0,
    )


@pytest.mark.slow
def test_serves_the_commands_of_the_protocol(asked):
    channel = ScriptedChannel(
        Command("ready"),
        Command("open"),
        Command("warm", 4, 5, 5.0),
        Command("round", 4, 7, lead_in=2),
        Command("memory"),
    )
    process.serve(asked, channel)
    ready, opened, warm, timed, held = channel.answers
    assert ready == Ready()
    assert opened.effective == {"precision": "fp32", "threads": 2}
    assert warm.calls == 5
    assert len(timed.ns) == 7
    assert all(isinstance(each, int) and each > 0 for each in timed.ns)
    assert timed.steal_s >= 0
    assert timed.switches >= 0
    assert timed.waited_ns >= 0
    assert timed.idle_cpu_ns >= 0
    assert (timed.first_feed, timed.feeds) == ((5 + 2) % 16, 16)
    assert held.peak_memory_bytes >= 0
    assert gc.isenabled()


def test_calls_rotate_through_distinct_real_inputs(asked, plain_runner, monkeypatch):
    opened = []
    monkeypatch.setattr(plain_runner, "load", lambda self, artifact: opened.append(self))
    process.serve(
        asked,
        ScriptedChannel(Command("open"), Command("round", 4, 8, lead_in=0)),
    )
    seen = [feed["image"] for feed in opened[0].__dict__["seen"]]
    assert all(each.shape == (4, 2) and each.dtype == np.float32 for each in seen)
    assert np.array_equal(np.concatenate(seen[:4]), np.arange(32).reshape(16, 2))
    assert np.array_equal(seen[4], seen[0])


def test_an_artifact_has_its_own_names_for_the_inputs(asked, plain_runner, monkeypatch):
    opened = []
    monkeypatch.setattr(plain_runner, "load", lambda self, artifact: opened.append(self))
    channel = ScriptedChannel(Command("open"), Command("round", 4, 4, lead_in=0))
    process.serve(replace(asked, names=("pixels",)), channel)
    assert [spec.name for spec in opened[0].inputs] == ["pixels"]
    seen = [feed["pixels"] for feed in opened[0].__dict__["seen"]]
    assert np.array_equal(np.concatenate(seen), np.arange(32).reshape(16, 2))


def test_warms_up_until_it_is_steady_where_it_is_told_to(asked, plain_runner, monkeypatch):
    monkeypatch.setattr(plain_runner, "execute", lambda self: time.sleep(0.001))
    command = Command("warm", 1, 7, 0.0, steady=True)
    channel = ScriptedChannel(Command("open"), command)
    process.serve(asked, channel)
    assert channel.answers[1].steady is False  # one window, and the time is over
    assert channel.answers[1].calls > 7


def test_a_thread_that_computes_between_two_turns_is_noticed(asked, plain_runner, monkeypatch):
    def restless(self):
        end = time.process_time_ns() + 30e6
        while time.process_time_ns() < end:
            pass

    turn = Command("round", 1, 2, lead_in=0)
    channel = ScriptedChannel(Command("open"), turn, turn)
    receive = channel.receive

    def after_the_first_turn(kind):
        command = receive(kind)
        if len(channel.answers) == 2:
            restless(None)
        return command

    channel.receive = after_the_first_turn
    process.serve(asked, channel)
    assert channel.answers[2].idle_cpu_ns >= 30e6


def test_waiting_for_a_processor_is_counted_where_the_system_tells(monkeypatch, tmp_path):
    for number, waited in (("1", 5_000_000), ("2", 7_000_000)):
        (tmp_path / number).mkdir()
        (tmp_path / number / "schedstat").write_text(f"123 {waited} 4\n")
    (tmp_path / "gone").mkdir()
    monkeypatch.setattr(machine_state, "_TASKS", tmp_path)
    assert machine_state.waited_ns() == 12_000_000
    before = machine_state.Noise()
    (tmp_path / "2" / "schedstat").write_text("123 9000000 4\n")
    assert before.since().waited_ns == 2_000_000


@pytest.mark.parametrize("cores", [1, 2])
def test_threads_that_wait_for_each_other_tell_nothing_of_other_work(asked, monkeypatch, cores):
    """Two threads on one core wait for half of the time, and nobody else is there."""
    monkeypatch.setattr(process, "usable_cores", lambda: cores)
    waits = iter(range(0, 10**9, 10**8))
    monkeypatch.setattr(machine_state, "waited_ns", lambda: next(waits))
    turn = Command("round", 1, 2, lead_in=0)
    channel = ScriptedChannel(Command("open"), turn)
    process.serve(asked, channel)
    opened, found = channel.answers
    assert found.waited_ns == (0 if cores == 1 else 10**8)
    crowded = flags.threads_over_cores(opened.threads, cores).model_dump()
    assert (crowded in opened.effective.get("flags", [])) == (cores == 1)


@pytest.mark.parametrize("cores", [1, 2])
def test_what_a_quota_takes_is_waiting_however_many_threads_there_are(asked, monkeypatch, cores):
    monkeypatch.setattr(process, "usable_cores", lambda: cores)
    monkeypatch.setattr(machine_state, "waited_ns", lambda: 0)
    throttled = iter([0.5, 0.75])
    monkeypatch.setattr(machine_state, "throttled_s", lambda: next(throttled))
    channel = ScriptedChannel(Command("open"), Command("round", 1, 2, lead_in=0))
    process.serve(asked, channel)
    assert channel.answers[1].waited_ns == 0.25e9


def test_warming_up_stops_at_its_time(asked):
    channel = ScriptedChannel(Command("open"), Command("warm", 1, 10**9, 0.0))
    process.serve(asked, channel)
    assert channel.answers[1].calls == 1


def test_garbage_is_not_collected_while_calls_are_timed(asked, plain_runner, monkeypatch):
    enabled = []
    monkeypatch.setattr(plain_runner, "execute", lambda self: enabled.append(gc.isenabled()))
    process.serve(
        asked,
        ScriptedChannel(Command("open"), Command("round", 1, 3, lead_in=1)),
    )
    assert enabled == [False] * 4
    assert gc.isenabled()


def test_random_inputs_keep_to_their_type_and_seed():
    specs = (
        IMAGE,
        TensorSpec(name="ids", dtype="int64", shape=("batch", 50)),
        TensorSpec(name="pixels", dtype="uint8", shape=(1, 500)),
    )
    first, second = (feeds.make(specs, None, [2], seed=3)[2] for _ in range(2))
    assert len(first) == feeds.DISTINCT
    assert np.array_equal(first[5]["ids"], second[5]["ids"])
    assert not np.array_equal(first[0]["image"], first[1]["image"])
    assert (first[0]["ids"].dtype, set(first[0]["ids"].ravel())) == (np.int64, {0, 1})
    assert first[0]["pixels"].shape == (1, 500)
    assert first[0]["pixels"].max() > 128


@pytest.mark.slow
def test_large_batches_are_fewer():
    wide = TensorSpec(name="x", shape=("batch", 1024, 1024))
    assert len(feeds.make((wide,), None, [16], seed=0)[16]) == 4


def test_a_model_of_one_batch_size_is_measured_at_it():
    fixed = TensorSpec(name="x", shape=(4, 3))
    assert feeds.choose_batch_sizes((fixed,), (1, 8)) == (
        (4,),
        {1: "the model takes 4", 8: "the model takes 4"},
    )
    assert feeds.choose_batch_sizes((IMAGE, fixed), (8, 1, 9)) == (
        (1, 8),
        {9: "the model takes 1 to 8"},
    )


def test_memory_is_this_process_own():
    marked = machine_state.mark_bytes()
    # Mapped anew: a test before may have left the C library keeping freed memory for what comes next.
    with mmap.mmap(-1, 30_000_000) as block:
        block.write(b"x" * 30_000_000)
        assert machine_state.high_water_bytes() - marked >= 25_000_000
    assert 0 < workers_memory.available_bytes() < 2**60


def test_free_memory_is_what_the_system_says_within_the_limits_of_all_groups(tmp_path, monkeypatch):
    meminfo, own, parent = tmp_path / "meminfo", tmp_path / "parent" / "own", tmp_path / "parent"
    own.mkdir(parents=True)
    meminfo.write_text("MemTotal:       16384 kB\nMemAvailable:    8192 kB\n")
    monkeypatch.setattr(workers_memory, "_MEMORY", meminfo)
    monkeypatch.setattr(workers_memory, "control_groups", lambda controller: [own, parent])
    assert workers_memory.available_bytes() == 8192 * 1024
    (own / "memory.max").write_text("max\n")
    (own / "memory.current").write_text("1000000\n")
    (parent / "memory.limit_in_bytes").write_text("5000000\n")
    (parent / "memory.usage_in_bytes").write_text("1000000\n")
    assert workers_memory.available_bytes() == 4000000
    meminfo.write_text("MemTotal:       16384 kB\n")  # as old kernels have it
    monkeypatch.setattr(workers_memory, "control_groups", lambda controller: [])
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=123456))
    assert workers_memory.available_bytes() == 123456
