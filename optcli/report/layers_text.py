"""Where the error starts: the layers that add most, as rows of a table."""

from __future__ import annotations

from optcli.errors import counted
from optcli.results.layers import LayerError, Layers

WORST = 10
HEADS = ("own", "so far", "tensor", "layer", "operator", "shape", "try")
# The columns of text.
LEFT = range(2, len(HEADS))


def sentence(layers: Layers) -> str:
    """What the table shows, or why there is none."""
    if rows(layers):
        why = f"; {layers.reason}" if layers.reason else ""
        return (
            "where the error starts: signal to noise of what layers add by themselves (own) and in all"
            f" (so far), on {layers.samples} samples, the worst of {layers.compared} tensors{why}"
        )
    if layers.reason:
        return f"where the error starts: {layers.reason}"
    return f"no layer adds an error, of {counted(layers.compared, 'tensor')}"


def rows(layers: Layers) -> list[tuple[str, ...]]:
    """Cells of the worst layers, as `HEADS`; none where no layer adds an error."""
    return [_cells(row) for row in layers.rows if row.rank != float("inf")][:WORST]


def _cells(row: LayerError) -> tuple[str, ...]:
    has_channel = row.kind == "weight" and row.channel is not None
    tensor = f"{row.kind}, worst channel {row.channel}" if has_channel else row.kind
    layer = (row.node or row.tensor, row.operator, "x".join(map(str, row.shape)))
    return (_db(row.own_db, row), _db(row.sqnr_db, row), tensor, *layer, row.advice)


def _db(value: float | None, row: LayerError) -> str:
    if not row.finite:
        return "NaN"
    return "equal" if value is None else f"{value + 0.0:.1f} dB"
