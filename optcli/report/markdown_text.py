"""A document in GitHub's Markdown; all text of others is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from optcli.results.document import Code, Column, Document, Items, Names, R, Section, Table

# The end of a link's text; intervals stand in brackets, too.
_LINK = re.compile(r"\](?=[(\[:])")
_ADDRESS = re.compile(r"@|\b(?:https?|ftp|mailto|xmpp):|\bwww(?=\.)", re.IGNORECASE)


def markdown(document: Document) -> str:
    """A GitHub-flavoured document: the answer first, then what it is read from."""
    return "\n".join(_document(document)) + "\n"


def _document(document: Document) -> Iterator[str]:
    if document.mark:
        yield f"<!-- {document.mark} -->"
    yield f"## {escaped(document.heading)}"
    if document.answer:
        yield from ("", f"**{escaped(document.answer)}**")
    for line in document.reasons:
        yield from ("", escaped(line))
    for section in document.sections:
        yield from _section(section)
    for line in filter(None, (document.hint, *document.footer)):
        yield from ("", f"_{escaped(line)}_")


def _section(section: Section) -> Iterator[str]:
    lines = list(_parts(section))
    if section.on_pages or not lines:
        return
    if section.folded:
        yield from (
            "",
            f"<details><summary>{escaped(section.name)}</summary>",
            *lines,
            "",
            "</details>",
        )
        return
    if section.name:
        heading = any(isinstance(part, Table) for part in section.parts)
        name = escaped(section.name)
        yield from ("", f"### {name}" if heading else f"{name}:")
    yield from lines


def _parts(section: Section) -> Iterator[str]:
    """Each part behind an empty line; pictures are left out."""
    for part in section.parts:
        if isinstance(part, Section):
            yield from _section(part)
        elif isinstance(part, Table) and part.rows:
            yield from ("", *_table(part))
        elif isinstance(part, Names) and part.rows:
            yield from ("", *(f"- {escaped(name)}: {escaped(value)}" for name, value in part.rows))
        elif isinstance(part, Code) and part.text:
            yield from ("", *(f"    {line}" for line in part.text.splitlines()))
        elif isinstance(part, Items) and part.lines:
            yield from ("", *(f"- {escaped(line)}" for line in part.lines))


def _table(table: Table[R]) -> Iterator[str]:
    """A table's lines; what is rejected is bold."""

    def shown(column: Column[R], row: R) -> str:
        text = escaped(column.text(row))
        return f"**{text}**" if column.cell(row).tone == "reject" else text

    columns: Sequence[Column[R]] = table.columns
    yield _line(column.heading() for column in columns)
    yield _line("---" if column.left else "---:" for column in columns)
    yield from (_line(shown(column, row) for column in columns) for row in table.rows)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(line: str) -> str:
    """Text that GitHub shows as it is, on one line: it links nothing, and calls nobody."""
    for sign in "\\|*_`<":
        line = line.replace(sign, f"\\{sign}")
    line = _LINK.sub(r"\]", line)
    # What follows is no name and no address behind a space that nobody sees.
    line = _ADDRESS.sub(lambda match: f"{match[0]}\N{ZERO WIDTH SPACE}", line)
    return " ".join(line.split())
