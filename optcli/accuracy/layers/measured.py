"""What the comparisons of all formats collect, before it is sorted and advice is added."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from optcli.results.outcomes import LayerError

if TYPE_CHECKING:
    import numpy as np


P = TypeVar("P")

# Rescaled on purpose (batch norm folded, channels aligned) where weights differ by so much more than
# what the layer computes, and that is sound.
_RESCALED_DB = 10.0
_SOUND_DB = 20.0

# Tensors that are held at a time: of the float network, of the child, and of its layers one by one.
_PIECE_BYTES = 256 * 1024**2
_FEWEST, _MOST = 32, 256


@dataclass(frozen=True)
class MeasuredLayers:
    """Rows in any order; `compared` counts tensors; `reason` says why there are none, or few."""

    rows: tuple[LayerError, ...] = ()
    compared: int = 0
    reason: str | None = None


@dataclass
class Tally:
    """Two tensors compared piece by piece, by `add`.

    Sums of squares: `signal` of the exact values, `power` of the approximate ones, `noise` of their
    differences. `product` is the sum of products of the two.
    """

    signal: float = 0.0
    power: float = 0.0
    product: float = 0.0
    noise: float = 0.0
    finite: bool = True

    def add(self, exact: np.ndarray, approximate: np.ndarray) -> None:
        """Take another piece: arrays of one shape."""
        import numpy as np

        a, b = exact.astype(np.float64).ravel(), approximate.astype(np.float64).ravel()
        if not np.isfinite(b).all():
            self.finite = False
            return
        self.signal += float(a @ a)
        self.power += float(b @ b)
        self.product += float(a @ b)
        self.noise += float(((a - b) ** 2).sum())

    def figures(self) -> dict[str, Any]:
        """What a `LayerError` says of it."""
        own = {"own_db": self.sqnr_db, "cosine": self.cosine}
        return {**own, "factor": self.factor, "finite": self.finite}

    @property
    def sqnr_db(self) -> float | None:
        """10 log10(signal power / noise power); None where the two are equal, or not finite."""
        if not self.finite or self.noise == 0 or not math.isfinite(self.noise):
            return None
        return 10 * math.log10(max(self.signal, 1e-300) / self.noise)

    @property
    def factor(self) -> float | None:
        """The factor that brings the exact values nearest to the others; None without signal."""
        return self.product / self.signal if self.finite and self.signal > 0 else None

    @property
    def cosine(self) -> float | None:
        """Of the angle between them; None where one is all zeros."""
        length = math.sqrt(self.signal) * math.sqrt(self.power)
        return min(1.0, self.product / length) if self.finite and length > 0 else None


@dataclass
class _TensorError:
    whole: Tally = field(default_factory=Tally)
    own: Tally = field(default_factory=Tally)
    values: int = 0
    outside: int = 0
    shape: tuple[int, ...] = ()


class Sums:
    """Activations, tensor by tensor, summed over batches; and those whose shapes differ."""

    def __init__(self) -> None:
        self._rows: dict[str, _TensorError] = {}
        self._unlike: dict[str, str] = {}

    def fits(self, tensor: str, exact: np.ndarray, reference: np.ndarray) -> bool:
        """Whether the two can be compared: floats of one shape. Shapes that differ are remembered."""
        if exact.shape != reference.shape:
            self.differ(tensor, str(list(exact.shape)), str(list(reference.shape)))
            return False
        return exact.dtype.kind == "f" and reference.dtype.kind == "f" and exact.ndim > 0

    def differ(self, tensor: str, ours: str, reference: str) -> None:
        """Remember that a tensor has another shape in the child."""
        self._unlike[tensor] = f"{tensor} is {ours} in one and {reference} in the other"

    def add(
        self,
        tensor: str,
        exact: np.ndarray,
        whole: np.ndarray,
        own: np.ndarray,
        bounds: tuple[float, float] | None = None,
    ) -> None:
        """A batch of a tensor: of the float network, of the child, and of the layer with exact inputs.

        `bounds` are the values that its integers can stand for.
        """
        row = self._rows.setdefault(tensor, _TensorError(shape=exact.shape))
        row.whole.add(exact, whole)
        row.own.add(exact, own)
        if bounds is not None:
            row.values += exact.size
            row.outside += int(((exact < bounds[0]) | (exact > bounds[1])).sum())

    def pieces(self, pairs: Sequence[P]) -> Iterator[Sequence[P]]:
        """Pairs in pieces that fit in memory, by the mean of those so far: later ones are smaller."""
        start = 0
        while start < len(pairs):
            sizes = [4 * math.prod(row.shape) for row in self._rows.values()]
            mean = sum(sizes) // len(sizes) if sizes else _PIECE_BYTES
            count = max(_FEWEST, min(_MOST, _PIECE_BYTES // max(1, mean)))
            yield pairs[start : start + count]
            start += count

    def __contains__(self, tensor: str) -> bool:
        return tensor in self._rows

    def error(self, tensor: str, node: str, operator: str) -> LayerError:
        """The row of a tensor that was added."""
        row = self._rows[tensor]
        return LayerError(
            tensor=tensor,
            node=node,
            operator=operator,
            shape=row.shape,
            kind="activation",
            sqnr_db=row.whole.sqnr_db,
            clipped=row.outside / row.values if row.values else None,
            **row.own.figures(),
        )

    def measured(
        self, activations: Iterable[LayerError], weights: Iterable[LayerError]
    ) -> MeasuredLayers:
        """All rows together, without weights that were rescaled."""
        rows = [*activations, *weights]
        first = next(iter(self._unlike.values()), "none of them go by the same name")
        if not rows or len(self._unlike) > len(self._rows):
            return MeasuredLayers(reason=f"the layers cannot be compared: {first}")
        reason = f"{len(self._unlike)} tensors have other shapes: {first}" if self._unlike else None
        return MeasuredLayers(tuple(_without_rescaled(rows)), len(rows), reason)


def weight_errors(
    tensor: str,
    node: str,
    operator: str,
    exact: np.ndarray | None,
    quantized: np.ndarray | None,
    axis: int = 0,
) -> Iterator[LayerError]:
    """The row of a layer's weights; none unless both are known and of one shape.

    `axis` has the output channels.
    """
    if exact is None or quantized is None or exact.shape != quantized.shape or exact.ndim < 2:
        return
    tally = Tally()
    tally.add(exact, quantized)
    channel, channel_db = worst_channel(exact, quantized, axis) or (None, None)
    yield LayerError(
        tensor=tensor,
        node=node,
        operator=operator,
        shape=exact.shape,
        kind="weight",
        sqnr_db=tally.sqnr_db,
        channel=channel,
        channel_db=channel_db,
        **tally.figures(),
    )


def _without_rescaled(rows: list[LayerError]) -> list[LayerError]:
    """Rows without weights that differ although their layer computes the same.

    Passes fold batch norms into weights and move scales from one layer to the next.
    """
    layers = {row.node: row.rank for row in rows if row.kind == "activation"}

    def rescaled(row: LayerError) -> bool:
        computed = layers.get(row.node, row.rank)
        return row.kind == "weight" and computed > max(_SOUND_DB, row.rank + _RESCALED_DB)

    return [row for row in rows if not rescaled(row)]


def worst_channel(exact: np.ndarray, approximate: np.ndarray, axis: int) -> tuple[int, float] | None:
    """The channel with the lowest signal to noise ratio, and that ratio in decibel."""
    import numpy as np

    a = np.moveaxis(exact, axis, 0).reshape(exact.shape[axis], -1).astype(np.float64)
    b = np.moveaxis(approximate, axis, 0).reshape(approximate.shape[axis], -1).astype(np.float64)
    noise, signal = ((a - b) ** 2).sum(axis=1), (a**2).sum(axis=1)
    # A channel of zeros has no signal that noise could drown.
    ratio = np.full(len(a), np.inf)
    noisy = (noise > 0) & (signal > 0)
    ratio[noisy] = 10 * np.log10(signal[noisy] / noise[noisy])
    worst = int(ratio.argmin())
    return (worst, float(ratio[worst])) if np.isfinite(ratio[worst]) else None
