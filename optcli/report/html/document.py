"""One self-contained file: style inside, no script, nothing fetched."""

from __future__ import annotations

from pathlib import Path

from optcli import __version__
from optcli.report.html.tags import Child, Markup, tag

# A browser that obeys it fetches nothing and runs nothing, whatever a name in a recipe holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WITH_IMAGES = f"{_POLICY}; img-src data:"


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
