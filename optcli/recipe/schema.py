"""The JSON Schema that editors complete recipes from, made of the models that check them."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BaseModel, create_model

from optcli import passes, runners
from optcli.data import DataSettings
from optcli.files import registry
from optcli.recipe.models import (
    ROLES,
    MatrixEntry,
    Recipe,
    Variant,
    VariantSettings,
    written_fields,
)
from optcli.recipe.validation import models_in
from optcli.settings import Settings, TensorSpec
from optcli.settings.references import annotation_of

# The first line of a recipe, by which editors find the schema beside it.
SCHEMA_FILE = "recipe.schema.json"
MODELINE = f"# yaml-language-server: $schema={SCHEMA_FILE}"

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PLACEHOLDER = {"type": "string", "pattern": r"\$\{"}
_TEXT, _NULL = {"type": "string"}, {"type": "null"}
# Keys of a variant whose written form is not that of their type.
_OWN_FORM = ("passes", "runner")


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a recipe file, with the options of every pass and runner."""
    from pydantic.json_schema import models_json_schema

    own = {name: passes.find(name) for name in registry.names(passes.__name__)}
    ways = {name: runners.find(name) for name in runners.names()}
    fields = written_fields(Recipe)
    plain: dict[str, Any] = {
        name: (annotation_of(field), field)
        for name, field in fields.items()
        if name not in ("data", "plugins", "variants", "matrix")
    }
    header = create_model("Header", __base__=Settings, **plain)
    models: list[type[BaseModel]] = [
        header,
        TensorSpec,
        DataSettings,
        VariantSettings,
        *own.values(),
        *ways.values(),
    ]
    refs, whole = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/$defs/{model}"
    )
    defs: dict[str, Any] = whole["$defs"]
    named = {model: ref["$ref"].rpartition("/")[2] for (model, _), ref in refs.items()}

    def ref(model: type[BaseModel]) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{named[model]}"}

    tensor = defs[named[TensorSpec]]  # the range of a symbol stands under its own name
    tensor["additionalProperties"] = tensor["properties"].pop("ranges")["additionalProperties"]
    for kind in (*own.values(), *ways.values()):
        defs[named[kind]]["description"] = inspect.getdoc(kind) or ""
    defs["Pass"] = _pass({name: ref(kind) for name, kind in own.items()})
    defs["Runner"] = _runner({name: defs[named[kind]] for name, kind in ways.items()})
    defs["Variant"] = _variant(defs.pop(named[VariantSettings]))
    defs["MatrixEntry"] = _matrix_entry()
    sections = defs.pop(named[header])["properties"]
    for name, field in fields.items():
        if name in sections and models_in(field.annotation) and not field.is_required():
            sections[name] = _removable({k: v for k, v in sections[name].items() if k != "default"})
    sections |= {
        "data": _closed({role: _removable(ref(DataSettings)) for role in ROLES}),
        "plugins": {
            "anyOf": [
                {"type": "array", "items": _TEXT},
                {"type": "object", "additionalProperties": _TEXT},
            ],
        },
        "variants": {"type": "object", "additionalProperties": _removable({"$ref": "#/$defs/Variant"})},
        "matrix": {"type": "object", "additionalProperties": {"$ref": "#/$defs/MatrixEntry"}},
    }
    for name in ("data", "plugins", "variants", "matrix"):
        sections[name]["description"] = fields[name].description
    required = [name for name, field in fields.items() if field.is_required()]
    defs = {name: _or_placeholder(kind) for name, kind in defs.items()}
    return {
        "$schema": _DRAFT,
        "title": "optcli recipe",
        **_closed({name: sections[name] for name in fields}),
        # What a recipe extends may bring the rest.
        "anyOf": [
            {"required": ["extends"]},
            {"required": required},
            {"required": [*(key for key in required if key != "variants"), "matrix"]},
        ],
        "$defs": defs,
    }


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _removable(schema: dict[str, Any]) -> dict[str, Any]:
    """Null removes what an extended recipe says."""
    return schema if _NULL in schema.get("anyOf", ()) else {"anyOf": [schema, _NULL]}


def _pass(options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    with_options = _closed(options) | {"minProperties": 1, "maxProperties": 1}
    # A name with a colon is FILE.py:CLASS; a name that is not ours may come from plugins.
    with_options["additionalProperties"] = {"type": ["object", "null"]}
    return {"anyOf": [{"enum": list(options)}, _TEXT, with_options]}


def _runner(settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    written = [
        {
            **one,
            "properties": {"name": {"const": name}, **one["properties"]},
            "required": ["name", *one.get("required", [])],
        }
        for name, one in settings.items()
    ]
    # Without a name: changes of the runner that the extended variant has.
    nameless = {"type": "object", "not": {"required": ["name"]}}
    return {"anyOf": [{"enum": list(settings)}, *written, nameless]}


def _variant(settings: dict[str, Any]) -> dict[str, Any]:
    listed = {"type": "array", "items": {"$ref": "#/$defs/Pass"}}
    runner = {"$ref": "#/$defs/Runner"}
    about = {name: {"description": Variant.model_fields[name].description} for name in _OWN_FORM}
    own = {"passes": {**listed, **about["passes"]}, "runner": {**runner, **about["runner"]}}
    written = _closed({**own, **settings["properties"]})
    return {
        "description": "A list of passes, or a mapping.",
        "anyOf": [listed, written],
    }


def _matrix_entry() -> dict[str, Any]:
    fields = MatrixEntry.model_fields
    over = {
        "description": fields["over"].description,
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"type": "array", "minItems": 1},
    }
    variant = {"description": fields["variant"].description, "$ref": "#/$defs/Variant"}
    whole = _closed({"over": over, "variant": variant}) | {"required": ["over", "variant"]}
    return {"description": inspect.getdoc(MatrixEntry) or "", **whole}


def _or_placeholder(schema: Any) -> Any:
    """Where a number or a truth value may stand, `${NAME}` may as well."""
    if isinstance(schema, list):
        return [_or_placeholder(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    new = {key: _or_placeholder(item) for key, item in schema.items()}
    closed = new.get("type") in ("integer", "number", "boolean") or (
        "enum" in new and new.get("type") == "string"
    )
    if not closed:
        return new
    about = {key: new.pop(key) for key in ("description", "default", "title") if key in new}
    return {**about, "anyOf": [new, _PLACEHOLDER]}
