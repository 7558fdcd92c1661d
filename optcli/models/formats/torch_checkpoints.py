"""The weights of a network in a checkpoint, as programs of training write them.

They lie in an entry of any name (`state_dict`, `net`, `ema.module`), under names with any prefix that a
wrapper gave them (`module.`, `_orig_mod.`, `model.` of Lightning). Which of the groups of tensors in a
file are the network's is told by their names and shapes. A key names a group: the entries that lead to
it, and the prefix of its names, joined by dots.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, did_you_mean, excerpt
from optcli.models.formats import torch_modules, torch_weights

if TYPE_CHECKING:
    import torch

    State = dict[str, torch.Tensor]

_DEEPEST = 5
# Words in the keys of averaged weights, by which most programs evaluate.
_AVERAGED = frozenset({"ema", "swa", "averaged", "shadow"})


@dataclass(frozen=True)
class Checkpoint:
    """The groups of tensors in a file, by key. `key` is what the recipe says, if it does."""

    path: Path
    groups: Mapping[str, State]
    key: str = ""

    def renamed(self, rename: Callable[[str], str]) -> Checkpoint:
        """The same with other names of tensors."""
        groups = {
            key: {rename(name): value for name, value in group.items()}
            for key, group in self.groups.items()
        }
        return replace(self, groups=groups)

    def load_into(self, model: torch.nn.Module, classes: str = "") -> str:
        """Load a network's weights; returns the key of the group that they are, "" for a bare file.

        `classes` is the argument that sets the number of classes, for a hint. Raises `InputError` where
        no group fits, or where several do and the recipe does not say which.
        """
        expected = torch_modules.state(model)
        fitting = dict(self._fitting(expected))
        if self.key and self.key in fitting:
            fitting = {self.key: fitting[self.key]}
        _drop_copies(fitting)
        if len(fitting) > 1:
            raise self._ambiguous("several sets of weights in the file fit the model", [*fitting])
        if not fitting:
            torch_weights.load_into(model, self._nearest(expected), str(self.path), classes)
        key, state = fitting.popitem()
        averaged = None if self.key else self._other_average(key, state)
        if averaged is not None:
            message = f"beside weights that fit the model the file holds averaged ones in {averaged!r}"
            raise self._ambiguous(message, [key])
        torch_weights.load_into(model, state, str(self.path), classes)
        return key

    def _ambiguous(self, message: str, keys: list[str]) -> InputError:
        chosen = next((key for key in keys if _is_averaged(key)), keys[0])
        listed = excerpt(", ".join(key or "(the top)" for key in keys), 200)
        return InputError(
            f"{message}; found: {listed}",
            place=str(self.path),
            hint=f"say which: weights: {{file: {self.path.name}, key: {chosen}}}",
        )

    def _fitting(self, expected: State) -> Iterator[tuple[str, State]]:
        """Groups with every tensor of the network and no other, under names without their prefix."""
        required = {name for name in expected if not name.endswith(torch_weights.COUNTER)}
        for key, group in self.groups.items():
            counts = _prefixes(group, required)
            whole = [prefix for prefix, count in counts.items() if count == len(required)]
            for prefix in whole:
                inner = [other for other in whole if len(other) > len(prefix)]
                inside = {
                    name.removeprefix(prefix): value
                    for name, value in group.items()
                    if name.startswith(prefix) and not name.startswith(tuple(inner))
                }
                if inside.keys() <= expected.keys() and all(
                    torch_weights.fits(value, expected[name]) for name, value in inside.items()
                ):
                    state = group if len(inside) == len(group) and not prefix else inside
                    yield _joined(key, prefix), state

    def _nearest(self, expected: State) -> State:
        """The group that most of the network's names are in, or else the largest one."""
        best: tuple[tuple[int, int], State] = ((-1, -1), {})
        for group in self.groups.values():
            for prefix, count in (_prefixes(group, expected) or {"": 0}).items():
                inside = {n.removeprefix(prefix): v for n, v in group.items() if n.startswith(prefix)}
                best = max(best, ((count, len(inside)), inside), key=lambda each: each[0])
        return best[1]

    def _other_average(self, key: str, state: State) -> str | None:
        """The key of averaged weights that are no group of the network's: stored in a list, say."""
        if _is_averaged(key) or not key:
            return None
        least = sum(value.numel() for value in state.values()) // 2
        sizes = {k: sum(value.numel() for value in group.values()) for k, group in self.groups.items()}
        others = (k for k, size in sizes.items() if _is_averaged(k) and size > least)
        return next(others, None)


def read(path: Path, key: str = "") -> Checkpoint:
    """A user's file of weights. Raises `TrustError` for one that holds what can run code.

    `InputError` for one that is missing, damaged or without weights, or has nothing under the key.
    """
    content = torch_weights.tensors_in(path)
    groups = dict(_groups(content, ""))
    if not groups:
        what = "an empty dict" if content == {} else f"a {type(content).__name__}"
        raise InputError(
            f"the file holds {what} without a state dict", place=str(path), hint=torch_weights.SAVE
        )
    chosen = dict(_under(groups, key)) if key else groups
    if not chosen:
        raise InputError(
            f"the file has no weights under {key!r}",
            place=str(path),
            hint=did_you_mean(key, [*groups], f"it has: {excerpt(', '.join(groups), 200)}"),
        )
    return Checkpoint(path, chosen, key)


def _groups(content: Any, key: str, depth: int = 0) -> Iterator[tuple[str, State]]:
    """The mappings and lists in a file that hold tensors, at any depth."""
    import torch

    if isinstance(content, list | tuple):
        content = dict(enumerate(content))
    if not isinstance(content, Mapping) or depth > _DEEPEST:
        return
    tensors = {str(name): v for name, v in content.items() if isinstance(v, torch.Tensor)}
    if tensors:
        # A state dict keeps the versions of its modules.
        yield key, content if tensors.keys() == content.keys() else tensors  # type: ignore[misc]
    for name, value in content.items():
        yield from _groups(value, _joined(key, str(name)), depth + 1)


def _prefixes(group: State, names: Any) -> Counter[str]:
    """How many of the names the group has under which prefix."""
    counts: Counter[str] = Counter()
    for name in group:
        parts = name.split(".")
        for at in range(len(parts)):
            if ".".join(parts[at:]) in names:
                counts["".join(f"{part}." for part in parts[:at])] += 1
    return counts


def _under(groups: Mapping[str, State], key: str) -> Iterator[tuple[str, State]]:
    """The groups that a key leads to, or the part of a group whose names begin with its end."""
    for at, group in groups.items():
        if f"{at}.".startswith(f"{key}."):
            yield at, group
        elif not at or key.startswith(f"{at}."):
            prefix = f"{key.removeprefix(at).removeprefix('.')}."
            inside = {n.removeprefix(prefix): v for n, v in group.items() if n.startswith(prefix)}
            if inside:
                yield key, inside


def _drop_copies(groups: dict[str, State]) -> None:
    """Leave one of several groups that hold the same values."""
    import torch

    for key in [*groups][1:]:
        state = groups[key]
        for other in [*groups][: [*groups].index(key)]:
            if all(torch.equal(value, groups[other][name]) for name, value in state.items()):
                del groups[key]
                break


def _is_averaged(key: str) -> bool:
    return not _AVERAGED.isdisjoint(re.split(r"[._]", key.lower()))


def _joined(*parts: str) -> str:
    return ".".join(part.strip(".") for part in parts if part.strip("."))
