"""What the baseline's own answers say of its data: other numbers of labels, another preparation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from optcli import accuracy
from optcli.accuracy import Evaluation, EvaluationRequest
from optcli.errors import OptcliError
from optcli.pipeline.admission import RecordAdmission
from optcli.recipe import Recipe
from optcli.results.outcomes import DataRemark
from optcli.store import Store, key_of
from optcli.workers import messages

_STEP = "remarks"
# Of the samples right: of fewer, images that are prepared in a wrong way may be the cause.
_LOW = 0.5


@dataclass(frozen=True)
class _Remarks:
    remarks: tuple[DataRemark, ...]


@dataclass(frozen=True)
class Looking:
    """Where it is kept what the answers say, and how long trying other preparations may take."""

    store: Store
    log: Path
    timeout_s: float


def remarks_of(
    recipe: Recipe,
    key: str,
    looking: Looking,
    answers: Callable[[], Path],
    request: Callable[[Path], EvaluationRequest] | None,
) -> tuple[DataRemark, ...]:
    """What is known of the data, and what surely would be more accurate by over ten points.

    `answers` gives the folder of the baseline's, whose key is `key`: what they say is remembered, so
    that a build with nothing to do reads none. `request` is what they were asked for; None: the
    artifact cannot be tried here.
    """
    orders = {name: list(order) for name, order in recipe.class_orders.items()}
    ingredients = {"step": _STEP, "evaluation": key, "orders": orders, "tried": request is not None}
    mine = key_of(ingredients)
    admission = RecordAdmission(_Remarks)
    entry = looking.store.get(_STEP, mine, admission=admission)
    if entry is None:
        try:
            found = _found(recipe, looking, answers(), request)
        except OptcliError:  # the figure stands without it
            return recipe.data_remarks
        record = messages.to_record(_Remarks(tuple(found)))
        with looking.store.work(_STEP, mine) as work:
            entry = looking.store.put(_STEP, mine, work, record, ingredients)
    remarks: _Remarks = admission.read(entry)
    return (*recipe.data_remarks, *remarks.remarks)


def _found(
    recipe: Recipe,
    looking: Looking,
    answers: Path,
    request: Callable[[Path], EvaluationRequest] | None,
) -> list[DataRemark]:
    evaluation = Evaluation.load(answers)
    better = accuracy.better_order(evaluation, recipe.class_orders)
    if better is not None:
        return [DataRemark(text=better, doubtful=True)]
    if request is None or not _is_low(evaluation, recipe):
        return []
    better = accuracy.better_preparation(request(answers), looking.log, looking.timeout_s)
    if better is None:
        return []
    return [DataRemark(text=better, about="preparation", doubtful=True)]


def _is_low(evaluation: Evaluation, recipe: Recipe) -> bool:
    """Whether so few samples are right that the images may be prepared in a wrong way."""
    settings = recipe.data["evaluation"]
    pixels = settings.prepare is not None or settings.layout.holds == "images"
    if not pixels or evaluation.value is None or evaluation.array("correct") is None:
        return False
    return bool(evaluation.doubts) or evaluation.value < _LOW
