"""The sections of a recipe that stand on their own: header, model, inputs, data and settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from optcli import data, sources, user_code
from optcli.artifact import Format
from optcli.data import DataSettings
from optcli.errors import UsageError, did_you_mean, excerpt
from optcli.recipe.models import KEYS, REQUIRED, ROLES, Header, ModelSettings
from optcli.recipe.naming import TAKEN_BY_RECIPES, name_problem
from optcli.recipe.nodes import Node, Problems
from optcli.recipe.wording import allowed_keys, checked, found, unknown_keys
from optcli.settings import (
    GateSettings,
    LatencySettings,
    Settings,
    SloSettings,
    SymbolRange,
    TensorSpec,
)
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.postprocess import PostprocessSettings

_SETTINGS: dict[str, type[Settings]] = {
    "latency": LatencySettings,
    "accuracy": AccuracySettings,
    "slo": SloSettings,
    "gate": GateSettings,
}
_MOST_PLUGINS = 100
_HINTS = {
    "version": "version: 1",
    "name": "name: NAME",
    "model": "model: {source: torchvision:resnet50, weights: DEFAULT}",
    "inputs": "inputs: [{name: image, shape: [batch, 3, 224, 224]}]",
    "variants": "variants: {eager: []}",
}


@dataclass(frozen=True)
class Sections:
    """What could be read; a part that is wrong is None, its problems are noted."""

    header: Header | None
    model: ModelSettings | None
    source_format: Format | None
    roles: tuple[str, ...]
    inputs: tuple[TensorSpec, ...] | None
    data: dict[str, DataSettings]
    plugins: dict[str, str]
    latency: LatencySettings | None
    postprocess: PostprocessSettings | None
    accuracy: AccuracySettings | None
    slo: SloSettings | None
    gate: GateSettings | None


def read_sections(recipe: Node, folder: Path, problems: Problems) -> Sections:
    """Check every section but `variants` and `matrix`."""
    _top(recipe, problems)
    model, source_format = _model(recipe, folder, problems)
    settings = {
        name: checked(kind, node, problems, name) if (node := _given(recipe, name)) else None
        for name, kind in _SETTINGS.items()
    }
    latency = settings["latency"] if _given(recipe, "latency") else LatencySettings()
    assert latency is None or isinstance(latency, LatencySettings)
    gate = settings["gate"] if _given(recipe, "gate") else GateSettings()
    assert gate is None or isinstance(gate, GateSettings)
    accuracy, slo = settings["accuracy"], settings["slo"]
    assert accuracy is None or isinstance(accuracy, AccuracySettings)
    assert slo is None or isinstance(slo, SloSettings)
    if accuracy is not None and accuracy.metric.startswith("python:"):
        _user_code(recipe.value["accuracy"].value["metric"], accuracy.metric, folder, problems)
    return Sections(
        _header(recipe, problems),
        model,
        source_format,
        _roles(recipe),
        _inputs(recipe, problems),
        _data(recipe, folder, problems),
        read_plugins(recipe, folder, problems),
        latency,
        _postprocess(recipe, folder, problems),
        accuracy,
        slo,
        gate,
    )


def _postprocess(recipe: Node, folder: Path, problems: Problems) -> PostprocessSettings | None:
    node = _given(recipe, "postprocess")
    settings = checked(PostprocessSettings, node, problems, "postprocess") if node else None
    if node is not None and settings is not None and settings.python is not None:
        _user_code(node.get("python") or node, settings.python, folder, problems)
    return settings


def _user_code(node: Node, reference: str, folder: Path, problems: Problems) -> None:
    wrong = user_code.problem(reference.removeprefix("python:"), folder)
    if wrong is not None:
        problems.add(node.place, *wrong)


def _given(recipe: Node, name: str) -> Node | None:
    node = recipe.get(name)
    return node if node is not None and node.value is not None else None


def _top(recipe: Node, problems: Problems) -> None:
    """Keys that are unknown or missing, and sections left empty."""
    for key, node in recipe.items():
        if key not in KEYS:
            belongs = [name for name, kind in _BELOW.items() if key in allowed_keys(kind)]
            hint = f"did you mean {belongs[0]}.{key}?" if belongs else did_you_mean(key, KEYS)
            problems.add(node.start, f"unknown key {found(key)}", hint)
        elif node.value is None and key not in Header.model_fields:
            hint = "give it a value, or remove the key"
            problems.add(node.place, f"{key}: found nothing, wanted its settings", hint)
    for key in REQUIRED:
        if key not in recipe.value and not (key == "variants" and recipe.get("matrix")):
            problems.add(
                recipe.place, f"missing key {key!r}", f"add {_HINTS[key]}", kind=f"missing {key}"
            )


_BELOW: dict[str, type[Settings]] = {**_SETTINGS, "model": ModelSettings}


def _header(recipe: Node, problems: Problems) -> Header | None:
    known = {name: node for name, node in recipe.items() if name in Header.model_fields}
    if not {"version", "name"} <= known.keys():
        for name, node in known.items():  # the rest can be checked all the same
            _header_field(recipe, name, node, problems)
        return None
    header = checked(Header, recipe.without(*(k for k in recipe.value if k not in known)), problems)
    wrong = name_problem(header.name, taken=TAKEN_BY_RECIPES) if header is not None else None
    if header is not None and wrong is not None:
        problems.add(known["name"].place, f"name: {found(header.name)}: {wrong[0]}", wrong[1])
        return None
    return header


def _header_field(recipe: Node, name: str, node: Node, problems: Problems) -> None:
    filled = {"version": Node(1, recipe.place), "name": Node("x", recipe.place), name: node}
    checked(Header, Node(filled, recipe.place), problems)


def _model(
    recipe: Node, folder: Path, problems: Problems
) -> tuple[ModelSettings | None, Format | None]:
    node = _given(recipe, "model")
    if node is None:
        return None, None
    model = checked(ModelSettings, node, problems, "model")
    source = node.get("source")
    if model is None or source is None:
        return None, None
    kind, colon, target = model.source.partition(":")
    if not colon or not target:
        example = f"torchvision:{kind}" if kind.isidentifier() else "torchvision:resnet50"
        message = f"model.source: found {found(model.source)}, wanted KIND:WHAT"
        known = ", ".join(sources.names())
        problems.add(source.place, message, f"such as {excerpt(example)}; kinds are {known}")
        return None, None
    try:
        found_kind = sources.find(kind)
    except UsageError as error:
        problems.add(source.place, error.message, error.hint)
        return None, None
    made = found_kind(target=target, weights=model.weights, arguments=model.arguments, folder=folder)
    for field, message, hint in made.problems():
        at = node.get(field) or source
        problems.add(at.place, f"model.{field}: {message}", hint)
    return model, found_kind.format


def _inputs(recipe: Node, problems: Problems) -> tuple[TensorSpec, ...] | None:
    node = _given(recipe, "inputs")
    if node is None:
        return None
    if not isinstance(node.value, tuple) or not node.value:
        message = f"inputs: found {found(node.value)}, wanted a list of tensors"
        problems.add(node.place, message, f"write {_HINTS['inputs']}")
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
    others = [key for key in node.value if key not in ("name", "dtype", "shape", *symbols)]
    if not sound:  # where the shape is wrong, nobody knows which ranges belong to it
        others = [key for key in others if not isinstance(node.value[key].value, dict)]
        node = node.without(*symbols)
    unknown = Node({key: node.value[key] for key in others}, node.place)
    unknown_keys(unknown, ("name", "dtype", "shape", *symbols), problems, where)
    for symbol in symbols:
        if sound and (size := node.get(symbol)) is not None and isinstance(size.value, dict):
            unknown_keys(size, tuple(SymbolRange.model_fields), problems, symbol)
    known = ("name", "dtype", "shape", *symbols)
    return checked(
        TensorSpec, node.without(*(k for k in node.value if k not in known)), problems, where
    )


def _roles(recipe: Node) -> tuple[str, ...]:
    """The roles that have data; all of them where a slip of the pen hides which."""
    node = recipe.get("data")
    if node is None:
        return ()
    known = isinstance(node.value, dict) and all(key in ROLES for key in node.value)
    return tuple(node.value) if known else ROLES


def _data(recipe: Node, folder: Path, problems: Problems) -> dict[str, DataSettings]:
    node = _given(recipe, "data")
    if node is None:
        return {}
    if not isinstance(node.value, dict):
        message = f"data: found {found(node.value)}, wanted a mapping of roles"
        problems.add(node.place, message, "write data: {evaluation: {source: npz:FILE}}")
        return {}
    unknown_keys(node, ROLES, problems, "data")
    read: dict[str, DataSettings] = {}
    for role in ROLES:
        item = node.get(role)
        settings = None if item is None else checked(DataSettings, item, problems, f"data.{role}")
        if item is None or settings is None:
            continue
        read[role] = settings
        for field, message, hint in data.problems(settings, folder):
            at = item
            for part in field.split("."):
                at = at.get(part) or at
            problems.add(at.place, f"data.{role}.{field}: {message}", hint)
    return read


def read_plugins(recipe: Node, folder: Path, problems: Problems) -> dict[str, str]:
    """References of the user's own passes, by the names that variants may use."""
    node = _given(recipe, "plugins")
    if node is None:
        return {}
    example = "plugins: [./mine.py:MyPass]"
    if not isinstance(node.value, dict | tuple):
        message = f"plugins: found {found(node.value)}, wanted a list of FILE.py:CLASS"
        problems.add(node.place, message, f"write {example}")
        return {}
    listed = [(name, item) for name, item in node.items()] + [("", item) for item in node.elements()]
    if len(listed) > _MOST_PLUGINS:  # the code of each is read
        message = f"plugins: found {len(listed)}, wanted at most {_MOST_PLUGINS}"
        problems.add(node.place, message, "name fewer")
        return {}
    read: dict[str, str] = {}
    for name, item in listed:
        if not isinstance(item.value, str):
            message = f"plugins: found {found(item.value)}, wanted FILE.py:CLASS"
            problems.add(item.place, message, f"write {example}")
            continue
        wrong = user_code.problem(item.value, folder)
        if wrong is not None:
            problems.add(item.place, *wrong)
        cls = item.value.rpartition(":")[2]
        for known in [name] if name else [cls, _snake(cls)]:
            read[known] = item.value
    return read


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
