"""What a check asks a parent for is computed in a second process, or when it is asked for."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from multiprocessing.context import ForkProcess

import numpy as np
import pytest

from optcli.pipeline import _check_parent, jobs
from optcli.pipeline._check_parent import Parent, computed_beside
from optcli.pipeline._check_samples import Expected, drawn
from optcli.settings import TensorSpec

SPEC = TensorSpec(name="x", shape=("batch", 3), batch={"min": 1, "opt": 8, "max": 32})


class Model:
    """A parent; `batch` is how much its outputs depend on the batch size."""

    def __init__(self, batch=0.0):
        self.batch, self.sizes, self.closed = batch, [], False

    def run(self, feed):
        self.sizes.append(len(feed["x"]))
        return {"y": feed["x"].sum(axis=1) + self.batch * len(feed["x"]), "z": feed["x"]}

    def close(self):
        self.closed = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Breaking(Model):
    """A parent that gives something once, and then fails."""

    def run(self, feed):
        if self.sizes:
            raise ValueError("no more")
        return super().run(feed)


class Dying(Model):
    """A parent that takes its process with it."""

    def run(self, feed):
        os._exit(3)


@pytest.fixture
def probe(tmp_path):
    np.savez(tmp_path / "probe.npz", x=np.random.default_rng(1).random((16, 3), np.float32))
    return tmp_path / "probe.npz"


@contextmanager
def beside(model, probe=None):
    with computed_beside(lambda: model, [SPEC], probe, 1e-4) as known:
        yield known


def wanted(parent, probe):
    """What a check asks a parent for, by kind and batch."""
    return {
        (samples.kind, rows): expected.of(rows)
        for samples in drawn((SPEC,), probe)
        if (expected := Expected(parent, samples, 1e-4))
        for rows in samples.batches
    }


def refused():
    raise AssertionError("the parent was opened")


@pytest.mark.parametrize("batch", [0.0, 1.0])
@pytest.mark.parametrize("real", [False, True])
def test_what_was_computed_beside_is_what_the_parent_computes(batch, real, probe):
    data = probe if real else None
    model = Model(batch)
    with beside(model, data) as known:
        found = wanted(Parent(refused, known()), data)
    assert model.sizes == []  # the other process has its own
    computed = wanted(Model(batch), data)
    assert found.keys() == computed.keys()
    for key, outputs in found.items():
        assert list(outputs) == ["y", "z"]
        for name, array in outputs.items():
            assert np.array_equal(array, computed[key][name])


def test_for_anything_else_the_parent_is_opened_once_and_closed(probe):
    model, opened = Model(), []

    def opening():
        opened.append(1)
        return model

    feed = {"x": np.ones((2, 3), np.float32)}
    with beside(Model(), probe) as known, Parent(opening, known()) as parent:
        assert not opened
        for other in (feed, {"x": feed["x"] * 2}):
            assert np.array_equal(parent.run(other)["z"], other["x"])
        # The same bytes under another type are other inputs.
        parent.run({"x": feed["x"].view(np.int32)})
    assert (len(opened), model.sizes, model.closed) == (1, [2, 2, 2], True)


@pytest.mark.parametrize("kind", [Breaking, Dying])
def test_where_the_second_process_fails_the_parent_computes(kind, probe):
    with beside(kind(), probe) as known:
        assert known() == {}
        found = wanted(Parent(Model, known()), probe)
    computed = wanted(Model(), probe)
    assert all(np.array_equal(found[key]["y"], computed[key]["y"]) for key in computed)


def test_the_outputs_are_there_for_a_second_attempt(probe):
    with beside(Model(), probe) as known:
        first = known()
        assert first
        assert known() is first


def test_outputs_that_are_too_large_are_computed_again(probe, monkeypatch):
    monkeypatch.setattr(_check_parent, "_KEPT_BYTES", 300)  # of 16 samples: 256
    model = Model()
    with beside(Model(), probe) as known:
        assert len(known()) == 2
        wanted(Parent(lambda: model, known()), probe)
    assert model.sizes == [2]


@pytest.mark.parametrize(
    ("cores", "free", "size", "room"),
    [(2, 8, 0, True), (1, 64, 0, False), (2, 7, 0, False), (2, 11, 2, False), (4, 64, 2, True)],
)
def test_there_is_room_for_two_with_a_second_core_and_memory(cores, free, size, room, monkeypatch):
    """In GiB; a model may take six times its files."""
    monkeypatch.setattr(jobs.environment, "usable_cores", lambda: cores)
    monkeypatch.setattr(jobs.memory, "available_bytes", lambda: free << 30)
    assert jobs.is_room_for_two(size << 30) == room


def test_where_forks_are_not_safe_nothing_is_computed_beside(probe, monkeypatch):
    monkeypatch.setattr(_check_parent.sys, "platform", "darwin")
    with beside(Model(), probe) as known:
        assert known() == {}


def test_a_process_that_is_not_waited_for_ends_with_the_block(tmp_path):
    class Slow(Model):
        def run(self, feed):
            (tmp_path / "new").write_text(str(os.getpid()))
            (tmp_path / "new").rename(tmp_path / "pid")
            time.sleep(600)

    def passing():
        with beside(Slow()):
            deadline = time.monotonic() + 60
            while not (tmp_path / "pid").is_file() and time.monotonic() < deadline:
                time.sleep(0.01)
            raise KeyError("the pass failed")

    with pytest.raises(KeyError):
        passing()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_worker_that_may_end_no_process_leaves_it_to_its_keeper(monkeypatch):
    class Slow(Model):
        def run(self, feed):
            time.sleep(600)

    kept = []

    def refused(self):
        kept.append(self.pid)
        raise PermissionError

    monkeypatch.setattr(ForkProcess, "kill", refused)
    with beside(Slow()):
        pass
    os.kill(*kept, signal.SIGKILL)  # it was not waited for


def test_where_no_further_process_may_be_started_nothing_is_computed_beside(probe, monkeypatch):
    def refused(self):
        raise BlockingIOError

    monkeypatch.setattr(ForkProcess, "start", refused)
    with beside(Dying(), probe) as known:
        assert known() == {}
