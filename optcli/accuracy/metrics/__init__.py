"""Metrics: one file is one metric; its name in recipes is the file's.

A metric turns outputs and targets into records, sample by sample, as the outputs come; records are
small, add up over batches and shards, and hold all that the value, its interval and the further figures
need. So memory grows by some bytes a sample, and a resample costs no new evaluation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ValidationError

from optcli.errors import InputError, UsageError, did_you_mean
from optcli.files import registry
from optcli.settings import Settings
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.outputs import Kind

if TYPE_CHECKING:
    import numpy as np

    # Arrays by name, a row a sample; those named `*_sample` hold numbers of samples instead, and
    # arrays of the same beginning have a row for each of their entries.
    Records = dict[str, np.ndarray]


@dataclass(frozen=True)
class Predictions:
    """Some samples and what the model made of them.

    `outputs` are `[samples, ...]`; `decoded` is what postprocessing made of each sample, None without.
    `output` is the one that the recipe names. `whole` are outputs of a model of one sample that have no
    dimension for the batch.
    """

    ids: Sequence[str]
    targets: Sequence[Any]
    meta: Sequence[Mapping[str, Any]]
    outputs: Mapping[str, np.ndarray]
    decoded: Sequence[Any] | None = None
    output: str | None = None
    whole: Collection[str] = ()

    def of_sample(self, index: int) -> dict[str, np.ndarray]:
        """The outputs of one sample by name; those without a row by sample as they are."""

        def has_rows(name: str, array: np.ndarray) -> bool:
            return name not in self.whole and array.ndim > 0 and len(array) == len(self.ids)

        return {k: a[index] if has_rows(k, a) else a for k, a in self.outputs.items()}

    def only(self, rows: Sequence[int]) -> Predictions:
        """Some of the samples."""
        chosen = list(rows)
        return replace(
            self,
            ids=[self.ids[row] for row in chosen],
            targets=[self.targets[row] for row in chosen],
            meta=[self.meta[row] for row in chosen],
            outputs={
                k: a[chosen] if k not in self.whole and a.ndim and len(a) == len(self.ids) else a
                for k, a in self.outputs.items()
            },
            decoded=None if self.decoded is None else [self.decoded[row] for row in chosen],
        )

    def scores(self) -> np.ndarray:
        """The output that the metric reads, `[samples, ...]`. Raises `InputError`."""
        import numpy as np

        if self.decoded is not None:
            try:
                return np.stack([np.asarray(decoded) for decoded in self.decoded])
            except ValueError as error:
                raise InputError(
                    "postprocess gives arrays of several shapes, the metric wants one",
                    place="postprocess",
                    hint="return one array of the same shape for every sample",
                ) from error
        name = self.output or next(iter(self.outputs))
        if name not in self.outputs:
            hint = did_you_mean(name, list(self.outputs))
            raise InputError(f"the model has no output {name!r}", place="accuracy.output", hint=hint)
        array = self.outputs[name]
        if array.ndim == 0 or len(array) != len(self.ids):
            raise InputError(
                f"output {name!r} has no row for each sample: its shape is {array.shape}",
                place="accuracy.output",
                hint="name another output, or give a postprocess",
            )
        return array


@dataclass(frozen=True)
class ByClass:
    """Classes with how many samples count for each, and the metric of each; arrays `[classes]`."""

    label: np.ndarray
    samples: np.ndarray
    value: np.ndarray


class Metric(Settings, ABC):
    """One metric; its fields are what `accuracy: {options: ...}` may say."""

    reads: ClassVar[Kind | None] = None
    """What the output is that it reads; None: it reads what `postprocess` gives, or anything."""
    needs_labels: ClassVar[bool] = True
    """Whether a sample without a target is an error."""
    low: ClassVar[float | None] = 0.5
    """Less than trained models have where images are prepared rightly; None: it does not tell."""

    def opened(
        self, settings: AccuracySettings, folder: Path, names: Callable[[], Sequence[str] | None]
    ) -> Metric:
        """The metric with the files that the recipe in `folder` names for it, ready for `records`.

        `names` gives the names of the data's classes; None: nobody knows them. Raises `InputError`.
        """
        return self

    def better(self) -> Literal["higher", "lower"]:
        """Which way a better model's value lies."""
        return "higher"

    @abstractmethod
    def records(self, seen: Predictions) -> Records:
        """The records of some samples. Raises `InputError` for labels and outputs that do not fit."""

    def over_all(self, records: Records) -> Records:
        """The records of all samples, with what depends on several of them worked out.

        Everything below gets what this gives.
        """
        return records

    @abstractmethod
    def value(self, records: Records) -> float:
        """The metric over all samples, as a fraction."""

    @abstractmethod
    def resampled(self, records: Records, counts: np.ndarray) -> np.ndarray:
        """The metric of resamples: `counts[resamples, samples]` says how often each sample is in."""

    def right(self, records: Records) -> np.ndarray | None:
        """Whether each sample is right, bool `[samples]`, for metrics that are the share of these."""
        return None

    def figures(self, records: Records) -> dict[str, float]:
        """Further figures from the same records."""
        return {}

    def chance(self, records: Records) -> float | None:
        """The value that whoever does not look at the inputs reaches; None: nobody can tell."""
        return None

    def largest_change(self, records: Records) -> float | None:
        """What the metric loses at most for each share of samples that come out wrong; None: unknown.

        A mean over samples whose scores lie between 0 and 1 loses at most the share itself: 1.
        """
        return 1.0

    def by_class(self, records: Records) -> ByClass | None:
        """The metric of every class; None where it has none by class."""
        return None

    def not_numbers(self, records: Records) -> np.ndarray:
        """The positions of samples whose own value is no number."""
        import numpy as np

        return np.zeros(0, int)

    def check(self, target: Any, place: str, seen: Predictions) -> None:
        """Raise `InputError` for a label that cannot be right; `seen` is the first batch."""
        return


