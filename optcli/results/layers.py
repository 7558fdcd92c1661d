"""Where in a network the error starts: layer by layer, plain data. Part of a report."""

from __future__ import annotations

from typing import Literal

from optcli.results.outcomes import Result

Kind = Literal["activation", "weight"]


class LayerError(Result):
    """One tensor of a float network beside the same one of the network that was made from it.

    `tensor` is its name in the float network, `node` the layer that computes it or reads it as its
    weights (what passes call it), `operator` that layer's type. `own_db` is the signal to noise ratio
    in decibel of what this layer adds by itself, with exact inputs; `sqnr_db` has what came with its
    inputs as well. Both are None where the values are equal, and where they are not `finite`. `cosine`
    and `factor`, by which the values are too large, are the layer's own. `clipped` is the share of
    values beyond the range of the integers; `channel` the worst output channel of a weight. `readers`
    are the layers that read an activation as integers: it is quantized until they are left in floats.
    `advice` is one thing to try.
    """

    tensor: str
    node: str
    operator: str
    shape: tuple[int, ...]
    kind: Kind
    own_db: float | None
    sqnr_db: float | None
    cosine: float | None = None
    factor: float | None = None
    finite: bool = True
    clipped: float | None = None
    channel: int | None = None
    channel_db: float | None = None
    readers: tuple[str, ...] = ()
    advice: str = ""

    @property
    def rank(self) -> float:
        """What to sort by: the smaller, the worse. Equal values come last, those not finite first."""
        if not self.finite:
            return float("-inf")
        return float("inf") if self.own_db is None else self.own_db


class Layers(Result):
    """All layers that could be compared, the worst first; `reason` says why there are none, or few."""

    rows: tuple[LayerError, ...] = ()
    compared: int = 0
    samples: int = 0
    reason: str | None = None

    def worst_nodes(self) -> tuple[str, ...]:
        """Names of the layers, the one that adds most error first, each once."""
        return tuple(dict.fromkeys(row.node for row in self.rows if row.node))
