"""Why a step runs again: which ingredient differs from those of the nearest result in the store.

`explain` answers with names and values, such as `options.preset: mixed -> performance`. Where the
differing ingredient is the key of another result, the parent's for one, it goes on to that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from optcli.store.entry import Entry, key_of

if TYPE_CHECKING:
    from optcli.store import Store

Ingredients = dict[str, Any]

# Of another step altogether: further away than any number of differing ingredients.
_ANOTHER_STEP = 10_000
_DIGEST = re.compile(r"[0-9a-f]{32,64}")


class _Absent:
    """Stands for an ingredient that one side does not have."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()


@dataclass(frozen=True)
class IngredientDifference:
    """One ingredient that differs; `why` goes on where its values are keys of results themselves."""

    name: str
    old: Any
    new: Any
    why: Why | None = None

    def __str__(self) -> str:
        return f"{self.name}: {shown(self.old)} -> {shown(self.new)}"


@dataclass(frozen=True)
class Why:
    """What became of one step: `present` in the store, `changed` against `nearest`, or `new`."""

    step: str
    key: str
    state: Literal["present", "changed", "new"]
    nearest: Entry | None = None
    differences: tuple[IngredientDifference, ...] = ()

    def lines(self, indent: str = "") -> Iterator[str]:
        """The explanation for people to read, without a line's end."""
        if self.state == "present":
            yield f"{indent}{self.step} {self.key[:8]} is in the store"
        elif self.nearest is None:
            yield f"{indent}{self.step} {self.key[:8]} is new: the store has no result of this step"
        else:
            yield f"{indent}{self.step} {self.key[:8]} differs from {self.nearest.key[:8]} in"
            for difference in self.differences:
                yield f"{indent}  {difference}"
                if difference.why is not None:
                    yield from difference.why.lines(indent + "    ")


def explain(
    ingredients: Ingredients,
    store: Store,
    kind: str = "artifact",
    wanted: Mapping[str, Ingredients] | None = None,
    others: Iterable[Entry] = (),
) -> Why:
    """Why the step that these ingredients make is, or is not, in the store.

    `others` are entries of a remote store, which are compared with as well.
    `wanted` maps keys to ingredients of steps that are planned and perhaps not made yet, so that a
    difference can be followed into them. `ingredients["step"]` names the step.
    """
    # As the store has them: no tuples.
    plain, planned = json.loads(json.dumps([ingredients, dict(wanted or {})]))
    return _Explanation([*store.entries(), *others], planned).of(plain, kind)


class _Explanation:
    """One answer. It reads every entry once."""

    def __init__(self, entries: Sequence[Entry], wanted: Mapping[str, Ingredients]) -> None:
        self._all = entries
        self._entries = {entry.key: entry for entry in self._all}
        self._wanted = wanted
        self._distances: dict[tuple[str, str], int] = {}

    def of(self, new: Ingredients, kind: str | None = None) -> Why:
        """The explanation of one step, compared with entries of one kind or of all."""
        key, step = key_of(new), str(new.get("step", ""))
        same_kind = [entry for entry in self._all if kind in (None, entry.kind)]
        present = next((entry for entry in same_kind if entry.key == key), None)
        if present is not None:
            return Why(step, key, "present", present)
        candidates = [entry for entry in same_kind if str(entry.ingredients.get("step", "")) == step]
        if not candidates:
            return Why(step, key, "new")
        nearest = min(
            candidates, key=lambda entry: (self._distance(entry.ingredients, new), -entry.last_used())
        )
        return self._between(nearest, new)

    def _between(self, old: Entry, new: Ingredients) -> Why:
        step = str(new.get("step", ""))
        if old.ingredients.get("step", "") != new.get("step", ""):
            differences: tuple[IngredientDifference, ...] = (
                IngredientDifference("step", old.ingredients.get("step"), step),
            )
        else:
            differences = tuple(
                IngredientDifference(name, before, after, self._follow(before, after))
                for name, before, after in differing(old.ingredients, new)
            )
        return Why(step, key_of(new), "changed", old, differences)

    def _follow(self, before: Any, after: Any) -> Why | None:
        """The explanation behind two keys; None where they are not keys of known results."""
        new = self._known(after)
        if new is None:
            return None
        old = self._entries.get(before) if isinstance(before, str) else None
        if old is not None:
            return self._between(old, new)
        # What it was made from is no longer in the store: the nearest that is there must do.
        nearest = self.of(new)
        return None if nearest.state == "new" else nearest

    def _known(self, key: Any) -> Ingredients | None:
        if not isinstance(key, str):
            return None
        if key in self._wanted:
            return self._wanted[key]
        return self._entries[key].ingredients if key in self._entries else None

    def _distance(self, old: Ingredients, new: Ingredients) -> int:
        """How many ingredients differ, those of differing parents included."""
        pair = (key_of(old), key_of(new))
        if pair not in self._distances:
            self._distances[pair] = self._count(old, new)
        return self._distances[pair]

    def _count(self, old: Ingredients, new: Ingredients) -> int:
        if old.get("step", "") != new.get("step", ""):
            return _ANOTHER_STEP
        count = 0
        for _, before, after in differing(old, new):
            parents = self._known(before), self._known(after)
            if parents[0] is not None and parents[1] is not None:
                count += self._distance(parents[0], parents[1])
            else:
                count += 1
        return count


def differing(old: Ingredients, new: Ingredients) -> Iterator[tuple[str, Any, Any]]:
    """Every ingredient that differs: its dotted name, its value before and after (or `ABSENT`)."""
    before, after = dict(_flat(old)), dict(_flat(new))
    for name in (*after, *(name for name in before if name not in after)):
        pair = before.get(name, ABSENT), after.get(name, ABSENT)
        # 1, 1.0 and True are equal in Python, yet they make different keys.
        if pair[0] != pair[1] or type(pair[0]) is not type(pair[1]):
            yield name, *pair


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Nested data as dotted names; a list of plain values stays whole, for it reads better so."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(
        isinstance(item, dict | list | tuple) for item in value
    ):
        for index, item in enumerate(value):
            yield from _flat(item, f"{name}.{index}")
    else:
        yield name, value


def shown(value: Any) -> str:
    """A value as people read it: digests shortened."""
    if isinstance(value, str):
        return f"{value[:8]}…" if _DIGEST.fullmatch(value) else value
    return repr(value)
