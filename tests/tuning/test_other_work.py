"""How much of the processors others had while a search ran."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import namedtuple

import pytest

from optcli.tuning import budget
from optcli.tuning.budget import OtherWork

Times = namedtuple("Times", ("user", "nice", "system", "idle", "steal"))


class Machine:
    """Two cores of four, and what was computed on each: seconds by `Times`."""

    def __init__(self, monkeypatch):
        self.now, self.own = 0.0, 0.0
        self.cores = [[0.0] * 5 for _ in range(4)]
        monkeypatch.setattr(budget.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(budget, "_own_s", lambda: self.own)
        monkeypatch.setattr(budget, "_cores", lambda: {0, 1})
        monkeypatch.setattr(budget, "usable_cores", lambda: 2)
        monkeypatch.setattr(
            budget.psutil, "cpu_times", lambda percpu: [Times(*core) for core in self.cores]
        )


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_what_is_not_our_own_is_others(machine):
    others = OtherWork()
    machine.now, machine.own = 100.0, 120.0
    machine.cores[0] = [70.0, 0.0, 10.0, 20.0, 0.0]
    machine.cores[1] = [50.0, 10.0, 0.0, 20.0, 20.0]
    machine.cores[2] = [100.0, 0.0, 0.0, 0.0, 0.0]  # not a core of ours
    assert others.share() == pytest.approx(0.2)  # 160 s of 200, of which 120 our own


def test_a_machine_that_is_ours_alone(machine):
    others = OtherWork()
    machine.now, machine.own = 100.0, 120.5  # clocks differ a little
    machine.cores[0] = [60.0, 0.0, 0.0, 40.0, 0.0]
    machine.cores[1] = [60.0, 0.0, 0.0, 40.0, 0.0]
    assert others.share() == 0.0


def test_where_nothing_is_counted_or_a_quota_holds_nothing_is_known(machine, monkeypatch):
    others = OtherWork()
    machine.now = 100.0
    assert others.share() is None
    machine.cores[0] = [60.0, 0.0, 0.0, 40.0, 0.0]
    assert others.share() == pytest.approx(0.3)
    monkeypatch.setattr(budget, "usable_cores", lambda: 1)
    assert others.share() is None


BUSY = """\
import sys, time
while time.process_time() < 0.6:
    pass
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's counters")
def test_a_process_that_runs_is_another_and_one_that_has_ended_is_our_own():
    others = OtherWork()
    if others.share() is None and budget.usable_cores() < len(os.sched_getaffinity(0)):
        pytest.skip("a quota holds: nothing can be told")
    busy = [sys.executable, "-c", BUSY]
    with subprocess.Popen(busy, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        before = budget._own_s()
        assert process.stdout.readline() == b"done\n"
        running = budget._own_s() - before
        assert others.share() > 0.0
        process.communicate()
    assert budget._own_s() - before > running + 0.5
