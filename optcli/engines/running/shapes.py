"""Which optimization profile takes which shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optcli.engines import EngineError
from optcli.engines.bindings import dimensions

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Range:
    """What one profile takes of one input, dimension by dimension."""

    min: Shape
    opt: Shape
    max: Shape

    def holds(self, shape: Shape) -> bool:
        """Whether a shape lies within."""
        return len(shape) == len(self.min) and all(
            low <= size <= high for low, size, high in zip(self.min, shape, self.max, strict=True)
        )

    def __str__(self) -> str:
        if self.min == self.max:
            return str(list(self.min))
        return f"{list(self.min)} to {list(self.max)}"


Profile = Mapping[str, Range]


def profiles_of(engine: Any, inputs: Sequence[str]) -> tuple[Profile, ...]:
    """The ranges of every input, by optimization profile."""
    profiles = []
    for index in range(max(1, int(engine.num_optimization_profiles))):
        profile = {}
        for name in inputs:
            shape = engine.get_tensor_shape(name)
            varies = -1 in (dimensions(shape) or ())
            shapes = engine.get_tensor_profile_shape(name, index) if varies else [shape] * 3
            profile[name] = Range(*(tuple(dimensions(each) or ()) for each in shapes))
        profiles.append(profile)
    return tuple(profiles)


def choose(profiles: Sequence[Profile], shapes: Mapping[str, Shape], wanted: int | None = None) -> int:
    """The profile for these shapes: the one `wanted`, else the one whose best shapes are nearest.

    Raises `EngineError` that names the shapes and what the profiles take.
    """
    if wanted is not None and wanted >= len(profiles):
        raise EngineError(
            f"there is no optimization profile {wanted}: the engine has {len(profiles)}",
            hint="leave `profile` out: it is chosen by the shapes",
        )
    able = [wanted] if wanted is not None else range(len(profiles))
    fitting = [
        index
        for index in able
        if all(profiles[index][name].holds(shape) for name, shape in shapes.items())
    ]
    if not fitting:
        raise _outside(profiles, shapes, able)
    return min(fitting, key=lambda index: _distance(profiles[index], shapes))


def _distance(profile: Profile, shapes: Mapping[str, Shape]) -> float:
    """How far these shapes are from those that the profile was tuned for, in powers of e."""
    return sum(
        abs(math.log(max(1, size) / max(1, best)))
        for name, shape in shapes.items()
        for size, best in zip(shape, profile[name].opt, strict=True)
    )


def _outside(
    profiles: Sequence[Profile], shapes: Mapping[str, Shape], able: Sequence[int]
) -> EngineError:
    name = next(
        name for name in shapes if any(not profiles[index][name].holds(shapes[name]) for index in able)
    )
    takes = "; ".join(f"profile {index} takes {profiles[index][name]}" for index in able)
    return EngineError(
        f"the input {name!r} has shape {list(shapes[name])}, and no optimization profile holds that:"
        f" {takes}",
        hint="widen the range under the recipe's `inputs`, and build again",
    )
