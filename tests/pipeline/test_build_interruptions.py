"""kill -9 at any moment, and two builds at once: nothing is lost, damaged, done twice or left."""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress

import psutil
import pytest
from tiny_project import DATA

from optcli.store import Store

VARIANTS = """\
  plain: []
  a: [{"./fakes.py:Misbehave": {way: slow, note: a}}, {"./fakes.py:Misbehave": {way: slow}}]
  b: [{"./fakes.py:Misbehave": {way: slow, note: b}}]
  c: ["./fakes.py:Copy", {"./fakes.py:Misbehave": {way: slow, note: c}}]
"""
MOMENTS = int(os.environ.get("OPTCLI_KILLS", "8"))  # `make nightly` kills more often


def start(project, mark: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "optcli", "build", "recipe.yaml", "--store", str(project.store)]
    return subprocess.Popen(
        [*command, "--artifacts", str(project.artifacts), "--jobs", "2"],
        cwd=project.folder,
        env={**os.environ, "OPTCLI_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # A suite in the background of a shell has it ignored, and so would have the build.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def marked(mark: str) -> list[int]:
    """Living processes of a build, however they are related to it now."""
    found = []
    for process in psutil.process_iter(["pid", "status"]):
        try:
            if process.environ().get("OPTCLI_TEST_MARK") == mark and process.status() != "zombie":
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def hangs(mark: str) -> bool:
    """Whether the pass that hangs has come to that: it starts a process that sleeps."""
    lines = []
    for each in marked(mark):
        with suppress(psutil.Error):
            lines += psutil.Process(each).cmdline()
    return any("time.sleep" in line for line in lines)


def all_gone(mark: str, within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while marked(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def finished(store: Store) -> dict[str, str]:
    """Finished steps and when they were made."""
    return {entry.key: entry.created for entry in store.entries("artifact")}


@pytest.mark.slow
@pytest.mark.long
def test_kill_at_random_moments(project):
    project.recipe(VARIANTS, data=DATA)
    store, draw = Store(project.store), random.Random(20)
    for _ in range(MOMENTS):
        mark = uuid.uuid4().hex
        before = finished(store)
        builds = [start(project, mark) for _ in range(draw.choice([1, 2]))]
        time.sleep(draw.uniform(0.1, 4.0))
        for build in builds:
            build.send_signal(signal.SIGKILL)
            build.communicate()
        assert all_gone(mark), "a killed build left processes behind"
        assert before.items() <= finished(store).items(), "a finished step was lost or made again"
        assert store.verify() == []
    before = finished(store)
    last = start(project, "last")
    _, said = last.communicate(timeout=120)
    assert last.returncode == 0, said.decode()
    assert before.items() <= finished(store).items()
    assert len(finished(store)) == 6
    assert store.verify() == []
    assert not list((project.store / "work").iterdir())


@pytest.mark.long
@pytest.mark.slow
def test_two_builds_at_once_share_the_work(project):
    project.recipe(VARIANTS)
    builds = [start(project, "both") for _ in range(2)]
    said = [build.communicate(timeout=120)[1].decode() for build in builds]
    assert [build.returncode for build in builds] == [0, 0], said
    made = [line for text in said for line in text.splitlines() if line.startswith("  built")]
    steps = [line for line in made if "›" in line]
    assert len(steps) == 5, "every step is made by one of the two builds"
    assert Store(project.store).verify() == []


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupt_ends_with_130_and_leaves_nothing(project):
    mark = uuid.uuid4().hex
    project.recipe('  plain: []\n  hang: [{"./fakes.py:Misbehave": {way: hang}}]\n')
    build = start(project, mark)
    deadline = time.monotonic() + 60
    while not hangs(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    build.send_signal(signal.SIGINT)
    _, said = build.communicate(timeout=30)
    assert build.returncode == 130, said.decode()
    assert "interrupted" in said.decode()
    assert all_gone(mark)


# A build in a process of its own: an interrupt can come up anywhere in it, in pytest's too.
STARTED_SLOWLY = """\
import os, signal, sys, time
from pathlib import Path
import psutil
from optcli.pipeline import execute, local_maker
from optcli.pipeline.building import build

def slowly(*arguments, **options):
    child = spawn(*arguments, **options)
    started.append(child.pid)
    if len(started) == 1:  # once: a second one could come when nothing is built any more
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1.0)
    return child

started, spawn = [], local_maker.spawn
local_maker.spawn, execute._LAST_WORDS_S = slowly, 0.1
signal.signal(signal.SIGINT, signal.default_int_handler)
places = dict(zip(("store", "artifacts"), map(Path, sys.argv[1:])))
try:
    build(Path("recipe.yaml"), settings=execute.BuildSettings(timeout_s=40.0), **places)
except KeyboardInterrupt:
    deadline = time.monotonic() + 20
    while any(map(psutil.pid_exists, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    print("interrupted", len(started) > 0, *filter(psutil.pid_exists, started))
"""


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupt_while_a_step_is_started_ends_that_step_too(project):
    """Starting takes seconds on a busy machine; nothing may then be waited for until it times out."""
    project.recipe('  plain: []\n  hang: [{"./fakes.py:Misbehave": {way: hang}}]\n')
    ended = subprocess.run(
        [sys.executable, "-c", STARTED_SLOWLY, str(project.store), str(project.artifacts)],
        cwd=project.folder,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (ended.returncode, ended.stdout) == (0, "interrupted True\n"), ended.stderr
