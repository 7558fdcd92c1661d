"""Worker processes: results, events, every way to die, and nothing left behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import NoneType
from typing import Any

import psutil
import pytest

from optcli import workers
from optcli.accuracy import UnderWay
from optcli.errors import InputError, StepError
from optcli.workers import channel, parent
from optcli.workers.logs import LARGEST_BYTES

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _calls_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))


@pytest.fixture(params=["spawned", "forked"])
def start(request):
    """Start a call in a fresh interpreter, or fork it from a server."""
    if request.param == "spawned":
        yield lambda name, payload=None, log=None: workers.spawn(
            f"calls:{name}", payload or {}, log=log
        )
        return
    server = workers.ForkServer(["json.tool"], {"OPTCLI_PROBE": "set"})
    yield lambda name, payload=None, log=None: server.start(f"calls:{name}", payload or {}, log=log)
    server.close()


def gone(pid: int, within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.slow
def test_a_worker_collects_garbage(start):
    """The server that forks it does not: it imports libraries, and nothing else."""
    with start("collects_garbage") as child:
        assert child.result(bool, 20) is True


def test_result_events_and_log(start, tmp_path):
    events = []
    with start("double", {"number": 21}, tmp_path / "log") as child:
        assert child.result(int, 20, workers.Listener(dict[str, float], events.append)) == 42
    assert events == [{"progress": 0.5}]
    assert "words for the log" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_log_ends_where_it_is_too_long_and_the_worker_goes_on(start, tmp_path):
    log = tmp_path / "log"
    with start("flood", {"megabytes": 3 + LARGEST_BYTES // 2**20}, log) as child:
        assert child.result(str, 60) == "done"
    assert LARGEST_BYTES < log.stat().st_size < LARGEST_BYTES + 100
    assert b"left out" in log.read_bytes()[-100:]
    with start("double", {"number": 1}, log) as child:
        child.result(int, 20)
    assert log.read_bytes().endswith(b"words for the log\n")


@pytest.mark.slow
def test_a_log_is_whole_once_its_worker_has_died(start, tmp_path):
    with start("segfault", None, tmp_path / "log") as child, pytest.raises(StepError):
        child.result(NoneType, 20)
    assert "Fatal Python error" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_conversation(start):
    with start("conversation") as child:
        for word in ("one", "two"):
            child.send({"say": word})
            assert child.receive(dict[str, str], 20) == {"echo": word}
    assert gone(child.pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "payload", "words"),
    [
        ("segfault", {}, "segmentation fault"),
        ("die", {"signal": int(signal.SIGABRT)}, "aborted"),
        ("die", {"signal": int(signal.SIGKILL)}, "memory ran out"),
        ("die", {"signal": int(signal.SIGUSR1)}, "SIGUSR1"),
        ("die", {"signal": 40}, r"was ended \(signal 40\)"),
        ("leave", {"status": 3}, "exit status 3"),
        ("stumble", {}, "ValueError: seven"),
        ("stumble_and_fill_the_log", {}, "ValueError: seven"),
        ("fill_the_disk", {}, "could not write: No space left on device"),
        ("allocate", {"says": "std::bad_alloc"}, "ran out of memory"),
        ("allocate", {"says": "[X] Failed to allocate memory for buffer of size 9"}, "out of memory"),
        ("allocate", {"says": "DefaultCPUAllocator: can't allocate memory"}, "ran out of memory"),
        ("quit_program", {}, "sys.exit\\('enough'\\)"),
    ],
)
def test_every_death_has_its_reason(start, name, payload, words, tmp_path):
    with start(name, payload, tmp_path / "log") as child, pytest.raises(StepError, match=words):
        child.result(NoneType, 20)


@pytest.mark.slow
def test_a_crash_is_said_of_the_file_that_was_read(tmp_path):
    file = tmp_path / "model.pte"
    payload = {"signal": int(signal.SIGABRT)}
    with pytest.raises(StepError, match=r"the process that read it stopped: it aborted") as caught:
        workers.run("calls:die", payload, NoneType, timeout_s=20, reads=file)
    assert caught.value.place == str(file)
    with pytest.raises(StepError, match="the process that read it stopped") as caught:
        workers.run("calls:segfault", {}, NoneType, timeout_s=20, reads="python:net.py:Net")
    assert (caught.value.place, caught.value.hint[:10]) == ("python:net.py:Net", "it crashed")
    with pytest.raises(StepError) as caught:
        workers.run("calls:die", payload, NoneType, timeout_s=20)
    assert not caught.value.place


@pytest.mark.slow
def test_a_death_says_what_was_written_last(start, tmp_path):
    log, written = tmp_path / "log", {"text": "x" * 5000 + "\ndevice lost\n\n"}
    with start("print_and_die", written, log) as child, pytest.raises(StepError) as caught:
        child.result(NoneType, 20)
    assert caught.value.hint == "it wrote last: device lost"
    for log, hint in ((tmp_path / "other", "it wrote nothing before that"), (None, "")):
        with start("die", {"signal": int(signal.SIGKILL)}, log) as child:
            with pytest.raises(StepError) as caught:
                child.result(NoneType, 20)
            assert caught.value.hint == hint
    with start("segfault", {}, tmp_path / "crash") as child, pytest.raises(StepError) as caught:
        child.result(NoneType, 20)
    assert re.fullmatch(r"it crashed in string_at, line \d+ of __init__\.py", caught.value.hint)


@pytest.mark.slow
def test_an_error_keeps_its_kind_place_and_hint(start):
    with start("refuse") as child, pytest.raises(InputError) as caught:
        child.result(NoneType, 20)
    assert caught.value.place == "zoo.yaml:3:1"
    assert caught.value.hint == "swap them"


@pytest.mark.slow
def test_a_hang_is_stopped(start):
    with start("hang") as child, pytest.raises(StepError, match="did not finish within 1 s"):
        child.result(NoneType, 1.0)
    assert gone(child.pid)


@pytest.mark.slow
def test_grandchildren_go_with_their_worker(start):
    with start("start_a_grandchild") as child:
        pids = child.receive(dict[str, list[int]], 20)["pids"]
        child.result(NoneType, 20)
    assert pids
    assert all(gone(pid) for pid in pids)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["returns", "killed", "hang", "left"])
def test_a_child_in_a_session_of_its_own_goes_too(start, way, monkeypatch):
    monkeypatch.setattr(parent, "_LEAVING_S", 0.2)
    with start("start_a_child_that_escapes", {"way": "hang" if way == "left" else way}) as child:
        pids = child.receive(dict[str, list[int]], 20)["pids"]
        assert len(pids) == 2
        if way == "returns":
            child.result(NoneType, 20)
        elif way != "left":
            with pytest.raises(StepError):
                child.result(NoneType, 1.0)
    assert all(gone(pid) for pid in [*pids, child.pid])


@pytest.mark.slow
@pytest.mark.parametrize("call", ["start_a_grandchild", "start_a_child_that_escapes"])
@pytest.mark.parametrize("way", ["spawned", "forked"])
def test_nothing_outlives_a_killed_parent(way, call):
    """kill -9 of the parent takes the worker, its grandchild, the fork server and the guards along."""
    code = f"""
