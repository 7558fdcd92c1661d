"""The JSON Schema that editors complete recipes from, made of the models that check them."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BaseModel

from optcli import passes, registry, runners
from optcli.data import DataSettings
from optcli.recipe.models import REQUIRED, ROLES, Header, ModelSettings, VariantSettings
from optcli.settings import GateBar, GateSettings, LatencySettings, SloSettings, SymbolRange, TensorSpec
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.postprocess import PostprocessSettings

# The first line of a recipe, by which editors find the schema beside it.
SCHEMA_FILE = "recipe.schema.json"
MODELINE = f"# yaml-language-server: $schema={SCHEMA_FILE}"

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PLACEHOLDER = {"type": "string", "pattern": r"\$\{"}
_TEXT = {"type": "string"}


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a recipe file, with the options of every pass and runner."""
    from pydantic.json_schema import models_json_schema

    own = {name: passes.find(name) for name in registry.names(passes.__name__)}
    ways = {name: runners.find(name) for name in runners.names()}
    models: list[type[BaseModel]] = [
        Header,
        ModelSettings,
        TensorSpec,
        SymbolRange,
        DataSettings,
        LatencySettings,
        PostprocessSettings,
        AccuracySettings,
        SloSettings,
        GateBar,
        GateSettings,
        VariantSettings,
        *own.values(),
        *ways.values(),
    ]
    refs, whole = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/$defs/{model}"
    )
    defs: dict[str, Any] = whole["$defs"]
    named = {model: ref["$ref"].rpartition("/")[2] for (model, _), ref in refs.items()}
    _tensor(defs[named[TensorSpec]], {"$ref": f"#/$defs/{named[SymbolRange]}"})

    def ref(model: type[BaseModel]) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{named[model]}"}

    for one in (*own.values(), *ways.values()):
        defs[named[one]]["description"] = inspect.getdoc(one) or ""
    defs["Pass"] = _pass({name: ref(kind) for name, kind in own.items()})
    defs["Runner"] = _runner({name: defs[named[kind]] for name, kind in ways.items()})
    defs["Variant"] = _variant(defs.pop(named[VariantSettings]))
    defs["MatrixEntry"] = _matrix_entry()
    header = defs.pop(named[Header])
    sections = {
        "model": ref(ModelSettings),
        "inputs": {"type": "array", "minItems": 1, "items": ref(TensorSpec)},
        "data": _closed({role: _removable(ref(DataSettings)) for role in ROLES}),
        "postprocess": _removable({"anyOf": [_TEXT, ref(PostprocessSettings)]}),
        "plugins": {
            "description": "passes from your own files, FILE.py:CLASS, or a mapping from names to them",
            "anyOf": [
                {"type": "array", "items": _TEXT},
                {"type": "object", "additionalProperties": _TEXT},
            ],
        },
        "latency": _removable(ref(LatencySettings)),
        "accuracy": _removable(ref(AccuracySettings)),
        "slo": _removable(ref(SloSettings)),
        "gate": _removable(ref(GateSettings)),
        "variants": {"type": "object", "additionalProperties": _removable({"$ref": "#/$defs/Variant"})},
        "matrix": {"type": "object", "additionalProperties": {"$ref": "#/$defs/MatrixEntry"}},
    }
    defs = {name: _or_placeholder(one) for name, one in defs.items()}
    return {
        "$schema": _DRAFT,
        "title": "optcli recipe",
        **_closed({**header["properties"], **sections}),
        # What a recipe extends may bring the rest.
        "anyOf": [
            {"required": ["extends"]},
            {"required": list(REQUIRED)},
            {"required": [*(key for key in REQUIRED if key != "variants"), "matrix"]},
        ],
        "$defs": defs,
    }


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _removable(schema: dict[str, Any]) -> dict[str, Any]:
    """Null removes what an extended recipe says."""
    return {"anyOf": [schema, {"type": "null"}]}


def _tensor(tensor: dict[str, Any], size: dict[str, Any]) -> None:
    """The range of a symbol stands under its own name."""
    tensor["properties"].pop("ranges")
    tensor["additionalProperties"] = size


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
    written = _closed({"passes": listed, "runner": runner, **settings["properties"]})
    return {
        "description": "a list of passes, or a mapping with more to say",
        "anyOf": [listed, written],
    }


def _matrix_entry() -> dict[str, Any]:
    over = {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"type": "array", "minItems": 1},
    }
    variant = {"$ref": "#/$defs/Variant"}
    return _closed({"over": over, "variant": variant}) | {"required": ["over", "variant"]}


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
