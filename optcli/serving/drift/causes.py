"""What a drift of images looks like: pixels that are scaled otherwise, channels in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.serving.drift.kept import Tensor

if TYPE_CHECKING:
    import numpy as np

# Prepared otherwise, values spread by such a factor: 1/255, or a standard deviation of 0.225.
_FACTOR = 4.0
_PIXEL = 255.0
# How far the channels must be from the reference's, in its standard deviations, all together.
_FAR = 1.0
_SMALLEST = 1e-9


def looks_like(how: Tensor, reference: np.ndarray, seen: np.ndarray, weights: np.ndarray) -> str | None:
    """A cause that would look like this, as the end of a sentence; None where none is known.

    `reference` and `seen` are matrices [rows, statistics], `weights` those of the seen rows.
    """
    if how.kind != "values" or how.single:
        return None
    return _scaled(how, reference, seen, weights) or _exchanged(how, reference, seen, weights)


def _scaled(how: Tensor, reference: np.ndarray, seen: np.ndarray, weights: np.ndarray) -> str | None:
    import numpy as np

    from optcli.serving.drift.input_statistics import columns_of

    raw = how.raw()
    spread = columns_of(raw, "std")
    usual, current = reference[:, spread].mean(0), weights @ seen[:, spread]
    known = usual > 0
    if not known.any():
        return None
    factor = float(np.median(current[known] / usual[known]))
    if 1 / _FACTOR < factor < _FACTOR:
        return None
    low, high = seen[:, columns_of(raw, "min")].min(), seen[:, columns_of(raw, "max")].max()
    if factor > 1 and low >= 0 and _PIXEL / 2 < high <= _PIXEL and max(how.high) < _PIXEL / 2:
        return "as if pixels of 0 to 255 were sent as they are, without scale, mean and std"
    return f"as if the values were scaled differently: they spread {factor:.3g} times as wide"


def _exchanged(how: Tensor, reference: np.ndarray, seen: np.ndarray, weights: np.ndarray) -> str | None:
    import numpy as np

    from optcli.serving.drift.input_statistics import columns_of

    if how.channels != 3:
        return None
    places = columns_of(how.raw(), "mean")
    # Exchanged before mean and std, which may be other for each channel, or after them.
    prepared = (np.array(how.prepared_std), np.array(how.prepared_mean))
    for std, mean in (prepared, (1.0, 0.0)):
        sides = [each[:, places].astype(np.float64) * std + mean for each in (reference, seen)]
        usual, current = (each - each.mean(1, keepdims=True) for each in sides)
        unit = np.maximum(usual.std(0), _SMALLEST)
        middle, now = usual.mean(0), weights @ current
        as_it_is = float(np.abs((now - middle) / unit).sum())
        exchanged = float(np.abs((now[::-1] - middle) / unit).sum())
        if as_it_is >= _FAR and exchanged <= as_it_is / 2:
            return "as if channels 0 and 2 were exchanged, as RGB and BGR"
    return None
