"""Queueing: curves t(B), arrivals, formulas and the simulation of servers that batch.

Formulas prune, the simulation decides. Milliseconds and requests a second throughout; NumPy only.
Here are numbers with units as people write them, and the checks that all of the room shares.
"""

from __future__ import annotations

import re
import sys
from numbers import Integral, Real
from typing import Any

from optcli.errors import InputError, excerpt

_UNITS_MS = {"us": 0.001, "µs": 0.001, "ms": 1.0, "s": 1000.0}
NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+"
_LARGEST = sys.float_info.max
_TIME = re.compile(rf"({NUMBER})\s*(us|µs|ms|s)")


def milliseconds(text: str, place: str) -> float:
    """A time such as `25ms`, `1.5s` or `800us`, in milliseconds. Raises `InputError`."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"{excerpt(text)!r} is no time",
            place=place,
            hint="write a number and its unit: us, ms or s, such as 25ms",
        )
    return float(match[1]) * _UNITS_MS[match[2]]


def number(value: Any, name: str, place: str, *, least: float, above: bool = False) -> float:
    """A finite number of at least `least`, or above it. Raises `InputError`."""
    usable = isinstance(value, Real) and not isinstance(value, bool)
    if not usable or not abs(value) <= _LARGEST or value < least or (above and value == least):
        limit = f"above {least:g}" if above else f"of {least:g} or more"
        raise _wrong(value, name, place, f"a number {limit}")
    return float(value)


def whole(value: Any, name: str, place: str, *, least: int, most: int | None = None) -> int:
    """A whole number from `least` to `most`. Raises `InputError`."""
    usable = isinstance(value, Integral) and not isinstance(value, bool)
    if not usable or value < least or (most is not None and value > most):
        limit = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise _wrong(value, name, place, f"a whole number {limit}")
    return int(value)


def share(value: Any, name: str, place: str) -> float:
    """A fraction from 0 to 1. Raises `InputError`."""
    usable = isinstance(value, Real) and not isinstance(value, bool)
    if not usable or not 0 <= value <= 1:
        raise _wrong(value, name, place, "a fraction from 0 to 1")
    return float(value)


def _wrong(value: Any, name: str, place: str, wanted: str) -> InputError:
    # Python writes no whole number of thousands of digits.
    is_long = isinstance(value, int) and abs(value) > _LARGEST
    shown = "a number of hundreds of digits" if is_long else excerpt(repr(value))
    return InputError(f"{name} is {shown}, wanted {wanted}", place=place, hint=f"give {wanted}")
