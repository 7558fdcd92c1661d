"""The sections of a recipe: each is read by the type of its field, or by a reader of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from optcli import data
from optcli.data import DataSettings
from optcli.errors import InputError, MissingError, UsageError, did_you_mean, excerpt
from optcli.files import regular_files
from optcli.models import sources
from optcli.recipe.models import ROLES, ModelSettings, Recipe, written_fields
from optcli.recipe.names import TAKEN_BY_RECIPES, name_problem
from optcli.recipe.nodes import Node, Problems
from optcli.recipe.rebasing import Rebasing, each_reference
from optcli.recipe.validation import allowed_keys, checked, models_in, shown_value, unknown_keys
from optcli.settings import Settings, SymbolRange, TensorSpec, user_code
from optcli.settings.references import PathReference, annotation_of

_MOST_PLUGINS = 100


def read_sections(recipe: Node, rebasing: Rebasing, problems: Problems) -> dict[str, Any]:
    """Every section but `variants` and `matrix`, by its name in `Recipe`, checked.

    What the recipe does not say has its default. A section that is wrong is left out, and what is
    wrong with it is noted, as is a missing one.
    """
    _top(recipe, problems)
    sections: dict[str, Any] = {}
    for name, field in written_fields(Recipe).items():
        node = recipe.get(name)
        if name in ("variants", "matrix"):
            continue
        if node is None and not field.is_required():
            sections[name] = field.get_default(call_default_factory=True)
        if node is None or (node.value is None and _is_section(field)):
            continue
        node = rebasing.node(node, annotation_of(field))
        value = READERS.get(name, _plain)(name, node, rebasing.folder, problems)
        if value is not None or node.value is None:
            sections[name] = value
    return sections


def _is_section(field: FieldInfo) -> bool:
    """Whether more stands below the key than one value; then an empty one is a mistake."""
    return get_origin(field.annotation) is dict or bool(models_in(field.annotation))


def _top(recipe: Node, problems: Problems) -> None:
    """Keys that are unknown or missing, and sections left empty."""
    fields = written_fields(Recipe)
    for key, node in recipe.items():
        if key not in fields:
            problems.add(node.start, f"unknown key {shown_value(key)}", _meant(key, fields))
        elif node.value is None and _is_section(fields[key]):
            hint = "give it a value, or remove the key"
            problems.add(node.place, f"{key}: found nothing, wanted its settings", hint)
    for key, field in fields.items():
        written = key in recipe.value or (key == "variants" and recipe.get("matrix"))
        if field.is_required() and not written:
            hint = f"add {_example(key)}"
            problems.add(recipe.place, f"missing key {key!r}", hint, kind=f"missing {key}")


def _meant(key: str, fields: dict[str, FieldInfo]) -> str:
    """What an unknown key may have been meant as: a setting of a section, or a misspelt section."""
    owners = [
        name
        for name, field in fields.items()
        if get_origin(field.annotation) not in (dict, tuple)
        if any(key in allowed_keys(model) for model in models_in(field.annotation))
    ]
    return f"did you mean {owners[0]}.{key}?" if owners else did_you_mean(key, list(fields))


def _example(name: str) -> str:
    """How a section may be written, in one line."""
    field = Recipe.model_fields[name]
    example = json.dumps(field.examples[0]).replace('"', "") if field.examples else "..."
    return f"{name}: {example}"


@cache
def _alone(name: str, recipe: type[Recipe]) -> type[BaseModel]:
    """A model of one section of a recipe."""
    field = recipe.model_fields[name]
    fields: dict[str, Any] = {name: (field.annotation, field)}
    return create_model(name, __base__=Settings, **fields)


def _plain(name: str, node: Node, folder: Path, problems: Problems) -> Any:
    """A section as the type of its field says; the user's code that it names is looked at."""
    section = checked(_alone(name, Recipe), Node({name: node}, node.place), problems)
    if section is None:
        return None

    def look(item: Node, text: str, mark: PathReference) -> Node:
        reference = mark.code(text)
        wrong = user_code.problem(reference, folder) if reference is not None else None
        if wrong is not None:
            problems.add(item.place, *wrong)
        return item

    each_reference(node, annotation_of(Recipe.model_fields[name]), look)
    return getattr(section, name)


def _name(name: str, node: Node, folder: Path, problems: Problems) -> str | None:
    value: str | None = _plain(name, node, folder, problems)
    wrong = name_problem(value, taken=TAKEN_BY_RECIPES) if value is not None else None
    if wrong is not None:
        problems.add(node.place, f"name: {shown_value(value)}: {wrong[0]}", wrong[1])
        return None
    return value


def _model(name: str, node: Node, folder: Path, problems: Problems) -> ModelSettings | None:
    model = checked(ModelSettings, node, problems, name)
    source = node.get("source")
    if model is None or source is None:
        return None
    kind, colon, target = model.source.partition(":")
    if not colon or not target:
        example = f"torchvision:{kind}" if kind.isidentifier() else "torchvision:resnet50"
        message = f"model.source: found {shown_value(model.source)}, wanted KIND:WHAT"
        kinds = ", ".join(sources.names())
        problems.add(source.place, message, f"such as {excerpt(example)}; kinds are {kinds}")
        return None
    try:
        model_source = model.in_folder(folder)
    except (InputError, MissingError, UsageError) as error:
        problems.add(source.place, error.message, error.hint)
        return None
    for key in ("revision", "download"):
        if getattr(model, key) and not sources.find(kind).pinned:
            message = f"model.{key}: what {kind}: names is not fetched by optcli"
            problems.add((node.get(key) or source).place, message, f"remove `{key}`")
    for key, message, hint in model_source.problems():
        at = node.get(key) or source
        problems.add(at.place, f"model.{key}: {message}", hint)
    return model