def metric_names() -> tuple[str, ...]:
    """The names that `accuracy.metric` may have, beside `python:FILE.py:CALLABLE`."""
    return registry.names(__name__)


def require_metric(settings: AccuracySettings) -> None:
    """Raise `UsageError` for an unknown metric or wrong options; imports nothing of the user's."""
    if not settings.metric.startswith("python:"):
        _own(settings)


def reads(metric: str | None) -> Kind | None:
    """What the output is that a recipe's metric reads; None where no metric says it."""
    return _class_of(metric).reads if metric in metric_names() else None


def needs_labels(metric: str) -> bool:
    """Whether a recipe's metric cannot do without labels; a function of the user's may."""
    return metric in metric_names() and _class_of(metric).needs_labels


def low_of(metric: str) -> float | None:
    """What `Metric.low` says of a metric of ours."""
    return _class_of(metric).low


def make(
    settings: AccuracySettings,
    folder: Path,
    names: Callable[[], Sequence[str] | None] = lambda: None,
) -> Metric:
    """The metric of a recipe in `folder`; imports the user's code where it is theirs.

    `names` gives the names of the data's classes. Raises `InputError` for files that do not fit.
    """
    if settings.metric.startswith("python:"):
        from optcli.accuracy.metrics._user import UserMetric

        return UserMetric.of(settings.metric.removeprefix("python:"), folder, settings.options)
    return _own(settings).opened(settings, folder, names)


def _own(settings: AccuracySettings) -> Metric:
    if settings.metric not in metric_names():
        hint = did_you_mean(settings.metric, metric_names())
        raise UsageError(f"unknown metric {settings.metric!r}", place="accuracy.metric", hint=hint)
    kind = _class_of(settings.metric)
    try:
        return kind.model_validate(settings.options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, options = ".".join(str(part) for part in first["loc"]), list(kind.model_fields)
        raise UsageError(
            f"{settings.metric}: option {key!r}: {first['msg']}",
            place="accuracy.options",
            hint=did_you_mean(key, options) if options else "it has no options: remove them",
        ) from error


def _class_of(name: str) -> type[Metric]:
    return registry.find(__name__, name, Metric)  # type: ignore[type-abstract]
