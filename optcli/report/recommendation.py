"""Which artifact to serve at each batch size, and why, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from optcli.report import wording
from optcli.report.changes import comparing
from optcli.results import (
    Accuracy,
    Estimate,
    Latency,
    Recommendation,
    Result,
    VariantReport,
    Verdict,
)

_SAME_SIZE = 0.05
AGAIN = "measure again when the machine is quiet"
# How many times as fast the first variant is as the second at a batch size; None: took no turns.
Ratio = Callable[[str, str, int], Estimate | None]


class Advice(Result):
    """What to serve: by batch size, at the first of them, and all of it in words."""

    recommended: str | None
    sentence: str
    by_batch: dict[int, Recommendation]


@dataclass(frozen=True)
class _Choice:
    """A variant that was measured at a batch size; no speed-up where one side was not fit."""

    name: str
    variant: VariantReport
    latency: Latency
    speedup: Estimate | None

    @property
    def size_bytes(self) -> int:
        return self.variant.artifact.size_bytes if self.variant.artifact else 0

    @property
    def drop(self) -> float:
        accuracy = self.variant.accuracy
        return accuracy.drop.value if accuracy and accuracy.drop else 0.0

    @property
    def times(self) -> float:
        return self.speedup.value if self.speedup is not None else 0.0

    @property
    def is_faster(self) -> bool:
        """For certain."""
        return self.speedup is not None and (self.speedup.low or 0) > 1


def recommend(
    variants: Mapping[str, VariantReport],
    baseline: str,
    ratio: Ratio,
    *,
    first_only: bool = False,
) -> Advice:
    """The variant to serve at each batch size, and sentences that say why.

    Of the variants that all blocking verdicts accept and whose speed-up interval lies above 1, those
    that no other is surely faster than, by `ratio`: of them the smallest file, of about equal sizes
    (5 %) the most accurate. None where nothing beats the baseline, where it was not measured, or where
    the machine was not quiet enough to tell. With `first_only` the smallest batch size alone is asked
    about: that of a service level.
    """
    sizes = sorted({row.batch_size for variant in variants.values() for row in variant.on_host})
    sizes = sizes[:1] if first_only else sizes
    reason = _no_baseline(variants, baseline)
    if reason is not None or not sizes:
        sentence = reason or _nothing_measured(baseline)
        return Advice(recommended=None, sentence=sentence, by_batch={})
    by_size = {size: _at(variants, baseline, size, ratio) for size in sizes}
    return Advice(
        recommended=by_size[sizes[0]].variant,
        sentence=" ".join([by_size[sizes[0]].sentence, *_further(by_size, variants, baseline)]),
        by_batch=by_size,
    )


def objections(variant: VariantReport) -> list[Verdict]:
    """What keeps a variant from being recommended; advice on speed does not."""
    return [
        each
        for each in variant.verdicts
        if each.outcome != "accept" and (each.blocking or each.name == "outputs")
    ]


def _no_baseline(variants: Mapping[str, VariantReport], baseline: str) -> str | None:
    """Why there is nothing to compare with; None where there is."""
    base = variants.get(baseline)
    if base is None or base.status in ("skipped", "failed"):
        what = (
            "is not there" if base is None else "failed" if base.status == "failed" else "was skipped"
        )
        return f"Nothing can be recommended: the baseline {baseline} {what}."
    if len(variants) == 1:
        return f"There is only the baseline {baseline}: nothing to choose from."
    if not base.on_host:
        return f"Nothing can be recommended: the baseline {baseline} has no latency."
    if against := objections(base):
        objection = f"{against[0].name}: {against[0].reason}"
        return (
            f"Nothing can be recommended: the baseline {baseline} is not accepted itself ({objection})."
        )
    return None


def _nothing_measured(baseline: str) -> str:
    return f"Nothing can be recommended: no variant was measured beside {baseline}."


def _at(
    variants: Mapping[str, VariantReport], baseline: str, size: int, ratio: Ratio
) -> Recommendation:
    """What to serve at one batch size."""
    base = _row(variants[baseline], size)
    measured = _measured(variants, baseline, size, base) if base is not None else []
    if base is None or not measured:
        return Recommendation(variant=None, sentence=_nothing_measured(baseline))
    allowed = [choice for choice in measured if not objections(choice.variant)]
    faster = [choice for choice in allowed if choice.is_faster]
    compared = [choice for choice in allowed if choice.speedup is not None]
    if allowed and not compared:
        best = min(allowed, key=lambda choice: choice.latency.p50_ms.value)
        sentence = f"{best.name} is the fastest here; by how much cannot be told now: {AGAIN}."
        if best.latency.p50_ms.value >= base.p50_ms.value:
            sentence = f"Whether anything beats {baseline} cannot be told now: {AGAIN}."
        sentence = f"{_made(allowed, baseline)} {sentence}"
        return Recommendation(variant=None, sentence=sentence, withheld=True)
    if not faster:
        sentence = _nothing(measured, allowed, baseline) + _not_told(allowed, None)
        return Recommendation(variant=None, sentence=sentence)
    equals = [choice for choice in faster if not any(_beats(other, choice, ratio) for other in faster)]
    equals = equals or [max(faster, key=lambda choice: choice.times)]
    fastest = max(equals, key=lambda choice: choice.times)
    smallest = min(choice.size_bytes for choice in equals)
    small = [choice for choice in equals if choice.size_bytes <= smallest * (1 + _SAME_SIZE)]
    best = min(small, key=lambda choice: (choice.drop, -choice.times))
    others = [choice.name for choice in equals if choice is not best]
    sentence = _praise(best, others, fastest, variants, baseline) + _not_told(allowed, best)
    return Recommendation(variant=best.name, sentence=sentence)


def _made(allowed: Sequence[_Choice], baseline: str) -> str:
    """What was done, whatever the times say."""
    names, one = wording.listed([choice.name for choice in allowed]), len(allowed) == 1
    judged = [choice.variant.accuracy for choice in allowed]
    if None in judged:
        return f"{names} {'is' if one else 'are'} built."
    if any(each is not None and each.metric is None for each in judged):
        return f"{names} {'is' if one else 'are'} built and compared with {baseline}'s outputs."
    return (
        f"{names} {'is' if one else 'are'} built, and {'its' if one else 'their'} accuracy is accepted."
    )


def _beats(one: _Choice, other: _Choice, ratio: Ratio) -> bool:
    """Whether one is faster than the other for certain: in turns, else by each group's baseline."""
    direct = ratio(one.name, other.name, one.latency.batch_size)
    if direct is None and one.speedup is not None and other.speedup is not None:
        direct = comparing.ratio(other.speedup, one.speedup)
    return direct is not None and (direct.low or 0) > 1


