"""Text for pipes and for terminals without colours."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

# For pipes: wide enough that nothing is ever broken.
UNBOUNDED = 10_000


def plain(renderable: RenderableType, width: int | None = None) -> str:
    """What rich shows, as plain text. Without a width every row and note is one line."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream, width=width or UNBOUNDED, color_system=None, force_terminal=False, highlight=False
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> Iterator[str]:
    """A line per row, the columns as wide as their widest cell; `left` are those that stand left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
