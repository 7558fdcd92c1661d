"""`optcli plan`: a promise becomes a configuration, by a measured curve and a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, RecipeError, UsageError
from optcli.observer import Observer, Silent
from optcli.recipe import load
from optcli.results import Report
from optcli.results.plan import Plan
from optcli.settings import size_bytes

if TYPE_CHECKING:
    from optcli.measure.latency.measured_curve import MeasuredCurve
    from optcli.serving.planning.files import PlanSettings


def plan(
    source: str | Path | Report | None = None,
    *,
    observer: Observer | None = None,
    **settings: Any,
) -> Plan:
    """A serving configuration for a promise: batch size, wait, instances, queue, and what they do.

    `source` is a plan file, the `report.json` of a build or its folder, or a `Report`; without it
    `settings` name a `curve`. `settings` are keys of a plan file and replace what the file says:

    >>> optcli.plan(curve="6ms+4ms*b", rate_per_s=200, slo={"p95_ms": 120}).recommended.instances
    2

    Raises `RecipeError`, `UsageError` and `InputError` for what cannot be planned with. A promise that
    no configuration keeps is no error: `Plan.outcome` says so.
    """
    from optcli.serving.planning import files

    file = report = None
    where: Path | None = None
    if isinstance(source, Report):
        report = source
    elif source is not None:
        path = Path(source)
        if path.suffix in (".yaml", ".yml"):
            where = path
            if path.is_file() and files.is_recipe(path):
                raise UsageError(
                    "this is a recipe, wanted a plan file or the report of a build",
                    place=str(path),
                    hint="name the report.json of its build, or give what `optcli.build` returned",
                )
        else:
            file = path
    if file is not None:
        from optcli.measure.latency import measured_curve

        report, file = measured_curve.load(file)
    checked = files.load(where, settings, {})
    return from_settings(checked, report=report, file=file, observer=observer)


def from_settings(
    settings: PlanSettings,
    *,
    report: Report | None = None,
    file: Path | None = None,
    places: Mapping[str, str] | None = None,
    observer: Observer | None = None,
) -> Plan:
    """The plan for checked `PlanSettings`; `report`, where one is given, has the curve.

    `file` is where the report lies, `places` are names of keys in errors, such as `--curve`.
    """
    from optcli.serving.planning import planner

    names = places or {}
    if report is not None and settings.request_bytes is None:
        settings = settings.model_copy(update={"request_bytes": _request_bytes(report)})
    known = _curve(settings, report, file, names)
    try:
        return planner.make(settings, known, observer or Silent())
    except InputError as error:
        if error.place not in names:
            raise
        raise InputError(error.message, place=names[error.place], hint=error.hint) from error


def _request_bytes(report: Report) -> int | None:
    """Bytes of one row of the inputs of a report's recipe; None where the recipe is not there."""
    try:
        recipe = load(Path(report.recipe.path))
    except (InputError, UsageError, RecipeError, OSError):
        return None
    return size_bytes(recipe.inputs, 1) if recipe.name == report.recipe.name else None


def _curve(
    settings: PlanSettings, report: Report | None, file: Path | None, places: Mapping[str, str]
) -> MeasuredCurve | None:
    """The curve; None where nothing asks for one: a mode follows from freshness and latency."""
    from optcli.measure.latency import measured_curve
    from optcli.serving.planning import files

    if settings.curve is not None:
        if report is not None:
            raise UsageError(
                "found a report and a curve, wanted one of them",
                place=places.get("curve", "curve"),
                hint="leave one out: the report has a measured curve of its own",
            )
        curve = files.curve_of_text(settings.curve, places.get("curve", "curve"))
        return measured_curve.MeasuredCurve(curve, f"the curve {settings.curve}")
    if report is None and settings.report is not None:
        report, file = measured_curve.load(Path(settings.report))
    if report is None and settings.freshness_s is not None and not settings.names_rate:
        return None
    if report is None:
        raise UsageError(
            "the plan has no curve",
            place=places.get("curve", "curve"),
            hint='say how long batches take, such as --curve "1:25ms,8:48ms" or "6ms+4ms*b", or name a'
            " recipe that was built",
        )
    return measured_curve.curve_of(report, settings.variant, file)


def schema() -> dict[str, Any]:
    """JSON Schema of what `optcli plan --json` prints."""
    return Plan.model_json_schema(by_alias=True, mode="serialization")


def file_schema() -> dict[str, Any]:
    """JSON Schema of a plan file."""
    from optcli.serving.planning.files import PlanSettings

    return PlanSettings.model_json_schema()
