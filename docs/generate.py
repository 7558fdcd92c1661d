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
from typing import TYPE_CHECKING, Any

import click
from ruamel.yaml import YAML
from schema_tables import (
    COLUMNS,
    Row,
    Schema,
    Several,
    about,
    cell,
    fields,
    first_sentence,
    key_rows,
    mapping,
    places,
    points,
    referred,
    table,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

FOLDER = Path(__file__).parent / "reference"
_NOTE = "<!-- Written by docs/generate.py: change the code, not this page. -->"
# By page, then by section: what a file with this section, pass or runner looks like.
EXAMPLES: Mapping[str, Mapping[str, str]] = YAML(typ="safe").load(
    (Path(__file__).parent / "examples.yaml").read_text(encoding="utf-8")
)


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
        "plan-file.md": _plan_file(),
        **_json_pages(),
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
    defs = {name: each for name, each in whole["$defs"].items() if name not in ("Pass", "Runner")}
    lines = [
        "# Recipe",
        "",
        "Every key of a recipe file. Paths are relative to the folder of the recipe. Where a number "
        "or a truth value may stand, `${NAME}` and `${NAME:-default}` may stand as well: optcli takes "
        "them from the environment.",
        "",
        *_keys(whole, defs, EXAMPLES["recipe"]),
    ]
    return "\n".join(lines)


def _keys(whole: Schema, defs: Schema, examples: Mapping[str, str]) -> list[str]:
    """The keys of a file, then those of each section in the order in which they are named."""
    told: set[str] = set()
    lines = table(("key", *COLUMNS), key_rows(whole, defs, told))
    under: dict[str, list[str]] = {}
    for name, place in places(whole, defs):
        under.setdefault(name, []).append(place)
    names = [name for name in _in_order(whole["properties"], defs) if mapping(defs[name])]
    rows = {name: key_rows(mapping(defs[name]), defs, told) for name in names}
    for name in names:
        text = about(defs[name])
        if (first := first_sentence(text)) in told:  # the table where it is referred to says this
            text = "\n\n".join(_paragraphs(text)).removeprefix(first).strip()
        lines += ["", f"## {name}", "", *_paragraphs(text), ""]
        lines += [f"Stands under {', '.join(f'`{place}`' for place in under[name])}.", ""]
        lines += table(("key", *COLUMNS), rows[name])
        if name in examples:
            lines += ["", "```yaml", examples[name].rstrip(), "```"]
    return _without_gaps(lines)


def _in_order(schema: Any, defs: Schema) -> list[str]:
    """The definitions that a schema refers to, each followed by those that it refers to itself."""
    found: list[str] = []
    waiting = referred(schema)
    while waiting:
        name = waiting.pop(0)
        if name not in found and name in defs:
            found.append(name)
            waiting = [*referred(defs[name]), *waiting]
    return found


def _passes() -> str:
    from optcli import passes
    from optcli.files import registry

    kinds = {name: passes.find(name) for name in registry.names(passes.__name__)}
    options = _option_tables(kinds, "passes")
    lines = [
        "# Passes",
        "",
        "A variant lists passes by name, with their options.",
    ]
    for name, kind in kinds.items():
        reads = ", ".join(f"`{each.value}`" for each in kind.accepts)
        lines += ["", f"## {name}", "", *_paragraphs(inspect.getdoc(kind) or "")]
        needs = ", ".join(passes.packages_in_words(kind, "`")) or "nothing beside optcli"
        lines += ["", f"Reads {reads}. Needs {needs}."]
        lines += ["", *(options.own(name) or ["No options."]), *_used("passes", name)]
    return "\n".join([*lines, *options.section()])


def _runners() -> str:
    from optcli import runners

    kinds = {name: runners.find(name) for name in runners.names()}
    options = _option_tables(kinds, "runners")
    lines = [
        "# Runners",
        "",
        "A runner runs artifacts in one runtime. A variant names it under `runner:`, with settings.",
    ]
    for name, kind in kinds.items():
        runs = ", ".join(f"`{each.value}`" for each in kind.runs)
        usual = [f"`{each.value}`" for each, runner in runners.DEFAULTS.items() if runner == name]
        default = f" The default for {', '.join(usual)}." if usual else ""
        lines += ["", f"## {name}", "", *_paragraphs(inspect.getdoc(kind) or "")]
        lines += ["", f"Runs {runs}. Needs {_needs(kind.needs.packages)}.{default}"]
        lines += ["", *(options.own(name) or ["No options."]), *_used("runners", name)]
    return "\n".join([*lines, *options.section()])


def _used(room: str, name: str) -> list[str]:
    example = EXAMPLES[room].get(name)
    return ["", "```yaml", example.rstrip(), "```"] if example else []


def _option_tables(kinds: Mapping[str, type[BaseModel]], what: str) -> Several:
    schemas = {name: kind.model_json_schema() for name, kind in kinds.items()}
    rows = {
        name: key_rows(each, each.get("$defs", {}), page="recipe.md") if each.get("properties") else []
        for name, each in schemas.items()
    }
    return Several(rows, what, "option", COLUMNS)


def _needs(packages: Iterable[str]) -> str:
    return ", ".join(f"`{each}`" for each in packages) or "nothing beside optcli"


# Kinds that are one file each


def _sources() -> str:
    from optcli.data import layouts
    from optcli.models import sources

    lines = ["# Sources of models and data", "", "## Models", "", "What `model.source` may say."]
    for name in sources.names():
        module = inspect.getmodule(sources.find(name))
        lines += ["", f"### `{name}:` model", "", *_paragraphs(inspect.getdoc(module) or "")]
    lines += ["", "## Data", "", "What `data.ROLE.source` may say."]
    for name in layouts.names():
        kind = layouts.find(name)
        module = inspect.getmodule(kind)
        lines += ["", f"### `{name}:` data", "", *_paragraphs(inspect.getdoc(module) or "")]
        lines += ["", *_paragraphs(inspect.getdoc(kind) or "")]
    return "\n".join(lines)


def _metrics() -> str:
    from optcli.accuracy import metrics
    from optcli.files import registry

    names = registry.names(metrics.__name__)
    kinds = {name: registry.find(metrics.__name__, name, metrics.Metric) for name in names}
    options = _option_tables(kinds, "metrics")
    lines = ["# Metrics", "", "What `accuracy.metric` may say."]
    for name, kind in kinds.items():
        module = inspect.getmodule(kind)
        lines += ["", f"## {name}", "", *_paragraphs(inspect.getdoc(module) or "")]
        lines += ["", *_paragraphs(inspect.getdoc(kind) or ""), ""]
        lines += [*(options.own(name) or ["No options."]), *_used("metrics", name)]
    lines += options.section()
    user = importlib.import_module("optcli.accuracy.metrics._user")
    lines += ["", "## python:FILE.py:CALLABLE", "", *_paragraphs(inspect.getdoc(user) or "")]
    lines += ["", *_paragraphs(inspect.getdoc(user.UserMetric) or "")]
    return "\n".join(lines)


# The command line


def _verbs() -> str:
    from optcli.cli import root

    verbs = dict(_commands(root, click.Context(root, info_name="optcli")))
    options = Several(
        {name: _option_rows(*each) for name, each in verbs.items()}, "verbs", "option", ("meaning",)
    )
    lines = ["# Verbs", "", "What the process returns: [exit codes](exit-codes.md)."]
    for name, (command, context) in verbs.items():
        usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
        marks = "##" + "#" * name.count(" ")
        lines += ["", f"{marks} {context.command_path}", "", *_paragraphs(_plain(command.help))]
        lines += ["", "```text", usage, "```", "", *options.own(name)]
        if examples := (command.epilog or "").partition("Examples:\n")[2]:
            lines += ["", "```bash", inspect.cleandoc(examples), "```"]
    return "\n".join([*_without_gaps(lines), *options.section()])


def _commands(
    group: click.Group, context: click.Context, before: str = ""
) -> Iterator[tuple[str, tuple[click.Command, click.Context]]]:
    """Every verb by its name, each group before those below it."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        yield f"{before}{name}", (command, below)
        if isinstance(command, click.Group):
            yield from _commands(command, below, f"{before}{name} ")


def _option_rows(command: click.Command, context: click.Context) -> list[Row]:
    records = [each.get_help_record(context) for each in command.params]
    return [Row(cell(each[0]), (cell(each[1]),)) for each in records if each is not None and each[1]]


def _without_gaps(lines: Iterable[str]) -> list[str]:
    """Without a second empty line after an empty line."""
    kept: list[str] = []
    for line in lines:
        if line or (kept and kept[-1]):
            kept.append(line)
    return kept


def _plain(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("\b\n", "")


def _exit_codes() -> str:
    from optcli.errors import ExitCode

    lines = ["# Exit codes", "", *_paragraphs(inspect.getdoc(ExitCode) or ""), ""]
    lines += ["| code | name | meaning |", "| --- | --- | --- |"]
    lines += [f"| {code.value} | `{code.name}` | {code.meaning} |" for code in ExitCode]
    return "\n".join(lines)


# What is written for other programs


def _written() -> dict[str, tuple[str, str, type[BaseModel]]]:
    """Title, first line and model of each page; a definition is told on the first that has it."""
    from optcli.results import Report
    from optcli.results.gate import GateReport
    from optcli.results.loadtest import Canary, Drift, LoadTest
    from optcli.results.plan import Plan

    return {
        "report.md": (
            "Report",
            "`report.json`, and what `optcli build --json` and `optcli compare --json` print.",
            Report,
        ),
        "gate-json.md": ("The gate's JSON", "What `optcli gate --json` prints.", GateReport),
        "plan-json.md": (
            "The plan's JSON",
            "What `optcli plan --json` prints, and `optcli.plan` gives.",
            Plan,
        ),
        "loadtest-json.md": (
            "The load test's JSON",
            "What `optcli loadtest --json` prints.",
            LoadTest,
        ),
        "canary-json.md": (
            "The JSON of a canary",
            "What `optcli loadtest FIRST SECOND --json` prints.",
            Canary,
        ),
        "drift-json.md": (
            "The JSON of a drift",
            "What `optcli loadtest TARGET --drift --json` prints.",
            Drift,
        ),
    }


def _json_pages() -> dict[str, str]:
    told: dict[str, tuple[str, Schema]] = {}
    written = {}
    for page, (title, first, model) in _written().items():
        schema = model.model_json_schema(mode="serialization")
        defs = {k: each for k, each in schema.get("$defs", {}).items() if each.get("properties")}
        elsewhere = {k: told[k][0] for k, each in defs.items() if k in told and told[k][1] == each}
        lines = [f"# {title}", "", first, "", *_fields(schema, defs, elsewhere)]
        for name, below in defs.items():
            if name not in elsewhere:
                told.setdefault(name, (page, below))
                lines += ["", f"## {name}", "", *_fields(below, defs, elsewhere)]
        written[page] = "\n".join(lines)
    return written


def _fields(schema: Schema, defs: Schema, elsewhere: Mapping[str, str]) -> list[str]:
    """What a model says of itself, then its fields."""
    return [*points(schema.get("description", "")), "", *fields(schema, defs, elsewhere)]


def _plan_file() -> str:
    from optcli.serving.planning import file_schema

    whole = file_schema()
    lines = ["# Plan file", "", *_paragraphs(whole["description"]), ""]
    lines += ["Paths are relative to the folder of the file. An option of the verb replaces a key."]
    lines += ["", *_keys(whole, whole["$defs"], EXAMPLES["plan-file"])]
    return "\n".join(lines)


def _environment() -> str:
    from optcli.environment import VARIABLES

    lines = ["# Environment variables", "", "| variable | meaning |", "| --- | --- |"]
    lines += [f"| `{name}` | {cell(meaning)} |" for name, meaning in VARIABLES.items()]
    return "\n".join(lines)


def _python() -> str:
    import optcli

    lines = ["# Python", "", *_paragraphs(inspect.getdoc(optcli) or "")]
    for name in (each for each in optcli.__all__ if not each.startswith("_")):
        public: Callable[..., Any] = getattr(optcli, name)
        lines += ["", f"## optcli.{name}", ""]
        written = [(page, each[0]) for page, each in _written().items() if each[2] is public]
        if written:
            ((page, title),) = written
            lines += [f"Its fields are the keys of [{title}]({page})."]
            continue
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
    gives = "" if inspect.isclass(function) else f" -> {signature.return_annotation}"
    return f"optcli.{name}(\n{inside}){gives}"


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


if __name__ == "__main__":
    main()
