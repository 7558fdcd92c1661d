"""What the baseline's own answers say of its data: other numbers of labels, another preparation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli import accuracy
from optcli.accuracy import Evaluation, EvaluationRequest
from optcli.artifact import EXPECTED
from optcli.errors import OptcliError
from optcli.pipeline.admission import RecordAdmission
from optcli.recipe import Recipe
from optcli.results.outcomes import DataRemark
from optcli.store import Store, key_of
from optcli.workers import messages

_STEP = "remarks"


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
    facts: Mapping[str, Any],
    looking: Looking,
    answers: Callable[[], Path],
    request: Callable[[Path], EvaluationRequest] | None,
) -> tuple[DataRemark, ...]:
    """What is known of the data, and what surely would be more accurate by over ten points.

    `answers` gives the folder of the baseline's, whose key is `key`, and `facts` are its artifact's.
    What they say is remembered, so that a build with nothing to do reads none. `request` is what they
    were asked for; None: the artifact cannot be tried here.
    """
    orders = {name: list(order) for name, order in recipe.class_orders.items()}
    expected = _expected(recipe, facts)
    ingredients = {
        "step": _STEP,
        "evaluation": key,
        "orders": orders,
        "tried": request is not None,
        "expected": expected,
        "guessed": _is_guessed(recipe),
    }
    own = key_of(ingredients)
    admission = RecordAdmission(_Remarks)
    entry = looking.store.get(_STEP, own, admission=admission)
    if entry is None:
        try:
            fresh = _doubts(recipe, expected, looking, answers(), request)
        except OptcliError:  # the figure stands without it
            return recipe.data_remarks
        record = messages.to_record(_Remarks(tuple(fresh)))
        with looking.store.work(_STEP, own) as work:
            entry = looking.store.put(_STEP, own, work, record, ingredients)
    remarks: _Remarks = admission.read(entry)
    return (*recipe.data_remarks, *remarks.remarks)


def _expected(recipe: Recipe, facts: Mapping[str, Any]) -> tuple[float, str] | None:
    """What the baseline should reach, and who says so; None: nobody does."""
    settings = recipe.accuracy
    if settings is None:
        return None
    if settings.expected is not None:
        return settings.expected, "accuracy.expected says"
    known = facts.get(EXPECTED, {})
    value = known.get(settings.metric)
    return (float(value), str(known.get("by"))) if isinstance(value, int | float) else None


def _doubts(
    recipe: Recipe,
    expected: tuple[float, str] | None,
    looking: Looking,
    answers: Path,
    request: Callable[[Path], EvaluationRequest] | None,
) -> list[DataRemark]:
    evaluation = Evaluation.load(answers)
    better = accuracy.better_order(evaluation, recipe.class_orders)
    if better is not None:
        return [DataRemark(text=better, doubtful=True)]
    if request is not None and _may_be_prepared_wrongly(evaluation, recipe, expected):
        better = accuracy.better_preparation(request(answers), looking.log, looking.timeout_s)
        if better is not None:
            return [DataRemark(text=better, about="preparation", doubtful=True)]
    if expected is not None and accuracy.surely_misses(evaluation, expected[0]):
        percent, now = (f"{100 * each:.1f} %" for each in (expected[0], evaluation.value or 0.0))
        text = f"{evaluation.metric} is {now}, and {expected[1]} {percent}: look at prepare and labels"
        return [DataRemark(text=text, about="preparation", doubtful=True)]
    return []


def _is_guessed(recipe: Recipe) -> bool:
    prepare = recipe.data["evaluation"].prepare
    return prepare is not None and prepare.guessed


def _may_be_prepared_wrongly(
    evaluation: Evaluation, recipe: Recipe, expected: tuple[float, str] | None
) -> bool:
    """Whether images are prepared as somebody guessed, or the answers are worse than one may expect."""
    settings = recipe.data["evaluation"]
    pixels = settings.prepare is not None or settings.layout.holds == "images"
    low = accuracy.low(evaluation)
    if not pixels or low is None or evaluation.value is None:
        return False
    value, sign = evaluation.value, 1 if evaluation.better == "higher" else -1
    best = 1.0 if sign > 0 else 0.0
    if sign * (best - value) <= accuracy.GAIN:
        return False
    if _is_guessed(recipe) or evaluation.doubts or sign * value < sign * low:
        return True
    return expected is not None and sign * (expected[0] - value) > accuracy.GAIN
