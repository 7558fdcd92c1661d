"""One self-contained file: style inside, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from optcli import __version__
from optcli.report.html import tables
from optcli.report.html.tags import Child, Markup, join, tag
from optcli.results.document import Document, Items, Names, Part, Picture, Section, Table

# A browser that obeys it fetches nothing and runs nothing, whatever a name in a recipe holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WITH_IMAGES = f"{_POLICY}; img-src data:"


def html(shown: Document) -> str:
    """A document as one HTML file: the answer first, then what it is read from."""
    chip = tables.chip(shown.label, shown.outcome) if shown.label else None
    hint = tag("p", shown.hint, class_="hint") if shown.hint else None
    header = tag("header", tag("div", tag("h1", shown.title), chip, class_="title"), hint)
    parts = [each for each in map(_section, shown.sections) if each is not None]
    if shown.answer:
        kind = "answer" if shown.outcome == "accept" else "answer none"
        parts.insert(0, tag("section", tag("p", shown.answer), class_=kind, id="answer"))
    footer = [tag("p", line) for line in shown.footer]
    return document(f"{shown.title}: optcli", header, tag("main", *parts), footer=footer)


def _section(shown: Section) -> Markup | None:
    parts = [part for each in shown.parts for part in _part(each, shown.name)]
    if not parts:
        return None
    if shown.folded:
        return tag("section", folded(shown.name, *parts))
    return section(shown.name, shown.lead or None, *parts, id_=shown.name.lower().replace(" ", "-"))


def _part(part: Part, name: str) -> Iterator[Markup]:
    if isinstance(part, Table) and part.rows:
        yield tables.table_of(part.columns, part.rows, name)
    elif isinstance(part, Names) and part.rows:
        yield tag("dl", *(join([tag("dt", key), tag("dd", value)]) for key, value in part.rows))
    elif isinstance(part, Items) and part.lines:
        yield tag("ul", *(tag("li", line) for line in part.lines))
    elif isinstance(part, Picture) and (drawn := part.markup()):
        yield Markup(drawn)


def document(title: str, *body: Child, footer: Child = None, images: bool = False) -> str:
    """The whole page; with `images` it may show those that it holds."""
    style = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_WITH_IMAGES if images else _POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"optcli {__version__}"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    foot = tag("footer", footer or None, tag("p", f"Written by optcli {__version__}."))
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', *body, foot), lang='en')}\n"


def section(name: str, lead: str | None, *body: Child, id_: str | None = None) -> Markup:
    """A card with a heading and, below it, what it shows in one sentence."""
    lead_line = tag("p", lead, class_="lead") if lead else None
    return tag("section", tag("h2", name), lead_line, *body, id=id_)


def folded(name: str, *body: Child, open_: bool = False) -> Markup:
    """A part of the page that stays folded until the reader opens it."""
    return tag("details", tag("summary", name), *body, open="" if open_ else None)
