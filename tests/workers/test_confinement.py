"""Confined workers read, write below their folders, and reach nothing else."""

import os
import pty
import signal
import socket
from pathlib import Path
from types import NoneType

import psutil
import pytest
from needs import compiler

from optcli.errors import StepError
from optcli.workers import ForkServer, confinement, run, spawn

needs_landlock = pytest.mark.needs("landlock")
needs_namespaces = pytest.mark.needs("pid namespaces")
needs_seccomp = pytest.mark.needs("seccomp filters")


def tried(action, target, confined):
    message = {"action": action, "target": str(target)}
    return run("calls:tried", message, str, timeout_s=60, confined=confined)


@pytest.fixture(autouse=True)
def _calls(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.mark.slow
@pytest.mark.parametrize(
    "action", ["write", "append", "make a folder", "make a pipe", "link", "rename", "temporary"]
)
def test_it_writes_below_its_folder_and_in_its_temporary_one(tmp_path, action):
    assert tried(action, tmp_path / "file", (tmp_path,)) == "done"


@pytest.mark.slow
@needs_landlock
@pytest.mark.parametrize(
    "action", ["write", "append", "make a folder", "link", "rename", "empty", "remove"]
)
def test_it_writes_nowhere_else(tmp_path, action):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    file = outside / "file"
    if action in ("append", "empty", "remove"):
        file.write_text("kept")
    assert tried(action, file, (inside,)) in ("EACCES", "EXDEV")
    assert not file.exists() or file.read_text() == "kept"


@pytest.mark.slow
@needs_seccomp
@pytest.mark.parametrize("action", ["connect", "datagram", "unix socket", "run", "change mode"])
def test_it_reaches_no_network_and_starts_no_program(tmp_path, action):
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = server.getsockname()[1] if action == "connect" else tmp_path
        assert tried(action, target, (tmp_path,)) in ("EPERM", "EACCES")


@pytest.mark.slow
@needs_seccomp
@pytest.mark.parametrize("action", ["make null", "make a disk"])
def test_it_makes_no_device_in_its_own_folder(tmp_path, action):
    assert tried(action, tmp_path / "device", (tmp_path,)) in ("EPERM", "EACCES")
    assert not (tmp_path / "device").exists()


@needs_landlock
def test_landlock_alone_makes_none_either(tmp_path, monkeypatch):
    rights = {}
    monkeypatch.setattr(
        confinement, "_allow", lambda _libc, _rules, path, right: rights.update({path: right})
    )
    monkeypatch.setattr(confinement, "_RESTRICT_SELF", confinement._CREATE_RULESET)
    monkeypatch.setattr(confinement, "_call", lambda *_: os.open(os.devnull, os.O_RDONLY))
    confinement._restrict_files([tmp_path])
    assert not rights[tmp_path] & (1 << 6 | 1 << 11)
    assert rights[tmp_path] & (1 << 8)


@pytest.mark.slow
@needs_seccomp
def test_it_does_not_touch_what_it_may_only_read(tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    before = file.stat().st_mtime_ns
    assert tried("set times", file, ()) == "EPERM"
    assert tried("set flags", file, ()) == "EPERM"
    assert file.stat().st_mtime_ns == before


@pytest.mark.slow
@needs_seccomp
def test_it_has_pairs_of_sockets_that_lead_to_each_other_alone():
    assert tried("datagram pair", "", ()) == "EPERM"
    assert [tried(f"{kind} pair", "", ()) for kind in ("stream", "packet")] == ["done", "done"]


@pytest.mark.slow
@needs_seccomp
def test_it_types_into_no_terminal(tmp_path):
    ours, theirs = pty.openpty()
    try:
        assert tried("type into a terminal", os.ttyname(theirs), ()) == "EPERM"
    finally:
        os.close(ours)
        os.close(theirs)


# In a namespace the number of the parent means nothing.
NOBODY = {"EPERM", "ESRCH"}
TO_OTHERS: dict[str, set[str]] = {
    "signal the parent": NOBODY,
    "signal a file of a process": NOBODY,
    "limit the parent": {"EPERM"},
    "slow the parent down": {"EPERM"},
    "make a namespace": {"EPERM"},
    "make a namespace anew": {"ENOSYS"},
    "share memory": {"EPERM"},
    "queue of messages": {"EPERM"},
    "name the domain": {"EPERM"},
    "adjust the clock": {"EPERM"},
    "read the kernel's log": {"EPERM"},
    "watch all files": {"EPERM"},
    "call of later kernels": {"ENOSYS"},
    "look at the clock": {"done"},
    "slow itself down": {"done"},
    "move itself": {"done"},
    "start a thread": {"done"},
    "signal itself": {"done"},
    "signal its thread": {"done"},
    "limit itself": {"done"},
}


@pytest.mark.slow
@needs_seccomp
@pytest.mark.parametrize("old", [False, True])
def test_it_does_nothing_to_other_processes(old):
    """`old`: on a kernel whose Landlock does not keep signals inside."""
    if not old and confinement._landlock_version() < 6:
        pytest.skip("the same as the other one here")
    asked = {"actions": list(TO_OTHERS), "target": str(os.getpid()), "old": old}
    confined = None if old else ()
    said = run("calls:each_tried", asked, dict[str, str], timeout_s=60, confined=confined)
    assert {action: answer for action, answer in said.items() if answer not in TO_OTHERS[action]} == {}


@pytest.mark.slow
@needs_namespaces
def test_it_knows_no_process_but_its_own():
    actions = ["move the parent", "schedule the parent", "signal the parent"]
    asked = {"actions": actions, "target": str(os.getpid()), "old": False}
    for confined, answer in (((), "ESRCH"), (None, "done")):
        said = run("calls:each_tried", asked, dict[str, str], timeout_s=60, confined=confined)
        assert said == dict.fromkeys(actions, answer)


@pytest.mark.slow
@needs_seccomp
def test_it_locks_no_file(tmp_path):
    (tmp_path / "file").write_text("here")
    asked = {"actions": ["lock", "lock a part"], "target": str(tmp_path / "file"), "old": False}
    said = run("calls:each_tried", asked, dict[str, str], timeout_s=60, confined=(tmp_path,))
    assert set(said.values()) == {"EPERM"}


@needs_namespaces
@pytest.mark.slow
def test_in_a_namespace_the_user_stays_who_it_is():
    """The superuser tries it as another, who needs a user namespace for it."""
    user = os.geteuid() or 4711
    said = run("calls:owner", {"user": user}, list, timeout_s=60)
    assert said == [True, [user] * 4, 0, 2]


@needs_namespaces
@pytest.mark.slow
@pytest.mark.parametrize("forked", [True, False])
def test_in_a_namespace_it_ends_as_elsewhere(forked):
    server = ForkServer([])
    start = server.start if forked else spawn
    try:
        for name, payload, said in (
            ("crash", {}, "it aborted"),
            ("die", {"signal": int(signal.SIGKILL)}, "memory ran out"),
            ("segfault", {}, "segmentation fault"),
            ("leave", {"status": 3}, "exit status 3"),
        ):
            child = start(f"calls:{name}", payload, confined=())
            with child, pytest.raises(StepError, match=said):
                child.result(NoneType, 60)
        with start("calls:start_a_child_that_escapes", {"way": "hang"}, confined=()) as child:
            child.receive(dict[str, list[int]], 60)
            below = psutil.Process(child.pid).children(recursive=True)
            assert len(below) >= 3
            child.kill()
        assert not psutil.wait_procs(below, timeout=10)[1]
    finally:
        server.close()


@pytest.mark.slow
@needs_landlock
def test_it_does_not_read_the_environment_of_others():
    payload = {"action": "read the parent's environment", "target": str(os.getpid())}
    assert run("calls:tried", payload, str, timeout_s=60, confined=()) == "EACCES"


@pytest.mark.slow
def test_it_reads_and_imports_what_it_needs(tmp_path):
    (tmp_path / "file").write_text("here")
    assert tried("read", tmp_path / "file", ()) == "done"
    assert tried("import", "numpy", ()) == "done"


@pytest.mark.slow
@needs_landlock
def test_what_it_starts_is_confined_too(tmp_path):
    assert tried("fork and write", tmp_path / "file", ()) == "EACCES"
    assert not (tmp_path / "file").exists()


@pytest.mark.slow
@needs_landlock
def test_a_forked_worker_is_confined_and_the_next_one_is_not(tmp_path):
    server = ForkServer([])
    try:
        for confined, expected in (((), "EACCES"), (None, "done")):
            payload = {"action": "write", "target": str(tmp_path / "file")}
            with server.start("calls:tried", payload, confined=confined) as child:
                assert child.result(str, 60) == expected
    finally:
        server.close()


@pytest.mark.slow
def test_its_temporary_folder_goes_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert tried("temporary", "", ()) == "done"
    assert not list(tmp_path.glob("optcli-worker-*"))
    with pytest.raises(StepError):
        run("calls:crash", {}, NoneType, confined=(), timeout_s=60)
    assert not list(tmp_path.glob("optcli-worker-*"))


@pytest.mark.slow
def test_a_free_worker_is_free(tmp_path):
    assert tried("write", tmp_path / "file", None) == "done"


def test_walls_say_what_they_are():
    both, one = (
        confinement.Walls(files=True, network=True),
        confinement.Walls(files=True, network=False),
    )
    assert both.whole
    assert not one.whole
    assert [str(both), str(one)] == ["Landlock and seccomp", "Landlock, for files alone"]
    assert str(confinement.Walls(files=False, network=False)) == "none"


@pytest.mark.needs("x86-64")
@pytest.mark.needs("c compiler")
def test_the_numbers_of_calls_are_the_systems(tmp_path):
    """Against the kernel's own table, where its headers are installed."""
    import re
    import subprocess

    limited = {name: numbers for name, (numbers, _) in confinement._LIMITED.items()}
    limited["clone3"] = (confinement._CLONE3,) * 2
    numbers = {**confinement._FORBIDDEN, **confinement._SIGNALS, **limited}
    numbers |= {"kill": (62, 129), "tgkill": (234, 131)}
    source = "#include <sys/syscall.h>\n" + "\n".join(f"{name} SYS_{name}" for name in numbers)
    said = subprocess.run([compiler(), "-E", "-P", "-"], input=source, capture_output=True, text=True)
    found = dict(re.findall(r"^(\w+) (\d+)$", said.stdout, re.MULTILINE))
    assert len(found) > 30
    for name, number in found.items():
        assert numbers[name][0] == int(number), name
