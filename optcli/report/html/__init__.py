"""A document as one self-contained HTML file: style and charts inside, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from optcli import __version__
from optcli.report import wording
from optcli.report.html.tags import Child, Markup, join, tag
from optcli.results.document import (
    Cell,
    Chart,
    Code,
    Column,
    Document,
    Items,
    Names,
    Part,
    R,
    Section,
    Table,
)

# A browser that obeys it fetches nothing and runs nothing, whatever a name in a recipe holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_CLASSES = {"right": None, "left": "left", "wrapped": "left wraps"}
_SIGNS = {"accept": "✓", "reject": "✕", "inconclusive": "?"}


def html(document: Document) -> str:
    """A document as one HTML file: the answer first, then what it is read from."""
    chip = _chip(document.label, document.outcome) if document.label else None
    hint = tag("p", document.hint, class_="hint") if document.hint else None
    header = tag("header", tag("div", tag("h1", document.title), chip, class_="title"), hint)
    names: list[str] = []
    sections = [each for shown in document.sections for each in _section(shown, names)]
    main = tag("main", *_answer(document), *sections)
    style = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
    images = "; img-src data:" if "<img" in main else ""  # all text is escaped, so this is a tag
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=f"{_POLICY}{images}"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"optcli {__version__}"),
        tag("title", f"{document.title}: optcli"),
        tag("style", Markup(style)),
    )
    footer = [tag("p", line) for line in (*document.footer, f"Written by optcli {__version__}.")]
    body = tag("body", header, main, tag("footer", *footer))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _answer(document: Document) -> Iterator[Markup]:
    if document.answer or document.reasons:
        tone = document.outcome if document.tone is None else document.tone
        figures = [
            tag("li", tag("b", figure), tag("span", caption)) for figure, caption in document.figures
        ]
        yield tag(
            "section",
            tag("p", document.answer) if document.answer else None,
            *(tag("p", line, class_="hint") for line in document.reasons),
            tag("ul", *figures, class_="figures") if figures else None,
            class_="answer" if tone == "accept" else "answer none",
            id="answer",
        )


def _section(section: Section, names: list[str]) -> Iterator[Markup]:
    """A card with a heading and, below it, what it shows in one sentence. `names` are those so far."""
    parts = [part for each in section.parts for part in _part(each, section.name)]
    if not parts:
        return
    names.append(section.name.lower().replace(" ", "-"))
    same = names.count(names[-1])
    place = f"{names[-1]}-{same}" if same > 1 else names[-1]
    if section.folded:
        yield tag("section", _folded(section.name, parts), id=place or None)
        return
    heading = tag("h2", section.name) if section.name else None
    yield tag("section", heading, *_lead(section), *parts, id=place or None)


def _lead(section: Section) -> Iterator[Markup]:
    if section.lead:
        yield tag("p", section.lead, class_="lead")


def _folded(name: str, parts: Collection[Markup]) -> Markup:
    """What stays folded until the reader opens it."""
    return tag("details", tag("summary", name), *parts)


def _part(part: Part, name: str) -> Iterator[Markup]:
    if isinstance(part, Section):
        inner = [*_lead(part), *(one for each in part.parts for one in _part(each, part.name))]
        if inner:
            yield _folded(part.name, inner) if part.folded else join([tag("h3", part.name), *inner])
    elif isinstance(part, Table) and part.rows:
        yield _table(part, name)
    elif isinstance(part, Names) and part.rows:
        yield tag("dl", *(join([tag("dt", key), tag("dd", value)]) for key, value in part.rows))
    elif isinstance(part, Items) and part.lines:
        yield tag("ul", *(tag("li", line) for line in part.lines))
    elif isinstance(part, Code) and part.text:
        yield tag("pre", part.text)
    elif isinstance(part, Chart) and (drawn := part.markup()):
        yield Markup(drawn)


def _table(table: Table[R], name: str) -> Markup:
    """A table in a box that scrolls by itself, the rows named by their first cells."""
    columns: list[Column[R]] = list(table.columns)
    heads = (
        tag("th", column.heading(), scope="col", class_="left" if column.left or not place else None)
        for place, column in enumerate(columns)
    )
    body = (
        tag(
            "tr",
            tag("th", columns[0].cell(row).value, scope="row", class_="left"),
            *(_cell(column, column.cell(row)) for column in columns[1:]),
            class_="best" if row is table.chosen else None,
        )
        for row in table.rows
    )
    element = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body))
    return tag("div", element, class_="scroll", tabindex="0", role="region", aria_label=name)


def _cell(column: Column[R], cell: Cell) -> Markup:
    """A cell; where there is no value, why is its tooltip."""
    value: Child = cell.value or (wording.NONE if cell.why else "")
    if cell.tone:
        value = _chip(cell.value, "none" if cell.tone == "baseline" else cell.tone)
    elif cell.why and value == wording.NONE:
        value = tag("abbr", value, title=cell.why)
    below = tag("small", cell.interval) if cell.interval else None
    return tag("td", value, below, class_=_CLASSES[column.align])


def _chip(label: str, outcome: str) -> Markup:
    """A verdict: a sign beside its colour."""
    return tag("span", f"{_SIGNS.get(outcome, '')} {label}".strip(), class_=f"chip {outcome}")
