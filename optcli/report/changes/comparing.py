"""From two reports to what changed between them.

The runs are not paired: nothing was measured side by side. The intervals of both are combined by MOVER,
the method of variance estimates recovery (G. Y. Zou and A. Donner, Construction of confidence limits
about effect measures: a general approach, Statistics in Medicine 27 (2008) 1693-1702).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from optcli.report import wording
from optcli.report.changes import machines
from optcli.report.changes.model import (
    AccuracyChange,
    BatchChange,
    ComparedBuild,
    ReportComparison,
    Rightness,
    Speed,
    SpeedChange,
    VariantChange,
)
from optcli.results import Accuracy, Estimate, Latency, Report, VariantReport

_PERCENTILES = ("p50", "p95", "p99")
_Z = 1.959963984540054  # the 97.5 % point of the normal distribution


def compare(before: tuple[str, Report], after: tuple[str, Report]) -> ReportComparison:
    """What changed; each report comes with the label that it is shown under.

    Variants are matched by name, what is left over by being the same artifact in the same runner.
    Percentiles are compared as two separate runs (`ratio`): faster where the whole interval
    of the ratio lies below 1, slower where it lies above. What is the same in both runs is neither: it
    differs by the machine, and where it moved for certain, changes of others in the same percentile
    that are no larger are not clear. Times that were not fit, and accuracies on other samples, are not
    compared.
    """
    old, new = before[1], after[1]
    pairs = _match(old, new)
    versions = machines.versions(old, new)
    variants = [_variant(name, other, old, new) for name, other in pairs]
    reasons = machines.differences(old, new)
    for each in variants:
        threads = machines.thread_difference(
            each.name, old.variants[each.name_before], new.variants[each.name]
        )
        if threads is not None:
            reasons.append(threads)
    drifts = {name: _drift(variants, name) for name in _PERCENTILES} if not versions else {}
    known_before, known_after = {other for _, other in pairs}, {name for name, _ in pairs}
    return ReportComparison(
        before=_source(*before),
        after=_source(*after),
        comparable=not reasons,
        reasons=tuple(reasons),
        changed=tuple(machines.changed(old, new)),
        notes=tuple(_notes(old, new, variants, drifts)),
        drift=drifts.get("p50", {}),
        drifts=drifts,
        variants=tuple(_judged(each, drifts) for each in variants),
        only_before=tuple(name for name in old.variants if name not in known_before),
        only_after=tuple(name for name in new.variants if name not in known_after),
    )


def compare_devices(before: tuple[str, Report], after: tuple[str, Report]) -> list[ReportComparison]:
    """A comparison for each device that both reports have; of the first ones, where they share none.

    Devices go by their names in the recipe. Labels say which device it is, where there are several.
    """
    later = {each.device: each for each in after[1].by_device}
    pairs = [
        (earlier, later[earlier.device]) for earlier in before[1].by_device if earlier.device in later
    ]
    if not pairs:
        pairs = [(before[1].by_device[0], after[1].by_device[0])]

    def labelled(label: str, report: Report) -> str:
        return f"{label} on {report.device}" if len(pairs) > 1 else label

    return [
        compare((labelled(before[0], one), one), (labelled(after[0], other), other))
        for one, other in pairs
    ]


def _match(old: Report, new: Report) -> list[tuple[str, str]]:
    """Pairs of (name after, name before), in the order of the report after."""
    before = {name: name for name in new.variants if name in old.variants}
    left = {name: earlier for name, earlier in old.variants.items() if name not in before}
    for name, variant in new.variants.items():
        if name in before or variant.artifact is None:
            continue
        twin = next((former for former, earlier in left.items() if _same(earlier, variant)), None)
        if twin is not None:
            before[name] = twin
            del left[twin]
    return [(name, before[name]) for name in new.variants if name in before]


def _same(one: VariantReport, other: VariantReport) -> bool:
    """Whether two variants are the same artifact in the same runner with the same settings.

    By what made it or by what is in its files: another version of a pass may have made the same ones.
    """
    if one.artifact is None or other.artifact is None:
        return False
    digests = {one.artifact.digest, other.artifact.digest}
    same_files = None not in digests and len(digests) == 1
    if one.artifact.key != other.artifact.key and not same_files:
        return False
    return machines.requested(one) == machines.requested(other)


def _source(label: str, report: Report) -> ComparedBuild:
    return ComparedBuild(
        label=label,
        recipe=report.recipe.name,
        started=report.started,
        machine=machines.machine(report),
        mode=str(report.protocol.get("mode", "quick")),
        launches=int(report.protocol.get("launches") or 1),
    )


def _variant(name: str, other: str, old: Report, new: Report) -> VariantChange:
    before, after = old.variants[other], new.variants[name]
    rows = {(row.batch_size, row.region): row for row in before.latency}
    latency = [
        BatchChange(
            batch_size=row.batch_size,
            region=row.region,
            **{name: _speed(old_row, row, f"{name}_ms") for name in _PERCENTILES},
        )
        for row in after.latency
        if (old_row := rows.get((row.batch_size, row.region))) is not None
    ]
    return VariantChange(
        name=name,
        name_before=other,
        same=_same(before, after),
        settings=tuple(machines.settings(before, after)),
        status_before=before.status,
        status=after.status,
        size_bytes_before=before.artifact.size_bytes if before.artifact else None,
        size_bytes=after.artifact.size_bytes if after.artifact else None,
        latency=tuple(latency),
        accuracy=_accuracy(before.accuracy, after.accuracy),
    )


def _speed(old: Latency, new: Latency, name: str) -> SpeedChange:
    before: Estimate | None = getattr(old, name)
    after: Estimate | None = getattr(new, name)
    if before is None or after is None or before.value <= 0 or after.value <= 0:
        return SpeedChange(before=before, after=after)
    if not (old.fit and new.fit):
        return SpeedChange(before=before, after=after)
    change = ratio(before, after)
    return SpeedChange(before=before, after=after, ratio=change, outcome=_outcome(change, 1.0))


def _outcome(ratio: Estimate, drift: float) -> Speed:
    if ratio.low is None or ratio.high is None:
        return "not known"
    if ratio.high < 1 / drift:
        return "faster"
    return "slower" if ratio.low > drift else "no clear change"


def _accuracy(before: Accuracy | None, after: Accuracy | None) -> AccuracyChange | None:
    if before is None or after is None or before.value is None or after.value is None:
        return None
    if before.metric is None or after.metric is None:
        return None
    change = AccuracyChange(
        metric=after.metric,
        before=before.value,
        after=after.value,
        reason=_apart(before, after),
        outcome="not comparable",
    )
    if change.reason:
        return change
    difference = Estimate(value=after.value - before.value)
    # A metric that calls each sample right or wrong: its values are proportions.
    if None not in (before.regressed, after.regressed) and before.samples and after.samples:
        difference = share_difference(before.value, before.samples, after.value, after.samples)
    outcome = _rightness(difference, lower_is_better=after.better == "lower")
    return change.model_copy(update={"difference": difference, "outcome": outcome})


def _apart(before: Accuracy, after: Accuracy) -> str:
    """Why two accuracies cannot be subtracted; empty where they can."""
    if before.metric != after.metric:
        return f"the metric was {before.metric} and is {after.metric}"
    if before.samples != after.samples:
        return f"judged on {before.samples} samples and on {after.samples}"
    return "" if before.evaluated_on == after.evaluated_on else "judged on other samples"


def _rightness(difference: Estimate, *, lower_is_better: bool) -> Rightness:
    if abs(difference.value) < 1e-12:
        return "unchanged"
    if difference.low is None or difference.high is None:
        return "not known"
    if difference.low <= 0 <= difference.high:
        return "no clear change"
    return "better" if (difference.value > 0) != lower_is_better else "worse"


def _drift(variants: Sequence[VariantChange], percentile: str) -> dict[int, float]:
    """By batch size: the largest certain change of an unchanged artifact, as a ratio of at least 1."""
    drifts: dict[int, float] = {}
    for variant in variants:
        for row in variant.latency if variant.same else ():
            ratio = getattr(row, percentile).ratio
            if ratio is not None and row.region == "host":
                certain = _outcome(ratio, 1.0) in ("faster", "slower")
                moved = math.exp(abs(math.log(ratio.value))) if certain else 1.0
                drifts[row.batch_size] = max(drifts.get(row.batch_size, 1.0), moved)
    return drifts


def _judged(variant: VariantChange, drifts: Mapping[str, Mapping[int, float]]) -> VariantChange:
    """Outcomes again, now that it is known how far the runs lie apart by themselves."""

    def judged(change: SpeedChange, name: str, size: int) -> SpeedChange:
        if change.ratio is None:
            return change
        drift = drifts.get(name, {}).get(size, 1.0)
        outcome = "same artifact" if variant.same else _outcome(change.ratio, drift)
        return change.model_copy(update={"outcome": outcome})

    rows = (
        row.model_copy(
            update={name: judged(getattr(row, name), name, row.batch_size) for name in _PERCENTILES}
        )
        for row in variant.latency
    )
    return variant.model_copy(update={"latency": tuple(rows)})


def _notes(
    old: Report,
    new: Report,
    variants: Sequence[VariantChange],
    drifts: Mapping[str, Mapping[int, float]],
) -> Iterator[str]:
    for each in variants:
        if each.name != each.name_before:
            yield f"{each.name} was called {each.name_before}: the same artifact in the same runner."
    still = wording.listed([each.name for each in variants if each.same])
    moved = [
        f"{100 * (most - 1):.0f} % at {name}, batch size {size}"
        for name, drift in drifts.items()
        for size, most in drift.items()
        if most > 1
    ]
    if moved:
        yield (
            f"The times of unchanged artifacts ({still}) moved by up to {wording.listed(moved)}. The"
            " machine caused that, so smaller changes of others are not clear."
        )
    elif still and machines.versions(old, new):
        yield (
            f"{still}: the same files in other versions of libraries. Two separate runs cannot tell"
            " whether a library or the machine changed their times: `optcli gate` measures both now."
        )
    disturbed = [
        each.name
        for each in variants
        # There are times on both sides and no ratio of them.
        if any(row.p50.before and row.p50.after and row.p50.ratio is None for row in each.latency)
    ]
    if disturbed:
        yield (
            f"There is no change of latency for {wording.listed(disturbed)}: on one side other work"
            " disturbed the times."
        )
    for each in variants:
        if each.accuracy is not None and each.accuracy.reason:
            yield f"{each.name}: the accuracies are not comparable: {each.accuracy.reason}."
    if any(int(each.protocol.get("launches") or 1) == 1 for each in (old, new)):
        yield (
            "One launch cannot show how much launches differ, so the intervals are too narrow."
            " latency.mode: table measures the difference."
        )
    if old.recipe.name != new.recipe.name:
        yield f"The reports are of two recipes, {old.recipe.name} and {new.recipe.name}."


def ratio(before: Estimate, after: Estimate) -> Estimate:
    """After over before, of two positive values: MOVER for the difference of their logarithms.

    No interval where one of the two has none.
    """
    value = after.value / before.value
    first, second = _logarithms(before), _logarithms(after)
    if first is None or second is None:
        return Estimate(value=value)
    low, high = _mover(second, first)
    return Estimate(value=value, low=math.exp(low), high=math.exp(high))


def share_difference(before: float, count_before: int, after: float, count_after: int) -> Estimate:
    """After minus before, of two shares: Newcombe's hybrid score interval.

    MOVER of Wilson's intervals (R. G. Newcombe, Statistics in Medicine 17 (1998) 873-890, method 10).
    It takes the samples as drawn anew; where both runs used the same ones it is too wide, never too
    narrow in practice.
    """
    first = (before, *_wilson(before, count_before))
    second = (after, *_wilson(after, count_after))
    low, high = _mover(second, first)
    return Estimate(value=after - before, low=low, high=high)


def _mover(one: tuple[float, float, float], other: tuple[float, float, float]) -> tuple[float, float]:
    """The interval of one minus other, each as (value, low, high)."""
    value = one[0] - other[0]
    low = value - math.hypot(one[0] - one[1], other[2] - other[0])
    high = value + math.hypot(one[2] - one[0], other[0] - other[1])
    return low, high


def _logarithms(estimate: Estimate) -> tuple[float, float, float] | None:
    if estimate.low is None or estimate.high is None or estimate.low <= 0:
        return None
    return math.log(estimate.value), math.log(estimate.low), math.log(estimate.high)


def _wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's score interval of a proportion."""
    square = _Z * _Z / count
    middle = (share + square / 2) / (1 + square)
    reach = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return middle - reach, middle + reach
