"""A node checked by a pydantic model, and what is wrong said plainly: found, wanted, where, a hint."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from optcli.errors import did_you_mean, excerpt
from optcli.recipe.hints import hint_for
from optcli.recipe.nodes import Node, Problems

# Silent conversions ("2" for 2, true for 1) hide mistakes: these come from strict checking.
_SCALARS = ("int_type", "int_parsing", "float_type", "bool_type", "string_type")


_NUMBER = re.compile(r"\s*[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)


# What a field says that would have taken the value as it was meant.
_MEANT = {
    bool: {"bool_type", "bool_parsing"},
    str: {
        "string_type",
        "literal_error",
        "enum",
        "path_type",
        "value_error",
        "model_type",
        "dict_type",
    },
}


class _Stand:
    """Stands for a value."""

    def __init__(self, value: bool | str) -> None:
        self.value = value


_MOST_QUOTED = 80


_MOST_SAID = 300


# More than are shown, since one thing can be several errors.
_MOST_NOTED = 1000


Model = TypeVar("Model", bound=BaseModel)


_WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
    "list_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length}",
    "string_too_short": "some text",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "text of the form {pattern}",
    "none_required": "nothing",
}


def checked(model: type[Model], node: Node, problems: Problems, where: str = "") -> Model | None:
    """The node as an instance of a model; None where something in it is wrong, which is noted.

    `where` names the section in messages.
    """
    data = node.plain()
    errors = errors_in(model, data)
    texts = [error for error in errors if error["type"] == "string_type"]
    for error in texts:
        at = _walk(node, error["loc"])
        if at.node.text is not None:  # from the environment: text after all
            _put(data, at.path, at.node.text)
    errors = errors_in(model, data) if texts else errors
    note(model, errors, node, problems, where)
    return None if errors else model.model_validate(data)


@dataclass(frozen=True)
class _At:
    """Where an error is: the deepest node along its location, the keys to it, and what is left."""

    node: Node
    path: tuple[Any, ...]
    rest: tuple[Any, ...]


def _walk(node: Node, loc: Sequence[Any]) -> _At:
    path: list[Any] = []
    for index, part in enumerate(loc):
        child = _child(node, part)
        if child is not None:
            node = child
            path.append(part)
        elif not any(_child(node, later) for later in loc[index + 1 :]):
            return _At(node, tuple(path), tuple(loc[index:]))
        # else the part names one of several forms, or a field that a model fills itself
    return _At(node, tuple(path), ())


def _child(node: Node, part: Any) -> Node | None:
    if isinstance(part, str):
        return node.get(part)
    return node.elements()[part] if part < len(node.elements()) else None


def note(
    model: type[BaseModel],
    errors: Sequence[Any],
    node: Node,
    problems: Problems,
    where: str = "",
    *,
    apart: bool = False,
) -> None:
    """Note pydantic's errors as problems, one for each thing that is wrong.

    `apart` keeps all of them where the nodes have no places of their own.
    """
    located = [(error, _walk(node, error["loc"])) for error in errors[:_MOST_NOTED]]
    groups: dict[Any, list[tuple[Any, _At]]] = {}
    for error, at in located:
        alone = error["type"] in ("missing", "extra_forbidden")
        groups.setdefault((at.path, error["loc"] if alone else None), []).append((error, at))
    paths = [at.path for _, at in located]
    for (path, alone), group in groups.items():
        error, at = group[0]
        # Of several forms that a value may have, what is wrong within the one that was meant says more.
        deeper = any(len(other) > len(path) and other[: len(path)] == path for other in paths)
        if at.rest and deeper and alone is None:
            continue
        kind = str(error["loc"]) if apart or error["type"] == "missing" else ""
        if error["type"] == "extra_forbidden":
            _unknown(model, error, at, problems, where, kind)
        elif error["type"] == "missing":
            key, owner = str(error["loc"][-1]), _name(path, where)
            message = f"missing key {key!r}" + (f" in {owner}" if owner else "")
            problems.add(at.node.start, message, f"add {key}: ...", kind=kind)
        else:
            errors_here = [_with_examples(model, one) for one, _ in group]
            message, hint = _message_and_hint(errors_here, at.node, path, where)
            hint = _as_mapping(model, error, at.node) or hint
            problems.add(at.node.place, message, hint, kind=kind)


def _with_examples(model: type[BaseModel], error: Any) -> Any:
    """An error of text that has not the wanted form: the field's examples show that form to people."""
    *owner, name = error["loc"] or ("",)
    fields = (one.model_fields.get(name) for one in models_at(model, owner))
    examples = [str(each) for field in fields if field is not None for each in field.examples or ()]
    if error["type"] != "string_pattern_mismatch" or not examples:
        return error
    wanted = f"text such as {', '.join(examples)}"
    return {**error, "type": "literal_error", "ctx": {"expected": wanted, "choices": examples}}


def _unknown(
    model: type[BaseModel], error: Any, at: _At, problems: Problems, where: str, kind: str
) -> None:
    key = str(error["loc"][-1])
    allowed = allowed_keys(model, error["loc"][:-1])
    owner = _name(at.path[:-1], where)
    message = f"unknown key {shown_value(key)}" + (f" in {owner}" if owner else "")
    hint = did_you_mean(key, allowed) or "it has no options: remove the key"
    problems.add(at.node.start, message, hint, kind=kind)


