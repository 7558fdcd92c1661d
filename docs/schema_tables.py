"""Tables of the reference, made from JSON Schemas: a row for each key, with its type and meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A row of a table, its first cell the name of what it is about."""

    name: str
    cells: tuple[str, ...]

    def __str__(self) -> str:
        return f"| {' | '.join((f'`{self.name}`', *self.cells))} |"


@dataclass(frozen=True)
class Several:
    """Rows that stand in several tables: told once, in a section of their own.

    `tables` are the rows of each table by its name, `what` is what the tables are about ("passes") and
    `word` what a row is ("key"). Two tables may have rows of one name that differ.
    """

    tables: Mapping[str, Sequence[Row]]
    what: str
    word: str
    columns: tuple[str, ...]

    @property
    def heading(self) -> str:
        return f"{self.word.capitalize()}s of several {self.what}"

    def own(self, name: str) -> list[str]:
        """The rows of one table that no other has, as a table, and the names of the others."""
        rows = self.tables[name]
        own = [row for row in rows if len(self._with(row)) == 1]
        shared = [row for row in rows if len(self._with(row)) > 1]
        lines = table((self.word, *self.columns), own) if own else []
        if shared:
            named = ", ".join(f"`{row.name}`" for row in shared)
            place = self.heading.lower()
            lines += [""] if lines else []
            lines += [f"{'Also' if own else 'Takes'} {named}: [{place}](#{place.replace(' ', '-')})."]
        return lines

    def section(self, marks: str = "##") -> list[str]:
        """The section of the rows that several tables have; nothing where no row is in several."""
        every = dict.fromkeys(row for rows in self.tables.values() for row in rows)
        rows = [
            Row(row.name, (", ".join(f"`{name}`" for name in self._with(row)), *row.cells))
            for row in every
            if len(self._with(row)) > 1
        ]
        if not rows:
            return []
        rows.sort(key=lambda row: row.name.lstrip("-"))
        return ["", f"{marks} {self.heading}", "", *table((self.word, self.what, *self.columns), rows)]

    def _with(self, row: Row) -> list[str]:
        return [name for name, rows in self.tables.items() if row in rows]


def table(head: Sequence[str], rows: Iterable[Row]) -> list[str]:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    return [*lines, *map(str, rows)]


COLUMNS = ("type", "default", "meaning")


def key_rows(schema: Schema, defs: Schema, told: set[str] | None = None, page: str = "") -> list[Row]:
    """A row for each property of a schema; links to definitions lead to `page`.

    The first sentence of a definition is the meaning of a key that has none of its own. `told` gets
    these sentences.
    """
    rows = []
    for name, each in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _default(each)
        meaning = _meaning(each)
        if not each.get("description"):
            sentence = first_sentence(_definition_of(each, defs))
            meaning = " ".join(filter(None, (sentence, meaning)))
            if told is not None:
                told.add(sentence)
        kind = cell(type_of(each, defs)).replace("](#", f"]({page}#")
        rows.append(Row(name, (kind, default, cell(meaning))))
    return rows


def fields(schema: Schema, defs: Schema, pages: Mapping[str, str]) -> list[str]:
    """A table of the fields of what optcli writes. `pages` are those of definitions told elsewhere."""
    known = {name: each for name, each in defs.items() if each.get("properties")}
    rows = []
    for name, each in schema["properties"].items():
        kind = cell(type_of(each, known)) + (" or null" if _may_be_null(each) else "")
        for other, page in pages.items():
            kind = kind.replace(f"[{other}](#", f"[{other}]({page}#")
        rows.append(Row(name, (kind,)))
    return table(("key", "type"), rows)


def points(text: str) -> list[str]:
    """Paragraphs in Markdown; after the first, sentences that name keys are a list, to be looked up.

    None is called null, as in JSON.
    """
    first, *others = re.split(r"\n\s*\n", re.sub(r"\bNone\b", "null", text.strip()))
    lines = [" ".join(first.split())]
    for paragraph in others:
        sentences = re.split(r"(?<=[.])\s+(?=[A-Z`])", " ".join(paragraph.split()))
        several = len(sentences) > 1 and any(each.startswith("`") for each in sentences)
        lines += ["", *([f"- {each}" for each in sentences] if several else [" ".join(sentences)])]
    return lines


