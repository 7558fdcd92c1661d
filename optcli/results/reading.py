"""Reports read back from disk: JSON that anybody may have written, checked before it is believed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NoReturn

from optcli.files import regular_files

_MOST_BYTES = 256 * 1024 * 1024
_MOST_DEPTH = 60
# Keys whose numbers count something, wherever they stand.
_COUNTS = {"batch_size", "threads", "samples", "launches", "rounds", "calls", "cores", "size_bytes"}


def record_of(path: Path) -> Any:
    """The plain data of a report. Raises OSError, and ValueError with the place of what cannot be."""
    data = regular_files.read(path, _MOST_BYTES)
    record = regular_files.parsed_json(data, parse_constant=_constant, parse_float=_float)
    _check(record, "", 0)
    return record


def _constant(text: str) -> NoReturn:
    raise ValueError(f"found {text}, wanted finite numbers")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _constant(text[:20])
    return value


def _check(value: Any, place: str, depth: int) -> None:
    if depth > _MOST_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        for key, item in value.items():
            where = f"{place}.{key}" if place else key
            if key in _COUNTS and _is_number(item) and item < 0:
                raise ValueError(f"{where[:200]}: found {item}, wanted at least 0")
            if key == "batch_size" and item == 0:
                raise ValueError(f"{where[:200]}: found 0, wanted at least 1")
            _check(item, where, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, f"{place}[{index}]", depth + 1)
    elif _is_number(value) and isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"{place[:200]}: found a number of more than 64 bits")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
