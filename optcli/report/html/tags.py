"""HTML and SVG as nested calls. All text is escaped here, so that no page can forget it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_VOID = frozenset({"br", "img", "meta"})


class Markup(str):
    """Text that is markup already; every other text is escaped."""

    __slots__ = ()


Child = str | float | None | Iterable["Child"]


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """One element. Children may be nested iterables; None is left out, of attributes too.

    A trailing underscore of an attribute's name is dropped (`class_`), others become hyphens.
    """
    written = "".join(
        f' {_attribute(key)}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Child) -> Markup:
    """Children in a row, without an element around them."""
    if children is None:
        return Markup()
    if isinstance(children, Markup):
        return children
    if isinstance(children, str | float | int):
        return Markup(escape(_text(children)))
    return Markup("".join(join(child) for child in children))


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _text(value: str | float) -> str:
    """A number as a coordinate: one decimal place is a tenth of a pixel."""
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
