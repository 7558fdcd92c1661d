"""Start the server on this machine, in a Ray of its own, and stop all of it on Ctrl-C or SIGTERM.

    python launch.py --port 8000

On a cluster, `serve deploy serve_config.yaml` does the same. SIGHUP reads serve_config.yaml again:
batch size and wait change at once, without a pause.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
READY = "ready:"
# Nothing is reported home, and every process finds the modules beside this file. Requests take the
# shortest way through Ray: the ingress listens itself, in place of a proxy in front of it, it calls the
# replicas by gRPC, which takes half of the time of actor calls, and code that never blocks needs no
# thread of its own.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
    "RAY_SERVE_PORT_QUARANTINE_S": "0",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "request_heads:limit",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
    # Ray gives its workers the niceness 15: whatever else runs on the machine would go before requests.
    "RAY_worker_niceness": "0",
    # While Ray collects its own figures, every few seconds, requests wait for the processor. Those of
    # the server are at its /metrics.
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    # Nobody else on this machine may talk to this Ray.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])),
}


# Of the processes that Ray starts, which have an event loop; this one has none.
THEIRS = {"RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0"}


def main() -> int:
    """Start, wait for a signal, stop. The exit code is 1 where the server did not get ready."""
    parser = argparse.ArgumentParser(description="Serve the model of this folder.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--cpus", type=int, help="what Ray may share out; default: what replicas take")
    parser.add_argument("--ready-timeout", type=float, default=120.0, metavar="SECONDS")
    arguments = parser.parse_args()
    ports = {"MIN": arguments.port, "MAX": arguments.port + 1}
    ports = {f"RAY_SERVE_DIRECT_INGRESS_{end}_HTTP_PORT": str(port) for end, port in ports.items()}
    os.environ.update(ENVIRONMENT, **ports)
    os.environ.pop("RAY_ADDRESS", None)
    sys.path.insert(0, str(HERE))
    stopping = [signal.SIGINT, signal.SIGTERM]
    signal.pthread_sigmask(signal.SIG_BLOCK, [*stopping, signal.SIGHUP])
    # Ray's sockets lie there, and their paths must be short.
    scratch = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    try:
        return serve_until(arguments, scratch, {*stopping, signal.SIGHUP})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def serve_until(arguments: argparse.Namespace, scratch: str, signals: set[signal.Signals]) -> int:
    """Run the server until one of the signals other than SIGHUP comes."""
    import ray
    from ray import serve

    os.environ.update(THEIRS)
    # Ray puts the current folder first among those from which replicas import.
    os.chdir(HERE)
    bundle = json.loads((HERE / "bundle.json").read_text())
    ray.init(
        address="local",
        num_cpus=arguments.cpus or bundle["cpus"],
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=bundle["object_store_bytes"],
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=scratch,
    )
    try:
        client, url = started(arguments), f"http://{arguments.host}:{arguments.port}"
        if not until_ready(f"{url}/v2/health/ready", arguments.ready_timeout, signals):
            return 1
        say(f"{READY} {url}")
        while signal.sigwait(signals) == signal.SIGHUP:
            try:
                client.deploy_apps(configuration(arguments))
            except Exception as error:
                say(f"serve_config.yaml was rejected; the server keeps its settings: {error}")
        try:
            ingress = serve.get_app_handle(configuration(arguments).applications[0].name)
            ingress.drain.remote().result(timeout_s=bundle["deadline_ms"] / 1000 + 5)
            # The last answers are still on their way.
            time.sleep(0.2)
        except Exception as error:
            say(f"stopped before all requests had their answers: {error}")
        return 0
    finally:
        ray.shutdown()


def say(text: str) -> None:
    """Write a line, for people and for whoever started this."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def configuration(arguments: argparse.Namespace) -> Any:
    """serve_config.yaml, with the address that was asked for.

    Ray's own proxy is started as well; nothing is sent there. Port 0 means that the system gives it a
    free port as it listens. A port that was found free earlier could be taken by then.
    """
    import yaml
    from ray.serve.schema import ServeDeploySchema

    content = yaml.safe_load((HERE / "serve_config.yaml").read_text())
    content["http_options"].update(host=arguments.host, port=0)
    return ServeDeploySchema.model_validate(content)


def started(arguments: argparse.Namespace) -> Any:
    """Ray Serve with the application: what `serve run serve_config.yaml` does."""
    from ray.serve._private.api import serve_start

    config = configuration(arguments)
    client = serve_start(
        http_options=config.http_options.model_dump(), proxy_location=config.proxy_location
    )
    client.deploy_apps(config)
    return client


def until_ready(url: str, seconds: float, signals: set[signal.Signals]) -> bool:
    """Whether the server got ready in time, and nobody stopped it before; says why it did not."""
    from ray import serve

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310
            return True
        applications = serve.status().applications.values()
        for failed in (each for each in applications if each.status == "DEPLOY_FAILED"):
            for name, deployment in failed.deployments.items():
                say(f"{name}: {deployment.status}: {deployment.message}")
            say(failed.message)
            return False
        came = signal.sigtimedwait(signals, 0.2)
        if came is not None and came.si_signo != signal.SIGHUP:
            return False
    say(f"the server did not get ready within {seconds:g} seconds")
    return False


if __name__ == "__main__":
    raise SystemExit(main())
