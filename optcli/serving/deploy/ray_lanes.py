"""The applications of a bundle: one for all requests, or one for each priority."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from optcli.errors import UsageError
from optcli.results.plan import Configuration, Plan
from optcli.serving.bundle import BundlePriority

# A name stands in paths, in the labels of metrics and in Ray.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


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
    said = f"for the priority {name}, {note}" if name and note else note
    return Lane(name, share, one, wait_ms, _deadline_ms(plan, one), note=said)


def _deadline_ms(plan: Plan, one: Configuration) -> float:
    """When an answer is of no use any more: late requests of a percentile still are, for a while."""
    return 2 * max(plan.slo_ms.values())
