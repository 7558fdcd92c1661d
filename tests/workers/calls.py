"""What the worker tests have worker processes do."""

import array
import ctypes
import errno
import fcntl
import gc
import importlib
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import termios
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from optcli.errors import InputError
from optcli.workers import Channel, confinement, lifetime
from optcli.workers.channel import receive, send
from optcli.workers.lifetime import ForkedCopy


def has_compiler(payload: dict[str, Any], channel: Channel) -> Any:
    """Whether importing torchvision has imported torch's compiler."""
    importlib.import_module("torchvision")
    return "torch._dynamo" in sys.modules


def collects_garbage(payload: dict[str, Any], channel: Channel) -> Any:
    return gc.isenabled()


def double(payload: dict[str, Any], channel: Channel) -> Any:
    channel.send({"progress": 0.5})
    print("words for the log")
    return payload["number"] * 2


def flood(payload: dict[str, Any], channel: Channel) -> Any:
    words = b"x" * 2**20
    for _ in range(payload["megabytes"]):
        os.write(1, words)
    os.write(2, b"the last")
    return "done"


def conversation(payload: dict[str, Any], channel: Channel) -> Any:
    while (message := channel.receive(dict[str, str])) is not None:
        channel.send({"echo": message["say"]})


def say_raw(payload: Any, channel: Channel) -> Any:
    """Send a record as it is, with no type."""
    channel._connection.send_bytes(json.dumps(payload).encode())
    channel._connection.poll(30)  # until nobody listens any more


def say_badly(payload: Any, channel: Channel) -> Any:
    """Bytes that are no whole message, too long, too deep; or messages without an end."""
    socket_ = channel._connection.fileno()
    if payload == "half":
        os.write(socket_, (100).to_bytes(4, "big") + b"{")
    elif payload == "long":
        os.write(socket_, b"\xff\xff\xff\xff" + (6 << 30).to_bytes(8, "big") + b"{" * 1000)
    elif payload == "deep":
        channel._connection.send_bytes(b"[" * 200_000)
    while payload == "endless":
        channel.send({"numbers": [1]})
    time.sleep(60)


def say_bytes(payload: dict[str, Any], channel: Channel) -> Any:
    channel._connection.send_bytes(b"\xff{")
    channel._connection.poll(30)


def die(payload: dict[str, Any], channel: Channel) -> Any:
    os.kill(os.getpid(), payload["signal"])
    time.sleep(30)


