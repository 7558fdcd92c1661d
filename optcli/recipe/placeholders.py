"""What stands for something else in a recipe: `${NAME}`, `${NAME:-default}`, `$$`, and short forms.

A list is short for `{passes: [...]}`, a name for `{name: {}}`. Written out every variant has one form,
which extending, `--set` and the checks see. What is wrong stays as it is, for the checks to name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace

from optcli.errors import did_you_mean
from optcli.recipe.nodes import Node, Problems
from optcli.recipe.reading import refusal, scalar

_ANY = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_]\w*)(?P<default>:-[^}]*)?\}|\$\{[^}]*\}?")


def substituted(node: Node, problems: Problems, names: Mapping[str, Node] | None = None) -> Node:
    """The node with every placeholder replaced; one that has no value is noted as a problem.

    `names` are values of a matrix and come before the environment. Text that is one placeholder
    and nothing else takes the value with its type: `${THREADS}` is a number if THREADS is one.
    """
    if isinstance(node.value, dict):
        items = node.value.items()
        new = {key: substituted(item, problems, names) for key, item in items}
        return replace(node, value=new)
    if isinstance(node.value, tuple):
        parts = tuple(substituted(item, problems, names) for item in node.value)
        return replace(node, value=parts)
    if not isinstance(node.value, str) or "$" not in node.value:
        return node
    return _Text(node, problems, names or {}).replaced()


class _Text:
    """One text with placeholders."""

    def __init__(self, node: Node, problems: Problems, names: Mapping[str, Node]) -> None:
        self._node, self._problems, self._names = node, problems, names

    def replaced(self) -> Node:
        text = self._node.value
        whole = _ANY.fullmatch(text)
        if whole and whole["name"] in self._names:
            return replace(self._names[whole["name"]], key=self._node.key)
        new = _ANY.sub(self._value, text)
        if (refused := refusal(new)) is not None:
            self._problem(*refused)
            return replace(self._node, value=None)
        if whole and text != "$$":
            return replace(self._node, value=scalar(new), text=new)
        return replace(self._node, value=new)

    def _value(self, match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if match[0] == "$$":
            return "$"
        if name is None:
            self._problem(
                f"found {match[0]!r}, wanted ${{NAME}} or ${{NAME:-default}}", "write $$ for a $"
            )
            return match[0]
        if name in self._names:
            value = self._names[name]
            if isinstance(value.value, dict | tuple):
                self._problem(f"${{{name}}} is a list or mapping and cannot stand within text", "")
            return _written(value)
        given = os.environ.get(name)
        if default is not None and not given:
            return str(default[2:])
        if given is None:
            hint = f"set it, or give a default: ${{{name}:-value}}"
            if self._names:
                hint = f"{did_you_mean(name, list(self._names))} (of the matrix), or {hint}"
            self._problem(f"the environment variable {name} is not set", hint)
            return match[0]
        return given

    def _problem(self, message: str, hint: str) -> None:
        self._problems.add(self._node.place, message, hint)


def _written(node: Node) -> str:
    """A scalar as a person would write it in YAML."""
    if isinstance(node.value, bool):
        return "true" if node.value else "false"
    return "" if node.value is None else str(node.value)


def written_out(recipe: Node) -> Node:
    """The recipe with the short forms of `variants` and `matrix` written out."""
    variants, matrix = recipe.get("variants"), recipe.get("matrix")
    changes = {}
    if variants is not None and isinstance(variants.value, dict):
        changes["variants"] = variants.with_items({k: _written_variant(v) for k, v in variants.items()})
    if matrix is not None and isinstance(matrix.value, dict):
        changes["matrix"] = matrix.with_items({k: _written_entry(v) for k, v in matrix.items()})
    return recipe.with_items(changes)


def _written_entry(entry: Node) -> Node:
    variant = entry.get("variant")
    return entry if variant is None else entry.with_items({"variant": _written_variant(variant)})


def _written_variant(variant: Node) -> Node:
    if isinstance(variant.value, tuple):
        listed = Node(variant.value, variant.place, variant.key)
        variant = replace(variant, value={"passes": listed})
    passes, runner = variant.get("passes"), variant.get("runner")
    changes: dict[str, Node] = {}
    if passes is not None and isinstance(passes.value, tuple):
        changes["passes"] = replace(passes, value=tuple(_written_pass(item) for item in passes.value))
    if runner is not None and isinstance(runner.value, str):
        changes["runner"] = replace(runner, value={"name": replace(runner, key=None)})
    return variant.with_items(changes) if changes else variant


def _written_pass(item: Node) -> Node:
    if isinstance(item.value, str):
        return replace(item, value={item.value: Node({}, item.place, item.place)})
    if isinstance(item.value, dict) and len(item.value) == 1:
        ((name, options),) = item.value.items()
        if options.value is None:
            return replace(item, value={name: replace(options, value={})})
    return item
