"""Start the server on this machine, in a Ray of its own, and stop all of it on Ctrl-C or SIGTERM.

    python launch.py --port 8000

On a cluster, `serve deploy serve_config.yaml` does the same. SIGHUP reads serve_config.yaml again.
Where the server does not come back by itself, this ends with exit code 1 and says what is gone.
"""

from __future__ import annotations

import argparse
import contextlib
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
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
BUNDLE: dict[str, Any] = json.loads((HERE / "bundle.json").read_text())
# Code that never blocks needs no thread of its own. Ray's gRPC between proxy and replicas would be
# faster than its actor calls, but carries no answer of more than 4 MiB.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
    # Ray gives its workers the niceness 15: whatever else runs on the machine would go before requests.
    "RAY_worker_niceness": "0",
    # Nobody else on this machine may talk to this Ray.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])),
}
# How often to look, and how long the server may be away before this gives up.
LOOK_S, AWAY_S = 1.0, 45.0
# How often Ray is asked, while the server starts, whether that has failed.
ASK_S = 15.0
_LAST_LINES = 15
STATE = """
import ray, sys
from ray import serve
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
for name, application in serve.status().applications.items():
    print(application.status.value, name, application.message)
    for other, each in application.deployments.items():
        print("-", other, each.status.value, each.message)
"""


class Ended(Exception):  # noqa: N818
    """The server cannot go on: why."""


class Server:
    """Ray and the application, as processes of this one."""

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self._arguments, self._scratch = arguments, scratch
        # Ports of Ray's own that several servers on one machine would share.
        gcs, dashboard, agent, client = free_ports(4)
        self._environment = {
            **os.environ,
            **ENVIRONMENT,
            "RAY_ADDRESS": f"127.0.0.1:{gcs}",
            "METRICS_FOLDER": str(scratch / "metrics"),
            "STOPPING_FILE": str(scratch / "stopping"),
        }
        self._log = (scratch / "ray.log").open("a+")
        command = ["ray", "start", "--head", "--block", "--disable-usage-stats"]
        options = {
            "port": gcs,
            "dashboard-port": dashboard,
            "dashboard-agent-listen-port": agent,
            "ray-client-server-port": client,
            "min-worker-port": 0,
            "max-worker-port": 0,
            "num-cpus": arguments.cpus or BUNDLE["cpus"],
            "num-gpus": 0,
            "object-store-memory": BUNDLE["object_store_bytes"],
            "include-dashboard": "false",
            "include-log-monitor": "false",
            "temp-dir": scratch,
        }
        self._ray = self._run([*command, *(f"--{name}={value}" for name, value in options.items())])
        self._serve: subprocess.Popen[bytes] | None = None

    def deploy(self) -> None:
        """Hand serve_config.yaml to Ray, with the address that was asked for."""
        content = yaml.safe_load((HERE / "serve_config.yaml").read_text())
        content["http_options"].update(host=self._arguments.host, port=self._arguments.port)
        if "grpc_options" in content and self._arguments.grpc_port:
            content["grpc_options"]["port"] = self._arguments.grpc_port
        path = self._scratch / "serve_config.yaml"
        path.write_text(yaml.safe_dump(content))
        again = ["--non-blocking"] if self._serve else []
        started = self._run(["serve", "run", *again, str(path)])
        self._serve = self._serve or started

    def answers(self) -> bool:
        """Whether the server says that it is ready."""
        try:
            host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._arguments.host)  # noqa: S104
            url = f"http://{host or self._arguments.host}:{self._arguments.port}/v2/health/ready"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def require_ray(self) -> None:
        """Raise `Ended` where one of Ray's own processes is gone."""
        if self._ray.poll() is not None:
            raise Ended(f"Ray has ended: {self.said()}")

    def state(self) -> str:
        """What Ray says of the application, which may take a while."""
        try:
            asked = self._run([sys.executable, "-c", STATE], stdout=subprocess.PIPE)
            return asked.communicate(timeout=15)[0].decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            asked.kill()
            return "Ray's controller does not answer"

    def said(self) -> str:
        """What Ray's commands said: which process is gone, or the last lines."""
        self._log.seek(0)
        lines = re.sub(r"\x1b\[\d+m", "", self._log.read()).splitlines()
        gone = [at for at, line in enumerate(lines) if "exited unexpectedly" in line]
        return "\n".join(lines[gone[0] : gone[0] + 2] if gone else lines[-_LAST_LINES:])

    def stop(self, grace_s: float) -> None:
        """Say that the server is not ready, answer requests for a while, and stop everything."""
        (self._scratch / "stopping").touch()
        time.sleep(grace_s)
        for process, sent in ((self._serve, signal.SIGINT), (self._ray, signal.SIGTERM)):
            if process is None:
                continue
            process.send_signal(sent)
            try:
                process.wait(BUNDLE["deadline_ms"] / 1000 + 10)
            except subprocess.TimeoutExpired:
                process.kill()
        # Ray's workers may outlive it for some seconds, with the port.
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.fsencode(self._scratch) in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)

    def _run(self, command: list[str], stdout: Any = None) -> subprocess.Popen[bytes]:
        # Beside this Python lie Ray's commands. A signal from the keyboard goes to this process alone.
        command[0] = shutil.which(command[0], path=os.path.dirname(sys.executable)) or command[0]
        return subprocess.Popen(
            command,
            cwd=HERE,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout or self._log,
            stderr=self._log,
            process_group=0,
        )


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in servers]


def main() -> int:
    """Start, wait for a signal, stop. The exit code is 1 where the server cannot go on."""
    parser = argparse.ArgumentParser(description="Serve the model of this folder.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--grpc-port", type=int, help="default: that of serve_config.yaml")
    parser.add_argument("--cpus", type=int, help="what Ray may share out; default: what replicas take")
    parser.add_argument("--ready-timeout", type=float, default=180.0, metavar="SECONDS")
    parser.add_argument("--grace", type=float, default=2.0, metavar="SECONDS",
                        help="how long requests are taken after SIGTERM")  # fmt: skip
    arguments = parser.parse_args()
    came: list[int] = []
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, _: came.append(number))
    # Ray's sockets lie there, and their paths must be short.
    scratch = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    server = Server(arguments, scratch)
    grace_s = 0.0
    try:
        server.deploy()
        grace_s = watched(server, arguments, came)
        return 0
    except Ended as ended:
        say(str(ended))
        return 1
    finally:
        server.stop(grace_s)
        shutil.rmtree(scratch, ignore_errors=True)


def watched(server: Server, arguments: argparse.Namespace, came: list[int]) -> float:
    """Look after the server until a signal comes; gives the time of grace. Raises `Ended`."""
    ready, until = False, time.monotonic() + arguments.ready_timeout
    asked = time.monotonic()
    while True:
        time.sleep(LOOK_S)
        if signal.SIGINT in came or signal.SIGTERM in came:
            return arguments.grace if ready else 0.0
        if signal.SIGHUP in came:
            came.clear()
            server.deploy()
        server.require_ray()
        if server.answers():
            until = time.monotonic() + AWAY_S
            if not ready:
                ready = True
                say(f"ready: http://{arguments.host}:{arguments.port}")
        elif time.monotonic() > min(until, until if ready else asked + ASK_S):
            asked, said = time.monotonic(), server.state()
            if ready or "DEPLOY_FAILED" in said or asked > until:
                raise Ended(f"the server does not answer: {said}\n{server.said()}")


def say(text: str) -> None:
    """Write a line, for people and for whoever started this."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
