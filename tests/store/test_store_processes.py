"""The store among real processes: several at once, and killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from optcli.errors import StoreError
from optcli.store import Store, key_of, locks

KEY = key_of({"step": "export_onnx"})

BUILD = """
import os, sys
from contextlib import nullcontext
from pathlib import Path
import filelock
from optcli.store import Store, locks
root, key, marks, locked = sys.argv[1:]
store = Store(Path(root))
waiting = lambda: Path(marks, f"waited-{os.getpid()}").touch()
print("ready", flush=True)
sys.stdin.readline()
with store.lock("artifact", key, waiting=waiting) if locked == "locked" else nullcontext():
    found = store.get("artifact", key)
    if found is None:
        with store.work("artifact", key) as work:
            Path(marks, f"made-{os.getpid()}").touch()
            for index in range(5):
                (work / f"part{index}").write_bytes(os.urandom(1 << 18))
            found = store.put("artifact", key, work, {"by": os.getpid()}, {"step": "export_onnx"})
print(found.digest)
"""


def ready(root: Path, marks: Path, locked: str = "locked") -> subprocess.Popen[str]:
    """A process that has imported everything and builds on `go`."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD, str(root), KEY, str(marks), locked],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def build(root: Path, marks: Path) -> str:
    """Build to the end; the digest of what was made or found."""
    process = ready(root, marks)
    said = process.communicate("go\n")[0]
    assert process.returncode == 0
    return said.strip()


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where processes leave a file when they wait and when they make."""
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


def at_once(store: Store, marks: Path, locked: str) -> set[str]:
    processes = [ready(store.root, marks, locked) for _ in range(8)]
    for process in processes:
        go(process)
    said = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 8
    assert store.verify() == []
    assert os.listdir(store.root / "work") == []
    return said


@pytest.mark.slow
def test_eight_at_once_make_it_once_and_all_find_it(tmp_store, marks):
    assert at_once(tmp_store, marks, "locked") == {tmp_store.get("artifact", KEY).digest}
    assert len(list(marks.glob("made-*"))) == 1


@pytest.mark.slow
def test_eight_at_once_without_a_lock_agree_on_the_first(tmp_store, marks):
    assert at_once(tmp_store, marks, "unlocked") == {tmp_store.get("artifact", KEY).digest}


@pytest.mark.slow
def test_one_that_must_wait_says_so_and_then_goes_on(tmp_store, marks):
    process = ready(tmp_store.root, marks)
    with tmp_store.lock("artifact", KEY):
        go(process)
        while not list(marks.glob("waited-*")):
            assert process.poll() is None
            time.sleep(0.01)
        assert not list(marks.glob("made-*"))
    assert process.communicate()[0].strip() == tmp_store.get("artifact", KEY).digest


@pytest.mark.slow
def test_lock_is_given_up_after_its_time_and_freed_by_a_kill(tmp_store):
    holder = """
import sys
from pathlib import Path
from optcli.store import Store, locks
with Store(Path(sys.argv[1])).lock("artifact", sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_store.root), KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        other.stdout.readline()
        path = tmp_store.lock_path("artifact", KEY)
        with pytest.raises(StoreError, match="another process"), locks.held(path, timeout_s=0.1):
            pass
        other.kill()
    with locks.held(path, timeout_s=60):
        pass


@pytest.mark.long
@pytest.mark.slow
def test_killed_at_any_moment_nothing_half_made_is_ever_seen(tmp_path, marks):
    """kill -9 at 24 moments spread over everything that a build does with the store."""
    process = ready(tmp_path / "rehearsal", marks)
    start = time.monotonic()
    process.communicate("go\n")
    whole_s = time.monotonic() - start
    chance = random.Random(2)
    store = Store(tmp_path / "store")
    for moment in range(24):
        process = ready(store.root, marks)
        go(process)
        time.sleep(whole_s * chance.random())
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert store.verify() == [], f"damaged after kill {moment}"
        found = store.get("artifact", KEY)
        made = len(list(marks.glob("made-*")))
        assert build(store.root, marks) == store.get("artifact", KEY).digest
        remade = len(list(marks.glob("made-*"))) - made
        assert remade == (found is None), "the next run finishes, and makes nothing again"
        if found is None:
            assert os.listdir(store.root / "work") == [], "what the dead left is cleared"
        store.discard("artifact", KEY)


STOPPED = """
import os, signal, sys
from pathlib import Path
from optcli.store import Store, disk
import optcli.store.entry as entry
store, key, moment = Store(Path(sys.argv[1])), sys.argv[2], sys.argv[3]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def after(function):
    return lambda *args, **kwargs: (function(*args, **kwargs), die())

if moment == "facts": disk.write_whole = die
if moment == "sealed": entry.write = after(entry.write)
if moment == "visible": Path.rename = after(Path.rename)
with store.lock("artifact", key), store.work("artifact", key) as work:
    (work / "model").write_bytes(b"model")
    if moment == "work": die()
    store.put("artifact", key, work, {}, {"step": "export_onnx"})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "is_there"), [("work", False), ("facts", False), ("sealed", False), ("visible", True)]
)
def test_killed_at_the_moments_that_matter(tmp_store, marks, moment, is_there):
    done = subprocess.run([sys.executable, "-c", STOPPED, str(tmp_store.root), KEY, moment])
    assert done.returncode == -signal.SIGKILL
    assert tmp_store.verify() == []
    assert (tmp_store.get("artifact", KEY) is not None) == is_there
    assert len(tmp_store.gc()) == 1, "the work folder of the dead is cleared"
    assert tmp_store.gc() == []
    build(tmp_store.root, marks)
    assert len(list(marks.glob("made-*"))) == (not is_there)
