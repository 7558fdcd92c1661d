"""Quantities as people write them on the command line: `120ms`, `8h`, `20%`, `600`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from optcli.errors import UsageError, did_you_mean, excerpt

_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6, "d": 8.64e7}
_NUMBER = re.compile(r"\s*(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)\s*([A-Za-z%]*)\s*", re.ASCII)
PERCENTILES = ("p50", "p95", "p99")


def milliseconds(text: str, place: str) -> float:
    """`120ms`, `0.5s`, `200us`, `8h`; without a unit, milliseconds. Raises `UsageError`."""
    return _measure(text, _MS, "ms", place, "a time such as 120ms, 3s or 8h")


def seconds(text: str, place: str) -> float:
    """`3s`, `500ms`, `8h`, `7d`; without a unit, seconds. Raises `UsageError`."""
    return _measure(text, _MS, "s", place, "a time such as 3s, 10min or 8h") / 1e3


def share(text: str, place: str) -> float:
    """`20%` or `0.2`. Raises `UsageError`."""
    return _measure(text, {"%": 0.01, "": 1.0}, "", place, "a share such as 20% or 0.2")


def number(text: str, place: str) -> float:
    """A plain number. Raises `UsageError`."""
    return _measure(text, {"": 1.0}, "", place, "a number")


def promise(texts: tuple[str, ...], place: str) -> dict[str, float]:
    """`p95=120ms`, several, or several in one text with commas, as keys of `slo`."""
    limits: dict[str, float] = {}
    for text in (part.strip() for each in texts for part in each.split(",")):
        name, equals, written = text.partition("=")
        if not equals or name.strip() not in PERCENTILES:
            hint = did_you_mean(name.strip(), PERCENTILES) if equals else "such as --slo p95=120ms"
            raise UsageError(
                f"found {excerpt(text)!r}, wanted p50, p95 or p99=TIME", place=place, hint=hint
            )
        limits[f"{name.strip()}_ms"] = milliseconds(written, place)
    return limits


def waits(text: str, place: str) -> float | list[float]:
    """`10ms`, or `0,5ms,25ms`: one wait in milliseconds, or several."""
    several = [milliseconds(part, place) for part in text.split(",")]
    return several[0] if len(several) == 1 else several


def overhead(text: str, place: str) -> dict[str, float]:
    """`10ms`, or `6ms+4ms` before and after the model, as keys of `overhead`."""
    before, plus, after = text.partition("+")
    if not plus:
        return {"after_ms": milliseconds(text, place)}
    return {"before_ms": milliseconds(before, place), "after_ms": milliseconds(after, place)}


def priorities(texts: tuple[str, ...], place: str) -> dict[str, float]:
    """`alert=0.1,other=0.9`: shares of the traffic by priority, the most urgent first."""
    shares: dict[str, float] = {}
    for text in (part.strip() for each in texts for part in each.split(",")):
        name, equals, written = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"found {excerpt(text)!r}, wanted NAME=SHARE",
                place=place,
                hint="such as alert=0.1,other=0.9",
            )
        shares[name.strip()] = share(written, place)
    return shares


def _measure(text: str, units: Mapping[str, float], usual: str, place: str, wanted: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UsageError(
            f"found {excerpt(text)!r}, wanted {wanted}", place=place, hint="a number and its unit"
        )
    unit = match[2] or usual
    if unit not in units:
        known = ", ".join(name for name in units if name)
        raise UsageError(
            f"found the unit {unit!r} in {excerpt(text)!r}, wanted {wanted}",
            place=place,
            hint=f"units: {known}" if known else "leave the unit out",
        )
    value = float(match[1]) * units[unit]
    if not math.isfinite(value):
        raise UsageError(
            f"found {excerpt(text)!r}, which is too large: wanted {wanted}",
            place=place,
            hint="give a smaller one",
        )
    return value
