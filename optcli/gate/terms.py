"""Which variants the gate judges, by which terms, and how these differ from the baseline's.

A pull request holds its own recipe, and with it the bar that it must pass. So the gate compares the
terms of both sides. What makes them tighter is harmless; anything else is named, and the answer is
inconclusive unless whoever runs the gate declares that kind of change on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

from optcli.errors import UsageError, did_you_mean
from optcli.recipe import Recipe
from optcli.results import Report, VariantReport
from optcli.results.gate import Change, ChangeKind, Choice, Terms
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.gate import GateBar, GateSettings
from optcli.settings.slo import SloSettings


def chosen(
    candidate: Recipe,
    only: Sequence[str],
    baseline: Terms | None,
    of_candidate: Callable[[], Sequence[str]],
    of_baseline: Callable[[], Sequence[str]],
) -> tuple[dict[str, tuple[Choice, ...]], list[Change]]:
    """The variants to judge with the reasons, in the recipe's order, and changes for those that left.

    Each side has those marked `gate: true`; without a mark those that its build recommends, which is
    asked only then. Variants named on the command line (`only`) stand for both. Raises `UsageError`
    where there is none of such a name.
    """
    for name in only:
        if name not in candidate.variants:
            hint = did_you_mean(name, list(candidate.variants))
            raise UsageError(f"the recipe has no variant {name!r}", place="--variant", hint=hint)
    reasons: dict[str, list[Choice]] = {name: ["named"] for name in only}
    missing: list[Change] = []
    if not only:
        marked = [name for name, variant in candidate.variants.items() if variant.gate]
        _add(reasons, marked, "marked")
        marked_in_baseline = (
            [n for n, variant in baseline.variants.items() if variant.gate] if baseline else []
        )
        _add(reasons, marked_in_baseline, "marked-before")
        unmarked = [] if marked_in_baseline else [*of_baseline()]
        _add(reasons, unmarked, "recommended-before")
        if not marked:
            _add(reasons, of_candidate(), "recommended")
        # A mark that went is a change of the terms themselves.
        missing = [
            Change(kind="variants", place=f"variants.{name}", before="recommended", after=None)
            for name in unmarked
            if name not in candidate.variants
        ]
        if marked and baseline is not None and not marked_in_baseline:
            missing += [
                Change(
                    kind="variants", place=f"variants.{name}.gate", before="recommended", after=False
                )
                for name in unmarked
                if name in candidate.variants and name not in marked
            ]
    ordered = {name: tuple(reasons[name]) for name in candidate.variants if name in reasons}
    return ordered, missing


def _add(reasons: dict[str, list[Choice]], names: Sequence[str], reason: Choice) -> None:
    for name in names:
        reasons.setdefault(name, []).append(reason)


def suggested_by(report: Report) -> tuple[str, ...]:
    """What a build recommends at any batch size; its baseline where at one it recommends nothing.

    Where the machine was not fit to tell, or a speed-up is not known, every variant that may be served
    is among them.
    """
    sizes = report.recommendations.values()
    recommended = [report.recommended, *(each.variant for each in sizes)]
    names = [report.baseline if name is None else name for name in recommended]
    if report.recommended is None or any(each.withheld for each in sizes):
        names += [
            name
            for name, variant in report.variants.items()
            if name != report.baseline and variant.artifact is not None and not _is_decided(variant)
        ]
    return tuple(dict.fromkeys(names))


def _is_decided(variant: VariantReport) -> bool:
    """Whether its latency decided that it is not served: rejected, or surely not faster."""
    if any(each.blocking and each.outcome == "reject" for each in variant.verdicts):
        return True
    rows = variant.on_host
    return bool(rows) and all(
        row.fit and row.speedup is not None and row.speedup.low is not None and row.speedup.low <= 1
        for row in rows
        if row.batch_size == min(each.batch_size for each in rows)
    )


KINDS: tuple[ChangeKind, ...] = get_args(ChangeKind)
# Of `accuracy`: what decides, and which way is tighter (+1: larger). The rest says what is measured.
_ACCURACY_BARS = {
    "policy": 0,
    "max_drop": -1,
    "min_ratio": +1,
    "margin": -1,
    "confidence": +1,
    "target_isa": 0,
}
# Of `AccuracySettings`: all that says how much may be lost, and nothing of what is measured.
ACCURACY_BARS = (*_ACCURACY_BARS, "preset")
_SLO_BARS = tuple(name for name in SloSettings.model_fields if name != "rate_per_s")
_GROWTHS = ("max_size_growth", "max_memory_growth")
_RULE = ("looks", "false_alarms", "robust", "max_seconds", "confirm", "devices")


def accepted(texts: Sequence[str]) -> frozenset[ChangeKind]:
    """The kinds of change that `--accept evaluation,bar` declares. Raises `UsageError` for others."""
    kinds: set[ChangeKind] = set()
    for name in (part.strip() for text in texts for part in text.split(",")):
        if name not in KINDS:
            near = did_you_mean(name, list(KINDS), "")
            known = f"known are {', '.join(KINDS)}"
            raise UsageError(
                f"unknown kind of change {name!r}",
                place="--accept",
                hint=f"{near}; {known}" if near else known,
            )
        kinds.add(name)
    return frozenset(kinds)


def changes(baseline: Terms, candidate: Terms, judged: Collection[str] = ()) -> list[Change]:
    """Every difference between the terms of the baseline and of the candidate.

    `judged` are the variants that the gate judges: threads of the others do not count.
    """
    return [
        *_evaluation(baseline, candidate),
        *_section(
            "preparation", "data.evaluation.prepare", baseline.preparation, candidate.preparation
        ),
        *_section("postprocess", "postprocess", baseline.postprocess, candidate.postprocess),
        *_accuracy(baseline.accuracy, candidate.accuracy),
        *_code(baseline.code, candidate.code),
        *_service_level(baseline.slo, candidate.slo),
        *_gate(baseline.gate, candidate.gate),
        *_section("rule", "devices", baseline.devices, candidate.devices),
        *_threads(baseline, candidate, judged),
        *_variants(baseline, candidate),
        *_inputs(baseline, candidate),
    ]


def stricter_gate(
    baseline: GateSettings, candidate: GateSettings, declared: Collection[ChangeKind]
) -> GateSettings:
    """The stricter of both sides' settings; what was declared follows the candidate.

    How it is measured (looks, threads, error rate) is the baseline's unless declared.
    """
    update: dict[str, Any] = {}
    if "bar" not in declared:
        update |= {
            name: _stricter_bar(getattr(baseline, name), getattr(candidate, name)) for name in _BARS
        }
        update |= {name: _least(getattr(baseline, name), getattr(candidate, name)) for name in _GROWTHS}
    if "rule" not in declared:
        update |= {name: getattr(baseline, name) for name in _RULE}
        update["batch_sizes"] = tuple(sorted({*baseline.batch_sizes, *candidate.batch_sizes}))
    if "threads" not in declared:
        update["threads"] = baseline.threads
    return candidate.model_copy(update=update)


def stricter_slo(
    baseline: SloSettings | None, candidate: SloSettings | None, declared: Collection[ChangeKind]
) -> SloSettings | None:
    """The smaller limit of each bound; the candidate's where a change of bars was declared."""
    if "bar" in declared or baseline is None:
        return candidate
    if candidate is None:
        return baseline
    least = {name: _least(getattr(baseline, name), getattr(candidate, name)) for name in _SLO_BARS}
    return candidate.model_copy(update=least)


