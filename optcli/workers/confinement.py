"""The wall around files from elsewhere: a process that cannot write, start programs or reach out.

What such a file runs may read, may write below the folders that it was given, and nothing else. Two
parts of Linux do it, each used where the system has it:

- Landlock (since Linux 6.2, version 3 of its interface): writing, making, removing and running files.
- seccomp: the network, starting programs, other processes' memory, signals to them where Landlock is
  too old for that, devices, locks, modes, owners and times of files.

Neither needs privileges, and neither can be left again: it is for a process that ends with its work.
`lifetime.enter_namespace`, which must come before any thread, hides the numbers of other processes.
Interfaces: https://docs.kernel.org/userspace-api/landlock.html and seccomp_filter.html.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.errors import TrustError

if TYPE_CHECKING:
    from optcli.artifact import Artifact

_NO_NEW_PRIVILEGES, _GET_SECCOMP, _SET_SECCOMP, _FILTER = 38, 21, 22, 2

# Landlock's calls, of one number everywhere.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _BENEATH = 1, 1
_READ_FILE = 1 << 2
_EXECUTE, _WRITE_FILE, _REFER, _TRUNCATE, _DEVICE = 1 << 0, 1 << 1, 1 << 13, 1 << 14, 1 << 15
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_MAKE_DEVICES = 1 << 6 | 1 << 11
_TCP, _SIGNALS_AND_SOCKETS = 0b11, 0b11
# Before it, a file can be emptied where it cannot be written.
_LEAST_VERSION = 3
# Since it a process can be kept from sending signals to those outside.
_KEEPS_SIGNALS = 6
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/kfd", "/dev/dri")

# Numbers of the machine's calls, and how the kernel calls the machine.
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# fmt: off
_FORBIDDEN: dict[str, tuple[int, int]] = {
    # name: (x86_64, aarch64), -1 where there is none
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "execve": (59, 221), "execveat": (322, 281),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "io_uring_setup": (425, 425), "perf_event_open": (298, 241),
    "bpf": (321, 280), "userfaultfd": (323, 282), "open_by_handle_at": (304, 265),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "mount_setattr": (442, 442), "swapon": (167, 224), "swapoff": (168, 225),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "sethostname": (170, 161),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "quotactl": (179, 60),
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setdomainname": (171, 162), "syslog": (103, 116), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "fanotify_init": (300, 262), "fspick": (433, 433), "fsmount": (432, 432),
    # What several processes share by a number or a name: memory, semaphores, queues of System V.
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    # Where other processes run, and how much.
    "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "flock": (73, 32),
    # Times of files anywhere: what copies them sets the mode, too, and fails at that already.
    "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88),
}
# Where Landlock does not keep signals inside.
_SIGNALS: dict[str, tuple[int, int]] = {
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}


# fmt: on


@dataclass(frozen=True)
class _Limit:
    """What one argument of a call may be: `only` these values, or none of these, under a mask."""

    argument: int
    values: tuple[int, ...]
    only: bool
    mask: int = 0xFFFFFFFF


# Kinds of files, of sockets, and what is asked of a file or device.
_DEVICE_FILES, _KIND = (0x2000, 0x6000), 0xF000
_UNIX, _STREAM, _PACKETS, _SOCKET_TYPE = 1, 1, 5, 0xF
# TIOCSTI, TIOCLINUX, FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS and FS_IOC_FSSETXATTR.
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x40086602, 0x40046602, 0x401C5820)
_LIMITED: dict[str, tuple[tuple[int, int], tuple[_Limit, ...]]] = {
    "mknod": ((133, -1), (_Limit(1, _DEVICE_FILES, only=False, mask=_KIND),)),
    "mknodat": ((259, 33), (_Limit(2, _DEVICE_FILES, only=False, mask=_KIND),)),
    # One for datagrams can be sent to any address.
    "socketpair": (
        (53, 199),
        (
            _Limit(0, (_UNIX,), only=True),
            _Limit(1, (_STREAM, _PACKETS), only=True, mask=_SOCKET_TYPE),
        ),
    ),
    "ioctl": ((16, 29), (_Limit(1, _TERMINAL_REQUESTS, only=False),)),
    "setpriority": (
        (141, 140),
        (_Limit(0, (0,), only=True), _Limit(1, (0,), only=True)),
    ),
    "prlimit64": ((302, 261), (_Limit(0, (0,), only=True),)),
    # Threads and copies of the process, and none in namespaces of their own.
    "clone": ((56, 220), (_Limit(0, (0,), only=True, mask=0x7E020000),)),
    # Locks of files: others would wait for them. The last is a lease.
    "fcntl": ((72, 25), (_Limit(1, (6, 7, 37, 38, 1024), only=False),)),
}
# Its flags lie where the filter cannot look: the C library goes on with `clone`.
_CLONE3 = 435
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # denied with EPERM
# Calls that later kernels have: a program that asks for them goes on without where they are unknown.
_LAST_KNOWN, _UNKNOWN = 462, 0x00050000 | 38  # ENOSYS
_X32 = 0x40000000
# The call that sets a filter, which takes flags where prctl takes none.
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _ALLOW_SPECULATION = 1, 1 << 2


@dataclass(frozen=True)
class Walls:
    """What the system can hold a worker to: `files` by Landlock, `network` by seccomp."""

    files: bool
    network: bool

    @property
    def whole(self) -> bool:
        """Whether a confined worker can neither write elsewhere nor reach out."""
        return self.files and self.network

    def __str__(self) -> str:
        if self.whole:
            return "Landlock and seccomp"
        if self.files:
            return "Landlock, for files alone"
        return "seccomp, for the network alone" if self.network else "none"


@cache
def available() -> Walls:
    """What this system offers. Enters nothing."""
    if not sys.platform.startswith("linux"):
        return Walls(files=False, network=False)
    filters = platform.machine() in _MACHINES and sys.maxsize > 2**32
    filters = filters and ctypes.CDLL(None).prctl(_GET_SECCOMP, 0, 0, 0, 0) >= 0
    return Walls(files=_landlock_version() >= _LEAST_VERSION, network=filters)


def require_whole(place: str) -> None:
    """Raise `TrustError` where workers that open a program from elsewhere cannot be confined here."""
    if not available().whole:
        raise TrustError(
            "this is a program from elsewhere, and this system cannot confine what runs it"
            f" ({available()})",
            place=place,
            hint="add --trust where you know who made the model: it could then do whatever you can",
        )


def enter(writable: Sequence[Path]) -> Walls:
    """Confine this process and what it starts, for good; it must have one thread.

    Afterwards it can write below `writable` alone. Gives what holds it: nothing where the system has
    no such walls. Raises OSError where the system has them and they cannot be entered.
    """
    walls = available()
    if walls.files or walls.network:
        _call(ctypes.CDLL(None, use_errno=True).prctl, _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if walls.files:
        _restrict_files(writable)
    if walls.network:
        _filter_calls()
    return walls


def _landlock_version() -> int:
    return int(ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG))


def _restrict_files(writable: Sequence[Path]) -> None:
    version = _landlock_version()
    rights = _EXECUTE | _READ_FILE | _WRITE_FILE | _REMOVE_AND_MAKE | _REFER | _TRUNCATE
    if version >= 5:
        rights |= _DEVICE
    fields = [rights]
    if version >= 4:
        fields.append(_TCP)
    if version >= _KEEPS_SIGNALS:
        fields.append(_SIGNALS_AND_SOCKETS)
    ruleset = struct.pack(f"<{len(fields)}Q", *fields)
    libc = ctypes.CDLL(None, use_errno=True)
    rules = _call(libc.syscall, _CREATE_RULESET, ruleset, ctypes.c_size_t(len(ruleset)), 0)
    try:
        for path in _readable():
            with suppress(OSError):  # it has just gone
                _allow(libc, rules, path, _READ_FILE)
        for folder in writable:
            _allow(libc, rules, folder, rights & ~(_EXECUTE | _DEVICE | _MAKE_DEVICES))
        for device in (*map(Path, _DEVICES), *Path("/dev").glob("nvidia*")):
            with suppress(FileNotFoundError):
                below = rights & (_WRITE_FILE | _TRUNCATE | _DEVICE)
                _allow(libc, rules, device, below)
        _call(libc.syscall, _RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _readable() -> list[Path]:
    """All but the files of other processes, such as their environment with its passwords."""
    proc = Path("/proc")
    apart = [path for path in proc.glob("*") if not path.name.isdecimal()]
    return [*(path for path in Path("/").iterdir() if path != proc), *apart, proc / "self"]


def _allow(libc: ctypes.CDLL, rules: int, path: Path, rights: int) -> None:
    """Allow `rights` at a path and below."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        # The record is packed: 8 bytes of rights, 4 of the descriptor.
        rule = struct.pack("<Qi", rights, place)
        _call(libc.syscall, _ADD_RULE, rules, _BENEATH, rule, 0)
    finally:
        os.close(place)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def _filter_calls() -> None:
    machine = platform.machine()
    steps = [
        *(_step(0x20, 4), _step(0x15, _MACHINES[machine], 1, 0), _step(0x06, _KILL)),
        _step(0x20, 0),
    ]
    if machine == "x86_64":  # the same calls under other numbers
        steps += [_step(0x35, _X32, 0, 1), _step(0x06, _DENY)]
    column = tuple(_MACHINES).index(machine)
    forbidden, limited = _FORBIDDEN, _LIMITED
    if _landlock_version() < _KEEPS_SIGNALS:
        itself = (_Limit(0, (os.getpid(),), only=True),)
        forbidden = {**_FORBIDDEN, **_SIGNALS}
        limited = {**_LIMITED, "kill": ((62, 129), itself), "tgkill": ((234, 131), itself)}
    for numbers in forbidden.values():
        if numbers[column] >= 0:
            steps += [_step(0x15, numbers[column], 0, 1), _step(0x06, _DENY)]
    for numbers, limits in limited.values():
        if numbers[column] >= 0:
            checks = _checked(limits)
            steps += [_step(0x15, numbers[column], 0, len(checks)), *checks]
    steps += [_step(0x15, _CLONE3, 1, 0), _step(0x25, _LAST_KNOWN, 0, 1), _step(0x06, _UNKNOWN)]
    steps += [_step(0x06, _ALLOW)]
    program = _Program(len(steps), b"".join(steps))
    libc = ctypes.CDLL(None, use_errno=True)
    # Otherwise kernels before 5.16 switch speculation off in the process, and it computes slower.
    # Nothing in it holds secrets from itself.
    flags = ctypes.c_ulong(_ALLOW_SPECULATION)
    if libc.syscall(_SECCOMP[machine], _SET_FILTER, flags, ctypes.byref(program)) != 0:
        _call(libc.prctl, _SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)