def _row(variant: VariantReport, size: int) -> Latency | None:
    return next((row for row in variant.on_host if row.batch_size == size), None)


def _measured(
    variants: Mapping[str, VariantReport], baseline: str, size: int, base: Latency
) -> list[_Choice]:
    """Variants with latency at a batch size; the baseline is not among them."""
    choices = []
    for name, variant in variants.items():
        row = _row(variant, size)
        if variant.status in ("built", "cached") and name != baseline and row is not None:
            is_fit = row.fit and base.fit
            choices.append(_Choice(name, variant, row, row.speedup if is_fit else None))
    return choices


def _further(
    by_size: Mapping[int, Recommendation], variants: Mapping[str, VariantReport], baseline: str
) -> list[str]:
    """One sentence for each batch size after the first: the same, another, or nothing."""
    first, *rest = by_size
    sentences = []
    for size in rest:
        name = by_size[size].variant
        row = _row(variants[name], size) if name is not None else None
        if name is None or row is None or row.speedup is None:
            either = " either" if by_size[first].variant is None else ""
            why = f"nothing is recommended{either}"
            why = f"it cannot be told now{either}" if by_size[size].withheld else why
            sentences.append(f"At batch size {size} {why}.")
            continue
        figures = f"{_as_fast(row.speedup)} as {baseline}"
        if name == by_size[first].variant:
            sentences.append(f"At batch size {size} too: {figures}.")
        else:
            instead = " instead" if by_size[first].variant is not None else ""
            sentences.append(f"At batch size {size} serve {name}{instead}: {figures}.")
    return sentences