_BARS = ("p50", "p95")


def _stricter_bar(baseline: GateBar | None, candidate: GateBar | None) -> GateBar | None:
    if baseline is None or candidate is None:
        return candidate or baseline
    blocks = "blocks" in (baseline.undecided, candidate.undecided)
    return GateBar(
        limit=min(baseline.limit, candidate.limit),
        margin=min(baseline.margin_or_default, candidate.margin_or_default),
        undecided="blocks" if blocks else "advice",
    )


def _least(baseline: float | None, candidate: float | None) -> float | None:
    limits = [each for each in (baseline, candidate) if each is not None]
    return min(limits) if limits else None


def _evaluation(baseline: Terms, candidate: Terms) -> Iterator[Change]:
    old, new = baseline.evaluation, candidate.evaluation
    place = "data.evaluation"
    if old is None or new is None:
        if old is not new:
            yield Change(
                kind="evaluation",
                place=place,
                before=old and old.get("kind"),
                after=new and new.get("kind"),
                tighter=old is None,
            )
        return
    yield from _section("evaluation", place, old, new)


def _section(
    kind: ChangeKind,
    place: str,
    baseline: Mapping[str, Any] | None,
    candidate: Mapping[str, Any] | None,
) -> Iterator[Change]:
    """Each key that differs; the whole section where one side has none."""
    if baseline is None or candidate is None:
        if baseline != candidate:
            yield Change(kind=kind, place=place, before=baseline, after=candidate)
        return
    for name in dict.fromkeys((*baseline, *candidate)):
        if baseline.get(name) != candidate.get(name):
            yield Change(
                kind=kind, place=f"{place}.{name}", before=baseline.get(name), after=candidate.get(name)
            )


def _accuracy(
    baseline: AccuracySettings | None, candidate: AccuracySettings | None
) -> Iterator[Change]:
    if baseline is None or candidate is None:
        if baseline != candidate:
            old, new = (each and each.metric for each in (baseline, candidate))
            # Without the section outputs had to keep their names and shapes.
            tighter = baseline is None and candidate is not None and candidate.interface == "same"
            yield Change(kind="bar", place="accuracy", before=old, after=new, tighter=tighter)
        return
    for each in _section("metric", "accuracy", _resolved(baseline), _resolved(candidate)):
        direction = _ACCURACY_BARS.get(each.place.removeprefix("accuracy."))
        if direction is None:
            yield each
        else:
            is_set = direction and None not in (each.before, each.after)
            tighter = bool(is_set) and (each.after - each.before) * direction > 0
            yield each.model_copy(update={"kind": "bar", "tighter": tighter})


