"""Whether images prepared otherwise would surely make the metric better: channel order and scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import runners, workers
from optcli.accuracy import bounds, shards
from optcli.accuracy.evaluation import Evaluation, EvaluationRequest
from optcli.accuracy.metrics import Metric, low_of, metric_names
from optcli.accuracy.work import EvaluationWork
from optcli.data import Preparation
from optcli.data.preparation import other_values
from optcli.data.preset import resolved
from optcli.errors import OptcliError
from optcli.workers import Channel, memory

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records
    from optcli.runners import Runner

MOST = 100  # samples
# Every so many samples one chooses among all preparations; the others count, for the best alone.
_CHOOSES = 4
# What another preparation must gain, and the probability that it does not.
GAIN, _TAIL = 0.1, 0.01
_PLAIN: Mapping[str, Any] = {"mean": (0.0,), "std": (1.0,)}
_SCALES: Mapping[str, Mapping[str, Any]] = {
    "scale: 1/255": {"scale": 1 / 255, **_PLAIN},
    "scale: 1": {"scale": 1.0, **_PLAIN},
    "scale: 1/255, mean: 0.5, std: 0.5": {"scale": 1 / 255, "mean": (0.5,), "std": (0.5,)},
    "scale: 1/255, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]": {
        "scale": 1 / 255,
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
    },
}


@dataclass(frozen=True)
class PreparationAnswers:
    """What a model gave for some samples; `clusters[samples]` numbers their contents."""

    metric: Metric
    records: Records
    clusters: np.ndarray


Answer = Callable[[Preparation | None, Sequence[int]], PreparationAnswers | None]
"""The answers for samples at some places that are prepared so; None: the model does not take them."""


def low(evaluation: Evaluation) -> float | None:
    """The value of which a worse one may come from images that are prepared wrongly; else None.

    Of a metric of the user's only the share of right samples says so much.
    """
    if evaluation.metric in metric_names():
        return low_of(evaluation.metric)
    return None if evaluation.array("correct") is None else Metric.low


def surely_misses(evaluation: Evaluation, expected: float) -> bool:
    """Whether the metric would be ten points worse than expected on other samples of the kind too."""
    import numpy as np

    right, drawn = evaluation.array("correct"), evaluation.array("resampled")
    clusters = evaluation.array("cluster")
    if evaluation.value is None or clusters is None:
        return False
    if evaluation.better == "lower":
        expected, drawn = -expected, None if drawn is None else -drawn
    if right is not None:
        count = bounds.effective(clusters)
        return -bounds.counted(0.0, count * float(right.mean()), count, _TAIL)[0] < expected - GAIN
    finite = np.zeros(0) if drawn is None else drawn[np.isfinite(drawn)]
    return bool(len(finite) and float(np.quantile(finite, 1 - _TAIL)) < expected - GAIN)


def better_preparation(
    request: EvaluationRequest, log: Path | None = None, timeout_s: float | None = None
) -> str | None:
    """What is to be said of images prepared otherwise, by at most `MOST` samples; None: nothing.

    A fresh process opens the artifact and tries them all.
    """
    runner = runners.find(request.runner).model_validate(request.options)
    better = workers.run(
        "optcli.accuracy.preparations:look",
        request,
        Better,
        log=log,
        environment=runner.environment(),
        timeout_s=timeout_s,
        confined=() if request.artifact.foreign else None,
    )
    return better.message


@dataclass(frozen=True)
class Better:
    """What surely gains over ten points, in a sentence; None where nothing does."""

    message: str | None


def look(request: EvaluationRequest, channel: Channel) -> Better:
    """In a worker: answer some samples as they are prepared and otherwise, and compare these."""
    memory.keep_freed()
    runner = runners.find(request.runner).model_validate(request.options)
    with runner.open(request.artifact, request.feeds) as model:
        count = len(EvaluationWork(replace(request, keep=None)).samples)
        places = sorted({number * count // min(count, MOST) for number in range(min(count, MOST))})

        def answer(prepare: Preparation | None, chosen: Sequence[int]) -> PreparationAnswers | None:
            return _answered(request, model, prepare, chosen)

        assert request.settings is not None
        return Better(better(answer, request.data.prepare, places, request.settings.metric))


def better(answer: Answer, prepare: Preparation | None, places: Sequence[int], name: str) -> str | None:
    """The preparation that surely gains most of the metric `name`, in a sentence.

    Some of the samples at `places` choose it, and the others count, so that chance gains nothing.
    """
    chooses = places[::_CHOOSES]
    counts = [place for number, place in enumerate(places) if number % _CHOOSES]
    declared = answer(prepare, chooses)
    if declared is None or not counts:
        return None
    sign = 1 if declared.metric.better() == "higher" else -1
    best, words, other = sign * _value(declared), "", prepare
    for change_text, candidate in others(prepare):
        tried = answer(candidate, chooses)
        if tried is not None and (value := sign * _value(tried)) > best:
            best, words, other = value, change_text, candidate
    if not words:
        return None
    before, after = answer(prepare, counts), answer(other, counts)
    if before is None or after is None or _least_gain(before, after) <= GAIN:
        return None
    after_all, at_present = (f"{100 * _value(each):.0f} %" for each in (after, before))
    if before.metric.right(before.records) is None:
        shares = f"{name} of {len(counts)} samples is {after_all}"
    else:
        shares = f"of {len(counts)} samples {after_all} are right"
    return f"{shares} with prepare: {{{words}}}, and {at_present} as they are prepared now"


def _value(answered: PreparationAnswers) -> float:
    return float(answered.metric.value(answered.records))


def _least_gain(before: PreparationAnswers, after: PreparationAnswers) -> float:
    """What is surely gained on the same samples."""
    import numpy as np

    metric, count = before.metric, bounds.effective(before.clusters)
    right_before, right_after = metric.right(before.records), metric.right(after.records)
    if right_before is not None and right_after is not None:
        share = count / len(right_before)
        lost, gained = (
            share * float(np.sum(each))
            for each in (right_before & ~right_after, right_after & ~right_before)
        )
        return -bounds.counted(lost, gained, count, _TAIL)[1]
    drawn = [bounds.resampled(metric, each.records, each.clusters) for each in (before, after)]
    drops = drawn[0] - drawn[1] if metric.better() == "higher" else drawn[1] - drawn[0]
    drops = drops[np.isfinite(drops)]
    largest = metric.largest_change(after.records) or 1.0
    return -bounds.of_drops(drops, largest, count, _TAIL)[1] if len(drops) else 0.0


def others(prepare: Preparation | None) -> Iterator[tuple[str, Preparation]]:
    """Other channel orders and scales, and both, as a recipe says them."""
    given = {name: getattr(prepare, name) for name in prepare.model_fields_set} if prepare else {}
    declared = resolved(prepare or Preparation())
    order = "rgb" if given.get("channel_order") == "bgr" else "bgr"
    orders = {"": {}, f"channel_order: {order}": {"channel_order": order}}
    if given.get("channel_order") == "grey":
        orders = {"": {}}
    for change_text, change in orders.items():
        for scale, values in {"": {}, **_SCALES}.items():
            other = Preparation(**{**given, **change, **values})
            if other_values(declared, resolved(other)):
                yield ", ".join(filter(None, (change_text, scale))), other


def _answered(
    request: EvaluationRequest, model: Runner, prepare: Preparation | None, places: Sequence[int]
) -> PreparationAnswers | None:
    """What a model gives for some samples that are prepared so; None where it does not take them."""
    import numpy as np

    settings = request.data.model_copy(update={"prepare": prepare})
    work = EvaluationWork(replace(request, data=settings, prepared=None, keep=None))
    assert work.metric is not None
    records: list[Records] = []
    contents: list[np.ndarray] = []
    done = 0
    try:
        whole = work.whole(model)
        for batch, rows in work.batches(places):
            seen = work.seen(batch, rows, work.run(model, batch), whole)
            records.append(shards.moved(work.metric.records(seen), done))
            contents.append(work.contents(places[done : done + rows], batch))
            done += rows
        joined = work.metric.over_all(shards.joined_records(records))
        work.metric.value(joined)
    except OptcliError:
        return None
    clusters = np.unique(np.concatenate(contents), return_inverse=True)[1]
    return PreparationAnswers(work.metric, joined, clusters)