import sys, time
from optcli import workers
way = workers.spawn if {way!r} == "spawned" else workers.ForkServer([]).start
child = way("calls:{call}", {{"wait": True, "way": "hang"}})
print(*child.receive(dict[str, list[int]], 20)["pids"], flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=HERE.parents[1]
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        family = [process.pid for process in psutil.Process(parent.pid).children(recursive=True)]
        assert len(pids) == 2
        assert set(pids) <= set(family)
        os.kill(parent.pid, signal.SIGKILL)
    assert all(gone(pid) for pid in family)


@pytest.mark.slow
def test_the_server_preloads_and_sets_the_environment():
    server = workers.ForkServer(["json.tool"], {"OPTCLI_PROBE": "set"})
    try:
        with server.start("calls:modules", {"name": "json.tool"}) as child:
            assert child.result(dict[str, Any], 20) == {"preloaded": True, "variable": "set"}
    finally:
        server.close()
    with workers.spawn(
        "calls:modules", {"name": "json.tool"}, environment={"OPTCLI_PROBE": "x"}
    ) as child:
        assert child.result(dict[str, Any], 20) == {"preloaded": False, "variable": "x"}


@pytest.mark.slow
def test_a_worker_waits_for_no_library_that_it_does_not_need(tmp_path, monkeypatch):
    """The first library takes until a worker is asked for, the second one until that has begun."""
    asked, begun = tmp_path / "asked", tmp_path / "begun"
    for name, place in (("quick_library", asked), ("slow_library", begun)):
        (tmp_path / f"{name}.py").write_text(
            "import pathlib, time\n"
            f"while not pathlib.Path({str(place)!r}).exists():\n    time.sleep(0.01)\n"
        )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(tmp_path)]))
    real = socket.send_fds
    sent = lambda *request: (real(*request), asked.touch())  # noqa: E731
    monkeypatch.setattr(socket, "send_fds", sent)
    # An end to it where the worker waits for both.
    timer = threading.Timer(30, begun.touch)
    timer.daemon = True
    timer.start()
    server = workers.ForkServer(["quick_library", "slow_library"])
    try:
        call = {"name": "slow_library"}
        first = server.start("calls:modules", call, after=["quick_library"])
        begun.touch()
        with first:
            assert first.result(dict[str, Any], 20)["preloaded"] is False
        with server.start("calls:modules", call) as second:
            assert second.result(dict[str, Any], 20)["preloaded"] is True
    finally:
        timer.cancel()
        server.close()