def _resolved(settings: AccuracySettings) -> dict[str, Any]:
    """The settings as a record with defaults filled in, and a preset as the ratio it stands for."""
    record = settings.model_dump(mode="json", exclude={"preset", "min_ratio", "max_drop"})
    ratio = settings.ratio
    # `bar` of a baseline at 1 is the absolute drop itself, where that is the bar.
    return {**record, "min_ratio": ratio, "max_drop": settings.bar(1.0) if ratio is None else None}


def _code(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> Iterator[Change]:
    # Code that comes or goes shows in the settings that name it.
    for name in baseline:
        if name in candidate and baseline[name] != candidate[name]:
            yield Change(
                kind="code", place=name, before=baseline[name][:12], after=candidate[name][:12]
            )


def _service_level(baseline: SloSettings | None, candidate: SloSettings | None) -> Iterator[Change]:
    for name in _SLO_BARS:
        yield from _limit(f"slo.{name}", getattr(baseline, name, None), getattr(candidate, name, None))


def _gate(baseline: GateSettings, candidate: GateSettings) -> Iterator[Change]:
    for name in _BARS:
        old: GateBar | None = getattr(baseline, name)
        new: GateBar | None = getattr(candidate, name)
        place = f"gate.{name}"
        if old is None or new is None:
            limits = (None if each is None else each.limit for each in (old, new))
            yield from _limit(f"{place}.limit", *limits)
            continue
        yield from _limit(f"{place}.limit", old.limit, new.limit)
        yield from _limit(f"{place}.margin", old.margin_or_default, new.margin_or_default)
        if old.undecided != new.undecided:
            yield Change(
                kind="bar",
                place=f"{place}.undecided",
                before=old.undecided,
                after=new.undecided,
                tighter=new.undecided == "blocks",
            )
    for name in _GROWTHS:
        yield from _limit(f"gate.{name}", getattr(baseline, name), getattr(candidate, name))
    rules = (each.model_dump(mode="json", include={*_RULE}) for each in (baseline, candidate))
    yield from _section("rule", "gate", *rules)
    # More of them are not tighter: they share the time, so that none may be decided.
    if set(baseline.batch_sizes) != set(candidate.batch_sizes):
        yield Change(
            kind="rule",
            place="gate.batch_sizes",
            before=list(baseline.batch_sizes),
            after=list(candidate.batch_sizes),
        )


def _limit(place: str, baseline: float | None, candidate: float | None) -> Iterator[Change]:
    """A figure that must not be exceeded: smaller, or one where there was none, is tighter."""
    if baseline != candidate:
        tighter = baseline is None or (candidate is not None and candidate < baseline)
        yield Change(kind="bar", place=place, before=baseline, after=candidate, tighter=tighter)


def _threads(baseline: Terms, candidate: Terms, judged: Collection[str]) -> Iterator[Change]:
    """The gate sets the threads of both sides itself, so that it cannot see what these changes cost."""
    places = {
        "latency.threads": (baseline.threads, candidate.threads),
        "gate.threads": (baseline.gate.threads, candidate.gate.threads),
        **{
            f"variants.{name}.runner.threads": (old.threads, candidate.variants[name].threads)
            for name, old in baseline.variants.items()
            if name in judged and name in candidate.variants
        },
    }
    for place, (old, new) in places.items():
        if old != new:
            yield Change(kind="threads", place=place, before=old, after=new)


def _variants(baseline: Terms, candidate: Terms) -> Iterator[Change]:
    if baseline.baseline != candidate.baseline:
        yield Change(
            kind="variants", place="baseline", before=baseline.baseline, after=candidate.baseline
        )
    for name, old in baseline.variants.items():
        there = candidate.variants.get(name)
        if there is None:
            if old.gate or name == baseline.baseline:
                yield Change(kind="variants", place=f"variants.{name}", before="there", after=None)
        elif old.gate and not there.gate:
            yield Change(kind="variants", place=f"variants.{name}.gate", before=True, after=False)


def _inputs(baseline: Terms, candidate: Terms) -> Iterator[Change]:
    old, new = ([each.model_dump(mode="json") for each in t.inputs] for t in (baseline, candidate))
    if old != new:
        yield Change(kind="inputs", place="inputs", before=_shapes(baseline), after=_shapes(candidate))


def _shapes(terms: Terms) -> list[str]:
    return [
        f"{each.name} {each.dtype} {list(each.shape)}"
        + "".join(f" {name} {r.min} to {r.max}" for name, r in each.ranges.items())
        for each in terms.inputs
    ]
