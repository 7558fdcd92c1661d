"""A process that is killed in the middle of an upload, or of a fetch."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_remote import Machine, files_of, made

from optcli.store import key_of

STEP = {"step": "export_onnx"}
FILES = {f"part{number}": bytes([number]) * 1000 for number in range(20)}

# Stops for good in the request with a number, and says so.
PROGRAM = """
import sys, threading
from pathlib import Path
import faulty_remote
from faulty_remote import Admits, Machine, made
from optcli.store import key_of

root, url, way, stop = sys.argv[1:]
faults = faulty_remote.register()
step, files = {"step": "export_onnx"}, {f"part{n}": bytes([n]) * 1000 for n in range(20)}

def before(name, path):
    if name == ("pipe_file" if way == "upload" else "cat_file"):
        faults.count_ = getattr(faults, "count_", 0) + 1
        if faults.count_ == int(stop):
            print("there", flush=True)
            threading.Event().wait()

faults.before = before
machine = Machine(Path(root), url)
machine.limits = faulty_remote.Limits(answer_s=1e6, finish_s=1e6)
with machine.connected():
    if way == "upload":
        made(machine.store, step, **files)
    else:
        machine.store.get("artifact", key_of(step), admission=Admits())
"""


def killed(root: Path, url: str, way: str, stop: int) -> None:
    """Run the program up to a request, and kill it there."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(root), url, way, str(stop)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


# The objects, and the manifest as the last of them.
@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 10, 21])
def test_an_upload_that_was_killed_shows_nothing_and_is_done_next_time(tmp_path, stop):
    killed(tmp_path / "here", f"faulty://{tmp_path}/remote", "upload", stop)
    url = f"file://{tmp_path}/remote"
    there = Machine(tmp_path / "there", url)
    assert there.find(STEP) is None
    assert there.heard == []
    # Another URL is another remote store, so the entry is asked for again.
    here = Machine(tmp_path / "here", url)
    assert here.find(STEP) is not None
    assert files_of(there.find(STEP)) == FILES


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 2, 12])
def test_a_fetch_that_was_killed_leaves_nothing_and_is_done_next_time(tmp_path, stop):
    url = f"file://{tmp_path}/remote"
    Machine(tmp_path / "here", url).make(STEP, **FILES)
    killed(tmp_path / "there", f"faulty://{tmp_path}/remote", "fetch", stop)
    there = Machine(tmp_path / "there", url)
    assert there.store.peek("artifact", key_of(STEP)) is None
    assert files_of(there.find(STEP)) == FILES
    assert not there.store.verify()
    there.store.gc()
    assert list((there.store.root / "work").iterdir()) == []


@pytest.mark.slow
def test_what_was_to_be_uploaded_and_is_gone_here_is_forgotten(tmp_path):
    url = f"faulty://{tmp_path}/remote"
    killed(tmp_path / "here", url, "upload", 1)
    here = Machine(tmp_path / "here", url.replace("faulty", "file"))
    here.store.discard("artifact", key_of(STEP))
    with here.connected():
        pass
    assert here.heard == []
    assert Machine(tmp_path / "there", here.store.remote_place.url).find(STEP) is None
    made(here.store, STEP)