def _checked(limits: Sequence[_Limit]) -> list[bytes]:
    """Steps that end with allowing or denying a call by its arguments."""
    steps: list[bytes] = []
    for limit in limits:
        # The lower half of an argument: the kernel looks at no more of these.
        steps += [_step(0x20, 16 + 8 * limit.argument), _step(0x54, limit.mask)]
        for left, value in zip(range(len(limit.values), 0, -1), limit.values, strict=True):
            # Where it is found: over the other values and the step behind them.
            steps.append(_step(0x15, value, left, 0))
        if limit.only:
            steps.append(_step(0x06, _DENY))
        else:
            steps += [_step(0x05, 1), _step(0x06, _DENY)]
    return [*steps, _step(0x06, _ALLOW)]


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """One instruction of a classic BPF program: load, compare and jump, or return."""
    return struct.pack("<HBBI", code, yes, no, value)


def _call(function: object, *arguments: object) -> int:
    returned = int(function(*arguments))  # type: ignore[operator]
    if returned < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"this worker cannot be confined: {os.strerror(number)}")
    return returned


def require_confinement(format: str, place: str, *, trust: bool) -> None:
    """Raise `TrustError` for a program from elsewhere where this system cannot confine workers."""
    # An interpreter without the libraries imports this module, and can say what it lacks.
    from optcli.artifact import SCANNED

    if format in SCANNED and not trust:
        require_whole(place)


def require_confinement_of(artifact: Artifact) -> None:
    """The same for an artifact that a machine is asked to open."""
    if artifact.foreign:
        require_confinement(artifact.format, str(artifact.path), trust=artifact.trusted)