@pytest.mark.slow
def test_the_server_ends_without_taking_its_libraries_down(tmp_path, monkeypatch):
    """A build waits for its end. What libraries do when an interpreter ends takes time and can hang."""
    taken_down, deleted = tmp_path / "taken-down", tmp_path / "deleted"
    (tmp_path / "thorough_library.py").write_text(
        "import atexit, os\n"
        f"atexit.register(os.mkdir, {str(taken_down)!r})\n"
        "class Handle:\n"
        "    def __del__(self, mkdir=os.mkdir):\n"
        f"        mkdir({str(deleted)!r})\n"
        "handle = Handle()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(tmp_path)]))
    server = workers.ForkServer(["thorough_library"])
    try:
        with server.start("calls:modules", {"name": "thorough_library"}) as child:
            assert child.result(dict[str, Any], 20)["preloaded"] is True
        # What `close` tells it. `close` itself kills a server that takes long, which would hide it.
        server._control.shutdown(socket.SHUT_RDWR)
        assert server._process.wait(60) == 0
    finally:
        server.close()
    assert not taken_down.exists()
    assert not deleted.exists()


@pytest.mark.slow
def test_the_server_ends_well_when_nobody_hears_of_the_end_of_a_worker_any_more(tmp_path, monkeypatch):
    began, go_on = tmp_path / "began", tmp_path / "go-on"
    (tmp_path / "slow_library.py").write_text(
        "import os, time\n"
        f"os.mkdir({str(began)!r})\n"
        f"while not os.path.exists({str(go_on)!r}):\n"
        "    time.sleep(0.01)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(tmp_path)]))
    server = workers.ForkServer(["slow_library"])
    try:
        with server.start("calls:conversation", {}, after=[]) as child:
            child._connection.close()
            until = time.monotonic() + 60
            while not (began.exists() and psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE):
                assert time.monotonic() < until
                time.sleep(0.01)
            # The worker has ended, and the server, which imports, has not told it yet.
            server._control.shutdown(socket.SHUT_RDWR)
            go_on.mkdir()
            assert server._process.wait(60) == 0
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize("error", ["OSError", "ImportError", "RuntimeError"])
def test_a_library_that_fails_as_it_is_imported_leaves_the_server_alive(tmp_path, monkeypatch, error):
    (tmp_path / "broken_library.py").write_text(f"raise {error}('libcudart.so.13: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(tmp_path)]))
    server = workers.ForkServer(["broken_library"])
    try:
        with server.start("calls:double", {"number": 4}) as child:
            assert child.result(int, 20) == 8
    finally:
        server.close()


@pytest.mark.slow
def test_many_forks_side_by_side():
    server = workers.ForkServer([])
    try:
        children = [server.start("calls:double", {"number": number}) for number in range(12)]
        assert [child.result(int, 20) for child in children] == [number * 2 for number in range(12)]
    finally:
        server.close()
    assert len({child.pid for child in children}) == 12


@pytest.mark.slow
def test_a_process_number_that_is_given_out_again_is_another_worker(monkeypatch):
    """Where the system has 32,768 numbers, a long search or a notebook sees each of them again."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        controls, channels = [], []

        def started(command, connection, *_):
            controls.append(socket.socket(fileno=os.dup(connection)))
            return subprocess.Popen(["true"])

        def fork():
            _, (number, log), _, _ = socket.recv_fds(controls[0], 1 << 16, 2)
            os.close(log)
            channels.append(Connection(number))
            controls[0].sendall(json.dumps({"started": other.pid}).encode() + b"\n")

        def start() -> workers.Child:
            forking = threading.Thread(target=fork)
            forking.start()
            child = server.start("calls:double", {})
            forking.join()
            return child

        monkeypatch.setattr(parent, "_started", started)
        server = workers.ForkServer([])
        first = start()
        channels.pop().close()
        controls[0].sendall(json.dumps({"ended": other.pid, "code": 3}).encode() + b"\n")
        assert first._ended(20) == 3
        second = start()
        later = threading.Timer(1.0, channel.send, (channels[0], {"result": 5}))  # some polls later
        later.start()
        assert second.result(int, 20) == 5
        assert first._ended(0) == 3
        first.kill()
        assert other.poll() is None
        controls[0].shutdown(socket.SHUT_RDWR)
        assert second._ended(20) == -signal.SIGKILL, "the server is gone, and its workers with it"
        server.close()
        other.communicate(b"\n")
    assert other.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("path", [None, "", ":"], ids=["no path", "empty", "empty parts"])
def test_nothing_is_imported_from_the_current_folder(tmp_path, monkeypatch, path):
    """A download beside a model is not run because it is called as a library is."""
    for name in ("socket", "json", "statistics", "optcli", "faulthandler"):
        (tmp_path / f"{name}.py").write_text(f"open('marker', 'a').write('{name} ')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{path}{HERE}" if path else str(HERE))
    with workers.spawn("calls:double", {"number": 2}) as child:
        assert child.result(int, 60) == 4
    server = workers.ForkServer(["statistics"], {})
    try:
        with server.start("calls:double", {"number": 3}) as child:
            assert child.result(int, 60) == 6
    finally:
        server.close()
    assert not (tmp_path / "marker").exists()


@pytest.mark.slow
def test_another_interpreter_imports_nothing_from_the_current_folder_either(tmp_path, monkeypatch):
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    (tmp_path / "socket.py").write_text("open('marker', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    monkeypatch.setenv("PYTHONPATH", path)
    with workers.spawn("calls:double", {"number": 2}, interpreter=str(other)) as child:
        assert child.result(int, 60) == 4
    assert not (tmp_path / "marker").exists()


def test_another_thread_ends_the_workers_that_it_holds():
    """As an interrupt does, which the thread that waits for the result does not hear of."""
    under_way, pids = UnderWay(), []

    @contextmanager
    def holding(child):
        with under_way.holding(child):
            pids.append(child.pid)
            threading.Thread(target=under_way.end).start()
            yield

    with pytest.raises(StepError):
        workers.run("calls:hang", {}, NoneType, holding=holding, timeout_s=60)
    assert gone(pids[0])
    with pytest.raises(StepError):  # whatever comes after it
        workers.run("calls:hang", {}, NoneType, holding=under_way.holding, timeout_s=60)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("preload", [(), ("torchvision",)], ids=["spawned", "forked"])
def test_torchvision_comes_without_the_compiler(preload):
    server = workers.ForkServer(preload) if preload else None
    start = server.start if server else workers.spawn
    try:
        with start("calls:has_compiler", {}) as child:
            assert child.result(bool, 120) is False
    finally:
        if server:
            server.close()
