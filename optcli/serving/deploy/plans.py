"""The plan that a deployment carries out: read from a file or made of the recipe, and checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optcli.errors import InputError, UnfitError, UsageError
from optcli.files import regular_files
from optcli.measure.latency import measured_curve
from optcli.observer import Observer
from optcli.recipe import load
from optcli.results import Report
from optcli.results.plan import PLAN_SCHEMA, Configuration, Plan
from optcli.serving import planning, targets
from optcli.serving.planning import files

_AGAIN = (
    "plan again: optcli plan RECIPE --variant VARIANT --rate 600 --slo p95=120ms --json > plan.json"
)
# A plan holds milliseconds as JSON: they read back as they were but for the last bit.
_SAME = 1e-9


def read(path: Path) -> Plan:
    """The plan in a file that `optcli plan --json` wrote. Raises `InputError`."""
    try:
        plan = Plan.model_validate(regular_files.json_of(path))
    except FileNotFoundError as error:
        raise UsageError("there is no such file", place=str(path), hint=_AGAIN) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(
            f"this is no plan: {where}: {first['msg']}", place=str(path), hint=_AGAIN
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"this is no plan: {error}", place=str(path), hint=_AGAIN) from error
    if plan.schema_version != PLAN_SCHEMA:
        raise InputError(
            f"the plan has schema {plan.schema_version}, wanted {PLAN_SCHEMA}",
            place=str(path),
            hint=_AGAIN,
        )
    return plan


def of_recipe(
    variant: str,
    report: Report,
    path: Path,
    named: Path | None,
    observer: Observer,
    target: str = "triton",
    priorities: Mapping[str, float] | None = None,
) -> Plan:
    """The plan for what the recipe promises under `slo`, with the curve that the build measured.

    `target` is the server, `priorities` are shares of the traffic by priority.

    Raises `UsageError` where the recipe promises no rate and no percentile.
    """
    recipe_path = named or Path(report.recipe.path)
    slo = load(recipe_path).slo
    promise = {} if slo is None else slo.percentiles_ms
    rate = None if slo is None else slo.rate_per_s
    if rate is None or not promise:
        lacking = "rate_per_s" if promise else "p50_ms, p95_ms or p99_ms"
        lacking = lacking if rate is not None or promise else "`slo`"
        raise UsageError(
            f"there is no plan, and the recipe cannot give one: it has no {lacking}",
            place=str(recipe_path),
            hint="write slo: {p95_ms: 120, rate_per_s: 600} into the recipe, or name a plan with"
            f" --plan: optcli plan {recipe_path.name} --variant {variant} --rate 600 --slo p95=120ms"
            " --json > plan.json",
        )
    question: dict[str, Any] = {"name": variant, "variant": variant, "rate_per_s": rate, "slo": promise}
    question["target"] = target
    if priorities:
        question["priorities"] = dict(priorities)
    return planning.from_settings(
        files.load(None, question, {"priorities": "--priority"}),
        report=report,
        file=path,
        observer=observer,
    )


def for_target(
    plan: Plan, target: str, variant: str, report: Report, path: Path, observer: Observer
) -> tuple[Plan, str]:
    """The plan for a server, and what is to be known of it.

    A plan for a server that batches otherwise, or works otherwise beside the model, is made again with
    all that it asked for. Raises as `planning.from_settings`.
    """
    here, there = targets.find(target), targets.find(plan.target)
    names = ("semantics", "batches", "overhead", "scales")
    if all(getattr(here, name) == getattr(there, name) for name in names):
        return plan, ""
    question = {key: value for key, value in plan.asked.items() if key not in ("report", "target")}
    on_curve = "curve" in question
    settings = files.load(None, {**question, "target": target}, {"target": "--target"})
    if not on_curve:
        settings = settings.model_copy(update={"variant": variant})
    made = planning.from_settings(
        settings,
        report=None if on_curve else report,
        file=None if on_curve else path,
        observer=observer,
    )
    return made, f"the plan was for {there.title}, and was made again for {here.title}"


def require_usable(plan: Plan, place: str, *, force: bool) -> Configuration:
    """What the plan recommends. Raises `UsageError` where there is none.

    Raises `UnfitError` where the curve was measured on a busy machine, without `force`.
    """
    one = plan.recommended
    if one is None or plan.outcome == "not-kept":
        raise UsageError(
            f"the plan has no configuration to deploy: {plan.sentence}", place=place, hint=_AGAIN
        )
    if plan.outcome != "kept" and not force:
        raise UnfitError(
            "the plan is inconclusive: its curve was measured on a busy machine",
            place=place,
            hint="build again with --remeasure on a quiet machine, or deploy it with --force",
        )
    return one


def doubts(plan: Plan, variant: str, report: Report, path: Path, *, force: bool) -> Iterator[str]:
    """What is to be known of the plan's curve beside the one that the build measured.

    Raises `UsageError` where the plan rests on another measurement, without `force`.
    """
    if plan.outcome != "kept":
        yield "the plan's curve was measured on a busy machine: its figures decide nothing"
    if "curve" in plan.asked:
        yield f"the plan rests on {plan.curve.source}, not on what this build measured"
        return
    known = measured_curve.curve_of(report, variant, path)
    here, there = dict(known.curve.points), plan.curve.points_ms
    same = here.keys() == there.keys() and all(
        math.isclose(here[size], there[size], rel_tol=_SAME) for size in here
    )
    if same:
        return
    source = f"the plan rests on {plan.curve.source} ({_points(there)})"
    measured_here = f"this build measured {_points(here)} for {variant}"
    if not force:
        raise UsageError(
            f"{source}, and {measured_here}",
            place="--plan",
            hint=f"plan again for this build with --variant {variant}, or add --force",
        )
    yield f"{source}, and {measured_here}: the predictions are not of this artifact"


def measured(variant: str, report: Report, path: Path) -> measured_curve.MeasuredCurve | None:
    """The curve that the build measured for a variant; None where it measured none."""
    try:
        return measured_curve.curve_of(report, variant, path)
    except (InputError, UsageError):
        return None


def _points(points: dict[int, float]) -> str:
    listed = [f"{size}: {time:.4g} ms" for size, time in sorted(points.items())]
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
