"""What to try next, given what was tried: parts one by one, those that helped together, then more.

The order is that of a person with an hour: each suspicion by itself, since that says where the error
comes from; then the parts that helped, joined until the accuracy is there; where it is there but
slow, what else could make it faster; else the worst 1, 2, 4, ... layers on top of the best, and more
of the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from optcli.results.repair import Trial
from optcli.tuning.components import Component, beginnings, calibrations, groups, worst
from optcli.tuning.layers import NetworkOperator

Parts = tuple[Component, ...]


@dataclass
class Proposals:
    """Proposes trials of one quantizing pass. `ranking` names layers, the worst first.

    `singly` is how many trials may go to parts by themselves before they are joined.
    """

    quantizer: str
    options: dict[str, Any]
    layers: Sequence[NetworkOperator]
    ranking: Sequence[str] = ()
    singly: int = 9
    higher_is_better: bool = True
    _made: dict[int, Parts] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        names = {layer.name for layer in self.layers}
        self.ranking = [name for name in self.ranking if not names or name in names]

    def next(self, number: int, history: Sequence[Trial]) -> Parts | None:
        """The parts of the trial of this number, which nothing before equals; None at the end.

        `history` begins with trial 0, the variant as it was.
        """
        self._seen.add(self._effect(()))
        for parts in self._ideas(history):
            effect = self._effect(parts)
            if effect not in self._seen and not self._is_all(parts):
                self._seen.add(effect)
                self._made[number] = parts
                return parts
        return None

    def changed(self, parts: Parts) -> dict[str, Any]:
        """The options of the pass that these parts change, as they are written in a recipe."""
        changes: dict[str, Any] = {}
        for part in parts:
            changes.update(part.options)
        floats = frozenset[str]().union(*(part.floats for part in parts))
        others = {layer.name for layer in self.layers if not layer.multiplies}
        if self.quantizer == "quantize_onnxruntime" and floats >= others and others:
            kinds = {layer.kind for layer in self.layers if layer.multiplies}
            named = set(self.options.get("types") or kinds)
            changes["types"] = sorted(kinds & named)
            floats -= others
        if floats:
            already = list(self.options.get("ignored_names") or ())
            fresh = [x.name for x in self.layers if x.name in floats and x.name not in already]
            changes["ignored_names"] = [*already, *fresh]
        return {key: value for key, value in changes.items() if self.options.get(key) != value}

    def _effect(self, parts: Parts) -> str:
        """What tells two trials apart, however they are called."""
        return repr(sorted(self.changed(parts).items()))

    def _is_all(self, parts: Parts) -> bool:
        """Whether nothing that multiplies would be left to quantize."""
        floats = frozenset[str]().union(*(part.floats for part in parts))
        products = [layer.name for layer in self.layers if layer.multiplies]
        return bool(products) and floats.issuperset(products)

    def _ideas(self, history: Sequence[Trial]) -> Iterator[Parts]:
        singles = self._singles()
        inside = [each for each in history if each.inside and each.number in self._made]
        for each in sorted(inside, key=lambda trial: -_ratio(trial))[:1]:
            yield from self._faster(self._made[each.number])
        tried_singly = sum(len(parts) == 1 for parts in self._made.values())
        for part in singles if tried_singly < self.singly else ():
            yield (part,)
        helped = self._helped(history)
        for count in range(2, len(helped) + 1):
            yield _joined(helped[:count])
        best = self._best(history)
        more = [worst(self.ranking, count) for count in self._doubling()]
        for pair in zip_longest(more, beginnings(self.layers)):
            yield from (_joined((*best, part)) for part in pair if part is not None)
        for left, right in ((a, b) for i, a in enumerate(singles) for b in singles[i + 1 :]):
            yield _joined((left, right))
        yield from ((part,) for part in singles)

    def _singles(self) -> list[Component]:
        """Parts to try by themselves, calibrations among the groups so that both have a turn."""
        structural, ranges = groups(self.layers), calibrations(self.quantizer, self.options)
        some = [worst(self.ranking, count) for count in self._doubling()]
        first = [*structural[:3], *some[2:3], *ranges[:1], *structural[3:], *ranges[1:]]
        return [*first, *(part for part in some if part not in first)]

    def _doubling(self) -> list[int]:
        """1, 2, 4, ... as far as half of the ranking."""
        half = (len(self.ranking) + 1) // 2
        return [2**power for power in range(half.bit_length())]

    def _faster(self, parts: Parts) -> Iterator[Parts]:
        """From one that is right but slow: one part less, or further operators that INT8 slows down.

        Which these are depends on the runtime's kernels: depthwise convolutions and what only moves
        values often cost more in integers, with their conversions, than they save.
        """
        if len(parts) > 1:
            for part in parts:
                yield tuple(each for each in parts if each is not part)
        for part in (*beginnings(self.layers), *groups(self.layers)):
            yield _joined((*parts, part))

    def _helped(self, history: Sequence[Trial]) -> Parts:
        """Parts that made it better by themselves, the best first, without contradictions."""
        start = next((each.value for each in history if each.number == 0), None)
        gains = []
        for trial in history:
            parts = self._made.get(trial.number, ())
            if len(parts) == 1 and trial.value is not None and start is not None:
                gain = trial.value - start if self.higher_is_better else start - trial.value
                gains.append((gain, parts[0]))
        gains.sort(key=lambda each: -each[0])
        return _joined([part for gain, part in gains if gain > 0])

    def _best(self, history: Sequence[Trial]) -> Parts:
        sign = 1 if self.higher_is_better else -1
        judged = [x for x in history if x.value is not None and x.number in self._made]
        if not judged:
            return ()
        return self._made[max(judged, key=lambda trial: sign * (trial.value or 0.0)).number]


def _ratio(trial: Trial) -> float:
    return trial.speedup.value if trial.speedup is not None else 0.0


def _joined(parts: Sequence[Component]) -> Parts:
    """Parts together, without those that contradict one before them or add nothing to another."""
    joined: list[Component] = []
    options: dict[str, Any] = {}
    for part in parts:
        if all(options.get(key, value) == value for key, value in part.options.items()):
            options.update(part.options)
            joined.append(part)
    return tuple(part for part in joined if not any(_is_within(part, other) for other in joined))


def _is_within(part: Component, other: Component) -> bool:
    """Whether another part leaves all of it in float anyway, and more."""
    return not part.options and part.floats < other.floats
