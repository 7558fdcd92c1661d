"""Optimization profiles of an engine: from the recipe's inputs, the pass's own, or from data seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from optcli.errors import StepError, did_you_mean
from optcli.models.engines.job import Profile, profile_of_inputs, profile_of_shapes
from optcli.passes import Job
from optcli.settings import SymbolRange, TensorSpec, batch_range

Ranges = Mapping[str, SymbolRange]
Wish = Literal["inputs", "seen"] | tuple[dict[str, SymbolRange], ...]

# As many samples as tell which sizes there are.
_MOST_SAMPLES = 512


def profiles_of(wish: Wish, job: Job) -> list[Profile]:
    """The profiles of a job. Raises `StepError` for a symbol or size that the recipe does not have."""
    if wish == "inputs":
        return [_of_ranges(job.inputs, {})]
    if wish == "seen":
        return [_seen(job)]
    return [_of_ranges(job.inputs, ranges) for ranges in wish if not isinstance(ranges, str)]


def _of_ranges(inputs: Sequence[TensorSpec], ranges: Ranges) -> Profile:
    symbols = {symbol for spec in inputs for symbol in spec.symbols}
    for name in ranges:
        if name not in symbols:
            raise StepError(
                f"`profiles` names the size {name!r}, which no input has",
                hint=did_you_mean(name, sorted(symbols)),
            )
    profile: Profile = {}
    for spec in inputs:
        spans = {**spec.ranges, **{name: ranges[name] for name in spec.symbols if name in ranges}}
        for name in spec.symbols:
            _within(name, spans[name], spec)
        plain = {name: each.model_dump() for name, each in spans.items()}
        profile |= profile_of_inputs([{"name": spec.name, "shape": spec.shape}], plain)
    return profile


def _within(name: str, wish: SymbolRange, spec: TensorSpec) -> None:
    allowed = spec.ranges[name]
    if wish.min < allowed.min or wish.max > allowed.max:
        raise StepError(
            f"`profiles` lets {name} go from {wish.min} to {wish.max}, "
            f"and the input {spec.name} from {allowed.min} to {allowed.max}",
            hint="keep the profile within the range that `inputs` gives",
        )


def _seen(job: Job) -> Profile:
    """The batch sizes to be measured, and every other size as calibration samples have it."""
    batches = sorted(set(job.batch_sizes)) or [batch_range(job.inputs).opt]
    shapes: dict[str, list[tuple[int, ...]]] = {spec.name: [] for spec in job.inputs}
    for rest in _samples(job):
        for spec in job.inputs:
            if spec.whole:
                shapes[spec.name].append(rest[spec.name])
                continue
            sizes = batches if spec.batch_symbol is not None else [int(spec.shape[0])]
            shapes[spec.name] += [(size, *rest[spec.name]) for size in sizes]
    return profile_of_shapes(shapes)


def _samples(job: Job) -> list[dict[str, tuple[int, ...]]]:
    """Shapes without the batch, of samples over the whole set."""
    samples = job.calibration
    if samples is None or not len(samples):
        raise StepError(
            "`profiles: seen` takes sizes from calibration samples, and there are none",
            hint="name them under `data: calibration`, or leave `profiles` out",
        )
    count = min(_MOST_SAMPLES, len(samples))
    distinct: dict[tuple[tuple[int, ...], ...], dict[str, tuple[int, ...]]] = {}
    for number in range(count):
        sample = samples[number * len(samples) // count]
        shapes = {spec.name: tuple(sample.inputs[spec.name].shape) for spec in job.inputs}
        distinct.setdefault(tuple(shapes.values()), shapes)
    return list(distinct.values())
