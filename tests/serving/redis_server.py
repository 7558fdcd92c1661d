"""A redis-server of a test alone, on a unix socket, which can be stopped and started."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path


class RedisServer:
    """Not started yet. Its socket lies in `folder`, whose path must be short."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["redis-server", "--port", "0", "--unixsocket", str(self.socket), "--save", ""]
        command += ["--appendonly", "no", "--dir", str(self.socket.parent)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        for _ in range(500):
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(self.socket))
                    return
                except OSError:
                    time.sleep(0.02)
        raise AssertionError("redis-server does not start")

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None
