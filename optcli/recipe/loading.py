"""From a file to a checked recipe: read, extend, override, write out the matrix, check everything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from optcli.artifact import Format
from optcli.errors import Problem, RecipeError
from optcli.models import sources
from optcli.passes import Traits
from optcli.recipe.consistency import chain_problems, check_devices, check_together
from optcli.recipe.extending import Extending
from optcli.recipe.matrix import expanded
from optcli.recipe.models import MatrixEntry, ModelSettings, PassUse, Recipe, digest_of
from optcli.recipe.nodes import Node, Position, Problems, TooManyProblemsError
from optcli.recipe.overrides import override
from optcli.recipe.rebasing import Rebasing
from optcli.recipe.sections import read_sections, roles_of
from optcli.recipe.validation import note, shown_value
from optcli.recipe.variants import VariantReader
from optcli.settings import batch_range
from optcli.settings.latency import LatencySettings


def load(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe, without a heavy import and without running the user's code.

    `overrides` are `key.key=value` texts, the value in YAML. Raises `RecipeError` with everything
    that is wrong, in file order.
    """
    problems = Problems()
    try:
        recipe = _loaded(Path(path), overrides, problems)
    except TooManyProblemsError:
        recipe = None
    if recipe is None or len(problems):
        raise RecipeError(problems.in_order())
    return recipe


def as_written(path: Path) -> dict[str, Any]:
    """A recipe's keys as its files write them, with what it extends and without its matrix's variants.

    Nothing is checked: it is for a recipe that `load` has read.
    """
    node = Extending(Problems()).read(Path(path), str(path))
    written: dict[str, Any] = node.plain() if node is not None else {}
    return written


def _loaded(path: Path, overrides: Sequence[str], problems: Problems) -> Recipe | None:
    extending = Extending(problems)
    node = extending.read(path, str(path))
    if node is None or not extending.complete:
        return None
    for text in overrides:
        node = override(node, text, problems, extending.budget)
    folder = Path(os.path.abspath(path)).parent
    recipe = _checked(node, path, Rebasing(extending.folders, folder), problems)
    return recipe and recipe.model_copy(update={"read_from": tuple(extending.read_from)})


def _checked(node: Node, path: Path, rebasing: Rebasing, problems: Problems) -> Recipe | None:
    sections = read_sections(node, rebasing, problems)
    nodes = _variant_nodes(node, problems)
    variants = VariantReader(sections.get("plugins", {}), rebasing, problems).read(nodes)
    source = _source_format(sections["model"]) if "model" in sections else None
    for name, variant in variants.items():
        if variant is not None:
            chain_problems(source, variant, roles_of(node), nodes[name].start, problems)
    check_together(node, sections, list(variants), problems)
    check_devices(node, sections, nodes, problems)
    if len(problems):
        return None
    matrix = node.get("matrix")
    sections["baseline"] = sections["baseline"] or next(iter(variants))
    latency: LatencySettings = sections["latency"]
    if "batch_sizes" not in latency.model_fields_set:  # one sample, or the fewest that the model takes
        fewest = (batch_range(sections["inputs"]).min,)
        sections["latency"] = latency.model_copy(update={"batch_sizes": fewest})
    is_symbolic = any(isinstance(spec.value, str) for spec in sections["inputs"])
    if is_symbolic and sections.get("postprocess") is not None:
        sections["postprocess"] = sections["postprocess"].told_the_size()
    recipe = Recipe(
        **sections,
        variants={name: variant for name, variant in variants.items() if variant is not None},
        matrix={name: MatrixEntry(**entry) for name, entry in matrix.plain().items()} if matrix else {},
        path=path,
        folder=rebasing.folder,
    )
    return recipe.model_copy(update={"digest": digest_of(recipe)})


def _source_format(model: ModelSettings) -> Format:
    kind, _, target = model.source.partition(":")
    return sources.find(kind).format_of(target)


# Of a recipe; each may be built, so that hundreds are days of work.
_MOST_VARIANTS = 1000


def _variant_nodes(recipe: Node, problems: Problems) -> dict[str, Node]:
    """The variants as written, then those that the matrix writes."""
    variants, matrix = recipe.get("variants"), recipe.get("matrix")
    nodes: dict[str, Node] = {}
    if variants is not None and variants.value is not None:
        if isinstance(variants.value, dict):
            nodes.update(variants.value)
        else:
            message = f"variants: found {shown_value(variants.value)}, wanted a mapping of names"
            problems.add(variants.place, message, "write NAME: [pass, pass] for each variant")
            return nodes
        if len(nodes) > _MOST_VARIANTS:
            message = f"variants: found {len(nodes)}, wanted at most {_MOST_VARIANTS}"
            problems.add(variants.place, message, "write several recipes")
            return {}
        if not nodes and not matrix:
            message = "variants: found an empty mapping, wanted at least one variant"
            problems.add(variants.place, message, "write variants: {eager: []}")
    if matrix is not None and matrix.value is not None:
        for name, node in expanded(matrix, problems).items():
            if name in nodes:
                message = f"the matrix writes a variant {name!r}, which variants has already"
                problems.add(node.start, message, "rename one of them")
            nodes.setdefault(name, node)
    return nodes


def check_formats(recipe: Recipe, traits: Mapping[str, Traits]) -> None:
    """Check the chains of formats again, now that the user's own passes are known.

    `traits` has the traits of each of them by its `PassUse.place`. Raises `RecipeError`.
    """
    problems = Problems()
    problems.reading(str(recipe.path))
    source = _source_format(recipe.model)
    start = Position(str(recipe.path), 1, 1)
    with suppress(TooManyProblemsError):
        for variant in recipe.variants.values():
            chain_problems(source, variant, recipe.data, start, problems, traits)
    if len(problems):
        raise RecipeError(problems.in_order())


def option_problems(use: PassUse, kind: type[BaseModel], error: ValidationError) -> list[Problem]:
    """What is wrong with the options of a user's own pass, found where its class is known."""
    problems, place = Problems(), Position.parse(use.place)
    options = _placed(use.options, place)
    with suppress(TooManyProblemsError):
        note(kind, error.errors(include_url=False), options, problems, use.name, apart=True)
    return problems.in_order()


def _placed(value: Any, place: Position) -> Node:
    if isinstance(value, Mapping):
        return Node({str(key): _placed(item, place) for key, item in value.items()}, place)
    if isinstance(value, list | tuple):
        return Node(tuple(_placed(item, place) for item in value), place)
    return Node(value, place)
