"""What a verb answers with: one document, which `report/` writes for every kind of reader.

A room says what is in its document. How all documents look in a terminal, in Markdown and in HTML is
said by `report.terminal`, `report.markdown_text` and `report.html`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, Literal, TypeVar

R = TypeVar("R")


class Layout(IntEnum):
    """How a row stands in the terminal. Narrow: in three lines, intervals in short."""

    ONE_LINE = 0
    TWO_LINES = 1
    THREE_LINES = 2
    NARROW = 3

    @property
    def lines(self) -> int:
        """How many lines a row has at most, where an interval has none of its own."""
        return min(self + 1, 3)


@dataclass(frozen=True)
class Cell:
    """What one row shows in one column.

    `interval` stands behind the value, or below it. `short` is shown instead of both where there is
    little room; None: the same. `why` says why there is no value. `tone` colours a verdict: an outcome,
    `baseline` or `none`.
    """

    value: str
    interval: str = ""
    short: str | None = None
    why: str = ""
    tone: str = ""

    @property
    def full(self) -> str:
        """The value with its interval."""
        return f"{self.value} {self.interval}" if self.interval else self.value

    @property
    def brief(self) -> str:
        """The short form, where there is one."""
        return self.full if self.short is None else self.short


@dataclass(frozen=True)
class Column(Generic[R]):
    """One column of rows of type `R`, defined once for the terminal, Markdown, HTML and CSV.

    Its heading is its name, or one of `headings`: from the widest layout to the narrowest, of which the
    last holds for all that are narrower. Markdown and HTML are as the widest. Cells are `brief_in` some
    layouts. `csv` gives its cells in CSV by their names with units, the same names for every row. The
    first column of a table names its rows.

    `below` names columns, in order of preference, below which it stands in a terminal where rows have
    several lines, `below_of_three` those where they have three, if they are others; none: it is a
    column of its own there too.
    """

    name: str
    cell: Callable[[R], Cell] = lambda row: Cell("")
    csv: Callable[[R], Mapping[str, Any]] = lambda row: {}
    align: Literal["right", "left", "wrapped"] = "right"
    in_table: bool = True
    headings: tuple[str, ...] = ()
    brief_in: tuple[Layout, ...] = (Layout.NARROW,)
    below: tuple[str, ...] = ()
    below_of_three: tuple[str, ...] | None = None

    def above(self, layout: Layout) -> tuple[str, ...]:
        """The columns below which it stands in a layout, in order of preference."""
        if layout.lines == 3 and self.below_of_three is not None:
            return self.below_of_three
        return self.below if layout.lines > 1 else ()

    @property
    def left(self) -> bool:
        """Whether its texts stand left; wrapped ones do."""
        return self.align != "right"

    def heading(self, layout: Layout = Layout.ONE_LINE) -> str:
        """The heading in a layout."""
        return self.headings[min(layout, len(self.headings) - 1)] if self.headings else self.name

    def text(self, row: R, layout: Layout = Layout.ONE_LINE) -> str:
        """A row's cell in a layout."""
        cell = self.cell(row)
        return cell.brief if layout in self.brief_in else cell.full


def of_table(columns: Iterable[Column[R]]) -> list[Column[R]]:
    """Those that are shown; the others are in CSV alone."""
    return [column for column in columns if column.in_table]


@dataclass(frozen=True)
class Table(Generic[R]):
    """Rows of one kind in columns; in a terminal, a first cell like that above it is left empty.

    A page marks the row that is `chosen`.
    """

    columns: Sequence[Column[R]]
    rows: Sequence[R]
    chosen: R | None = None


def table_of_texts(
    heads: Sequence[str], rows: Iterable[Sequence[str]], left: Iterable[int] = (0,)
) -> Table[Sequence[str]]:
    """A table whose cells are texts; `left` are the columns that stand left."""
    stand_left = set(left)

    def column(place: int, head: str) -> Column[Sequence[str]]:
        side: Literal["left", "right"] = "left" if place in stand_left else "right"
        return Column(head, lambda row: Cell(row[place]), align=side)

    return Table([column(place, head) for place, head in enumerate(heads)], list(rows))


@dataclass(frozen=True)
class Names:
    """Names and their values, a line each; in a terminal, a name like that above it is left empty."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Lines that are shown as they are, such as a patch."""

    text: str


@dataclass(frozen=True)
class Chart:
    """A chart; `markup` draws it in HTML, `lines` in a terminal. Its figures stand in tables too."""

    markup: Callable[[], str]
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, which may be sections.

    `lead` says in one sentence what is shown. `tone` colours the heading by an outcome. A reader opens
    what is `folded` where the form can fold. What is `on_pages` alone explains the words.
    """

    name: str
    parts: Sequence[Part]
    lead: str = ""
    tone: str = ""
    folded: bool = False
    on_pages: bool = False


Part = Table[Any] | Names | Items | Code | Chart | Section


@dataclass(frozen=True)
class Document:
    """A title, the answer with its outcome, and sections.

    A terminal shows the answer last, where people look; other forms show it first. Below it stand
    `reasons`, and on a page `figures`, each with its caption. `tone` colours the answer, where not by
    the outcome. `label` says the outcome in a word or two, `hint` what was asked or compared, `footer`
    how it was come by. `mark` is a comment by which a program finds the document again where it posted
    it.
    """

    title: str
    sections: Sequence[Section]
    answer: str = ""
    reasons: Sequence[str] = ()
    figures: Sequence[tuple[str, str]] = ()
    outcome: str = ""
    tone: str | None = None
    label: str = ""
    hint: str = ""
    footer: Sequence[str] = ()
    mark: str = ""

    @property
    def heading(self) -> str:
        """The title with its label."""
        return f"{self.title}: {self.label}" if self.label else self.title
