"""Replicas of the model run on processors of their own during a load test."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from needs import needs

from optcli.serving.loadtest import opening

WAITS = (
    "import sys, threading; t = threading.Thread(target=threading.Event().wait, daemon=True);"
    " t.start(); print('up', flush=True); sys.stdin.read()"
)


def processors_of(process):
    """The processors of each of its threads."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return [os.sched_getaffinity(int(task.name)) for task in tasks]


def test_replicas_and_the_rest_of_the_server_are_kept_apart(monkeypatch):
    needs("linux")
    usable = os.sched_getaffinity(0)
    # On a machine of one processor both parts get that one.
    first, others = {min(usable)}, usable - {min(usable)} or usable
    monkeypatch.setattr(opening, "_others", lambda model_cpus: others)
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WAITS, title],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for title in (
                "ray::ServeReplica:digits:Model",
                "ray::ServeReplica:digits:Ingress",
                "raylet",
            )
        ]
        for process in started:
            process.stdout.readline()
        opening._pin((*(each.pid for each in started), 2**22 + 1), tuple(first))
        replica, ingress, ray = (processors_of(each) for each in started)
        for process in started:
            process.stdin.close()
    assert replica == [first, first]
    assert ingress == ray == [others, others]
