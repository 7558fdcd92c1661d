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
    now: Recipe,
    only: Sequence[str],
    before: Terms | None,
    suggested_now: Callable[[], Sequence[str]],
    suggested_before: Callable[[], Sequence[str]],
) -> tuple[dict[str, tuple[Choice, ...]], list[Change]]:
    """The variants to judge with the reasons, in the recipe's order, and changes for those that left.

    Each side has those marked `gate: true`; without a mark those that its build recommends, which is
    asked only then. Variants named on the command line (`only`) stand for both. Raises `UsageError`
    where there is none of such a name.
    """
    for name in only:
        if name not in now.variants:
            hint = did_you_mean(name, list(now.variants))
            raise UsageError(f"the recipe has no variant {name!r}", place="--variant", hint=hint)
    reasons: dict[str, list[Choice]] = {name: ["named"] for name in only}
    missing: list[Change] = []
    if not only:
        marked = [name for name, variant in now.variants.items() if variant.gate]
        _add(reasons, marked, "marked")
        marked_before = [n for n, variant in before.variants.items() if variant.gate] if before else []
        _add(reasons, marked_before, "marked-before")
        unmarked = [] if marked_before else [*suggested_before()]
        _add(reasons, unmarked, "recommended-before")
        if not marked:
            _add(reasons, suggested_now(), "recommended")
        # A mark that went is a change of the terms themselves.
        missing = [
            Change(kind="variants", place=f"variants.{name}", before="recommended", after=None)
            for name in unmarked
            if name not in now.variants
        ]
        if marked and before is not None and not marked_before:
            missing += [
                Change(
                    kind="variants", place=f"variants.{name}.gate", before="recommended", after=False
                )
                for name in unmarked
                if name in now.variants and name not in marked
            ]
    ordered = {name: tuple(reasons[name]) for name in now.variants if name in reasons}
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


def changes(before: Terms, now: Terms, judged: Collection[str] = ()) -> list[Change]:
    """Every difference between the terms of the baseline and of the candidate.

    `judged` are the variants that the gate judges: threads of the others do not count.
    """
    return [
        *_evaluation(before, now),
        *_section("preparation", "data.evaluation.prepare", before.preparation, now.preparation),
        *_section("postprocess", "postprocess", before.postprocess, now.postprocess),
        *_accuracy(before.accuracy, now.accuracy),
        *_code(before.code, now.code),
        *_service_level(before.slo, now.slo),
        *_gate(before.gate, now.gate),
        *_section("rule", "devices", before.devices, now.devices),
        *_threads(before, now, judged),
        *_variants(before, now),
        *_inputs(before, now),
    ]


def stricter_gate(
    before: GateSettings, now: GateSettings, declared: Collection[ChangeKind]
) -> GateSettings:
    """The stricter of both sides' settings; what was declared follows the candidate.

    How it is measured (looks, threads, error rate) is the baseline's unless declared.
    """
    update: dict[str, Any] = {}
    if "bar" not in declared:
        update |= {name: _stricter_bar(getattr(before, name), getattr(now, name)) for name in _BARS}
        update |= {name: _least(getattr(before, name), getattr(now, name)) for name in _GROWTHS}
    if "rule" not in declared:
        update |= {name: getattr(before, name) for name in _RULE}
        update["batch_sizes"] = tuple(sorted({*before.batch_sizes, *now.batch_sizes}))
    if "threads" not in declared:
        update["threads"] = before.threads
    return now.model_copy(update=update)


def stricter_slo(
    before: SloSettings | None, now: SloSettings | None, declared: Collection[ChangeKind]
) -> SloSettings | None:
    """The smaller limit of each bound; the candidate's where a change of bars was declared."""
    if "bar" in declared or before is None:
        return now
    if now is None:
        return before
    least = {name: _least(getattr(before, name), getattr(now, name)) for name in _SLO_BARS}
    return now.model_copy(update=least)


_BARS = ("p50", "p95")


def _stricter_bar(before: GateBar | None, now: GateBar | None) -> GateBar | None:
    if before is None or now is None:
        return now or before
    blocks = "blocks" in (before.undecided, now.undecided)
    return GateBar(
        limit=min(before.limit, now.limit),
        margin=min(before.margin_or_default, now.margin_or_default),
        undecided="blocks" if blocks else "advice",
    )


def _least(before: float | None, now: float | None) -> float | None:
    limits = [each for each in (before, now) if each is not None]
    return min(limits) if limits else None


def _evaluation(before: Terms, now: Terms) -> Iterator[Change]:
    was, is_now = before.evaluation, now.evaluation
    place = "data.evaluation"
    if was is None or is_now is None:
        if was is not is_now:
            yield Change(
                kind="evaluation",
                place=place,
                before=was and was.get("kind"),
                after=is_now and is_now.get("kind"),
                tighter=was is None,
            )
        return
    yield from _section("evaluation", place, was, is_now)


