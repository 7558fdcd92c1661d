"""Reading plan files: YAML with places, options above; everything wrong at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from optcli.errors import InputError, RecipeError
from optcli.measure.queueing import Curve
from optcli.measure.queueing.arrivals import parse
from optcli.recipe.budget import ReadingBudget
from optcli.recipe.nodes import Node, Place, Problems, TooManyProblemsError
from optcli.recipe.placeholders import substituted
from optcli.recipe.reading import read
from optcli.recipe.validation import checked, found
from optcli.serving.planning.settings import PlanSettings

# What a recipe has and no plan file.
_OF_RECIPES = ("model", "variants", "extends", "matrix", "inputs", "data")
# Sections that are merged key by key; of others the upper replaces the lower.
_MERGED = ("slo", "overhead")
# Bursts are less than this on average, so that their form alone is looked at.
_ANY_RATE = 1e12
# The last of these keys that is given removes the others from what lies below.
_EXCLUSIVE = (("curve", "report"), ("curve", "variant"))


def load(path: Path | None, options: Mapping[str, Any], names: Mapping[str, str]) -> PlanSettings:
    """The settings of a plan file and of options above it, checked together.

    `options` are keys of a plan file with plain values, `names` what each is called in problems, such
    as `--rate`. Raises `RecipeError` with everything that is wrong.
    """
    problems = Problems()
    settings = None
    try:
        node = Node({}, Place("the command line", 0, 0)) if path is None else _read(path, problems)
        if node is not None and not len(problems):
            node = _above(node, options, names)
            settings = checked(PlanSettings, node, problems)
            if settings is not None:
                _check_texts(node, settings, problems)
    except TooManyProblemsError:
        settings = None
    if settings is None or len(problems):
        raise RecipeError(problems.in_order())
    return settings


def _check_texts(node: Node, settings: PlanSettings, problems: Problems) -> None:
    """Note curves and arrivals of the file that cannot be read; those of options are read later."""
    known = settings.rate_per_s
    rate = _ANY_RATE if known is None else known
    texts: list[tuple[Node | None, Callable[[str], object]]] = [
        (node.get("curve"), lambda text: curve_of_text(text, "curve")),
        (node.get("arrivals"), lambda text: parse(text, rate)),
    ]
    for each, read_text in texts:
        if each is None or not each.place.line or each.value is None:
            continue
        try:
            read_text(each.value)
        except InputError as error:
            problems.add(each.place, error.message, error.hint)


def curve_of_text(text: str, place: str) -> Curve:
    """A curve from text. Raises `InputError`, also for one point of a batch size."""
    try:
        curve = Curve.parse(text)
    except InputError as error:
        raise InputError(error.message, place=place, hint=error.hint) from error
    if ":" in text and len(curve.points) == 1:
        size, time = curve.points[0]
        raise InputError(
            f"the curve has one point only, batch {size}: {time:g} ms",
            place=place,
            hint=f"give the times of two batch sizes or more; {time:g}ms alone plans without batches",
        )
    return curve


def is_recipe(path: Path) -> bool:
    """Whether a YAML file is a recipe and no plan; False where it cannot be read."""
    problems = Problems()
    try:
        node = read(path, str(path), problems, ReadingBudget())
    except TooManyProblemsError:
        return False
    return node is not None and any(name in _OF_RECIPES for name, _ in node.items())


def _read(path: Path, problems: Problems) -> Node | None:
    node = read(path, str(path), problems, ReadingBudget())
    if node is None:
        if not len(problems):
            problems.add(
                Place(str(path), 1, 1), "the plan file is empty", "write rate_per_s, slo and a curve"
            )
        return None
    if not isinstance(node.value, dict):
        message = f"found {found(node.value)}, wanted a mapping of keys"
        problems.add(node.place, message, "write KEY: VALUE pairs")
        return None
    return _from_here(substituted(node, problems), path)


def _from_here(node: Node, path: Path) -> Node:
    """The node with its paths as they are named from the current folder."""
    report = node.get("report")
    if report is None or not isinstance(report.value, str) or not report.value:
        return node
    file = path.parent / Path(report.value).expanduser()
    return node.with_items({"report": replace(report, value=str(file))})


def _above(node: Node, options: Mapping[str, Any], names: Mapping[str, str]) -> Node:
    """The node with options in place of what it says."""
    for key, value in options.items():
        given = placed(value, Place(names.get(key, key), 0, 0))
        below = node.get(key)
        if key in _MERGED and below is not None and isinstance(below.value, dict):
            given = replace(below, value={**below.value, **given.value})
        for group in _EXCLUSIVE:
            if key in group:
                node = node.without(
                    *(other for other in group if other != key and other not in options)
                )
        node = node.with_items({key: given})
    return node


def placed(value: Any, place: Place) -> Node:
    """A plain value as nodes that all stand at one place."""
    if isinstance(value, Mapping):
        return Node({str(key): placed(item, place) for key, item in value.items()}, place, place)
    if isinstance(value, list | tuple):
        return Node(tuple(placed(item, place) for item in value), place, place)
    return Node(value, place, place)
