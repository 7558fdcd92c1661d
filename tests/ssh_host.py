"""A host that ssh reaches: OpenSSH's server on the loopback, and a Python there without optcli."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
import venv
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from optcli.pipeline.on_ssh.hosts import Host

# Where it lies if it is in no folder of PATH, as for users who administrate nothing.
PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
_TRIES = 5
_CONFIGURATION = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
SetEnv TMPDIR={temporary}
"""


def server() -> str | None:
    """The program; None where it is not installed."""
    return shutil.which("sshd", path=PLACES)


def installed() -> str | None:
    """The program, which is installed where this user may and it is missing."""
    if server() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["update"], ["install", "--yes", "--no-install-recommends", "openssh-server"]):
            variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            whole = ["apt-get", "-qq", *command]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(whole, env=variables, capture_output=True, check=False, timeout=180)
    return server()


def without_optcli(folder: Path) -> Path:
    """An interpreter with the libraries of this one and without optcli."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # What .pth files of that folder add, such as optcli, is left out.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def _processes() -> list[tuple[int, int, str]]:
    """Every process: its number, that of its parent, and its command."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    parts = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    return [(int(each[0]), int(each[1]), each[2]) for each in parts if len(each) == 3]


@dataclass
class SshHost:
    """A server with keys of its own in a folder; `python` is the interpreter of its device."""

    folder: Path
    python: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("host", "user"):
            key = self.folder / name
            if not key.exists():
                made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
                subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        program = server()
        assert program is not None
        # sshd takes no port 0: another program may take the free one before it.
        given = self.port
        for _ in range(1 if given else _TRIES):
            if not given:
                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    self.port = free.getsockname()[1]
            if self._answers(program):
                return
        raise AssertionError((self.folder / "log").read_text())

    def _answers(self, program: str) -> bool:
        """Start it on the port; false where it ended, or answers nobody."""
        written = self.folder / "sshd_config"
        written.write_text(
            _CONFIGURATION.format(port=self.port, folder=self.folder, temporary=tempfile.gettempdir())
        )
        self.know((self.folder / "host.pub").read_text())
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [program, "-D", "-e", "-f", str(written)], stderr=log, start_new_session=True
            )
        for _ in range(200):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                time.sleep(0.02)  # one that could not have the port ends at once
                return self.process.poll() is None
            if self.process.poll() is not None:
                return False
            time.sleep(0.02)
        return False

    def know(self, key: str) -> None:
        """Let clients know the host by this public key, and no other."""
        kind, value, *_ = key.split()
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {kind} {value}\n")

    def host(self, **about: str) -> Host:
        """What a user says of it."""
        options = ("-F", "none", "-p", str(self.port), "-i", str(self.folder / "user"))
        known = ("-o", f"UserKnownHostsFile={self.folder / 'known'}", "-o", "IdentitiesOnly=yes")
        return Host("127.0.0.1", (*options, *known), **{"python": str(self.python), **about})

    def sessions(self) -> list[int]:
        """The processes of the server that serve a connection."""
        assert self.process is not None
        return [pid for pid, parent, _ in _processes() if parent == self.process.pid]

    def programs(self) -> list[int]:
        """The processes that measure, or hand out what is to be measured."""
        return [pid for pid, _, command in _processes() if command.startswith(f"{self.python} -u -c")]

    def cut(self) -> None:
        """End every connection, as when a cable is pulled; the server stays."""
        for pid in self.sessions():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the server and its connections."""
        if self.process is not None:
            self.cut()
            self.process.terminate()
            self.process.wait(10)
            self.process = None
