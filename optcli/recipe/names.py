"""A recipe's name, from its YAML alone."""

from __future__ import annotations

import os
from pathlib import Path

from optcli.errors import RecipeError
from optcli.recipe.extending import Extending
from optcli.recipe.naming import TAKEN_BY_RECIPES, name_problem
from optcli.recipe.nodes import Place, Problems, TooManyProblemsError
from optcli.recipe.wording import found


def name_of(path: Path) -> str:
    """The name of a recipe: of its file and those that it extends, nothing else is looked at.

    What reads results needs neither the data nor the model that the recipe names, nor a recipe that
    is right in all else. Raises `RecipeError` where the file cannot be read or names no folder.
    """
    problems = Problems()
    try:
        node = Extending(os.environ, problems).read(path, str(path))
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
        place = name.place if name is not None else Place(str(path), 1, 1)
        problems.add(place, f"name: found {found(value)}: {wrong[0]}", wrong[1])
    raise RecipeError(problems.in_order())
