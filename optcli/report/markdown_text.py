"""Parts of a document in GitHub's Markdown; all text of others is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from optcli.report.column import Column, R


def table(heads: Sequence[tuple[str, bool]], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A table's lines, of escaped cells; `heads` are headings, and whether their columns stand left."""
    yield _line([head for head, _ in heads])
    yield _line(["---" if left else "---:" for _, left in heads])
    yield from map(_line, rows)


def table_of(columns: Sequence[Column[R]], rows: Iterable[R], *, strong: bool = False) -> Iterator[str]:
    """The lines of a table of columns; `strong`: what is rejected is bold."""
    heads = [(column.heading(), column.left) for column in columns]

    def shown(column: Column[R], row: R) -> str:
        text = escaped(column.text(row))
        return f"**{text}**" if strong and column.cell(row).tone == "reject" else text

    yield from table(heads, ([shown(column, row) for column in columns] for row in rows))


def items(title: str, lines: Sequence[str]) -> Iterator[str]:
    """A list below a title; nothing where it is empty."""
    if lines:
        yield from ("", f"{title}:", "")
        yield from (f"- {escaped(line)}" for line in lines)


def escaped(line: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    for sign in "\\|*_`<":
        line = line.replace(sign, f"\\{sign}")
    return " ".join(line.split())


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
