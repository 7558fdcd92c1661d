"""Which artifact to serve, and why, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optcli.report import wording
from optcli.results import Accuracy, Estimate, Latency, VariantReport, Verdict

_SAME_SIZE = 0.05


@dataclass(frozen=True)
class _Choice:
    name: str
    variant: VariantReport
    latency: Latency
    speedup: Estimate

    @property
    def size_bytes(self) -> int:
        return self.variant.artifact.size_bytes if self.variant.artifact else 0

    @property
    def drop(self) -> float:
        accuracy = self.variant.accuracy
        return accuracy.drop.value if accuracy and accuracy.drop else 0.0


def recommend(variants: Mapping[str, VariantReport], baseline: str) -> tuple[str | None, str]:
    """The variant to serve and a sentence that says why; None where nothing beats the baseline.

    Of the variants that all blocking verdicts accept and whose speed-up interval at the first batch
    size lies above 1, the fastest. Those whose intervals reach into the fastest one's, of the speed-up
    and of p50 (which the baseline's noise does not widen), are as fast as can be told: of them the
    smallest file, of about equal sizes (5 %) the most accurate.
    """
    measured = _measured(variants, baseline)
    allowed = [choice for choice in measured if _accepted(choice.variant)]
    faster = [choice for choice in allowed if (choice.speedup.low or 0) > 1]
    if baseline in variants and variants[baseline].status == "failed":
        return None, f"Nothing can be recommended: the baseline {baseline} failed."
    if not faster:
        return None, _nothing(measured, allowed, variants, baseline)
    fastest = max(faster, key=lambda choice: choice.speedup.value)
    equals = [choice for choice in faster if choice is fastest or _equal(choice, fastest)]
    smallest = min(choice.size_bytes for choice in equals)
    small = [choice for choice in equals if choice.size_bytes <= smallest * (1 + _SAME_SIZE)]
    best = min(small, key=lambda choice: (choice.drop, -choice.speedup.value))
    others = [choice.name for choice in equals if choice is not best]
    return best.name, _praise(best, others, fastest, variants, baseline)


def _equal(choice: _Choice, fastest: _Choice) -> bool:
    """Whether nobody can tell which of the two is faster."""
    if (choice.speedup.high or 0) < (fastest.speedup.low or 0):
        return False
    mine, best = choice.latency.p50_ms, fastest.latency.p50_ms
    return (mine.low or mine.value) <= (best.high or best.value)


def _measured(variants: Mapping[str, VariantReport], baseline: str) -> list[_Choice]:
    """Variants with a speed-up at the first batch size; the baseline is not among them."""
    sizes = [row.batch_size for variant in variants.values() for row in variant.on_host]
    found = []
    for name, variant in variants.items():
        row = next((each for each in variant.on_host if each.batch_size == min(sizes)), None)
        usable = variant.status in ("built", "cached") and name != baseline
        if usable and row is not None and row.speedup is not None:
            found.append(_Choice(name, variant, row, row.speedup))
    return found


def _accepted(variant: VariantReport) -> bool:
    return not _objections(variant)


def _objections(variant: VariantReport) -> list[Verdict]:
    """What keeps a variant from being recommended; advice on speed does not."""
    return [
        each
        for each in variant.verdicts
        if each.outcome != "accept" and (each.blocking or each.name == "outputs")
    ]


def _praise(
    best: _Choice,
    others: list[str],
    fastest: _Choice,
    variants: Mapping[str, VariantReport],
    baseline: str,
) -> str:
    row = best.latency
    sentence = (
        f"Serve {best.name}: {_as_fast(best.speedup)} as {baseline} at batch size {row.batch_size}"
        f" (p50 {wording.number(row.p50_ms.value)} ms)"
    )
    base = variants[baseline].artifact if baseline in variants else None
    if base is not None and base.size_bytes and best.size_bytes:
        sentence += f", {100 * best.size_bytes / base.size_bytes:.0f} % of its size"
    sentence += _right(best.variant.accuracy, baseline) + "."
    if others:
        verb = "is" if len(others) == 1 else "are"
        reason = "" if best is fastest else " and larger or less accurate"
        sentence += f" {wording.listed(others)} {verb} as fast within the intervals{reason}."
    if any(flag.startswith("environment not fit") for flag in row.flags):
        sentence += " The machine was too unsteady to rely on this: measure again when it is quiet."
    return sentence


def _right(accuracy: Accuracy | None, baseline: str) -> str:
    if accuracy is None:
        return ", outputs not compared"
    if accuracy.value is None or accuracy.metric is None or accuracy.drop is None:
        far = wording.difference(accuracy.output_error)
        return f", outputs {far}{' to' if far == 'equal' else ' from'} {baseline}'s, accuracy not known"
    points = 100 * accuracy.drop.value
    moved = f"{abs(points):.2f} points {'lower' if points > 0 else 'higher'}"
    moved = "unchanged" if abs(points) < 0.005 else moved
    metric = accuracy.metric.replace("top", "top-")
    return f", {metric} {wording.percent(accuracy.value)} ({moved})"


def _nothing(
    measured: list[_Choice],
    allowed: list[_Choice],
    variants: Mapping[str, VariantReport],
    baseline: str,
) -> str:
    """Why there is nothing to recommend: nothing measured, nothing allowed, or nothing faster."""
    if not measured:
        others = [name for name in variants if name != baseline]
        if not others:
            return f"There is only the baseline {baseline}: nothing to choose from."
        return f"Nothing can be recommended: no variant was measured beside {baseline}."
    if allowed:
        best = max(allowed, key=lambda choice: choice.speedup.value)
        sentence = f"Nothing beats {baseline} for certain: the fastest that is accepted, {best.name},"
        sentence += f" is {_as_fast(best.speedup)}."
    else:
        sentence = f"Nothing can be recommended instead of {baseline}."
    refused = [each for each in measured if each not in allowed and (each.speedup.low or 0) > 1]
    if refused:
        best = max(refused, key=lambda choice: choice.speedup.value)
        against = _objections(best.variant)[0]
        sentence += f" {best.name} is {_as_fast(best.speedup)}, but {against.name}: {against.reason}."
    return sentence


def _as_fast(speedup: Estimate) -> str:
    span = wording.interval(speedup)
    return f"{wording.number(speedup.value)} times{' ' + span if span else ''} as fast"
