"""Names that become folders: a recipe's, from its YAML alone, and a variant's inside the recipe's."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from optcli.errors import RecipeError
from optcli.recipe.extending import Extending
from optcli.recipe.nodes import Position, Problems, TooManyProblemsError
from optcli.recipe.validation import shown_value

# What the folder of a recipe's results holds beside its variants, in small letters.
TAKEN = frozenset(("report.json", "report.md", "report.html", "samples.npz", "artifact.json")) | {
    "devices",
    "logs",
    "gate",
    "pictures",
    "profiles",
}
# What the folder of all results holds beside those of recipes.
TAKEN_BY_RECIPES = frozenset(("baselines",))

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_MOST = 100
_LETTERS = "use letters, digits and _ . + -"
# Windows takes these for devices, whatever stands behind a dot.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
# `optcli compare NAME` takes these for files.
_FILES = (".json", ".yaml", ".yml")


def name_problem(name: str, taken: Collection[str] = ()) -> tuple[str, str] | None:
    """Why a name cannot be a folder's: what is wrong and a hint; None where it can.

    `taken` are names, in small letters, that lie in the same folder already.
    """
    if len(name) > _MOST:
        return f"it has {len(name)} characters, wanted at most {_MOST}", "shorten it"
    if not _SAFE.fullmatch(name) or name.endswith("."):
        safe = re.sub(r"[^A-Za-z0-9_.+-]+", "-", name).strip("-.")
        hint = f"write {safe!r}: {_LETTERS.removeprefix('use ')}" if safe else _LETTERS
        return "wanted a name that is valid for a folder", hint
    if name.lower() in taken:
        return "the folder of the results has a file or folder of this name", "choose another name"
    if _DEVICES.fullmatch(name):
        return "Windows reserves this name for a device", "choose another name"
    if name.lower().endswith(_FILES):
        return "on the command line this name would mean a file", "remove the ending"
    return None


def name_of(path: Path) -> str:
    """The name of a recipe: of its file and those that it extends, nothing else is looked at.

    What reads results needs neither the data nor the model that the recipe names, nor a recipe that
    is right in all else. Raises `RecipeError` where the file cannot be read or names no folder.
    """
    problems = Problems()
    try:
        node = Extending(problems).read(path, str(path))
    except TooManyProblemsError as error:
        raise RecipeError(problems.in_order()) from error
    name = node.get("name") if node is not None else None
    value = None if name is None else name.value
    wrong: tuple[str, str] | None = ("wanted a name", "write name: NAME")
    if isinstance(value, str):
        wrong = name_problem(value, taken=TAKEN_BY_RECIPES)
        if wrong is None:
            return value
    if not len(problems) and wrong is not None:
        place = name.place if name is not None else Position(str(path), 1, 1)
        problems.add(place, f"name: found {shown_value(value)}: {wrong[0]}", wrong[1])
    raise RecipeError(problems.in_order())