def about(schema: Schema) -> str:
    """What a definition says of itself."""
    return str(schema.get("description") or mapping(schema).get("description") or "")


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence."""
    return re.split(r"(?<=[.])\s", " ".join(text.split()))[0]


def mapping(schema: Schema) -> Schema:
    """The form of a section that is a mapping, where it may be written in others as well."""
    if "properties" in schema:
        return schema
    forms = [mapping(each) for each in schema.get("anyOf", ()) if isinstance(each, dict)]
    return next((each for each in forms if each.get("properties")), {})


def referred(schema: Any) -> list[str]:
    """The names of the definitions that a schema refers to, in their order."""
    if isinstance(schema, list):
        return [name for each in schema for name in referred(each)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"].rpartition("/")[2]] if "$ref" in schema else []
    return [*own, *(name for each in schema.values() for name in referred(each))]


def places(schema: Schema, defs: Schema, before: str = "") -> Iterator[tuple[str, str]]:
    """Each definition that is referred to, with the place of the key that does: `gate.p50`."""
    for key, each in schema.get("properties", {}).items():
        for name in dict.fromkeys(referred(each)):
            place = before + key + _within(each)
            yield name, place
            yield from places(mapping(defs.get(name, {})), defs, f"{place}.")
    extra = schema.get("additionalProperties")
    for name in dict.fromkeys(referred(extra)):
        yield name, f"{before}NAME"


def _within(schema: Schema) -> str:
    forms = [schema, *(each for each in schema.get("anyOf", ()) if isinstance(each, dict))]
    if any(referred(form.get("items")) for form in forms):
        return "[]"
    named = any(referred(form.get("additionalProperties")) for form in forms)
    return ".NAME" if named or any(referred(form.get("properties")) for form in forms) else ""


def type_of(schema: Schema, defs: Schema) -> str:
    """What a key may hold, in words; definitions are links."""
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
        names = [type_of(each, defs) for each in kinds if not _is_placeholder(each)]
        return " or ".join(dict.fromkeys(name for name in names if name != "null"))
    if "allOf" in schema:
        return " and ".join(type_of(each, defs) for each in schema["allOf"])
    kind = schema.get("type", "any value")
    if kind == "array":
        inside = schema.get("items") or schema.get("prefixItems", [{}])[0]
        return f"list of {type_of(inside, defs)}"
    if kind == "object":
        return _mapping_type(schema, defs)
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true, false"}
    return " ".join([names.get(str(kind), str(kind)), *_bounds(schema)])


def _mapping_type(schema: Schema, defs: Schema) -> str:
    inside = schema.get("additionalProperties")
    if isinstance(inside, dict) and inside:
        return f"mapping to {type_of(inside, defs)}"
    held = list(dict.fromkeys(type_of(each, defs) for each in schema.get("properties", {}).values()))
    return f"mapping to {held[0]}" if len(held) == 1 else "mapping"


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value is None or value in ([], {}, ""):
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{cell(text)}`" if not isinstance(value, dict) else "see there"


def _meaning(schema: Schema) -> str:
    text = schema.get("description", "")
    shown = ", ".join(f"`{_flow(each)}`" for each in schema.get("examples", ()))
    return (
        f"{text}. Examples: {shown}" if text and shown else text or (f"Examples: {shown}" * bool(shown))
    )


def _flow(value: Any) -> str:
    """A value as YAML writes it in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _definition_of(schema: Schema, defs: Schema) -> str:
    return next((about(defs[name]) for name in referred(schema) if name in defs), "")


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


def _may_be_null(schema: Schema) -> bool:
    return any(each.get("type") == "null" for each in schema.get("anyOf", ()))


def cell(text: str) -> str:
    """A text in one line, with nothing that would end a cell."""
    return " ".join(text.split()).replace("|", "\\|")
