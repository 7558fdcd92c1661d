"""`--set key=value`: one value of a recipe replaced from the command line."""

from __future__ import annotations

import re
from dataclasses import replace

from optcli.errors import did_you_mean, excerpt
from optcli.recipe.nodes import Node, Position, Problems, ReadingBudget
from optcli.recipe.placeholders import substituted, written_out
from optcli.recipe.reading import parse
from optcli.recipe.validation import shown_value

# Their keys are names that the recipe gives: one that it does not give is a slip of the pen.
_NAMED = {"variants": "variant", "matrix": "matrix entry", "data": "data role"}
_MOST_PARTS = 50


def override(recipe: Node, text: str, problems: Problems, budget: ReadingBudget) -> Node:
    """The recipe with `text` (`key.key=value`) applied; what cannot be is noted as a problem.

    The value is read as YAML; null removes the key, as it does in a recipe that extends another. A
    part of the key is a key of a mapping, a position in a list (from 0), or in a list of passes the
    name of one. Placeholders in the value are replaced, but those of the matrix, which has names of
    its own. `budget` is what the values share with the recipe's files.
    """
    place = Position(f"--set {excerpt(text)}", 0, 0)
    key, equals, written = text.partition("=")
    key = key.strip()
    if not equals or not key:
        problems.add(
            place, f"found {excerpt(text)!r}, wanted KEY=VALUE", "such as --set latency.threads=2"
        )
        return recipe
    value: Node | None = Node(None, place)
    if written.strip():
        value = parse(written, place.file, problems, budget, place)
    if value is None:
        return recipe
    if not isinstance(value.value, str | dict | tuple):
        value = replace(value, text=written.strip())  # where text is wanted, it was text
    if key.count(".") >= _MOST_PARTS:
        message = f"the key has {key.count('.') + 1} parts, wanted at most {_MOST_PARTS}"
        problems.add(place, message, "name a value that the recipe can have")
        return recipe
    section = key.partition(".")[0]
    if section == "extends":
        problems.add(place, "extends cannot be set here", "write it in the recipe")
        return recipe
    if section != "matrix":
        value = substituted(value, problems)
    try:
        changed = _set(recipe, key, "", replace(value, key=place))
        return written_out(changed) if section in ("variants", "matrix") else changed
    except _NoSuchKeyError as error:
        problems.add(place, error.message, error.hint)
        return recipe


class _NoSuchKeyError(Exception):
    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def _set(node: Node, path: str, above: str, value: Node) -> Node:
    if not path:
        return value
    if isinstance(node.value, tuple):
        return _set_item(node, path, above, value)
    if not isinstance(node.value, dict):
        raise _NoSuchKeyError(
            f"{above!r} is {shown_value(node.value)} and has no {excerpt(path)!r} within",
            f"set {above!r}",
        )
    part, rest = _first_part(node, path)
    if part not in node.value and rest and above in _NAMED:
        hint = did_you_mean(part, list(node.value))
        raise _NoSuchKeyError(f"there is no {_NAMED[above]} {part!r}", hint)
    if not rest and value.value is None and value.text == "null":
        if part not in node.value:
            where = f"{above!r} has" if above else "the recipe has"
            raise _NoSuchKeyError(
                f"{where} no {part!r} to remove", did_you_mean(part, list(node.value))
            )
        return node.without(part)
    child = node.value.get(part, Node({}, value.place, value.place))
    if child.value is None and rest:
        child = replace(child, value={})
    inner = f"{above}.{part}" if above else part
    return node.with_items({part: _set(child, rest, inner, value)})


def _first_part(node: Node, path: str) -> tuple[str, str]:
    """The first part of a path and the rest; a key that itself contains dots is one part."""
    for name in sorted(node.value, key=len, reverse=True):
        if path == name or path.startswith(f"{name}."):
            return name, path[len(name) + 1 :]
    part, _, rest = path.partition(".")
    return part, rest


def _set_item(node: Node, path: str, above: str, value: Node) -> Node:
    part, _, rest = path.partition(".")
    names = [next(iter(item.value), "") if isinstance(item.value, dict) else "" for item in node.value]
    if re.fullmatch(r"\d+", part):
        index = int(part)
        if index >= len(node.value):
            count = len(node.value)
            message = f"{above!r} has {count} items, found position {part}"
            raise _NoSuchKeyError(message, "count from 0")
        is_pass = bool(rest) and above.endswith(".passes")
        if is_pass and names[index] != _first_part(node.value[index], rest)[0]:
            other = rest.split(".")[0]
            message = f"pass {part} of {above!r} is {names[index]!r}, found {other!r}"
            raise _NoSuchKeyError(message, f"write {above}.{part}.{names[index]}")
    elif above.endswith(".passes") and _pass_path(names, path):
        name = _pass_path(names, path)
        index, rest = names.index(name), path
    else:
        hint = did_you_mean(part, [name for name in names if name]) if any(names) else "count from 0"
        raise _NoSuchKeyError(f"{above!r} is a list and has no {part!r}", hint)
    items = list(node.value)
    items[index] = _set(items[index], rest, f"{above}.{index}", value)
    return replace(node, value=tuple(items))


def _pass_path(names: list[str], path: str) -> str:
    return next((n for n in names if n and (path == n or path.startswith(f"{n}."))), "")
