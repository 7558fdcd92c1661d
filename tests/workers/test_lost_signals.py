"""A keeper that no signal reaches: it sees by itself that its worker or its parent is gone."""

import signal
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


IGNORED = """
import os, signal
from optcli.workers import lifetime
lifetime._LOOK_S = 3600
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
lifetime.bind_to_parent(os.getppid())
os._exit(7)
"""


def test_a_keeper_hears_its_worker_where_such_signals_are_inherited_as_ignored():
    """Some supervisors start their programs so; the system then buries children without a word."""
    done = subprocess.run([sys.executable, "-c", IGNORED], timeout=60, check=False)
    assert done.returncode == 7


def test_the_command_line_hears_how_its_workers_end():
    code = "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); sys.argv = ['', '-h']\n"
    code += "from optcli.cli import main\ntry: main()\nfinally: print(signal.getsignal(signal.SIGCHLD))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str(signal.SIG_DFL)
