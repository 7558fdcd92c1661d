"""The curve that a build measured: the sweep of a variant, else the rows of its table.

Where the variant was compiled for some batch sizes, the curve has their steps: the runner's facts in
the report say what was compiled, and what was padded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from optcli.errors import InputError, UsageError, did_you_mean
from optcli.measure.queueing.curve import CompiledForms, Curve, with_forms
from optcli.results import Report, VariantReport, Verdict
from optcli.results.outcomes import SERVICE_LEVEL
from optcli.results.plan import PlanNote
from optcli.settings.slo import SloSettings

# Of the interquartile range over the median, as everywhere.
_FLUCTUATING = 0.20
_FILE = "report.json"


@dataclass(frozen=True)
class MeasuredCurve:
    """A curve, where it is from, and what is to be known of it.

    `unfit` says that no point was taken on a quiet machine: such a curve decides nothing. `forms` are
    those of a variant that was compiled for some batch sizes; None: one form computes all of them.
    """

    curve: Curve
    source: str
    warnings: tuple[PlanNote, ...] = ()
    unfit: bool = False
    forms: CompiledForms | None = None


@dataclass(frozen=True)
class _Point:
    batch_size: int
    p50_ms: float
    spread: float | None
    fit: bool
    quantiles_ms: Sequence[float]
    padded_to: int | None = None


def load(path: Path) -> tuple[Report, Path]:
    """A report and its file, named by the file or its folder. Raises `UsageError`."""
    file = path / _FILE if path.is_dir() else path
    return Report.load(file), file


def curve_of(report: Report, variant: str | None, file: Path | None) -> MeasuredCurve:
    """The measured curve of a variant, by default of the recommended one, else of the baseline.

    `file` is where the report lies: raw samples of the table are beside it. Points of a sweep that
    other work disturbed are left out, with a warning. Raises `UsageError` for a variant that the
    report does not have or that was not measured.
    """
    name = variant or report.recommended or report.baseline
    place = str(file) if file else f"the report of {report.recipe.name}"
    if name not in report.variants:
        raise UsageError(
            f"the report has no variant {name!r}",
            place=place,
            hint=did_you_mean(name, list(report.variants)),
        )
    points, what = _points(name, report.variants[name], file)
    if not points:
        raise UsageError(
            f"{name} has no latency in this report: {report.variants[name].reason or 'not measured'}",
            place=place,
            hint="build it again, or name another variant with --variant",
        )
    warnings = list(_promises(name, report.variants[name].verdicts))
    sound = [point for point in points if point.fit]
    left_out = [point.batch_size for point in points if not point.fit]
    if left_out:
        warnings.append(_unfit(name, left_out, every=not sound))
    used = sound or points
    restless = [p.batch_size for p in used if p.spread is not None and p.spread > _FLUCTUATING]
    if restless:
        warnings.append(_restless(name, restless))
    forms = _forms(report.variants[name].runner or {}, points)
    if forms is not None:
        own = forms.own([point.batch_size for point in used])
        used = [point for point in used if point.batch_size in own]
    curve = _curve(used, place)
    return MeasuredCurve(
        curve if forms is None else with_forms(curve, forms),
        f"{what} of {name} in {report.recipe.name}",
        tuple(warnings),
        not sound,
        forms,
    )


def _promises(name: str, verdicts: Iterable[Verdict]) -> Iterator[PlanNote]:
    """Says of each bound on load time, memory or size that the build does not accept."""
    for each in verdicts:
        bound = each.name.removeprefix(SERVICE_LEVEL)
        if bound in SloSettings.RESOURCES and each.outcome != "accept":
            text = f"{name} does not surely keep slo.{bound} of the recipe: {each.reason}"
            yield PlanNote(kind="promise", figures={"bound": bound, "outcome": each.outcome}, text=text)


def _forms(runner: Mapping[str, Any], points: Sequence[_Point]) -> CompiledForms | None:
    """What the report has on the forms of a variant; None where one form computes all batches."""
    routes = runner.get("routes")
    if isinstance(routes, Mapping) and routes.get("fixed"):
        first = routes.get("padded_from") or {}
        return CompiledForms(
            tuple(routes["fixed"]),
            padded_from={int(size): least for size, least in first.items()},
            pieces=bool(routes.get("pieces")),
        )
    compiled = runner.get("compiled_batch_sizes")
    if runner.get("shapes") != "static" or not compiled:
        return None
    gains = runner.get("static_gains") or {}
    return CompiledForms(
        tuple(compiled),
        padded={each.batch_size: each.padded_to for each in points if each.padded_to is not None},
        gains={int(size): gain for size, gain in gains.items()},
        can_pad=runner.get("can_pad") is not False,
    )


def _points(name: str, variant: VariantReport, file: Path | None) -> tuple[list[_Point], str]:
    if variant.sweep is not None and variant.sweep.points:
        swept = [
            _Point(p.batch_size, p.p50_ms.value, p.spread, p.fit, p.quantiles_ms, p.padded_to)
            for p in variant.sweep.points
        ]
        return swept, "the sweep"
    shapes: dict[int, list[float]] = {}
    if file is not None:
        from optcli.measure.latency.summary import quantiles_of

        shapes = quantiles_of(file.with_name("samples.npz")).get(name, {})
    padded = (variant.runner or {}).get("padded_batch_sizes") or {}
    rows = [
        _Point(
            row.batch_size,
            row.p50_ms.value,
            row.spread,
            row.fit,
            shapes.get(row.batch_size, ()),
            padded.get(str(row.batch_size)),
        )
        for row in variant.on_host
    ]
    return rows, "the table"


def _curve(points: Sequence[_Point], place: str) -> Curve:
    try:
        if all(len(point.quantiles_ms) > 1 for point in points):
            return Curve.from_samples({p.batch_size: _middles(p.quantiles_ms) for p in points})
        return Curve.from_points({point.batch_size: point.p50_ms for point in points})
    except InputError as error:
        raise InputError(
            error.message, place=place, hint=f"{error.hint}; --curve replaces what was measured"
        ) from error


def _middles(quantiles_ms: Sequence[float]) -> list[float]:
    """Equally likely values: between two neighbouring quantiles lie as many calls as everywhere."""
    return [(low + high) / 2 for low, high in pairwise(quantiles_ms)]


def _unfit(name: str, sizes: Sequence[int], *, every: bool) -> PlanNote:
    listed = ", ".join(map(str, sizes))
    text = (
        f"environment not fit: other work disturbed every batch size of {name}; the plan decides"
        " nothing, build again with --remeasure on a quiet machine"
        if every
        else f"environment not fit: other work disturbed batch {listed} of {name}; left out"
    )
    return PlanNote(kind="environment-not-fit", figures={"batches": list(sizes)}, text=text)


def _restless(name: str, sizes: Sequence[int]) -> PlanNote:
    listed = ", ".join(map(str, sizes))
    text = (
        f"noisy: the middle half of the calls of {name} at batch {listed} spreads over more than"
        f" {_FLUCTUATING:.0%} of the median"
    )
    return PlanNote(kind="noisy", figures={"batches": list(sizes)}, text=text)
