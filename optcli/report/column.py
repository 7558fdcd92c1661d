"""What a column of a table is: one definition for the terminal, Markdown, HTML and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, Literal, TypeVar

from optcli.results import Estimate

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
    """One column of rows of type `R`.

    Its heading is its name, or one of `headings`: from the widest layout to the narrowest, of which the
    last holds for all that are narrower. Markdown and HTML are as the widest. Cells are `brief_in` some
    layouts. `csv` gives its cells in CSV by their names with units, the same names for every row. The
    first column of a table names its rows.
    """

    name: str
    cell: Callable[[R], Cell] = lambda row: Cell("")
    csv: Callable[[R], Mapping[str, Any]] = lambda row: {}
    align: Literal["right", "left", "wrapped"] = "right"
    in_table: bool = True
    headings: tuple[str, ...] = ()
    brief_in: tuple[Layout, ...] = (Layout.NARROW,)

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


def estimate_cells(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """The value and its interval for CSV: `p50_ms`, `p50_low_ms`, `p50_high_ms`."""
    stem, unit = (name[:-3], "_ms") if name.endswith("_ms") else (name, "")
    return {
        name: estimate.value if estimate else None,
        f"{stem}_low{unit}": estimate.low if estimate else None,
        f"{stem}_high{unit}": estimate.high if estimate else None,
    }
