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
    """The content of serve_config.yaml."""
    # Several times what it admits: some requests are still being read, others being refused.
    ingress = {
        "name": "Ingress",
        "num_replicas": 1,
        "max_ongoing_requests": 4 * made.most_in_flight + 100,
        "ray_actor_options": {"num_cpus": 0},
        **_ends(max(lane.deadline_ms for lane in lanes)),
    }
    patience_s = max(lane.deadline_ms for lane in lanes) / 1000 + 5
    return {
        "proxy_location": "HeadOnly",
        "http_options": {
            "host": "127.0.0.1",
            "port": 8000,
            "request_timeout_s": made.read_timeout_s + patience_s,
        },
        "logging_config": {"log_level": "WARNING", "enable_access_log": False},
        "applications": [
            {
                "name": made.model,
                "route_prefix": "/",
                "import_path": "app:app",
                "deployments": [ingress, *(_model(made, lane) for lane in lanes)],
            }
        ],
    }


def _model(made: Bundle, lane: Lane) -> dict[str, Any]:
    """One deployment of the model."""
    model: dict[str, Any] = {"name": lane.deployment}
    if lane.autoscaling is None:
        model["num_replicas"] = lane.one.instances
    else:
        model["autoscaling_config"] = {
            "min_replicas": max(1, lane.autoscaling.min_instances),
            "initial_replicas": lane.one.instances,
            "max_replicas": max(lane.one.instances, lane.autoscaling.max_instances),
            "target_ongoing_requests": lane.autoscaling.target_in_flight,
        }
    return {
        **model,
        "max_ongoing_requests": lane.max_ongoing,
        # Ray counts for each caller by itself, and parts of requests: the ingress refuses before.
        "max_queued_requests": lane.most_in_flight * _parts(made, lane),
        "user_config": {
            "max_batch_size": lane.one.batch,
            "batch_wait_timeout_s": lane.wait_ms / 1000,
            "adaptive_wait": lane.adapts(batched=made.batched),
        },
        "ray_actor_options": {"num_cpus": made.threads},
        **_ends(lane.deadline_ms),
    }


def _parts(made: Bundle, lane: Lane) -> int:
    """In how many parts the request of the most rows goes to the model."""
    rows = max((each.most[0] for each in made.inputs if each.most), default=1) if made.batched else 1
    return -(-rows // lane.one.batch)


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
        read = schema().model_validate(written)
    except ValidationError as error:
        raise InputError(
            f"Ray cannot read it: {error}", place=str(path), hint="deploy again"
        ) from error
    wanted = content(made, lanes)
    kept = read.model_dump(mode="json", exclude_unset=True)
    kept["applications"][0]["deployments"] = [
        {key: each[key] for key in one}
        for each, one in zip(
            kept["applications"][0]["deployments"],
            wanted["applications"][0]["deployments"],
            strict=True,
        )
    ]
    if bundle.read(folder) != made or not _holds(kept, wanted):
        raise InputError(
            "the bundle says something else when it is read back",
            place=str(path),
            hint="this is a bug: report it with the plan",
        )


def _holds(found: Any, wanted: Any) -> bool:
    """Whether all that is wanted is there, with the same values."""
    if isinstance(wanted, dict):
        return all(key in found and _holds(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_holds, found, wanted))
    return bool(found == wanted)
