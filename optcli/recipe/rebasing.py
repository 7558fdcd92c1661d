"""Paths of the files that a recipe extends, changed so that they name the same from its own folder.

Every value knows the file that it stands in, so this is done once, when all files are merged and the
matrix is written out. Which values are paths is known by their types: `optcli/settings/references.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from optcli.recipe.nodes import Node, Position
from optcli.settings import Abbreviated
from optcli.settings.references import PathReference, annotation_of


class Rebasing:
    """Makes what is named in other files relative to `folder`, the recipe's own.

    `folders` has the folder of every file, by its name in places. What stands in no file (`--set`) is
    relative to the recipe's folder already.
    """

    def __init__(self, folders: Mapping[str, Path], folder: Path) -> None:
        self.folder = folder
        own = os.path.realpath(folder)
        self._others = {file: at for file, at in folders.items() if os.path.realpath(at) != own}

    def node(self, node: Node, annotation: Any) -> Node:
        """A node of a type with every reference in it changed; the same node where there is none."""
        return each_reference(node, annotation, self._moved) if self._others else node

    def text(self, text: str, mark: PathReference, place: Position) -> str:
        """One reference that stands at a place."""
        old = self._others.get(place.file)
        return text if old is None else mark.moved(text, old, self.folder)

    def _moved(self, node: Node, text: str, mark: PathReference) -> Node:
        new = self.text(text, mark, node.place)
        return node if new == text else replace(node, value=new)


def each_reference(
    node: Node, annotation: Any, change: Callable[[Node, str, PathReference], Node]
) -> Node:
    """The node with `change` applied to every text in it whose type is marked as a reference.

    `annotation` is what pydantic checks the node by; what does not have its form is left as it is.
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        # A number stands where an environment variable was substituted: as text it is a name.
        text = node.value if isinstance(node.value, str) else node.text
        marks = [mark for mark in parts[1:] if isinstance(mark, PathReference)]
        if marks and text is not None:
            return change(node, text, marks[0])
        return each_reference(node, parts[0], change)
    if origin in (Union, UnionType):
        return _first(node, parts, change)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _in_model(node, annotation, change)
    if isinstance(node.value, tuple):
        items = tuple(_first(item, parts, change) for item in node.value)
        same = all(new is old for new, old in zip(items, node.value, strict=True))
        return node if same else replace(node, value=items)
    return _with_changes(node, {name: _first(item, parts, change) for name, item in node.items()})


def _first(
    node: Node, annotations: tuple[Any, ...], change: Callable[[Node, str, PathReference], Node]
) -> Node:
    """The node changed by the first of several types that has something to change."""
    for annotation in annotations:
        new = each_reference(node, annotation, change)
        if new is not node:
            return new
    return node


def _in_model(
    node: Node, model: type[BaseModel], change: Callable[[Node, str, PathReference], Node]
) -> Node:
    fields = {field.alias or name: annotation_of(field) for name, field in model.model_fields.items()}
    if isinstance(node.value, str) and issubclass(model, Abbreviated):
        return each_reference(node, fields[model.short_for], change)
    own = {name: item for name, item in node.items() if name in fields}
    return _with_changes(node, {k: each_reference(v, fields[k], change) for k, v in own.items()})


def _with_changes(node: Node, items: dict[str, Node]) -> Node:
    changed = {name: item for name, item in items.items() if item is not node.value[name]}
    return node.with_items(changed) if changed else node
