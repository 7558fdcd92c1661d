"""`serve_config.yaml`: replicas, limits and batches in Ray's words, read back with Ray's own schema."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from optcli.environment import pip_install
from optcli.errors import InputError, MissingError, UsageError
from optcli.results.plan import Configuration, Plan
from optcli.serving import bundle
from optcli.serving.bundle import Bundle, BundlePriority

# A name stands in paths, in the labels of metrics and in Ray.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
# What adds the protocol's gRPC service to Ray's proxy.
_SERVICER = "tritonclient.grpc.service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"

# Requests that come at once beyond those that are admitted.
_BURST = 100
# For a body to arrive.
_READ_S = 10.0


@dataclass(frozen=True)
class Lane:
    """One application as the plan has it: its part of the replicas, of the queue and of the traffic.

    `name` is that of a priority; "" where one application answers all. `route` is what its paths begin
    with. `note` is what is to be known of its wait.
    """

    name: str
    share: float
    one: Configuration
    wait_ms: float
    deadline_ms: float
    route: str = ""
    note: str = ""

    @property
    def waiting(self) -> int:
        """The most requests that wait."""
        return self.one.queue_cap or 0

    @property
    def most_in_flight(self) -> int:
        """The most requests that wait or are computed."""
        return self.one.max_in_flight or 0

    @property
    def max_in_flight(self) -> int:
        """Requests that one replica takes, where one batch may compute while the next one gathers."""
        each = math.ceil(self.most_in_flight / self.one.instances)
        return max(2 * self.one.batch, self.one.concurrency * self.one.batch, each)

    def to_bundle(self) -> BundlePriority:
        """The same as bundle.json has it."""
        return BundlePriority(
            name=self.name,
            route=self.route,
            share=self.share,
            largest_batch=self.one.batch,
            wait_ms=self.wait_ms,
            instances=self.one.instances,
            queue_cap=self.waiting,
            most_in_flight=self.most_in_flight,
            deadline_ms=self.deadline_ms,
        )


def lanes_of(plan: Plan, asked_ms: float | None, *, force: bool) -> tuple[Lane, ...]:
    """The applications that a plan wants; `asked_ms` replaces the wait of all of them.

    Raises `UsageError` for a wait that is too short, and for priorities that cannot be served.
    """
    if not plan.priorities:
        one = plan.recommended
        assert one is not None
        return (_lane("", 1.0, one, plan, asked_ms, force=force),)
    lanes = []
    for each in plan.priorities:
        require_name(each.name)
        if each.configuration is None:
            raise UsageError(
                f"the plan has no configuration for the priority {each.name}",
                place="--plan",
                hint="plan again with --target ray, more --instances or a longer promise",
            )
        lanes.append(_lane(each.name, each.share, each.configuration, plan, asked_ms, force=force))
    # Requests that name no priority have the last.
    return (*(replace(each, route=f"/{each.name}") for each in lanes[:-1]), *lanes[-1:])


def require_name(name: str) -> None:
    """Raise `UsageError` for a priority that requests could not name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a priority cannot be called {name!r}: it stands in the paths of its requests",
            place="--priority",
            hint="begin with a letter, and take letters, digits, dashes and underscores, at most 32",
        )


def wait_of(one: Configuration, asked_ms: float | None, *, force: bool) -> tuple[float, str]:
    """The wait for a batch, and a note where it is forced.

    Raises `UsageError` for one below which sealed batches are too small for the planned rate.
    """
    wait_ms = one.wait_ms if asked_ms is None else asked_ms
    least = one.least_wait_ms
    if least is None or wait_ms >= least or one.batch == 1:
        return wait_ms, ""
    message = (
        f"a wait of {wait_ms:.4g} ms is too short: Ray Serve closes a batch a fixed time after its"
        f" first request, and below {least:.4g} ms its batches are too small for the planned rate, so"
        " that requests queue"
    )
    if not force:
        raise UsageError(
            message,
            place="--plan" if asked_ms is None else "--wait",
            hint="leave out --wait, or plan again with --target ray; --force deploys it to try"
            " what happens",
        )
    return wait_ms, message


def _lane(
    name: str,
    share: float,
    one: Configuration,
    plan: Plan,
    asked_ms: float | None,
    *,
    force: bool,
) -> Lane:
    wait_ms, note = wait_of(one, asked_ms, force=force)
    comment = f"for the priority {name}, {note}" if name and note else note
    # Late requests of a percentile are still of use, for a while.
    deadline_ms = 2 * max(plan.slo_ms.values())
    return Lane(name, share, one, wait_ms, deadline_ms, note=comment)


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
            "request_timeout_s": _READ_S + patience_s,
        },
        **grpc,
        "logging_config": {"log_level": "WARNING", "enable_access_log": False},
        "applications": [
            {
                "name": f"{made.model}-{lane.name}" if lane.name else made.model,
                "route_prefix": lane.route or "/",
                "import_path": "app:app",
                "deployments": [_model(made, lane)],
            }
            for lane in lanes
        ],
    }


def _model(made: Bundle, lane: Lane) -> dict[str, Any]:
    """The deployment of an application."""
    return {
        "name": bundle.DEPLOYMENT,
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
        "health_check_period_s": 1,
        "health_check_timeout_s": 30,
        "graceful_shutdown_timeout_s": lane.deadline_ms / 1000 + 5,
        "graceful_shutdown_wait_loop_s": 0.1,
    }


def write(folder: Path, made: Bundle, lanes: Sequence[Lane], plan: Plan) -> None:
    """Write serve_config.yaml, with what the plan says above it."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    stream = StringIO()
    yaml.dump(content(made, lanes), stream)
    head = f"Written by optcli for the variant {made.variant}. {plan.sentence}"
    comment = "".join(f"# {line}\n" for line in head.splitlines())
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
