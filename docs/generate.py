"""Write docs/reference/ from the code: `python docs/generate.py`, which `make docs` runs.

Each page is made from one source: recipes from their JSON Schema, verbs from click, reports from their
models, the rest from the classes and their docstrings. A test compares the pages with what this writes.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

FOLDER = Path(__file__).parent / "reference"
_NOTE = "<!-- Written by docs/generate.py: change the code, not this page. -->"
Schema = Mapping[str, Any]


def pages() -> dict[str, str]:
    """The text of each page of the reference, by file name."""
    written = {
        "recipe.md": _recipe(),
        "passes.md": _passes(),
        "runners.md": _runners(),
        "sources.md": _sources(),
        "metrics.md": _metrics(),
        "verbs.md": _verbs(),
        "exit-codes.md": _exit_codes(),
        "report.md": _report(),
        "gate-json.md": _gate(),
        "plan-file.md": _plan_file(),
        "plan-json.md": _plan(),
        "loadtest-json.md": _loadtest(),
        "canary-json.md": _canary(),
        "drift-json.md": _drift(),
        "environment.md": _environment(),
        "python.md": _python(),
    }
    return {name: f"{_NOTE}\n\n{text.rstrip()}\n" for name, text in written.items()}


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


# The recipe, passes and runners: from the JSON Schema


def _recipe() -> str:
    from optcli.recipe.schema import schema

    whole = schema()
    defs: Schema = whole["$defs"]
    lines = [
        "# Recipe",
        "",
        "Every key of a recipe file. Paths are relative to the folder of the recipe. Where a number "
        "or a truth value may stand, `${NAME}` and `${NAME:-default}` may stand as well: optcli takes "
        "them from the environment.",
        "",
        *_table(whole["properties"], whole.get("required", ()), defs),
    ]
    told: set[str] = set()
    waiting = _referred(whole["properties"])
    while waiting:
        name = waiting.pop(0)
        if name in told or name in ("Pass", "Runner"):
            continue
        told.add(name)
        lines += ["", *_definition(name, defs)]
        waiting = [*_referred(defs[name]), *waiting]
    return "\n".join(lines)


def _definition(name: str, defs: Schema) -> list[str]:
    schema = _mapping(defs[name])
    about = defs[name].get("description") or schema.get("description") or ""
    lines = [f"## {name}", "", *_paragraphs(about)]
    if schema.get("properties"):
        lines += ["", *_table(schema["properties"], schema.get("required", ()), defs)]
    return lines


def _passes() -> str:
    from optcli import passes, registry

    lines = [
        "# Passes",
        "",
        "A pass turns one artifact into another. A variant lists passes by name, with their options.",
    ]
    for name in registry.names(passes.__name__):
        kind = passes.find(name)
        reads = ", ".join(f"`{each.value}`" for each in kind.accepts)
        lines += ["", f"## {name}", "", *_paragraphs(inspect.getdoc(kind) or "")]
        lines += ["", f"Reads {reads}. Needs {_needs(kind.needs.packages)}."]
        lines += ["", *_options(kind.model_json_schema())]
    return "\n".join(lines)


def _runners() -> str:
    from optcli import runners

    lines = [
        "# Runners",
        "",
        "A runner runs artifacts in one runtime. A variant names it under `runner:`, with settings.",
    ]
    for name in runners.names():
        kind = runners.find(name)
        runs = ", ".join(f"`{each.value}`" for each in kind.runs)
        usual = [f"`{each.value}`" for each, runner in runners.DEFAULTS.items() if runner == name]
        default = f" The default for {', '.join(usual)}." if usual else ""
        lines += ["", f"## {name}", "", *_paragraphs(inspect.getdoc(kind) or "")]
        lines += ["", f"Runs {runs}. Needs {_needs(kind.needs.packages)}.{default}"]
        lines += ["", *_options(kind.model_json_schema())]
    return "\n".join(lines)


def _options(schema: Schema) -> list[str]:
    if not schema.get("properties"):
        return ["No options."]
    defs = schema.get("$defs", {})
    lines = _table(schema["properties"], schema.get("required", ()), defs)
    return [line.replace("](#", "](recipe.md#") for line in lines]


def _needs(packages: Iterable[str]) -> str:
    return ", ".join(f"`{each}`" for each in packages) or "nothing beside optcli"


def _table(properties: Schema, required: Iterable[str], defs: Schema) -> list[str]:
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, schema in properties.items():
        default = "required" if name in required else _default(schema)
        meaning = _meaning(schema) or _of_definition(schema, defs)
        cells = (f"`{name}`", _cell(_type(schema, defs)), default, _cell(meaning))
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value is None or value in ([], {}):
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{_cell(text)}`" if not isinstance(value, dict) else "see there"


def _meaning(schema: Schema) -> str:
    text = schema.get("description", "")
    examples = ", ".join(f"`{each}`" for each in schema.get("examples", ()))
    return f"{text}. Examples: {examples}" if text and examples else text or examples


def _of_definition(schema: Schema, defs: Schema) -> str:
    """The first sentence about the definition that a schema refers to."""
    names = [name for name in _referred(schema) if name in defs]
    about = (
        defs[names[0]].get("description") or _mapping(defs[names[0]]).get("description", "")
        if names
        else ""
    )
    return re.split(r"(?<=[.])\s", " ".join(about.split()))[0]


def _type(schema: Schema, defs: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in ("Pass", "Runner"):
            return f"[{name.lower()}]({'passes' if name == 'Pass' else 'runners'}.md)"
        return f"[{name}](#{name.lower()})" if name in defs else name
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    kinds = schema.get("anyOf") or schema.get("oneOf")
    if kinds:
        names = [_type(each, defs) for each in kinds if not _is_placeholder(each)]
        return " or ".join(dict.fromkeys(name for name in names if name != "null"))
    if "allOf" in schema:
        return " and ".join(_type(each, defs) for each in schema["allOf"])
    kind = schema.get("type", "any value")
    if kind == "array":
        inside = schema.get("items") or schema.get("prefixItems", [{}])[0]
        return f"list of {_type(inside, defs)}"
    if kind == "object":
        inside = schema.get("additionalProperties")
        return f"mapping to {_type(inside, defs)}" if isinstance(inside, dict) and inside else "mapping"
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true, false"}
    return " ".join([names.get(str(kind), str(kind)), *_bounds(schema)])


def _bounds(schema: Schema) -> Iterator[str]:
    for key, sign in (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ):
        if key in schema:
            yield f"{sign} {schema[key]:g}"


def _is_placeholder(schema: Schema) -> bool:
    return schema.get("pattern") == r"\$\{"


def _mapping(schema: Schema) -> Schema:
    """The form of a section that is a mapping, where it may be written in others as well."""
    if "properties" in schema:
        return schema
    forms = [_mapping(each) for each in schema.get("anyOf", ()) if isinstance(each, dict)]
    return next((each for each in forms if each.get("properties")), {})


def _referred(schema: Any) -> list[str]:
    """The names of the definitions that a schema refers to, in their order."""
    if isinstance(schema, list):
        return [name for each in schema for name in _referred(each)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"].rpartition("/")[2]] if "$ref" in schema else []
    return [*own, *(name for each in schema.values() for name in _referred(each))]


# Kinds that are one file each


def _sources() -> str:
    from optcli import data, registry, sources

    lines = ["# Sources of models and data", "", "## Models", "", "What `model.source` may say."]
    for name in sources.names():
        module = inspect.getmodule(sources.find(name))
        lines += ["", f"### `{name}:` model", "", *_paragraphs(inspect.getdoc(module) or "")]
    lines += ["", "## Data", "", "What `data.ROLE.source` may say."]
    for name in data.KINDS:
        module = importlib.import_module(f"optcli.data.{name}")
        kind = registry.only_subclass(module, data.Collection)
        lines += ["", f"### `{name}:` data", "", *_paragraphs(inspect.getdoc(module) or "")]
        lines += ["", *_paragraphs(inspect.getdoc(kind) or "")]
    return "\n".join(lines)


def _metrics() -> str:
    from optcli import registry
    from optcli.accuracy import metrics

    lines = ["# Metrics", "", "What `accuracy.metric` may say."]
    for name in registry.names(metrics.__name__):
        kind = registry.find(metrics.__name__, name, metrics.Metric)
        module = inspect.getmodule(kind)
        lines += ["", f"## {name}", "", *_paragraphs(inspect.getdoc(module) or "")]
        lines += ["", *_paragraphs(inspect.getdoc(kind) or ""), "", *_options(kind.model_json_schema())]
    user = importlib.import_module("optcli.accuracy.metrics._user")
    lines += ["", "## python:FILE.py:CALLABLE", "", *_paragraphs(inspect.getdoc(user) or "")]
    lines += ["", *_paragraphs(inspect.getdoc(user.UserMetric) or "")]
    return "\n".join(lines)


# The command line


def _verbs() -> str:
    from optcli.cli import root

    context = click.Context(root, info_name="optcli")
    lines = ["# Verbs", "", "What the process returns: [exit codes](exit-codes.md).", ""]
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        lines += _verb(command, click.Context(command, info_name=name, parent=context), "##")
    return "\n".join(lines)


def _verb(command: click.Command, context: click.Context, marks: str) -> list[str]:
    usage = command.get_usage(context).removeprefix("Usage: ")
    usage = " ".join(usage.split())
    lines = [f"{marks} {context.command_path}", "", *_paragraphs(_plain(command.help)), ""]
    lines += ["```text", usage, "```", ""]
    records = [each.get_help_record(context) for each in command.params]
    rows = [record for record in records if record is not None and record[1]]
    if rows:
        lines += ["| option | meaning |", "| --- | --- |"]
        lines += [f"| `{_cell(option)}` | {_cell(meaning)} |" for option, meaning in rows]
        lines += [""]
    if examples := (command.epilog or "").partition("Examples:\n")[2]:
        lines += ["```bash", inspect.cleandoc(examples), "```", ""]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            lines += _verb(below, click.Context(below, info_name=name, parent=context), f"{marks}#")
    return lines


def _plain(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("\b\n", "")


def _exit_codes() -> str:
    from optcli.errors import ExitCode

    lines = ["# Exit codes", "", *_paragraphs(inspect.getdoc(ExitCode) or ""), ""]
    lines += ["| code | name | meaning |", "| --- | --- | --- |"]
    lines += [f"| {code.value} | `{code.name}` | {code.meaning} |" for code in ExitCode]
    return "\n".join(lines)


# What is written for other programs


def _report() -> str:
    from optcli.results import Report

    return _models(
        "Report",
        "`report.json`, and what `optcli build --json` and `optcli compare --json` print.",
        Report,
    )


def _plan_file() -> str:
    from optcli.serving import file_schema, presets

    whole = file_schema()
    defs: Schema = whole["$defs"]
    lines = ["# Plan file", "", *_paragraphs(whole["description"]), ""]
    lines += ["Paths are relative to the folder of the file. An option of the verb replaces a key."]
    lines += ["", *_table(whole["properties"], whole.get("required", ()), defs)]
    for name in dict.fromkeys(_referred(whole["properties"])):
        lines += ["", *_definition(name, defs)]
    lines += ["", "## Presets", "", "Targets that people name in practice, each a plan file."]
    for name in presets.names():
        lines += ["", f"### {name}", "", "```yaml", presets.text(name).rstrip(), "```"]
    return "\n".join(lines)


def _plan() -> str:
    from optcli.results.plan import Plan

    about = "What `optcli plan --json` prints, and `optcli.plan` gives."
    return _models("The plan's JSON", about, Plan)


def _loadtest() -> str:
    from optcli.results.loadtest import LoadTest

    return _models("The load test's JSON", "What `optcli loadtest --json` prints.", LoadTest)


def _canary() -> str:
    from optcli.results.loadtest import Canary

    about = "What `optcli loadtest FIRST SECOND --json` prints."
    return _models("The JSON of a canary", about, Canary)


def _drift() -> str:
    from optcli.results.drift import Drift

    return _models("The JSON of a drift", "What `optcli loadtest TARGET --drift --json` prints.", Drift)


def _gate() -> str:
    from optcli.results.gate import GateReport

    return _models("The gate's JSON", "What `optcli gate --json` prints.", GateReport)


def _models(title: str, about: str, model: Any) -> str:
    schema = model.model_json_schema(mode="serialization")
    defs: Schema = schema.get("$defs", {})
    lines = [f"# {title}", "", about, "", *_paragraphs(schema.get("description", "")), ""]
    lines += _fields(schema, defs)
    for name, below in defs.items():
        if below.get("properties"):
            lines += ["", f"## {name}", "", *_paragraphs(below.get("description", "")), ""]
            lines += _fields(below, defs)
    return "\n".join(lines)


def _fields(schema: Schema, defs: Schema) -> list[str]:
    rows = ["| key | type |", "| --- | --- |"]
    for name, each in schema["properties"].items():
        null = " or null" if _may_be_null(each) else ""
        rows.append(f"| `{name}` | {_cell(_type(each, _with_properties(defs)))}{null} |")
    return rows


def _with_properties(defs: Schema) -> Schema:
    return {name: each for name, each in defs.items() if each.get("properties")}


def _may_be_null(schema: Schema) -> bool:
    return any(each.get("type") == "null" for each in schema.get("anyOf", ()))


def _environment() -> str:
    from optcli.environment import VARIABLES

    lines = ["# Environment variables", "", "| variable | meaning |", "| --- | --- |"]
    lines += [f"| `{name}` | {_cell(meaning)} |" for name, meaning in VARIABLES.items()]
    return "\n".join(lines)


def _python() -> str:
    import optcli

    lines = ["# Python", "", *_paragraphs(inspect.getdoc(optcli) or "")]
    for name in (each for each in optcli.__all__ if not each.startswith("_")):
        public: Callable[..., Any] = getattr(optcli, name)
        lines += ["", f"## optcli.{name}", ""]
        if not inspect.isclass(public):
            lines += ["```python", _signature(name, public), "```", ""]
        lines += _paragraphs(inspect.getdoc(public) or "")
    return "\n".join(lines)


def _signature(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind == parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(str(parameter))
    inside = "".join(f"    {part},\n" for part in parts)
    return f"optcli.{name}(\n{inside}) -> {signature.return_annotation}"


def _paragraphs(text: str) -> list[str]:
    """A docstring as Markdown: paragraphs on one line each, examples as code."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip()):
        if block.lstrip().startswith(">>>"):
            code = [re.sub(r"^(>>>|\.\.\.) ?", "", line) for line in block.splitlines()]
            lines += ["```python", *code, "```", ""]
        elif block:
            lines += [" ".join(block.split()), ""]
    return lines[:-1]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
