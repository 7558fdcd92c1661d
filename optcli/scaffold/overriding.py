"""`--set KEY=VALUE` of a first recipe: written into its text, whose comments stay."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError

from optcli.errors import UsageError, did_you_mean

_HINT = "such as --set model.arguments.num_classes=10"
_FIXED = {"model.source": "WHAT says it", "extends": "the recipe extends none"}


def parsed(overrides: Sequence[str]) -> dict[str, Any]:
    """Keys and values of the command line, the values read as YAML. Raises `UsageError`."""
    values = {}
    for text in overrides:
        key, equals, written = text.partition("=")
        key = key.strip()
        if not equals or not key or "" in key.split("."):
            raise UsageError(f"found {text!r}, wanted KEY=VALUE", place="--set", hint=_HINT)
        if key in _FIXED:
            raise UsageError(f"{key} cannot be set here", place=f"--set {text}", hint=_FIXED[key])
        try:
            values[key] = YAML(typ="rt").load(written) if written.strip() else None
        except (YAMLError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(
                f"the value is no YAML: {reason}", place=f"--set {text}", hint="put it in quotes"
            ) from error
    return values


def arguments_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is set of the callable that makes the network: keyword arguments by name."""
    head = "model.arguments"
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key == head and isinstance(value, Mapping):
            arguments |= dict(value)
        elif key.startswith(f"{head}.") and value is not None:
            arguments[key.removeprefix(f"{head}.")] = value
    return arguments


def written_into(recipe: str, values: Mapping[str, Any]) -> str:
    """The recipe's text with values put in or, where null, taken out. Raises `UsageError`."""
    if not values:
        return recipe
    yaml = YAML(typ="rt")
    yaml.width = 4096
    yaml.preserve_quotes = True
    yaml.indent(mapping=2, sequence=4, offset=2)
    root = yaml.load(recipe)
    for key, value in values.items():
        _put(root, key, value, f"--set {key}")
    stream = io.StringIO()
    yaml.dump(root, stream)
    return stream.getvalue()


def _put(node: Any, key: str, value: Any, place: str) -> None:
    parts = _parts(node, key)
    for number, part in enumerate(parts[:-1]):
        node = _child(node, part, parts[number + 1 :], place)
    last = parts[-1]
    if isinstance(node, CommentedSeq):
        node[_position(node, last, place)] = value
    elif value is not None:
        node[last] = value
    elif last in node:
        del node[last]
    else:
        hint = did_you_mean(last, [str(each) for each in node]) or "leave it out"
        raise UsageError(f"there is no {last!r} to remove", place=place, hint=hint)


def _parts(root: CommentedMap, key: str) -> list[str]:
    """The parts of a key; a variant whose own name has dots is one part, its list of passes none."""
    parts = key.split(".")
    variants = root.get("variants") or {}
    if parts[0] == "variants":
        rest = ".".join(parts[1:])
        name = next((each for each in variants if rest == each or rest.startswith(f"{each}.")), None)
        if name is None:
            raise UsageError(
                f"the recipe has no variant {parts[1] if parts[1:] else ''!r}",
                place=f"--set {key}",
                hint=did_you_mean(".".join(parts[1:2]), list(variants)),
            )
        below = rest[len(name) + 1 :].split(".") if rest != name else []
        if below[:1] == ["passes"] and isinstance(variants[name], CommentedSeq) and below[1:]:
            below = below[1:]
        parts = ["variants", name, *below]
    return parts


def _child(node: Any, part: str, rest: Sequence[str], place: str) -> Any:
    if isinstance(node, CommentedSeq):
        position = _position(node, part, place)
        if isinstance(node[position], str) and rest:  # a pass without options gets some
            node[position] = _flow({node[position]: _flow({})})
        child = node[position]
        # `passes.quantize_nncf.preset` and `passes.1.quantize_nncf.preset` mean the same.
        if isinstance(child, CommentedMap) and part in child and rest[0] != part:
            child = child[part]
    else:
        if isinstance(node.get(part), CommentedSeq) and part in node and not rest:
            return node[part]
        if node.get(part) is None:
            node[part] = _flow({})
        child = node[part]
    if not isinstance(child, CommentedMap | CommentedSeq):
        raise UsageError(
            f"{part!r} is {child!r} and has no {rest[0]!r} within", place=place, hint=f"set {part!r}"
        )
    return child


def _position(node: CommentedSeq, part: str, place: str) -> int:
    names = [next(iter(item), "") if isinstance(item, Mapping) else str(item) for item in node]
    if part in names:
        return names.index(part)
    if part.isdigit() and int(part) < len(node):
        return int(part)
    raise UsageError(f"the list has no {part!r}", place=place, hint=did_you_mean(part, names))


def _flow(content: Mapping[str, Any]) -> CommentedMap:
    """A mapping that is written on one line."""
    mapping = CommentedMap(content)
    mapping.fa.set_flow_style()
    return mapping
