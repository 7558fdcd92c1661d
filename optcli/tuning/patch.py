"""A recipe's text with other options of one pass; everything else stays as it was written.

The text is edited where the options stand, not written anew: comments, order and spacing remain.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from optcli.errors import OptcliError, StoreError, UsageError
from optcli.recipe import Recipe, load
from optcli.recipe.nodes import Position

_WIDTH = 80
# What YAML reads as that very text.
_PLAIN = re.compile(
    r"(?!(?:true|false|null|yes|no|on|off)$)[A-Za-z_/][\w/.]*(?:-[\w/.]+)*", re.IGNORECASE
)


def patched(recipe: Recipe, variant: str, index: int, changed: dict[str, Any]) -> str:
    """The recipe's file with the options of the variant's pass at `index` changed; None removes none.

    Raises `UsageError` where the options do not stand in this file or in this variant alone.
    """
    use = recipe.variants[variant].passes[index]
    text = recipe.path.read_text(encoding="utf-8")
    at = Position.parse(use.place)
    hint = f"set the options there by hand: {use.name}: {_flow(changed, 0)}"
    if not at.line or Path(at.file) != recipe.path:
        raise UsageError("the pass is not written in this recipe's own file", place=at.file, hint=hint)
    item = _item_at(text, at.line - 1, at.column - 1)
    if item is None:
        raise UsageError(
            "the recipe was changed meanwhile: the pass is no longer there", place=use.place, hint=hint
        )
    options = {key: value for key, value in changed.items() if value is not None}
    result = _with_options(text, item, use.name, options)
    _require_alone(recipe, variant, index, options, result, hint)
    return result


def difference(path: Path, result: str) -> str:
    """A unified diff from the file to the text, as `patch -p0` takes it."""
    before = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = difflib.unified_diff(before, result.splitlines(keepends=True), str(path), str(path))
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def write(path: Path, result: str) -> None:
    """Replace the file, whole or not at all. Raises `StoreError` where it cannot be written."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(result, encoding="utf-8")
        fresh.chmod(path.stat().st_mode)
        fresh.replace(path)
    except OSError as error:
        raise StoreError(
            f"the recipe cannot be written: {error.strerror}",
            place=str(path),
            hint="apply the patch by hand",
        ) from error
    finally:
        fresh.unlink(missing_ok=True)


def _item_at(text: str, line: int, column: int) -> Node | None:
    """The item of a list that begins there, counted from 0."""
    root = YAML().compose(text)
    for node in _nodes(root):
        if isinstance(node, SequenceNode):
            for item in node.value:
                if (item.start_mark.line, item.start_mark.column) == (line, column):
                    return item
    return None


def _nodes(node: Node | None) -> Iterator[Node]:
    if node is None:
        return
    yield node
    if isinstance(node, SequenceNode):
        for item in node.value:
            yield from _nodes(item)
    elif isinstance(node, MappingNode):
        for _, value in node.value:
            yield from _nodes(value)


def _with_options(text: str, item: Node, name: str, changed: dict[str, Any]) -> str:
    indent = _indent(text, item) + 4
    if isinstance(item, ScalarNode):
        start, end = item.start_mark.index, item.end_mark.index
        return f"{text[:start]}{{{name}: {_flow(changed, indent)}}}{text[end:]}"
    ((key, options),) = item.value
    if not isinstance(options, MappingNode) or not options.value:
        start, end = key.end_mark.index, max(key.end_mark.index, options.end_mark.index)
        return f"{text[:start]}: {_flow(changed, indent)}{_rest(text, key, options, end)}"
    present = {each.value: value for each, value in options.value}
    edits = [
        (present[key].start_mark.index, _end(present[key]), _flow(value, indent))
        for key, value in changed.items()
        if key in present
    ]
    first = options.value[0][0]
    between = ", " if options.flow_style else "\n" + " " * first.start_mark.column
    fresh = [f"{k}: {_flow(v, indent)}{between}" for k, v in changed.items() if k not in present]
    edits.append((first.start_mark.index, first.start_mark.index, "".join(fresh)))
    for start, end, written in sorted(edits, reverse=True):
        text = text[:start] + written + text[end:]
    return text


def _end(node: Node) -> int:
    """Where a value ends; YAML has a block end behind the comments that follow it."""
    if isinstance(node, SequenceNode) and not node.flow_style and node.value:
        return _end(node.value[-1])
    return int(node.end_mark.index)


def _rest(text: str, key: Node, options: Node, end: int) -> str:
    """What follows options that are missing, `null` or `{}`."""
    if options.start_mark.index == options.end_mark.index:  # nothing stands there: behind the colon
        behind = key.end_mark.index + len(re.match(r"\s*:", text[key.end_mark.index :])[0])  # type: ignore[index]
        return text[behind:]
    return text[end:]


def _indent(text: str, item: Node) -> int:
    line = text.splitlines()[item.start_mark.line]
    return len(line) - len(line.lstrip())


def _flow(value: Any, indent: int) -> str:
    """A value in YAML's flow style, lists broken into lines of a readable width."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(each, indent)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        lines, line = [], ""
        for each in (_flow(item, indent) for item in value):
            if line and len(line) + len(each) + indent > _WIDTH:
                lines.append(line)
                line = ""
            line += f"{each}, "
        text = f"\n{' ' * indent}".join(part.rstrip() for part in [*lines, line])
        return f"[{text.removesuffix(',')}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value)


def _require_alone(
    recipe: Recipe, variant: str, index: int, changed: dict[str, Any], result: str, hint: str
) -> None:
    """Raise `UsageError` unless the text is the recipe with just these options changed."""
    scratch = recipe.path.with_name(f".{recipe.path.stem}.{os.getpid()}.yaml")
    try:
        scratch.write_text(result, encoding="utf-8")
        after = load(scratch)
    except OSError as error:
        raise UsageError(
            f"the recipe's folder cannot be written: {error.strerror}",
            place=str(recipe.path),
            hint=hint,
        ) from error
    except OptcliError as error:
        raise UsageError(
            "the options cannot be written there", place=str(recipe.path), hint=hint
        ) from error
    finally:
        scratch.unlink(missing_ok=True)
    for name, before in recipe.variants.items():
        actual = [(use.name, use.options) for use in after.variants[name].passes]
        expected = [(use.name, use.options) for use in before.passes]
        if name == variant:
            expected[index] = (expected[index][0], {**expected[index][1], **changed})
        if json.dumps(actual) != json.dumps(expected) and _sorted(actual) != _sorted(expected):
            raise UsageError(
                f"the variant {name} takes its passes from the same lines",
                place=recipe.variants[variant].passes[index].place,
                hint=hint,
            )


def _sorted(passes: list[tuple[str, dict[str, Any]]]) -> str:
    return json.dumps(passes, sort_keys=True)
