"""The traffic that a plan is made for, as a process of arrivals."""

from __future__ import annotations

from dataclasses import dataclass

from optcli.errors import UsageError
from optcli.measure.queueing import Bursts, Gamma, Poisson, Process
from optcli.measure.queueing.arrivals import parse
from optcli.serving.planning.settings import PlanSettings


def part_of(process: Process, share: float) -> Process:
    """The requests of a process that a share of them is, each by chance.

    A random part of independent requests, or of bursts, is of the same kind. Other gaps are taken as
    gamma distributed with the mean and the variance that they have.
    """
    if share == 1 or isinstance(process, Poisson | Bursts):
        return process.scaled(share)
    cv2 = process.cv2 if isinstance(process, Gamma) else 0.0
    return Gamma(process.rate_per_s * share, share * cv2 + 1 - share)


@dataclass(frozen=True)
class Traffic:
    """Requests as they come, and those that the model sees at the rate that is planned for.

    `mean_per_s` is what comes on average. `planned` has no requests that a cache answers.
    """

    mean_per_s: float
    planned: Process


def traffic_of(settings: PlanSettings, rate_per_s: float | None = None) -> Traffic:
    """The traffic of a plan file; `rate_per_s` stands in where it names none.

    Raises `UsageError` where neither does, `InputError` for a form that cannot be read.
    """
    known = settings.rate_per_s or rate_per_s
    if known is None:
        raise UsageError(
            "the plan has no rate",
            place="--rate",
            hint="say how many requests come a second, such as --rate 600; with --instances it may"
            " be left out: the answer is then the rate that these carry",
        )
    came = parse(settings.arrivals, known)
    return Traffic(came.rate_per_s, part_of(came, 1 - settings.cache_hit_rate))
