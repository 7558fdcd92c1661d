"""A recipe's name, from its YAML alone."""

from __future__ import annotations

import os
from pathlib import Path

from optcli.errors import RecipeError
from optcli.recipe.extending import Extending
from optcli.recipe.nodes import Place, Problems
from optcli.recipe.sections import SAFE_NAME


def name_of(path: Path) -> str:
    """The name of a recipe: of its file and those that it extends, nothing else is looked at.

    What reads results needs neither the data nor the model that the recipe names, nor a recipe that
    is right in all else. Raises `RecipeError` where the file cannot be read or names no folder.
    """
    problems = Problems()
    node = Extending(os.environ, problems).read(path, str(path))
    name = node.get("name") if node is not None else None
    if name is not None and isinstance(name.value, str) and SAFE_NAME.fullmatch(name.value):
        return name.value
    if not len(problems):
        place = name.place if name is not None else Place(str(path), 1, 1)
        found = "nothing" if name is None else repr(name.plain())
        message = f"name: found {found}, wanted a name that can be a folder's"
        problems.add(place, message, "write name: NAME with letters, digits and _ . + -")
    raise RecipeError(problems.in_order())