def _section(
    kind: ChangeKind, place: str, before: Mapping[str, Any] | None, now: Mapping[str, Any] | None
) -> Iterator[Change]:
    """Each key that differs; the whole section where one side has none."""
    if before is None or now is None:
        if before != now:
            yield Change(kind=kind, place=place, before=before, after=now)
        return
    for name in dict.fromkeys((*before, *now)):
        if before.get(name) != now.get(name):
            yield Change(
                kind=kind, place=f"{place}.{name}", before=before.get(name), after=now.get(name)
            )


def _accuracy(before: AccuracySettings | None, now: AccuracySettings | None) -> Iterator[Change]:
    if before is None or now is None:
        if before != now:
            was, is_now = (each and each.metric for each in (before, now))
            # Without the section outputs had to keep their names and shapes.
            tighter = before is None and now is not None and now.interface == "same"
            yield Change(kind="bar", place="accuracy", before=was, after=is_now, tighter=tighter)
        return
    for each in _section("metric", "accuracy", _resolved(before), _resolved(now)):
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


def _code(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Change]:
    # Code that comes or goes shows in the settings that name it.
    for name in before:
        if name in now and before[name] != now[name]:
            yield Change(kind="code", place=name, before=before[name][:12], after=now[name][:12])


def _service_level(before: SloSettings | None, now: SloSettings | None) -> Iterator[Change]:
    for name in _SLO_BARS:
        yield from _limit(f"slo.{name}", getattr(before, name, None), getattr(now, name, None))


def _gate(before: GateSettings, now: GateSettings) -> Iterator[Change]:
    for name in _BARS:
        was: GateBar | None = getattr(before, name)
        is_now: GateBar | None = getattr(now, name)
        place = f"gate.{name}"
        if was is None or is_now is None:
            limits = (None if each is None else each.limit for each in (was, is_now))
            yield from _limit(f"{place}.limit", *limits)
            continue
        yield from _limit(f"{place}.limit", was.limit, is_now.limit)
        yield from _limit(f"{place}.margin", was.margin_or_default, is_now.margin_or_default)
        if was.undecided != is_now.undecided:
            yield Change(
                kind="bar",
                place=f"{place}.undecided",
                before=was.undecided,
                after=is_now.undecided,
                tighter=is_now.undecided == "blocks",
            )
    for name in _GROWTHS:
        yield from _limit(f"gate.{name}", getattr(before, name), getattr(now, name))
    rules = (each.model_dump(mode="json", include={*_RULE}) for each in (before, now))
    yield from _section("rule", "gate", *rules)
    # More of them are not tighter: they share the time, so that none may be decided.
    if set(before.batch_sizes) != set(now.batch_sizes):
        yield Change(
            kind="rule",
            place="gate.batch_sizes",
            before=list(before.batch_sizes),
            after=list(now.batch_sizes),
        )


def _limit(place: str, before: float | None, now: float | None) -> Iterator[Change]:
    """A figure that must not be exceeded: smaller, or one where there was none, is tighter."""
    if before != now:
        tighter = before is None or (now is not None and now < before)
        yield Change(kind="bar", place=place, before=before, after=now, tighter=tighter)


def _threads(before: Terms, now: Terms, judged: Collection[str]) -> Iterator[Change]:
    """The gate sets the threads of both sides itself, so that it cannot see what these changes cost."""
    places = {
        "latency.threads": (before.threads, now.threads),
        "gate.threads": (before.gate.threads, now.gate.threads),
        **{
            f"variants.{name}.runner.threads": (was.threads, now.variants[name].threads)
            for name, was in before.variants.items()
            if name in judged and name in now.variants
        },
    }
    for place, (was, is_now) in places.items():
        if was != is_now:
            yield Change(kind="threads", place=place, before=was, after=is_now)


def _variants(before: Terms, now: Terms) -> Iterator[Change]:
    if before.baseline != now.baseline:
        yield Change(kind="variants", place="baseline", before=before.baseline, after=now.baseline)
    for name, was in before.variants.items():
        there = now.variants.get(name)
        if there is None:
            if was.gate or name == before.baseline:
                yield Change(kind="variants", place=f"variants.{name}", before="there", after=None)
        elif was.gate and not there.gate:
            yield Change(kind="variants", place=f"variants.{name}.gate", before=True, after=False)


def _inputs(before: Terms, now: Terms) -> Iterator[Change]:
    was, is_now = ([each.model_dump(mode="json") for each in t.inputs] for t in (before, now))
    if was != is_now:
        yield Change(kind="inputs", place="inputs", before=_shapes(before), after=_shapes(now))


def _shapes(terms: Terms) -> list[str]:
    return [
        f"{each.name} {each.dtype} {list(each.shape)}"
        + "".join(f" {name} {r.min} to {r.max}" for name, r in each.ranges.items())
        for each in terms.inputs
    ]
