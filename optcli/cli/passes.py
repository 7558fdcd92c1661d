"""`optcli passes`: the passes there are, and the options of one, in the words of its JSON Schema."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from optcli import passes
from optcli.artifact import Format
from optcli.cli import options, show
from optcli.files import registry
from optcli.passes import Pass
from optcli.results.document import Code, Document, Names, Section
from optcli.workers import Channel, run

_PLAIN = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "null": "null",
    "object": "mapping",
    "array": "list",
}
_MANY = {"string": "texts", "integer": "integers", "number": "numbers", "object": "mappings"}


@click.command("passes", epilog=options.examples("optcli passes", "optcli passes quantize_nncf"))
@click.argument("name", required=False)
@options.as_json
def command(name: str | None, as_json: bool) -> None:
    """List the passes, or show what NAME does, reads and takes as options.

    NAME may also be FILE.py:CLASS or module:CLASS, a pass of your own.
    """
    abouts = {pass_name: _about(pass_name) for pass_name in ([name] if name else passes.names())}
    schemas = {pass_name: about.schema for pass_name, about in abouts.items()}
    document = _of_one(name, abouts[name]) if name else _of_all(abouts)
    show(schemas, document, as_json=as_json)


@dataclass(frozen=True)
class PassDescriptionRequest:
    """A pass of somebody else's code: `FILE_OR_MODULE:CLASS`, a file's path relative to `folder`."""

    reference: str
    folder: Path


@dataclass(frozen=True)
class Option:
    """One option; `default` is None where it must be given."""

    name: str
    type: str
    default: str | None
    help: str


@dataclass(frozen=True)
class PassDescription:
    """What a pass says of itself; `makes` is the format made by format read."""

    help: str
    reads: tuple[str, ...]
    makes: dict[str, str]
    uses: tuple[str, ...]
    needs: tuple[str, ...]
    options: tuple[Option, ...]
    example: dict[str, str]
    schema: dict[str, Any]


def describe(request: PassDescriptionRequest, channel: Channel) -> PassDescription:
    """In a worker: what a pass of somebody else's code says of itself."""
    from optcli.pipeline.plugins import loaded

    return _of(loaded(request.reference, request.folder))


def _about(name: str) -> PassDescription:
    offered = registry.entry_points("optcli.passes")
    if name in passes.own_names() or (name not in offered and ":" not in name):
        return _of(passes.find(name))
    request = PassDescriptionRequest(offered.get(name, name), Path.cwd())
    return run("optcli.cli.passes:describe", request, PassDescription, timeout_s=300)


def _of(kind: type[Pass]) -> PassDescription:
    schema = kind.model_json_schema()
    properties = schema["properties"]

    def written(option: dict[str, Any]) -> str:
        return json.dumps(option["default"]).strip('"') if "default" in option else "is worked out"

    return PassDescription(
        help=inspect.getdoc(kind) or "",
        reads=tuple(str(source) for source in getattr(kind, "accepts", ())),
        makes=_makes(kind),
        uses=tuple(kind.uses),
        needs=(*passes.packages_in_words(kind), *(["a GPU"] if kind.needs.gpu else [])),
        options=tuple(
            Option(
                name=name,
                type=in_words(properties[name], schema.get("$defs")),
                default=None if field.is_required() else written(properties[name]),
                help=field.description or "",
            )
            for name, field in kind.model_fields.items()
        ),
        example=_example(kind),
        schema=schema,
    )


def _makes(kind: type[Pass]) -> dict[str, str]:
    """Format made by format read, with the options at their defaults."""
    if any(field.is_required() for field in kind.model_fields.values()):
        return {}
    configured = kind()
    return {str(source): str(configured.produces(source)) for source in getattr(kind, "accepts", ())}


def _example(kind: type[Pass]) -> dict[str, str]:
    """A value for the options that must be given, and for the first that has a plain default."""
    values: dict[str, str] = {}
    for name, field in kind.model_fields.items():
        choices = typing.get_args(field.annotation) or (1,)
        if field.is_required():
            values[name] = json.dumps((field.examples or choices)[0])
        elif not values and isinstance(field.default, str | int | float):
            values[name] = json.dumps(field.default)
    return values


def _formats(about: PassDescription) -> str:
    pairs = about.makes.items()
    conversions = [read if read == output else f"{read} to {output}" for read, output in pairs]
    return f"reads {', '.join(conversions or about.reads)}"


def _of_all(abouts: Mapping[str, PassDescription]) -> Document:
    rows = [
        (name, f"{about.help.splitlines()[0]}\n{_formats(about)}") for name, about in abouts.items()
    ]
    answer = "`optcli passes NAME` shows the options of one."
    return Document("optcli passes", [Section("", [Names(rows)])], answer=answer)


def _of_one(name: str, about: PassDescription) -> Document:
    made = ", ".join(dict.fromkeys(about.makes.values())) or "depends on its options"
    facts = [
        ("reads", ", ".join(about.reads)),
        ("makes", made),
        ("uses", ", ".join(about.uses) or "no data"),
        ("needs", ", ".join(about.needs) or "nothing more"),
    ]
    options_of = [
        (
            each.name,
            f"{each.type} ({'required' if each.default is None else f'default {each.default}'})"
            f"\n{each.help}",
        )
        for each in about.options
    ]
    return Document(
        name,
        [
            Section("", [Code(about.help)]),
            Section("", [Names(facts)]),
            Section("options", [Names(options_of or [("none", "")])]),
            Section("in a recipe", [Code("\n".join(example(name, about)))]),
        ],
    )


def example(name: str, about: PassDescription) -> list[str]:
    """Lines of a recipe that use a pass, with the passes that must come before it."""
    from optcli.recipe import passes_between

    formats = [Format(one) for one in about.reads]
    before = passes_between(Format.TORCH, formats) if formats else ()
    settings = [f"{key}: {value}" for key, value in about.example.items()]
    written = json.dumps(name) if ":" in name else name
    use = f"{{{written}: {{{', '.join(settings)}}}}}" if settings else written
    needs = [f"  # with data: {', '.join(about.uses)}"] if about.uses else []
    title = name.rpartition(":")[2]
    return [f"variants:{''.join(needs)}", f"  {title}: [{', '.join([*(before or ()), use])}]"]


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
