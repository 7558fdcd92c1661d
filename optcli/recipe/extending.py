"""`extends`: a recipe on top of others. Mappings are merged, everything else is replaced."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from optcli.errors import excerpt
from optcli.files import regular_files
from optcli.recipe.nodes import Node, Position, Problems, ReadingBudget
from optcli.recipe.placeholders import substituted, written_out
from optcli.recipe.reading import read

_MOST_FILES = 100
_SUFFIXES = (".yaml", ".yml")


class Extending:
    """Reads a recipe and what it extends. Paths come out as they are written: see `Rebasing`.

    `complete` is false once a file could not be read: what is missing then is not the recipe's fault.
    `budget` is what all files share. A file that is extended again is not read again.
    `read_from` are the files that were read, `folders` the folder of each by its name in places.
    """

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._files = 0
        self._known: dict[Path, Node | None] = {}
        self.budget = ReadingBudget()
        self.read_from: list[Path] = []
        self.folders: dict[str, Path] = {}
        self.complete = True

    def read(
        self, path: Path, shown: str, named_at: Position | None = None, above: tuple[Path, ...] = ()
    ) -> Node | None:
        """The merged recipe; None where the file itself cannot be read. Problems are noted."""
        self._files += 1
        place = path.absolute()
        if place not in self._known:
            self._known[place] = self._read(path, shown, named_at, above)
        return self._known[place]

    def _read(
        self, path: Path, shown: str, named_at: Position | None, above: tuple[Path, ...]
    ) -> Node | None:
        before = len(self._problems)
        own = read(path, shown, self._problems, self.budget, named_at)
        self.read_from.append(path)
        self.folders[shown] = path.parent
        if own is None or not isinstance(own.value, dict):
            if own is not None or len(self._problems) == before:
                self._no_mapping(own, shown)
            self.complete = False
            return None
        own = written_out(self._substituted(own))
        merged: Node | None = None
        for parent in self._parents(own, path, (*above, _resolved(path))):
            merged = parent if merged is None else merge(merged, parent)
        return own if merged is None else replace(merge(merged, own), place=own.place)

    def _no_mapping(self, node: Node | None, shown: str) -> None:
        hint = "begin with version: 1 and name: ..."
        if node is None:
            self._problems.add(Position(shown, 1, 1), "the recipe is empty", hint)
        else:
            # Not what it says: whoever sees the message need not be who may read the file.
            form = "a list" if isinstance(node.value, tuple) else "text"
            self._problems.add(Position(shown, 1, 1), f"found {form}, wanted a mapping of keys", hint)

    def _substituted(self, recipe: Node) -> Node:
        """Everything but the matrix, whose own names are known only when it is written out."""
        new = substituted(recipe.without("matrix"), self._problems)
        matrix = recipe.get("matrix")
        return new if matrix is None else new.with_items({"matrix": matrix})

    def _parents(self, own: Node, path: Path, above: tuple[Path, ...]) -> list[Node]:
        extends = own.get("extends")
        parents = []
        for item in [] if extends is None else extends.elements() or (extends,):
            if not isinstance(item.value, str):
                continue  # the check of the header says so
            parent = path.parent / item.value
            resolved = _resolved(parent)
            name = os.path.normpath(parent)
            if _resolved(Path(name)) != resolved:  # behind a link `..` leads elsewhere
                name = str(parent)
            if resolved.suffix.lower() not in _SUFFIXES and regular_files.is_file(resolved):
                # Errors show what they found: no recipe makes them show `/etc/shadow`.
                message = f"found {excerpt(item.value)}, wanted a .yaml or .yml file"
                self._problems.add(item.place, message, "name a recipe")
            elif resolved in above:
                circle = " -> ".join(p.name for p in (*above, resolved))
                self._problems.add(
                    item.place, f"the recipe extends itself: {circle}", "break the circle"
                )
            elif self._files >= _MOST_FILES:
                message = f"more than {_MOST_FILES} files are extended"
                self._problems.add(item.place, message, "extend fewer")
            else:
                node = self.read(parent, name, item.place, above)
                if node is not None and not self.budget.merge(node):
                    message = "the extended recipes have too many values in total"
                    self._problems.add(item.place, message, "extend fewer or smaller recipes")
                    self.complete = False
                    break
                if node is not None:
                    parents.append(node.without("extends"))
        return parents


def _resolved(path: Path) -> Path:
    """The path without links; as it is where links lead in a circle or no file can have the name."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return path


def merge(below: Node, above: Node) -> Node:
    """`above` on top of `below`: mappings key by key, null removes, anything else is replaced."""
    if not isinstance(below.value, dict) or not isinstance(above.value, dict):
        return above
    items = dict(below.value)
    for name, node in above.value.items():
        if name in items and node.value is None:
            del items[name]
            continue
        join = merge_runner if name == "runner" else merge
        items[name] = join(items[name], node) if name in items else node
    return replace(above, value=items)


def merge_runner(below: Node, above: Node) -> Node:
    """Settings of one runner mean nothing to another: with another name nothing is kept."""
    old, new = below.get("name"), above.get("name")
    other = old is not None and new is not None and old.value != new.value
    return above if other else merge(below, above)
