"""Start the server on this machine, in a Ray of its own, and stop all of it on Ctrl-C or SIGTERM.

    python launch.py --port 8000

On a cluster, `serve deploy serve_config.yaml` does the same. Where the server does not come back by
itself, this ends with exit code 1 and says what is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
BUNDLE: dict[str, Any] = json.loads((HERE / "bundle.json").read_text())
SETTINGS = [line for line in (HERE / "ray.env").read_text().splitlines() if line[:1] not in ("", "#")]
# How often to look, how long the server may be away, and how often Ray is asked while it starts.
LOOK_S, AWAY_S, ASK_S = 1.0, 45.0, 15.0
RAY = (
    "ray start --head --block --disable-usage-stats --include-dashboard=false --num-gpus=0"
    " --include-log-monitor=false --min-worker-port=0 --max-worker-port=0"
)
STATE = """
import ray
from ray import serve
ray.init(log_to_driver=False, logging_level="ERROR")
for name, application in serve.status().applications.items():
    print(application.status.value, name, application.message)
    for other, each in application.deployments.items():
        print("-", other, each.status.value, each.message)
"""


class Server:
    """Ray and the application, as processes of this one."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.host, self.port, self._scratch = options.host, options.port, scratch
        self._log = scratch / "ray.log"
        # Ports of Ray's own that several servers on one machine would share.
        with contextlib.ExitStack() as stack:
            free = [stack.enter_context(socket.create_server(("", 0))) for _ in range(4)]
            gcs, dashboard, agent, client = (each.getsockname()[1] for each in free)
        self._environment = {
            **dict(line.split("=", 1) for line in SETTINGS),
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
            # Nobody else on this machine may talk to this Ray.
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ADDRESS": f"127.0.0.1:{gcs}",
            "METRICS_FOLDER": str(scratch / "metrics"),
            "STOPPING_FILE": str(scratch / "stopping"),
        }
        # serve_config.yaml, with the address that was asked for.
        content = yaml.safe_load((HERE / "serve_config.yaml").read_text())
        content["http_options"].update(host=options.host, port=options.port)
        if "grpc_options" in content and options.grpc_port:
            content["grpc_options"]["port"] = options.grpc_port
        (scratch / "serve_config.yaml").write_text(yaml.safe_dump(content))
        self.ray = self._run(
            *RAY.split(),
            f"--port={gcs}",
            f"--dashboard-port={dashboard}",
            f"--dashboard-agent-listen-port={agent}",
            f"--ray-client-server-port={client}",
            f"--num-cpus={options.cpus or BUNDLE['cpus']}",
            f"--object-store-memory={BUNDLE['object_store_bytes']}",
            f"--temp-dir={scratch}",
        )
        self._serve = self._run("serve", "run", str(scratch / "serve_config.yaml"))

    def answers(self) -> bool:
        """Whether the server says that it is ready; asked directly, whatever HTTP_PROXY says."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        return False

    def state(self) -> str:
        """What Ray says of the application, which may take a while."""
        begun = len(self._log.read_text(errors="replace"))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._run(sys.executable, "-c", STATE).wait(15)
        return self.last_lines(begun, most=1000)

    def last_lines(self, begun: int = 0, most: int = 25) -> str:
        """What Ray's commands said: which process is gone, or the last lines."""
        lines = re.sub(r"\x1b\[\d+m", "", self._log.read_text(errors="replace")[begun:]).splitlines()
        gone = [at for at, line in enumerate(lines) if "exited unexpectedly" in line]
        return "\n".join(lines[gone[0] : gone[0] + 2] if gone else lines[-most:])

    def stop(self, grace_s: float) -> None:
        """Say that it is not ready, answer requests for a while, and stop all; at once without Ray."""
        (self._scratch / "stopping").touch()
        time.sleep(grace_s)
        if self.ray.poll() is None:
            self._serve.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._serve.wait(BUNDLE["deadline_ms"] / 1000 + 10)
        # All processes of this Ray: its workers would outlive it for some seconds, with the port.
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.fsencode(self._scratch) in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
        self.ray.wait()

    def _run(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        # Beside this Python lie Ray's commands. A signal from the keyboard goes to this process alone.
        with self._log.open("a") as log:
            return subprocess.Popen(
                [os.path.join(os.path.dirname(sys.executable), command), *arguments],
                cwd=HERE,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )


def main() -> int:
    """Start, wait for a signal, stop. The exit code is 1 where the server cannot go on."""
    parser = argparse.ArgumentParser(description="Serve the model of this folder.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--grpc-port", type=int, help="default: that of serve_config.yaml")
    parser.add_argument("--cpus", type=int, help="what Ray may share out; default: what replicas take")
    parser.add_argument("--ready-timeout", type=float, default=180.0, metavar="SECONDS")
    parser.add_argument("--grace", type=float, default=2.0, help="seconds of answers after SIGTERM")
    options = parser.parse_args()
    came: list[int] = []
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, _: came.append(number))
    # Ray's sockets lie there, and their paths must be short.
    scratch = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    server, why = Server(options, scratch), "it failed"
    try:
        why = watched(server, options.ready_timeout, came)
        print(why, flush=True)
        return 1 if why else 0
    finally:
        server.stop(0.0 if why else options.grace)
        shutil.rmtree(scratch, ignore_errors=True)


def watched(server: Server, ready_s: float, came: list[int]) -> str:
    """Look after the server until a signal comes, or why it cannot go on is known: gives that."""
    ready, asked_at = False, time.monotonic()
    until = asked_at + ready_s
    while not came:
        time.sleep(LOOK_S)
        if server.ray.poll() is not None:  # one of its processes is gone, which ends them all
            return f"Ray has ended: {server.last_lines()}"
        now = time.monotonic()
        if server.answers():
            until = now + AWAY_S
            if not ready:
                print(f"ready: http://{server.host}:{server.port}", flush=True)
            ready = True
        elif now > until or (not ready and now > asked_at + ASK_S):
            asked_at, said = now, server.state()
            if now > until or "DEPLOY_FAILED" in said:
                return f"the server does not answer: {said}"
    return ""


if __name__ == "__main__":
    raise SystemExit(main())
