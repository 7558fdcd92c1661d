"""What the baseline's own answers say of its data: other numbers of labels, another preparation."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from optcli import accuracy, data
from optcli.accuracy import Evaluation, EvaluationRequest
from optcli.errors import OptcliError
from optcli.recipe import Recipe
from optcli.results.outcomes import DataRemark
from optcli.store import Store, key_of

_STEP = "preparations"
# Of the samples right: of fewer, images that are prepared in a wrong way may be the cause.
_LOW = 0.5


@dataclass(frozen=True)
class Looking:
    """Where it is kept what other preparations would gain, and how long trying them may take."""

    store: Store
    log: Path
    timeout_s: float

    def otherwise(self, key: str, request: EvaluationRequest) -> str | None:
        """What other preparations of a few images would gain; `key` is that of the evaluation."""
        ingredients = {"step": _STEP, "evaluation": key}
        mine = key_of(ingredients)
        entry = self.store.get(_STEP, mine)
        if entry is None:
            with self.store.lock(_STEP, mine), self.store.work(_STEP, mine) as work:
                said = accuracy.better_preparation(request, self.log, self.timeout_s)
                entry = self.store.put(_STEP, mine, work, {"said": said}, ingredients)
        found: str | None = entry.record["said"]
        return found


def remarks_of(
    evaluation: Evaluation,
    recipe: Recipe,
    key: str,
    looking: Looking,
    request: EvaluationRequest | None,
) -> tuple[DataRemark, ...]:
    """What is known of the data, and what surely would be more accurate by over ten points.

    `request` is that of the evaluation with this key; None: its artifact cannot be tried here.
    """
    better = accuracy.better_order(evaluation, recipe.class_orders)
    if better is not None:
        return (*recipe.data_remarks, DataRemark(text=better, doubtful=True))
    if request is None or not _is_low(evaluation, recipe):
        return recipe.data_remarks
    better = None
    with suppress(OptcliError):  # the figure stands without it
        better = looking.otherwise(key, request)
    if better is None:
        return recipe.data_remarks
    return (*recipe.data_remarks, DataRemark(text=better, about="preparation", doubtful=True))


def _is_low(evaluation: Evaluation, recipe: Recipe) -> bool:
    """Whether so few samples are right that the images may be prepared in a wrong way."""
    settings = recipe.data["evaluation"]
    pixels = settings.prepare is not None or settings.kind not in data.ANY_VALUES
    if not pixels or evaluation.value is None or evaluation.array("correct") is None:
        return False
    return bool(evaluation.doubts) or evaluation.value < _LOW
