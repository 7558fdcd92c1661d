"""Where the error starts: the layers that add most, as lines of text and as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report.plain_text import aligned
from optcli.results.layers import LayerError, Layers

WORST = 10


def lines(layers: Layers) -> Iterator[str]:
    """The worst layers in columns, each with one thing to try; or why there are none."""
    rows = _worst(layers)
    if rows:
        yield f"where the error starts: {_what(layers)}"
        cells = [("own", "so far", "", "layer", "operator", "shape", "try"), *map(_cells, rows)]
        yield from (line.rstrip() for line in aligned(cells, left=range(2, 7)))
    if layers.reason:
        yield f"where the error starts: {layers.reason}" if not rows else layers.reason
    elif not rows:
        yield f"no layer adds an error, of {layers.compared} tensors"


def markdown(layers: Layers) -> Iterator[tuple[str, ...]]:
    """Header and rows of a table; nothing where no layer was compared."""
    rows = _worst(layers)
    if rows:
        yield ("own", "so far", "tensor", "layer", "operator", "shape", "try")
        yield from map(_cells, rows)


def _worst(layers: Layers) -> list[LayerError]:
    return [row for row in layers.rows if row.rank != float("inf")][:WORST]


def _what(layers: Layers) -> str:
    return (
        "signal to noise of what layers add by themselves (own) and in all (so far), on"
        f" {layers.samples} samples, the worst of {layers.compared} tensors"
    )


def _cells(row: LayerError) -> tuple[str, ...]:
    shape = "x".join(map(str, row.shape))
    channel = (
        f", worst channel {row.channel}" if row.kind == "weight" and row.channel is not None else ""
    )
    name = row.node or row.tensor
    return (
        _db(row.own_db, row),
        _db(row.sqnr_db, row),
        row.kind + channel,
        name,
        row.operator,
        shape,
        row.advice,
    )


def _db(value: float | None, row: LayerError) -> str:
    if not row.finite:
        return "NaN"
    return "equal" if value is None else f"{value + 0.0:.1f} dB"
