"""The settings of one build, its optimization profiles among them, checked before TensorRT starts.

A profile is plain data: by input, the shapes `min`, `opt` and `max`. TensorRT chooses kernels for `opt`
and runs nothing outside `min` to `max`. An engine can have several, each with kernels of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optcli.models.engines import EngineError

# By input: {"min": [...], "opt": [...], "max": [...]}.
Profile = dict[str, dict[str, list[int]]]

_BOUNDS = ("min", "opt", "max")


def profile_of_inputs(
    inputs: Sequence[Mapping[str, Any]], ranges: Mapping[str, Mapping[str, int]]
) -> Profile:
    """One profile for inputs whose shapes hold sizes and symbols, with a range for each symbol.

    `inputs` are `{"name", "shape"}`. Raises `EngineError` for a symbol without a range.
    """
    profile: Profile = {}
    for spec in inputs:
        for size in spec["shape"]:
            if isinstance(size, str) and size not in ranges:
                raise EngineError(
                    f"the input {spec['name']} has a size {size!r} without a range",
                    hint=f"give it one: `{size}: {{min: 1, opt: 8, max: 32}}`",
                )
        profile[spec["name"]] = {
            bound: [ranges[size][bound] if isinstance(size, str) else size for size in spec["shape"]]
            for bound in _BOUNDS
        }
    return profile


def profile_of_shapes(seen: Mapping[str, Iterable[Sequence[int]]]) -> Profile:
    """One profile that holds all shapes seen of each input; `opt` is the median of each size."""
    profile: Profile = {}
    for name, shapes in seen.items():
        columns = [sorted(sizes) for sizes in zip(*shapes)]  # noqa: B905 (Python 3.10 has it, ranks agree)
        profile[name] = {
            "min": [sizes[0] for sizes in columns],
            "opt": [sizes[len(sizes) // 2] for sizes in columns],
            "max": [sizes[-1] for sizes in columns],
        }
    return profile


def check_profiles(
    profiles: Sequence[Profile], inputs: Sequence[Mapping[str, Any]], batch_sizes: Sequence[int] = ()
) -> None:
    """See that profiles fit a network, before a build that takes minutes finds out.

    `inputs` are the network's: `{"name", "shape"}`, a size that varies is -1 or None. Every one of
    `batch_sizes` must lie in a profile. Raises `EngineError` with input, dimension and both sides.
    """
    shapes = {each["name"]: each["shape"] for each in inputs}
    dynamic = {name for name, shape in shapes.items() if any(_varies(size) for size in shape)}
    if dynamic and not profiles:
        raise EngineError(
            f"sizes of {_names(dynamic)} vary, and there is no optimization profile",
            hint="give every symbol of the inputs a range in the recipe",
        )
    for number, profile in enumerate(profiles):
        unknown = set(profile) - set(shapes)
        if unknown:
            raise EngineError(
                f"profile {number} names {_names(unknown)}, and the model has {_names(shapes)}",
                hint="name inputs as the model does",
            )
        missing = dynamic - set(profile)
        if missing:
            raise EngineError(
                f"profile {number} says nothing of {_names(missing)}, whose sizes vary",
                hint="give every input that varies a min, opt and max",
            )
        for name, bounds in profile.items():
            _check_one(f"profile {number}, input {name}", bounds, shapes[name])
    _check_batches(profiles, shapes, dynamic, batch_sizes)


def _check_one(where: str, bounds: Mapping[str, Sequence[int]], shape: Sequence[Any]) -> None:
    for bound in _BOUNDS:
        if len(bounds[bound]) != len(shape):
            raise EngineError(
                f"{where}: {bound} has {len(bounds[bound])} dimensions, and the model {len(shape)}",
                hint="write one size for each dimension of the input",
            )
    for axis, size in enumerate(shape):
        low, usual, high = (bounds[bound][axis] for bound in _BOUNDS)
        if not 0 <= low <= usual <= high:
            raise EngineError(
                f"{where}, dimension {axis}: wanted min <= opt <= max, "
                f"found min {low}, opt {usual}, max {high}",
                hint="put the sizes in order",
            )
        if not _varies(size) and not low == usual == high == size:
            raise EngineError(
                f"{where}, dimension {axis}: the model fixes it to {size}, and the profile says "
                f"{low} to {high}",
                hint="use the model's own size, or export the model with that size dynamic",
            )


def _check_batches(
    profiles: Sequence[Profile],
    shapes: Mapping[str, Sequence[Any]],
    dynamic: set[str],
    batch_sizes: Sequence[int],
) -> None:
    batched = [name for name in shapes if name in dynamic and _varies(shapes[name][0])]
    if not batched:
        return
    name = batched[0]
    ranges = [(profile[name]["min"][0], profile[name]["max"][0]) for profile in profiles]
    for size in batch_sizes:
        if not any(low <= size <= high for low, high in ranges):
            text = ", ".join(f"{low} to {high}" for low, high in ranges)
            raise EngineError(
                f"the batch size {size} of the recipe lies in no optimization profile ({name}: {text})",
                hint="widen the range of the batch, or leave that batch size out",
            )


def is_dynamic(shape: Sequence[Any]) -> bool:
    """Whether a size of a network's input varies."""
    return any(_varies(size) for size in shape)


def _varies(size: Any) -> bool:
    return not isinstance(size, int) or size < 0


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


@dataclass(frozen=True)
class EngineJob:
    """What to build.

    `flags` are builder flags by name, to be set or cleared; one that the version lacks must be false.
    `kept` are layers that stay in FP32 under weak typing. `pools` are bytes by memory pool.
    `timing_cache` is a file that is read where it is there and written anew. `targets` are the compute
    capabilities of TensorRT-RTX. `hardware` is `none`, `ampere_plus` or `same_compute_capability`.
    """

    product: str
    onnx: str
    plan: str
    profiles: Sequence[Profile] = ()
    batch_sizes: Sequence[int] = ()
    strongly_typed: bool = True
    flags: Mapping[str, bool] = field(default_factory=dict)
    kept: Sequence[str] = ()
    pools: Mapping[str, int] = field(default_factory=dict)
    optimization_level: int | None = None
    aux_streams: int | None = None
    timing_cache: str | None = None
    hardware: str = "none"
    verbosity: str = "DETAILED"
    targets: Sequence[str] = ()
