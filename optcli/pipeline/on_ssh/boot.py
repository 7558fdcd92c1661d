"""The first program that runs on a host: it says what Python is there, takes optcli's code, starts it.

Where the user wants that, it makes an environment from wheels that are sent, and starts again there.
Its text is sent as it stands, so it imports nothing of optcli, and any Python 3 can read it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import IO

# Where the shell there greets, this tells its words from ours.
MARK = b"optcli is here: "


def main(needed: tuple[str, ...], place: str, environment: str) -> None:
    """Begin, with a folder in `place`; what the libraries print goes to standard error.

    `environment` is what the virtual environment is called; empty: this Python measures.
    """
    out = os.dup(1)
    os.dup2(2, 1)
    sys.path[:] = [path for path in sys.path if path]
    if environment and not _enter(environment, out):
        return
    lacks = [name for name in needed if importlib.util.find_spec(name) is None]
    _say(out, {"version": sys.version_info[:2], "lacks": lacks, "python": sys.executable})
    code = io.BytesIO()
    if not _receive(code):
        return
    folder = tempfile.mkdtemp(prefix="optcli-device-", dir=os.path.expanduser(place) or None)
    try:
        # As long as it is locked, nobody takes the folder for one that was left behind.
        lock = os.open(os.path.join(folder, ".alive"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        zipfile.ZipFile(code).extractall(os.path.join(folder, "code"))
        sys.path.insert(0, os.path.join(folder, "code"))
        from optcli.pipeline.on_ssh import host_program

        host_program.serve(0, out, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _say(out: int, hello: dict[str, object]) -> None:
    os.write(out, MARK + json.dumps(hello).encode() + b"\n")


def _receive(stream: IO[bytes]) -> bool:
    """Write what is sent into a stream; false where the connection has ended before."""
    head = b""
    while not head.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return False
        head += byte
    left = json.loads(head.decode())["bytes"]
    while left:
        part = os.read(0, min(left, 1 << 20))
        if not part:
            return False
        stream.write(part)
        left -= len(part)
    return True


def _enter(name: str, out: int) -> bool:
    """Start again in the virtual environment of this name, which is made where it is not there.

    True where this is it, and where this Python is too old; false where it cannot be made.
    """
    name = f"{name}-{sys.version_info[0]}.{sys.version_info[1]}"
    home = os.path.join(os.path.expanduser("~"), ".cache", "optcli", name)
    if os.path.realpath(sys.prefix) == os.path.realpath(home) or sys.version_info < (3, 10):
        return True
    if not os.path.isdir(home):
        about = {"machine": platform.machine(), "libc": platform.libc_ver(), "system": sys.platform}
        _say(out, {"wants": about, "version": sys.version_info[:2], "is_64_bit": sys.maxsize > 2**32})
    if os.path.isdir(home) or _make(home, out):
        os.dup2(out, 1)
        python = os.path.join(home, "bin", "python")
        os.execv(python, [python, *sys.orig_argv[1:]])  # noqa: S606 - itself again
    return False


def _make(home: str, out: int) -> bool:
    """Make the environment from wheels that are sent, pip's own among them; pip says why it cannot."""
    import venv  # which not every Python has

    os.makedirs(os.path.dirname(home), exist_ok=True)
    folder = tempfile.mkdtemp(prefix="making-", dir=os.path.dirname(home))
    try:
        with tempfile.TemporaryFile(dir=folder) as packed:
            if not _receive(packed):
                return False
            zipfile.ZipFile(packed).extractall(folder)
        wheels = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".whl")]
        made = os.path.join(folder, "environment")
        venv.create(made, symlinks=True)
        (pip,) = [each for each in wheels if os.path.basename(each).startswith("pip-")]
        options = ["install", "--no-index", "--no-deps", "--no-compile", "--quiet"]
        command = [os.path.join(made, "bin", "python"), os.path.join(pip, "pip"), *options, *wheels]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        while process.poll() is None:
            os.write(out, b"\n")  # the other end hears that this one is there
            time.sleep(1)
        if not process.returncode and not os.path.isdir(home):  # which another one may have made
            os.rename(made, home)
        return not process.returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)
