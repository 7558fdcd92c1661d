"""The metric of a model that is open, in this process: for searches that judge many in a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.accuracy.messages import ScoringRequest
from optcli.accuracy.shards import joined_records, moved
from optcli.accuracy.work import Work
from optcli.errors import UsageError
from optcli.runners import Runner

if TYPE_CHECKING:
    import numpy as np


_AT_ONCE = 128


@dataclass(frozen=True)
class Score:
    """The metric over some samples, and of each by itself, `[samples]`; higher is better in both.

    Metrics of which less is better have their sign turned.
    """

    value: float
    each: np.ndarray


class Scoring:
    """Scores open models on a recipe's samples, in batches as an evaluation takes them.

    Raises `UsageError` without a metric, and for one that compares with the baseline.
    """

    def __init__(self, request: ScoringRequest) -> None:
        self._work = Work(request)
        if self._work.metric is None:
            raise UsageError(
                "there is no metric to score with", place="accuracy", hint="accuracy: {metric: ...}"
            )
        if self._work.metric.needs_baseline():
            raise UsageError(
                f"{self._work.request.settings.metric} compares with the baseline, and a search wants a"  # type: ignore[union-attr]
                " metric of each artifact",
                place="accuracy.metric",
                hint="name a metric that labels decide, such as knn",
            )
        self._metric = self._work.metric

    def __len__(self) -> int:
        return len(self._work.samples)

    @property
    def sign(self) -> int:
        """1, or -1 where less of the metric is better."""
        return -1 if self._metric.better() == "lower" else 1

    def score(
        self, model: Runner, positions: Sequence[int], seen: Callable[[int], None] = lambda _: None
    ) -> Score:
        """Run a model on the samples at these positions; `seen` hears how many are done.

        Raises `InputError` for labels and outputs that do not fit, `RunnerError` where the model fails.
        """
        import numpy as np

        parts: list[dict[str, np.ndarray]] = []
        done = 0
        whole = self._work.whole(model)
        for batch, rows in self._work.batches(positions):
            predictions = self._work.seen(batch, rows, self._work.run(model, batch), whole)
            parts.append(moved(self._work.records(predictions, done), done))
            done += rows
            seen(done)
        records = self._metric.over_all(joined_records(parts))
        alone = np.concatenate([np.zeros(0), *self._alone(records, done)])
        return Score(self.sign * self._metric.value(records), self.sign * np.nan_to_num(alone))

    def _alone(self, records: dict[str, np.ndarray], count: int) -> Iterator[np.ndarray]:
        """The metric of each sample by itself, some at a time: a weight for each pair takes memory."""
        import numpy as np

        for start in range(0, count, _AT_ONCE):
            chosen = np.arange(start, min(start + _AT_ONCE, count))
            weights = (chosen[:, None] == np.arange(count)).astype(int)
            with np.errstate(invalid="ignore", divide="ignore"):
                yield np.asarray(self._metric.resampled(records, weights), np.float64)