def _inputs(name: str, node: Node, folder: Path, problems: Problems) -> tuple[TensorSpec, ...] | None:
    if not isinstance(node.value, tuple) or not node.value:
        message = f"inputs: found {shown_value(node.value)}, wanted a list of tensors"
        problems.add(node.place, message, f"write {_example(name)}")
        return None
    specs = [_tensor(item, index, problems) for index, item in enumerate(node.value)]
    return tuple(spec for spec in specs if spec is not None) if all(specs) else None


def _tensor(node: Node, index: int, problems: Problems) -> TensorSpec | None:
    """One input. Beside its fields a tensor has a key for each symbol of its shape."""
    where = f"inputs[{index}]"
    if not isinstance(node.value, dict):
        return checked(TensorSpec, node, problems, where)
    shape = node.get("shape")
    sizes = [] if shape is None else [item.value for item in shape.elements()]
    symbols = [size for size in sizes if isinstance(size, str)]
    sound = bool(sizes) and all(
        isinstance(size, int) and not isinstance(size, bool) and size > 0
        if not isinstance(size, str)
        else size.isidentifier()
        for size in sizes
    )
    allowed = (*(name for name in TensorSpec.model_fields if name != "ranges"), *symbols)
    others = [key for key in node.value if key not in allowed]
    if not sound:  # where the shape is wrong, nobody knows which ranges belong to it
        others = [key for key in others if not isinstance(node.value[key].value, dict)]
        node = node.without(*symbols)
    unknown = Node({key: node.value[key] for key in others}, node.place)
    unknown_keys(unknown, allowed, problems, where)
    for symbol in symbols:
        if sound and (size := node.get(symbol)) is not None and isinstance(size.value, dict):
            unknown_keys(size, tuple(SymbolRange.model_fields), problems, symbol)
    node = node.without(*(key for key in node.value if key not in allowed))
    return checked(TensorSpec, node, problems, where)


def roles_of(recipe: Node) -> tuple[str, ...]:
    """The roles that have data; all roles where a key is not a role, since it may be a misspelt one."""
    node = recipe.get("data")
    if node is None:
        return ()
    is_sound = isinstance(node.value, dict) and all(key in ROLES for key in node.value)
    return tuple(node.value) if is_sound else ROLES


def _data(name: str, node: Node, folder: Path, problems: Problems) -> dict[str, DataSettings] | None:
    if not isinstance(node.value, dict):
        message = f"data: found {shown_value(node.value)}, wanted a mapping of roles"
        problems.add(node.place, message, "write data: {evaluation: {source: npz:FILE}}")
        return None
    unknown_keys(node, ROLES, problems, name)
    read: dict[str, DataSettings] = {}
    for role in ROLES:
        item = node.get(role)
        settings = None if item is None else checked(DataSettings, item, problems, f"data.{role}")
        if item is None or settings is None:
            continue
        read[role] = settings = settings.located(folder)
        for field, message, hint in data.problems(settings, folder):
            at = item
            for part in field.split("."):
                at = at.get(part) or at
            problems.add(at.place, f"data.{role}.{field}: {message}", hint)
    return read


def _plugins(name: str, node: Node, folder: Path, problems: Problems) -> dict[str, str] | None:
    """References of the user's own passes, by the names that variants may use."""
    example = "plugins: [./mine.py:MyPass]"
    if not isinstance(node.value, dict | tuple):
        message = f"plugins: found {shown_value(node.value)}, wanted a list of FILE.py:CLASS"
        problems.add(node.place, message, f"write {example}")
        return None
    listed = [*node.items(), *(("", item) for item in node.elements())]
    if len(listed) > _MOST_PLUGINS:  # the code of each is read
        message = f"plugins: found {len(listed)}, wanted at most {_MOST_PLUGINS}"
        problems.add(node.place, message, "name fewer")
        return None
    read: dict[str, str] = {}
    for alias, item in listed:
        if not isinstance(item.value, str):
            message = f"plugins: found {shown_value(item.value)}, wanted FILE.py:CLASS"
            problems.add(item.place, message, f"write {example}")
            continue
        wrong = user_code.problem(item.value, folder)
        if wrong is not None:
            problems.add(item.place, *wrong)
        cls = item.value.rpartition(":")[2]
        for plugin in [alias] if alias else [cls, _snake(cls)]:
            read[plugin] = item.value
    return read


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _class_names(name: str, node: Node, folder: Path, problems: Problems) -> Any:
    names = _plain(name, node, folder, problems)
    if isinstance(names, str):
        hint = "a text file with one name a line, relative to the recipe"
        _require_file(names, name, hint, node, folder, problems)
    return names


def _labels(name: str, node: Node, folder: Path, problems: Problems) -> Any:
    labels = _plain(name, node, folder, problems)
    if labels is not None and isinstance(labels.map, str):
        hint = "a YAML or JSON file with a mapping, relative to the recipe"
        _require_file(labels.map, f"{name}.map", hint, node.value["map"], folder, problems)
    return labels


def _require_file(
    text: str, what: str, hint: str, node: Node, folder: Path, problems: Problems
) -> None:
    wrong = regular_files.problem(folder / regular_files.expanded(text), excerpt(text))
    if wrong:
        problems.add(node.place, f"{what}: {wrong}", hint)


# Sections that are written in another form than the type of their field, or that need another look.
READERS: dict[str, Callable[[str, Node, Path, Problems], Any]] = {
    "name": _name,
    "model": _model,
    "inputs": _inputs,
    "data": _data,
    "class_names": _class_names,
    "labels": _labels,
    "plugins": _plugins,
}
