"""A keeper that no signal reaches: it sees by itself that its worker or its parent is gone."""

import subprocess
import sys

import pytest

KEEP = """
import os, signal, time
from optcli.workers import lifetime
lifetime._LOOK_S = 0.02
signal.pthread_sigmask(signal.SIG_BLOCK, lifetime._HEARD)
{}
"""
GONE = "worker = os.fork()\nif not worker: os._exit(0)\nos.waitpid(worker, 0)\n"
GONE += "signal.sigtimedwait({signal.SIGCHLD}, 5)\nlifetime._keep(worker, os.getppid())"
ORPHANED = "worker = os.fork()\nif not worker: time.sleep(60)\nlifetime._keep(worker, os.getppid() + 1)"


@pytest.mark.parametrize(
    ("code", "ends_with"), [(GONE, 1), (ORPHANED, -9)], ids=["worker gone", "parent gone"]
)
def test_it_ends(code, ends_with):
    command = [sys.executable, "-c", KEEP.format(code)]
    assert subprocess.run(command, timeout=30, check=False).returncode == ends_with
