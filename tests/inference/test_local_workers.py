"""Workers of this machine share the shards; one that dies is started again. Nothing is started."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from optcli.errors import StepError, UsageError, WorkerEndError
from optcli.serving.inference import local_workers
from optcli.serving.inference.listing import Shard
from optcli.serving.inference.shard_worker import ShardResult

SHARDS = [Shard(name, ()) for name in "abcdef"]


class Children:
    """What stands for `spawn`: workers that end as `errors` say at the shards of these names."""

    def __init__(self, **errors):
        self.errors = {name: list(listed) for name, listed in errors.items()}
        self.started, self.left, self.killed = 0, 0, 0

    def __call__(self, function, work, **_):
        self.started += 1
        return Child(self)


class Child:
    def __init__(self, children):
        self.children = children

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.children.left += 1

    def send(self, shard):
        self.shard = shard

    def receive(self, kind):
        if errors := self.children.errors.get(self.shard.name):
            raise errors.pop()
        return ShardResult(self.shard.name, 1, 0, "", 0.0, 1.0)

    def kill(self):
        self.children.killed += 1


def answered(monkeypatch, children, workers=2):
    monkeypatch.setattr(local_workers, "spawn", children)
    found = local_workers.answered(SHARDS, None, workers=workers, variables={}, log=Path("log"))
    return sorted(result.name for result in found)


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_every_shard_is_answered_once(monkeypatch, workers):
    children = Children()
    assert answered(monkeypatch, children, workers) == list("abcdef")
    assert children.started == children.left <= min(workers, len(SHARDS))


def test_a_worker_that_dies_is_started_again_with_its_shard(monkeypatch):
    children = Children(a=[WorkerEndError("killed")], d=[WorkerEndError("killed")] * 2)
    assert answered(monkeypatch, children, 1) == list("abcdef")
    assert children.started == 4


def test_a_shard_at_which_they_always_die_ends_the_run(monkeypatch):
    children = Children(c=[WorkerEndError("killed")] * 9)
    with pytest.raises(StepError, match="the worker died 3 times at this shard") as error:
        answered(monkeypatch, children, 2)
    assert error.value.place == "c"
    assert children.left == children.started, "none is left behind"


def test_the_error_of_a_worker_is_that_of_the_run(monkeypatch):
    with pytest.raises(UsageError, match="no such bucket"):
        answered(monkeypatch, Children(b=[UsageError("no such bucket", place="x", hint="y")]))


def test_who_stops_listening_stops_the_workers(monkeypatch):
    children, waits = Children(), threading.Event()

    def receive(self, kind):
        if self.shard.name != "a":
            waits.wait(30)
            raise WorkerEndError("killed")
        return ShardResult("a", 1, 0, "", 0.0, 1.0)

    def kill(self):
        self.children.killed += 1
        waits.set()

    monkeypatch.setattr(Child, "receive", receive)
    monkeypatch.setattr(Child, "kill", kill)
    monkeypatch.setattr(local_workers, "spawn", children)
    results = local_workers.answered(SHARDS, None, workers=1, variables={}, log=Path("log"))
    assert next(results).name == "a"
    results.close()
    assert (children.started, children.left) == (1, 1), "no other is started"
    assert children.killed >= 1
