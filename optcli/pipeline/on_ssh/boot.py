"""The first program that runs on a host: it says what Python is there, takes optcli's code, starts it.

Its text is sent as it stands, so it imports nothing of optcli, and any Python 3 can read it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import io
import json
import os
import shutil
import sys
import tempfile
import zipfile

# Where the shell there greets, this tells its words from ours.
MARK = b"optcli is here: "


def main(needed: tuple[str, ...], place: str) -> None:
    """Begin, with a folder in `place`; what the libraries print goes to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    sys.path[:] = [path for path in sys.path if path]
    lacks = [name for name in needed if importlib.util.find_spec(name) is None]
    hello = {"version": sys.version_info[:2], "lacks": lacks, "python": sys.executable}
    os.write(out, MARK + json.dumps(hello).encode() + b"\n")
    head = b""
    while not head.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return
        head += byte
    code = b""
    size = json.loads(head.decode())["bytes"]
    while len(code) < size:
        part = os.read(0, size - len(code))
        if not part:
            return
        code += part
    folder = tempfile.mkdtemp(prefix="optcli-device-", dir=os.path.expanduser(place) or None)
    try:
        # As long as it is locked, nobody takes the folder for one that was left behind.
        lock = os.open(os.path.join(folder, ".alive"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        zipfile.ZipFile(io.BytesIO(code)).extractall(os.path.join(folder, "code"))
        sys.path.insert(0, os.path.join(folder, "code"))
        from optcli.pipeline.on_ssh import host_program

        host_program.serve(0, out, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
