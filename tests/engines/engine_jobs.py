"""Jobs for a child process of the engines' room: what goes wrong there, on demand."""

import os
import signal
import time

from optcli.models.engines import EngineError
from optcli.models.engines.messages import LogLine

SAID = "Could not find any implementation for node conv1."


def echo(job, talk):
    talk.progress(0.5, "half")
    talk.warn("careful")
    print("this goes to standard error")
    return job


def crash(job, talk):
    talk.heard(LogLine("E", "first"))
    talk.heard(LogLine("E", SAID))
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(job, talk):
    talk.heard(LogLine("W", "Using an old kernel"))
    talk.send({"pid": os.getpid()})
    time.sleep(600)


def refuse(job, talk):
    raise EngineError("no", place="here", hint="try again", lines=["[E] x"])


def fail(job, talk):
    talk.heard(LogLine("E", SAID))
    raise ValueError("odd")


def leave(job, talk):
    os._exit(3)