def print_and_die(payload: dict[str, Any], channel: Channel) -> Any:
    print(payload["text"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(payload: dict[str, Any], channel: Channel) -> Any:
    ctypes.string_at(0)


def leave(payload: dict[str, Any], channel: Channel) -> Any:
    os._exit(payload["status"])


def hang(payload: dict[str, Any], channel: Channel) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def refuse(payload: dict[str, Any], channel: Channel) -> Any:
    raise InputError("found a cat, wanted a dog", place="zoo.yaml:3:1", hint="swap them")


def stumble(payload: dict[str, Any], channel: Channel) -> Any:
    raise ValueError("seven")


def allocate(payload: dict[str, Any], channel: Channel) -> Any:
    raise RuntimeError(payload["says"])


def modules(payload: dict[str, Any], channel: Channel) -> Any:
    return {"preloaded": payload["name"] in sys.modules, "variable": os.environ.get("OPTCLI_PROBE")}


def start_a_grandchild(payload: dict[str, Any], channel: Channel) -> Any:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    channel.send({"pids": [os.getpid(), process.pid]})
    if payload.get("wait"):
        time.sleep(600)


def start_a_child_that_escapes(payload: dict[str, Any], channel: Channel) -> Any:
    """A process in a session of its own, whose parent is gone: no group and no parent leads to it."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(theirs, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    os.wait()
    channel.send({"pids": [os.getpid(), int(os.read(ours, 20))]})
    way = payload.get("way")
    if way == "hang":
        time.sleep(600)
    elif way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


def stumble_and_fill_the_log(payload: dict[str, Any], channel: Channel) -> Any:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    raise ValueError("seven")


def fill_the_disk(payload: dict[str, Any], channel: Channel) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device", "/somewhere/model.onnx")


def quit_program(payload: dict[str, Any], channel: Channel) -> Any:
    sys.exit("enough")


def tried(payload: dict[str, Any], channel: Channel) -> Any:
    """Try one thing; `done`, or the name of the error that the system answers with."""
    target = payload["target"]
    place = os.path.dirname(target)
    try:
        _ACTIONS[payload["action"]](target, place)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return "done"


def each_tried(payload: dict[str, Any], channel: Channel) -> Any:
    """What is answered to each of several actions, on a kernel as it is or an old one."""
    if payload["old"]:
        _confine_on_an_old_kernel()
    said = {}
    for action in payload["actions"]:
        said[action] = tried({"action": action, "target": payload["target"]}, channel)
    return said


def _write(target, place, mode="w"):
    with open(target, mode) as file:
        file.write("x")


def _rename(target, place):
    with tempfile.NamedTemporaryFile(dir=None, delete=False) as file:
        os.rename(file.name, target)


def _link(target, place):
    os.symlink("/etc/passwd", target)


def _fork_and_write(target, place):
    child = os.fork()
    if child == 0:
        try:
            _write(target, place)
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise OSError(status, "in the child")


def _pair(kind):
    """Without closing it: what cannot be made raises."""
    return socket.socketpair(socket.AF_UNIX, kind)


def _type_into(target):
    fcntl.ioctl(os.open(target, os.O_RDONLY), termios.TIOCSTI, b"x")


def _set_flags(target):
    flags = array.array("L", [0])
    fcntl.ioctl(os.open(target, os.O_RDONLY), 0x40086602, flags)


def _call(name, *arguments):
    """A system call by its name, or one that no kernel has yet."""
    numbers = {**confinement._FORBIDDEN, "of later kernels": (1000, 1000)}
    numbers |= {"clone": confinement._LIMITED["clone"][0], "clone3": (confinement._CLONE3,) * 2}
    column = tuple(confinement._MACHINES).index(os.uname().machine)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(numbers[name][column], *arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def _lock(target, kind):
    fcntl.lockf(os.open(target, os.O_RDONLY), kind | fcntl.LOCK_NB)


_ACTIONS = {
    "move the parent": lambda target, place: os.sched_setaffinity(int(target), os.sched_getaffinity(0)),
    "move itself": lambda target, place: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "schedule the parent": lambda target, place: os.sched_setscheduler(
        int(target), os.SCHED_BATCH, os.sched_param(0)
    ),
    "lock": lambda target, place: fcntl.flock(os.open(target, os.O_RDONLY), fcntl.LOCK_SH),
    "lock a part": lambda target, place: _lock(target, fcntl.LOCK_SH),
    "make a namespace": lambda target, place: _call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0),
    "make a namespace anew": lambda target, place: _call("clone3", bytes(88), 88),
    "start a thread": lambda target, place: threading.Thread(target=time.time).start(),
    "share memory": lambda target, place: _call("shmget", 0, 4096, 0o1600),
    "queue of messages": lambda target, place: _call("msgget", 0, 0o1600),
    "name the domain": lambda target, place: _call("setdomainname", b"x", 1),
    "look at the clock": lambda target, place: time.clock_gettime(time.CLOCK_REALTIME),
    "adjust the clock": lambda target, place: _call("adjtimex", ctypes.create_string_buffer(512)),
    "read the kernel's log": lambda target, place: _call("syslog", 10, None, 0),
    "watch all files": lambda target, place: _call("fanotify_init", 0, 0),
    "call of later kernels": lambda target, place: _call("of later kernels"),
    "slow the parent down": lambda target, place: os.setpriority(os.PRIO_PROCESS, int(target), 19),
    "slow itself down": lambda target, place: os.setpriority(os.PRIO_PROCESS, 0, 19),
    "read the parent's environment": lambda target, place: Path(f"/proc/{target}/environ").read_bytes(),
    "make null": lambda target, place: os.mknod(target, stat.S_IFCHR | 0o666, os.makedev(1, 3)),
    "make a disk": lambda target, place: os.mknod(target, stat.S_IFBLK | 0o666, os.makedev(7, 0)),
    "make a pipe": lambda target, place: os.mkfifo(target),
    "set times": lambda target, place: os.utime(target, (0, 0)),
    "stream pair": lambda target, place: _pair(socket.SOCK_STREAM | socket.SOCK_CLOEXEC),
    "packet pair": lambda target, place: _pair(socket.SOCK_SEQPACKET),
    "datagram pair": lambda target, place: _pair(socket.SOCK_DGRAM | socket.SOCK_CLOEXEC),
    "signal the parent": lambda target, place: os.kill(int(target), 0),
    "signal itself": lambda target, place: os.kill(os.getpid(), 0),
    "signal its thread": lambda target, place: signal.pthread_kill(threading.get_ident(), 0),
    "signal a file of a process": lambda target, place: signal.pidfd_send_signal(
        os.pidfd_open(int(target)), 0
    ),
    "limit the parent": lambda target, place: resource.prlimit(int(target), resource.RLIMIT_CORE),
    "limit itself": lambda target, place: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    "type into a terminal": lambda target, place: _type_into(target),
    "set flags": lambda target, place: _set_flags(target),
    "write": _write,
    "append": lambda target, place: _write(target, place, "a"),
    "make a folder": lambda target, place: os.mkdir(target),
    "link": _link,
    "rename": _rename,
    "empty": lambda target, place: os.truncate(target, 0),
    "remove": lambda target, place: os.unlink(target),
    "temporary": lambda target, place: tempfile.TemporaryFile().close(),
    "connect": lambda target, place: socket.create_connection(("127.0.0.1", int(target))),
    "datagram": lambda target, place: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "unix socket": lambda target, place: socket.socket(socket.AF_UNIX),
    "run": lambda target, place: os.execv("/bin/true", ["true"]),
    "change mode": lambda target, place: os.chmod(target, 0o777),
    "read": lambda target, place: os.stat(target) and os.close(os.open(target, os.O_RDONLY)),
    "import": lambda target, place: importlib.import_module(target),
    "fork and write": _fork_and_write,
}


def _confine_on_an_old_kernel() -> None:
    """As if Landlock could not yet keep signals inside; the worker is free until then."""
    confinement._landlock_version = lambda: 3
    confinement.available.cache_clear()
    confinement.enter([])


def owner(payload: dict[str, Any], channel: Channel) -> Any:
    """Of a process in a namespace: who it is, whom its files belong to, its number, its parent's."""
    os.setgid(payload["user"])
    os.setuid(payload["user"])
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: else its files in /proc are another's
    held = lifetime.enter_namespace()
    ours, theirs = os.pipe()
    if os.fork() == 0:
        with tempfile.TemporaryFile() as file:
            of_file = os.fstat(file.fileno())
        ids = [os.getuid(), os.getgid(), of_file.st_uid, of_file.st_gid]
        os.write(theirs, json.dumps([held is not None, ids, os.getppid(), os.getpid()]).encode())
        os._exit(0)
    os.close(theirs)
    return json.loads(os.read(ours, 1000))


def crash(payload: dict[str, Any], channel: Channel) -> Any:
    os.abort()


def copied(payload: dict[str, Any], channel: Channel) -> Any:
    """What a copy of the worker says, and whether copies are gone once they are closed."""
    confine = {"old kernel": _confine_on_an_old_kernel, "": lambda: None}[payload.get("on", "")]
    confine()
    number = payload["number"]

    def double(connection: Connection) -> None:
        while (record := receive(connection)) is not None:
            send(connection, {"doubled": number * record["by"], "process": os.getpid()})

    answering = ForkedCopy(double)
    send(answering.connection, {"by": 2})
    answer = receive(answering.connection)
    busy = ForkedCopy(lambda connection: time.sleep(60))
    began = time.monotonic()
    for each in (answering, busy):
        each.close()
    return {
        "doubled": answer["doubled"],
        "same process": answer["process"] == os.getpid(),
        "waited": time.monotonic() - began > 5,
        "left": len(Path("/proc/thread-self/children").read_text().split()),
    }


def copied_and_killed(payload: dict[str, Any], channel: Channel) -> Any:
    """Tell the number of a copy that sleeps, and die."""
    copy = ForkedCopy(lambda connection: time.sleep(60))
    channel.send({"copy": copy._pid})
    os.kill(os.getpid(), signal.SIGKILL)


def copied_in_vain(payload: dict[str, Any], channel: Channel) -> Any:
    """What is heard of a copy whose function fails."""

    def fail(connection: Connection) -> None:
        raise ValueError("it is tired")

    return receive(ForkedCopy(fail).connection)
