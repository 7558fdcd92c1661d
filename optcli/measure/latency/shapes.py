"""Which form of a model is faster: compiled for each batch size by itself, or once for all of them.

Both are opened in one process and take turns in short rounds, so that the machine's drift meets both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from optcli import runners
from optcli.errors import OptcliError
from optcli.measure.latency import feeds
from optcli.measure.latency.messages import MeasureRequest
from optcli.results.statistics import median_uncertainty
from optcli.runners import Runner
from optcli.workers import Channel

# Rounds of each form, the fewest and the most, and how long one lasts; a call that takes longer is a
# round of its own.
_FEWEST, _ROUNDS, _ROUND_S = 10, 60, 0.02
# Warming up: the first calls pack weights and choose kernels.
_WARM_CALLS, _WARM_S = 3, 0.1
_MOST_S = 20.0
# The uncertainty of the rounds' median, as a share of it: aimed at, and the largest accepted where the
# forms may be equally fast. If they are so many uncertainties apart, it is known which one is faster.
_WANTED, _NEEDED, _APART = 0.01, 0.03, 3.0


@dataclass(frozen=True)
class ShapeComparison:
    """How many times as fast the static form is as the dynamic one, by batch size.

    `steady` says whether the rounds tell which one is faster, `refused` why the runtime cannot compile
    the model for one size, where it cannot.
    """

    ratios: dict[str, float]
    steady: bool
    refused: str | None = None


def compare(request: MeasureRequest, channel: Channel) -> ShapeComparison:
    """Compare the two forms of one artifact at every batch size of the request."""
    request = request.of_model()
    inputs, artifact, sizes = request.inputs, request.artifact, request.batch_sizes
    kind = runners.find(request.runner)
    batches = feeds.make(inputs, request.feeds, sizes, request.seed)
    options = {**request.options, "batch_sizes": sizes}
    dynamic = kind.model_validate({**options, "shapes": "dynamic"}).open(artifact, inputs)
    try:
        static = kind.model_validate({**options, "shapes": "static"}).open(artifact, inputs)
    except OptcliError as error:
        dynamic.close()
        return ShapeComparison({}, steady=True, refused=error.message)
    with dynamic, static:
        if static.effective().get("shapes") != "static":
            return ShapeComparison({}, steady=True, refused="its file fixes the batch size")
        rounds = {str(size): _ratios(static, dynamic, feed) for size, feed in batches.items()}
    steady = all(map(_tell, rounds.values()))
    return ShapeComparison({size: median(ratios) for size, ratios in rounds.items()}, steady)


def _ratios(static: Runner, dynamic: Runner, batches: Sequence[Mapping[str, Any]]) -> list[float]:
    """How many times as fast the static form was, in each round: as many as it takes to know."""
    usual = [_warm(runner, batches) for runner in (static, dynamic)]
    calls = max(1, round(_ROUND_S / max(usual)))
    rounds = max(3, min(_ROUNDS, round(_MOST_S / (2 * calls * max(usual)))))
    ratios: list[float] = []
    for number in range(rounds):
        if number >= _FEWEST and median_uncertainty(ratios) <= _WANTED:
            break
        pair = [static, dynamic] if number % 2 else [dynamic, static]
        seconds = {id(runner): _round(runner, batches, calls) for runner in pair}
        ratios.append(seconds[id(dynamic)] / seconds[id(static)])
    return ratios


def _tell(ratios: Sequence[float]) -> bool:
    """Whether the rounds tell how the two forms compare, or at least which one is faster."""
    doubt, usual = median_uncertainty(ratios), median(ratios)
    return doubt <= _NEEDED or abs(usual - 1) >= _APART * doubt * usual


def _warm(runner: Runner, batches: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of a usual call, once it is warm."""
    times = [_call(runner, batches[0]) for _ in range(_WARM_CALLS)]
    end = time.perf_counter() + _WARM_S
    while time.perf_counter() < end:
        times.append(_call(runner, batches[len(times) % len(batches)]))
    return median(times[_WARM_CALLS - 1 :])


def _round(runner: Runner, batches: Sequence[Mapping[str, Any]], calls: int) -> float:
    """Seconds of the median call. The first one brings the model back into the caches."""
    times = [_call(runner, batches[number % len(batches)]) for number in range(calls + 1)]
    return median(times[1:])


def _call(runner: Runner, feed: Mapping[str, Any]) -> float:
    start = time.perf_counter()
    runner.run(dict(feed))
    return time.perf_counter() - start