def _message_and_hint(
    group: Sequence[Any], node: Node, path: tuple[Any, ...], where: str
) -> tuple[str, str]:
    """Message and hint of the errors at one node."""
    error = group[0]
    name = _name(path, where)
    label = f"{name}: " if name else ""
    if error["type"] in ("value_error", "assertion_error"):
        message = excerpt(str(error["ctx"]["error"]), _MOST_SAID)
        return f"{label}{message}", _advice(message)
    wants = dict.fromkeys(
        _WANTED.get(problem["type"], problem["msg"]).format(**problem.get("ctx", {}))
        for problem in group
    )
    wanted = " or ".join("a name" if r"[A-Za-z_]\w*$" in want else want for want in wants)
    choices = [choice for problem in group for choice in _choices(problem)]
    hint = hint_for(error["type"], node.plain(), choices, path or (where,))
    return f"{label}found {shown_value(node.value, wanted)}, wanted {wanted}", hint


def _as_mapping(model: type[BaseModel], error: Any, node: Node) -> str:
    """How a value is written as the mapping that was wanted: `write {size: 640}`; else nothing."""
    value = node.plain()
    if not error["type"].startswith("model") or isinstance(value, dict | None):
        return ""
    for one in models_at(model, error["loc"]):
        for name in (name for name, field in one.model_fields.items() if field.is_required()):
            with suppress(ValidationError):
                one.model_validate({name: value})
                return f"write {{{name}: {value}}}"
    return ""


def _advice(message: str) -> str:
    """What to do about values that are sound by themselves and not together."""
    if "neither" in message:
        return "add one of them"
    several = " <" in message or "beside" in message or message.count("`") > 2
    return "change one of them" if several else "change it, or remove it"


def _choices(error: Any) -> list[str]:
    context = error.get("ctx", {})
    if "choices" in context:
        return list(context["choices"])
    expected = str(context.get("expected", ""))
    parts = expected.replace(" or ", ", ").split(",")
    return [part.strip("' ") for part in parts if part.strip("' ")]


def _name(path: Sequence[Any], where: str) -> str:
    """A readable name of what stands under a path: `latency.batch_sizes[1]`."""
    name = where
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else str(part)
    return name


def shown_value(value: Any, wanted: str = "") -> str:
    """A value as a person would call it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, str):
        quoted = _quoted(value)
        return f"{quoted} (text)" if "number" in wanted or "true" in wanted else quoted
    return f"{value} (a number)" if wanted == "text" else str(value)


def _quoted(text: str) -> str:
    """A text as it would stand in quotes, cut where it is long."""
    more = f"… ({len(text)} characters)" if len(text) > _MOST_QUOTED else ""
    return f"{text[:_MOST_QUOTED]!r}{more}"


def unknown_keys(node: Node, allowed: Sequence[str], problems: Problems, where: str = "") -> None:
    """Note every key of a mapping that is not allowed."""
    for key, item in node.items():
        if key not in allowed:
            message = f"unknown key {shown_value(key)}" + (f" in {where}" if where else "")
            problems.add(item.start, message, did_you_mean(key, allowed))


def _put(data: Any, path: Sequence[Any], value: Any) -> None:
    for part in path[:-1]:
        data = data[part]
    data[path[-1]] = value


def allowed_keys(model: type[BaseModel], loc: Sequence[Any] = ()) -> list[str]:
    """The keys that may stand in the mapping at a location within a model."""
    return [
        field.alias or name
        for one in dict.fromkeys(models_at(model, loc))
        for name, field in one.model_fields.items()
        if not field.exclude
    ]


def models_at(model: type[BaseModel], loc: Sequence[Any]) -> list[type[BaseModel]]:
    """The models that the mapping at a location within a model may be of."""
    models = [model]
    for part in loc:
        fields = [field for one in models for name, field in one.model_fields.items() if name == part]
        inner = [within for field in fields for within in models_in(field.annotation)]
        models = inner or models
    return models


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a value of a type may hold, those within them left out."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in models_in(part)]


def errors_in(model: type[BaseModel], data: Any) -> list[Any]:
    """Everything pydantic finds wrong: strict about scalars, easy about lists and tuples."""
    errors: list[Any] = []
    try:
        model.model_validate(data)
    except ValidationError as error:
        errors.extend(error.errors(include_url=False))
    try:
        model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        known = {one["loc"] for one in errors}
        errors.extend(
            one
            for one in error.errors(include_url=False)
            if one["type"] in _SCALARS
            and one["loc"] not in known
            and isinstance(one["input"], str | int | float)
        )
    known = {one["loc"] for one in errors}
    return errors + [one for one in _mistaken(model, data) if one["loc"] not in known]


def _mistaken(model: type[BaseModel], data: Any) -> list[Any]:
    """The errors of pydantic for truth values and quoted numbers that a number is wanted for."""
    stands: list[_Stand] = []
    marked = _marked(data, stands)
    if not stands:
        return []
    try:
        model.model_validate(marked)
    except ValidationError as error:
        return list(_misplaced(error.errors(include_url=False)))
    except (TypeError, ValueError, AttributeError):
        return []  # a model's own look at its data; the ordinary check has had its say
    return []


def _marked(data: Any, stands: list[_Stand]) -> Any:
    if isinstance(data, dict):
        return {key: _marked(item, stands) for key, item in data.items()}
    if isinstance(data, list):
        return [_marked(item, stands) for item in data]
    if isinstance(data, bool) or (isinstance(data, str) and _NUMBER.fullmatch(data)):
        stands.append(_Stand(data))
        return stands[-1]
    return data


def _misplaced(errors: Iterable[Any]) -> Iterable[Any]:
    by_value: dict[int, list[Any]] = {}
    for error in errors:
        if isinstance(error["input"], _Stand):
            by_value.setdefault(id(error["input"]), []).append(error)
    for group in by_value.values():
        value = group[0]["input"].value
        if not {error["type"] for error in group} & _MEANT[type(value)]:
            yield from ({**error, "input": value} for error in group)
