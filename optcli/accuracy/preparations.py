"""Whether images prepared otherwise would surely make more answers right: channel order and scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import runners, workers
from optcli.accuracy import bounds
from optcli.accuracy.messages import EvaluationRequest
from optcli.accuracy.work import Work
from optcli.data import Preparation
from optcli.errors import OptcliError
from optcli.kept_samples import digests_of
from optcli.workers import Channel, memory

if TYPE_CHECKING:
    import numpy as np

    from optcli.runners import Runner

MOST = 100  # samples
# What another preparation must gain, of all samples, and the probability that it does not.
_GAIN, _TAIL = 0.1, 0.01
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


def better_preparation(
    request: EvaluationRequest, log: Path | None = None, timeout_s: float | None = None
) -> str | None:
    """What is to be said of images prepared otherwise, by at most `MOST` samples; None: nothing.

    A fresh process opens the artifact and tries them all.
    """
    runner = runners.find(request.runner).model_validate(request.options)
    found = workers.run(
        "optcli.accuracy.preparations:look",
        request,
        Better,
        log=log,
        environment=runner.environment(),
        timeout_s=timeout_s,
        confined=() if request.artifact.foreign else None,
    )
    return found.said


@dataclass(frozen=True)
class Better:
    """What surely gains over ten points, in a sentence; None where nothing does."""

    said: str | None


def look(request: EvaluationRequest, channel: Channel) -> Better:
    """In a worker: answer some samples as they are prepared and otherwise, and compare these."""
    memory.keep_freed()
    runner = runners.find(request.runner).model_validate(request.options)
    with runner.open(request.artifact, request.feeds) as model:
        return Better(better(lambda prepare: _right(request, model, prepare), request.data.prepare))


def better(
    right: Callable[[Preparation | None], tuple[np.ndarray, float] | None], prepare: Preparation | None
) -> str | None:
    """The preparation that surely gains most, in a sentence.

    `right` gives which samples are right and how many count as evidence, None where the model does not
    take images that are prepared so.
    """
    import numpy as np

    now = right(prepare)
    if now is None:
        return None
    before, count = now
    best: tuple[float, str] | None = None
    for said, other in others(prepare):
        after = right(other)
        if after is None or len(after[0]) != len(before):
            continue
        share = count / len(before)
        gained = share * float(np.sum(after[0] & ~before))
        lost = share * float(np.sum(before & ~after[0]))
        _, most = bounds.counted(lost, gained, count, _TAIL)
        value = float(after[0].mean())
        if -most > _GAIN and (best is None or value > best[0]):
            best = value, said
    if best is None:
        return None
    value, said = best
    return (
        f"of {len(before)} samples {100 * value:.0f} % are right with prepare: {{{said}}}, and"
        f" {100 * before.mean():.0f} % as they are prepared now"
    )


def others(prepare: Preparation | None) -> Iterator[tuple[str, Preparation]]:
    """Other channel orders and scales, and both, as a recipe says them."""
    given = {name: getattr(prepare, name) for name in prepare.model_fields_set} if prepare else {}
    order = "rgb" if given.get("channel_order") == "bgr" else "bgr"
    orders = {"": {}, f"channel_order: {order}": {"channel_order": order}}
    if given.get("channel_order") == "grey":
        orders = {"": {}}
    for said, change in orders.items():
        for scale, values in {"": {}, **_SCALES}.items():
            if said or scale:
                words = ", ".join(filter(None, (said, scale)))
                yield words, Preparation(**{**given, **change, **values})


def _right(
    request: EvaluationRequest, model: Runner, prepare: Preparation | None
) -> tuple[np.ndarray, float] | None:
    """Which of the first samples are right, and how many count as evidence; None where none fits."""
    import numpy as np

    settings = request.data.model_copy(update={"prepare": prepare})
    work = Work(replace(request, data=settings, prepared=None, keep=None))
    assert work.metric is not None
    try:
        count = len(work.samples)
        places = sorted({number * count // min(count, MOST) for number in range(min(count, MOST))})
        records: list[dict[str, np.ndarray]] = []
        contents: list[np.ndarray] = []
        for batch, rows in work.batches(places):
            seen = work.seen(batch, rows, work.run(model, batch))
            records.append(work.records(seen, len(records)))
            contents.append(digests_of(batch, rows))
    except OptcliError:
        return None
    names = [name for name in records[0] if not name.startswith(("found_", "pair_"))]
    joined = {name: np.concatenate([each[name] for each in records]) for name in names}
    right = work.metric.right(joined)
    if right is None:
        return None
    clusters = np.unique(np.concatenate(contents), return_inverse=True)[1]
    return right, bounds.effective(clusters)
