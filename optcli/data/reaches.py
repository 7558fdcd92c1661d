"""Calibration samples whose values reach far beyond others': ranges that hold them are too wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from optcli.errors import excerpt

if TYPE_CHECKING:
    import numpy as np

    from optcli.sample import Sample, SampleSet

_MOST = 512  # samples that are looked at
_FEWEST = 4  # of fewer nobody can say which lies apart
_FAR = 16.0  # times: four of eight bits
_STEPS = 255
_THREADS = 8
_SHOWN = 3


def far_apart(samples: SampleSet, judged: Sequence[Sample] = ()) -> list[str]:
    """What is to be said of samples whose largest value is far from the others', by input.

    The others are those of calibration, and some of those that are `judged`.
    """
    count = len(samples)
    places = sorted({number * count // min(count, _MOST) for number in range(min(count, _MOST))})
    if len(places) < _FEWEST:
        return []
    if getattr(samples, "parallel", False):
        with ThreadPoolExecutor(_THREADS) as pool:
            seen = list(pool.map(lambda place: _reach(samples[place]), places))
    else:
        seen = [_reach(samples[place]) for place in places]
    judged_reaches = [_reach(sample)[1] for sample in judged]
    sentences = []
    for name in seen[0][1]:
        reaches = [(who, each[name]) for who, each in seen]
        sentences.append(_range_text(name, reaches))
        sentences.append(_said_of_roles(name, _usual([reach for _, reach in reaches]), judged_reaches))
    return [each for each in sentences if each]


def _reach(sample: Sample) -> tuple[str, dict[str, float]]:
    """The sample's id, and the largest absolute value of each input of fractions."""
    return sample.id, {
        name: _largest(array) for name, array in sample.inputs.items() if array.dtype.kind == "f"
    }


def _largest(array: np.ndarray) -> float:
    import numpy as np

    return float(np.abs(array).max(initial=0.0))


def _usual(reaches: Sequence[float]) -> float:
    return sorted(reaches)[len(reaches) // 2]


def _said_of_roles(name: str, usual: float, judged: Sequence[Mapping[str, float]]) -> str:
    """Whether calibration as a whole lies far from what is judged, as 0 to 255 from 0 to 1."""
    other = _usual([each[name] for each in judged]) if judged else 0.0
    if min(usual, other) <= 0 or max(usual, other) <= _FAR * min(usual, other):
        return ""
    cost = (
        f"evaluation uses {_STEPS * other / usual:.2g} of {_STEPS} steps of INT8 ranges that hold these"
        if usual > other
        else f"INT8 ranges that hold these cut off what is {other / usual:.3g} times as large"
    )
    return (
        f"calibration samples reach to {usual:.3g} in input {name!r}, and those of evaluation to"
        f" {other:.3g}: {cost}: prepare both alike"
    )


def _range_text(name: str, reaches: Sequence[tuple[str, float]]) -> str:
    usual = _usual([reach for _, reach in reaches])
    wider = [(who, reach) for who, reach in reaches if usual > 0 and reach > _FAR * usual]
    if not wider:
        return ""
    shown = ", ".join(f"{excerpt(who)} to {reach:.3g}" for who, reach in wider[:_SHOWN])
    more = f" and {len(wider) - _SHOWN} more" if len(wider) > _SHOWN else ""
    steps = _STEPS * usual / max(reach for _, reach in wider)
    return (
        f"{len(wider)} of {len(reaches)} calibration samples reach far beyond the others in input"
        f" {name!r}: {shown}{more}, the others to {usual:.3g}; of an INT8 range that holds all, the"
        f" others use {steps:.2g} of {_STEPS} steps: leave those out, or mend them"
    )
