"""What an option takes, in words: read from its JSON Schema, which knows bounds and no Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_PLAIN = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "null": "null",
    "object": "mapping",
    "array": "list",
}
_MANY = {"string": "texts", "integer": "integers", "number": "numbers", "object": "mappings"}


def in_words(schema: Mapping[str, Any], definitions: Mapping[str, Any] | None = None) -> str:
    """The values that a schema allows, such as `integer, at least 1, or null`.

    `definitions` is what its `$ref`s speak of, by name.
    """
    words = list(dict.fromkeys(_choices(schema, definitions or {})))
    if len(words) < 2:
        return "".join(words)
    # A comma within one of the choices asks for one between them.
    last = ", or " if any(", " in word for word in words) else " or "
    return f"{', '.join(words[:-1])}{last}{words[-1]}"


def _choices(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[str]:
    schema = _resolved(schema, definitions)
    if "anyOf" in schema:
        return [word for one in schema["anyOf"] for word in _choices(one, definitions)]
    if "const" in schema:
        return [_value(schema["const"])]
    if "enum" in schema:
        return [_value(each) for each in schema["enum"]]
    if schema.get("type") == "boolean":
        return ["true", "false"]
    return [_kind(schema, definitions)]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _kind(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    kind = schema.get("type", "")
    if kind == "array" and "items" in schema:
        return f"list of {_several(schema['items'], definitions)}{_length(schema)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        names = schema.get("propertyNames")
        keys = f" from {_several(names, definitions)}" if names else ""
        return f"mapping{keys} to {_several(schema['additionalProperties'], definitions)}"
    if kind == "object" and schema.get("properties"):
        return f"mapping with {', '.join(schema['properties'])}"
    return f"{_PLAIN.get(kind, 'any value')}{_bounds(schema)}"


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    resolved: Mapping[str, Any] = definitions.get(name, schema)
    return resolved


def _several(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """The items of a list, or the keys or values of a mapping."""
    schema = _resolved(schema, definitions)
    words = in_words(schema, definitions)
    plain = _PLAIN.get(schema.get("type", ""), "")
    if "enum" not in schema and words.startswith(plain) and schema.get("type") in _MANY:
        return _MANY[schema["type"]] + words.removeprefix(plain)
    return words


def _bounds(schema: Mapping[str, Any]) -> str:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    bounds = [f"{word} {schema[key]:g}" for key, word in words.items() if key in schema]
    return f", {' and '.join(bounds)}" if bounds else ""


def _length(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if least is not None and least == most:
        return f", {least} of them"
    bounds = [f"at least {least}"] if least else []
    bounds += [f"at most {most}"] if most is not None else []
    return f", {' and '.join(bounds)} of them" if bounds else ""
