"""What a comparison of one format gives, before it is sorted and advice is added."""

from __future__ import annotations

from dataclasses import dataclass

from optcli.layer_errors import LayerError

# Rescaled on purpose (batch norm folded, channels aligned) where weights differ by so much more than
# what the layer computes.
_RESCALED_DB = 10.0


@dataclass(frozen=True)
class Measured:
    """Rows in any order; `compared` counts tensors; `reason` says why there are none, or few."""

    rows: tuple[LayerError, ...] = ()
    compared: int = 0
    reason: str | None = None


def without_rescaled(rows: list[LayerError]) -> list[LayerError]:
    """Rows without weights that differ although their layer computes the same.

    Passes fold batch norms into weights and move scales from one layer to the next.
    """
    layers = {row.node: row.rank for row in rows if row.kind == "activation"}
    return [
        row
        for row in rows
        if row.kind == "activation" or row.rank + _RESCALED_DB >= layers.get(row.node, row.rank)
    ]
