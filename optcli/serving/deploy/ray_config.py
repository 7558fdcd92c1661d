"""`serve_config.yaml`: replicas, limits and batches in Ray's words, read back with Ray's own schema."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from optcli.environment import pip_install
from optcli.errors import InputError, MissingError
from optcli.results.plan import Plan
from optcli.serving import bundle
from optcli.serving.bundle import Bundle
from optcli.serving.deploy.ray_lanes import Lane

# The deployment of each application, and what adds the protocol's gRPC service to Ray's proxy.
DEPLOYMENT = "Model"
_SERVICER = "tritonclient.grpc.service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"

# Requests that come at once beyond those that are admitted.
_BURST = 100


def schema() -> Any:
    """Ray's own form of serve_config.yaml. Raises `MissingError` without Ray."""
    try:
        from ray.serve.schema import ServeDeploySchema
    except ImportError as error:
        raise MissingError(
            "Ray Serve, which has the form of serve_config.yaml, is not installed",
            place="--target ray",
            hint=pip_install("serve"),
        ) from error
    return ServeDeploySchema


def content(made: Bundle, lanes: Sequence[Lane]) -> dict[str, Any]:
    """The content of serve_config.yaml: an application, or one for each priority."""
    patience_s = max(lane.deadline_ms for lane in lanes) / 1000 + 5
    grpc = {"grpc_options": {"port": 9000, "grpc_servicer_functions": [_SERVICER]}} if made.grpc else {}
    return {
        "proxy_location": "EveryNode",
        "http_options": {
            "host": "127.0.0.1",
            "port": 8000,
            "request_timeout_s": made.read_timeout_s + patience_s,
        },
        **grpc,
        "logging_config": {"log_level": "WARNING", "enable_access_log": False},
        "applications": [
            {
                "name": application_of(made.model, lane.name),
                "route_prefix": lane.route or "/",
                "import_path": "app:app",
                "deployments": [_model(made, lane)],
            }
            for lane in lanes
        ],
    }


def application_of(model: str, priority: str) -> str:
    """The name of an application."""
    return f"{model}-{priority}" if priority else model


def _model(made: Bundle, lane: Lane) -> dict[str, Any]:
    """The deployment of an application."""
    return {
        "name": DEPLOYMENT,
        "num_replicas": lane.one.instances,
        # Beyond what a replica admits: some requests are still being read, others being refused. In a
        # burst Ray queues them a moment, and its own bound would answer 503 before the replica's 429.
        "max_ongoing_requests": 2 * lane.max_in_flight + _BURST,
        "max_queued_requests": lane.most_in_flight + _BURST,
        "user_config": {
            "max_batch_size": lane.one.batch,
            "batch_wait_timeout_s": lane.wait_ms / 1000,
            "max_in_flight": lane.max_in_flight,
            "deadline_ms": lane.deadline_ms,
        },
        "ray_actor_options": {"num_cpus": made.threads},
        **_ends(lane.deadline_ms),
    }


def _ends(deadline_ms: float) -> dict[str, Any]:
    """How Ray looks after a deployment, and how long it lets it finish."""
    return {
        "health_check_period_s": 1,
        "health_check_timeout_s": 30,
        "graceful_shutdown_timeout_s": deadline_ms / 1000 + 5,
        "graceful_shutdown_wait_loop_s": 0.1,
    }


def write(folder: Path, made: Bundle, lanes: Sequence[Lane], plan: Plan) -> None:
    """Write serve_config.yaml, with what the plan says above it."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    stream = StringIO()
    yaml.dump(content(made, lanes), stream)
    said = f"Written by optcli for the variant {made.variant}. {plan.sentence}"
    comment = "".join(f"# {line}\n" for line in said.splitlines())
    (folder / bundle.CONFIG).write_text(comment + stream.getvalue(), encoding="utf-8")


def require_readable(folder: Path, made: Bundle, lanes: Sequence[Lane]) -> None:
    """Raise `InputError` where what was written reads back as something else."""
    from pydantic import ValidationError
    from ruamel.yaml import YAML

    path = folder / bundle.CONFIG
    written = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    try:
        schema().model_validate(written)
    except ValidationError as error:
        raise InputError(
            f"Ray cannot read it: {error}", place=str(path), hint="deploy again"
        ) from error
    if bundle.read(folder) != made or written != content(made, lanes):
        raise InputError(
            "the bundle says something else when it is read back",
            place=str(path),
            hint="this is a bug: report it with the plan",
        )