def _not_told(allowed: Sequence[_Choice], best: _Choice | None) -> str:
    """A sentence on the allowed variants without a speed-up, which may be faster than `best`."""
    names = [
        choice.name
        for choice in allowed
        if choice.speedup is None
        and (best is None or choice.latency.p50_ms.value < best.latency.p50_ms.value)
    ]
    if not names:
        return ""
    return f" {wording.listed(names)} could not be compared and may be faster: {AGAIN}."


def _praise(
    best: _Choice,
    others: list[str],
    fastest: _Choice,
    variants: Mapping[str, VariantReport],
    baseline: str,
) -> str:
    row = best.latency
    assert best.speedup is not None
    sentence = (
        f"Serve {best.name}: {_as_fast(best.speedup)} as {baseline} at batch size {row.batch_size}"
        f" (p50 {wording.number(row.p50_ms.value)} ms)"
    )
    float_one = row.over_fp32
    if float_one is not None and float_one.variant not in (best.name, baseline):
        times = wording.number(float_one.speedup.value)
        sentence += f", {times} times as fast as {float_one.variant}, the fastest in fp32"
    base = variants[baseline].artifact if baseline in variants else None
    if base is not None and base.size_bytes and best.size_bytes:
        sentence += f", {100 * best.size_bytes / base.size_bytes:.0f} % of {baseline}'s size"
    sentence += _right(best.variant.accuracy, baseline) + "."
    if others:
        verb = "is" if len(others) == 1 else "are"
        reason = "" if best is fastest else " and larger or less accurate"
        sentence += f" {wording.listed(others)} {verb} as fast within the intervals{reason}."
    return sentence


def _right(accuracy: Accuracy | None, baseline: str) -> str:
    if accuracy is None:
        return ", outputs not compared"
    if accuracy.value is None or accuracy.metric is None or accuracy.drop is None:
        error = wording.difference(accuracy.output_error)
        word = "to" if error == "equal" else "from"
        return f", outputs {error} {word} {baseline}'s, accuracy not known"
    points = 100 * accuracy.drop.value
    moved = f"{abs(points):.2f} points {'lower' if points > 0 else 'higher'}"
    moved = "unchanged" if abs(points) < 0.005 else moved
    metric = accuracy.metric.replace("top", "top-")
    return f", {metric} {wording.percent(accuracy.value)} ({moved})"


def _nothing(measured: Sequence[_Choice], allowed: Sequence[_Choice], baseline: str) -> str:
    """Why there is nothing to recommend: nothing allowed, or nothing faster."""
    compared = [choice for choice in allowed if choice.speedup is not None]
    if compared:
        best = max(compared, key=lambda choice: choice.times)
        assert best.speedup is not None
        sentence = f"Nothing beats {baseline} for certain: the fastest that is accepted, {best.name},"
        sentence += f" is {_as_fast(best.speedup)}."
    else:
        sentence = f"Nothing can be recommended instead of {baseline}."
    refused = [choice for choice in measured if choice not in allowed]
    faster = [choice for choice in refused if choice.is_faster]
    if faster:
        best = max(faster, key=lambda choice: choice.times)
        assert best.speedup is not None
        against = objections(best.variant)[0]
        sentence += f" {best.name} is {_as_fast(best.speedup)}, but {against.name}: {against.reason}."
    elif not allowed and refused:
        best = min(refused, key=lambda choice: choice.latency.p50_ms.value)
        against = objections(best.variant)[0]
        sentence += f" {best.name}: {against.name}: {against.reason}."
    return sentence


def _as_fast(speedup: Estimate) -> str:
    span = wording.interval(speedup)
    return f"{wording.number(speedup.value)} times{' ' + span if span else ''} as fast"
