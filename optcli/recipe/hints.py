"""One action for each kind of mistake that people make in a recipe."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from optcli.errors import did_you_mean

_DTYPES = {
    "float": "float32",
    "fp32": "float32",
    "f32": "float32",
    "half": "float16",
    "fp16": "float16",
    "f16": "float16",
    "double": "float64",
    "fp64": "float64",
    "int": "int32",
    "long": "int64",
    "byte": "uint8",
    "boolean": "bool",
}


_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {f"{prefix}B": 1000**power for power, prefix in enumerate(("", "k", "M", "G"))}
_BYTES |= {"KB": 1000, **{f"{prefix}iB": 1024 ** (power + 1) for power, prefix in enumerate("KMG")}}
# By the end of a key: what one of a unit is in the key's own.
_SCALES = {
    "_ms": {unit: 1000 * seconds for unit, seconds in _SECONDS.items()},
    "_bytes": _BYTES,
    "seconds": _SECONDS,
}


def hint_for(kind: str, value: Any, choices: Sequence[str], path: Sequence[Any]) -> str:
    """What to do about a value that pydantic refuses with an error of a kind, standing under a path."""
    if kind == "extra_forbidden":
        return did_you_mean(value, choices)
    if value is None and "shape" not in path:
        return "give it a value, or remove the key"
    if choices and not isinstance(value, dict | list | tuple):
        return _choice(str(value), choices, path)
    if "shape" in path and len(path) > 1:
        return "write a size of at least 1, or for what varies a symbol such as batch"
    if kind.startswith(("int", "float", "finite")):
        return _number(value, kind, str(path[-1]) if path else "")
    if kind.startswith("bool"):
        return _truth(value)
    if kind.startswith("string_type"):
        return "put it in quotes" if isinstance(value, int | float) else "write it as text"
    if kind.startswith(("tuple", "list", "set", "frozen")):
        return _list(value, path)
    if kind.startswith(("dict", "mapping", "model")):
        return "write KEY: VALUE pairs, indented below it"
    if kind.startswith("less") and isinstance(value, int | float) and 1 < value <= 100:
        is_share = path[-1:] in (("max_drop",), ("expected",))
        return f"if {value} % is meant, write {value / 100:g}" if is_share else "lower it"
    return _RANGES.get(kind, "change the value")


_RANGES = {
    "greater_than": "raise it, or remove the key",
    "greater_than_equal": "raise it, or remove the key",
    "less_than": "lower it, or remove the key",
    "less_than_equal": "lower it, or remove the key",
    "too_short": "add one",
    "too_long": "remove some",
    "string_too_short": "write a text",
}


def _choice(value: str, choices: Sequence[str], path: Sequence[Any]) -> str:
    if path[-1:] == ("version",):
        return "this optcli reads version 1: write version: 1"
    if "dtype" in path and _DTYPES.get(value.lower()) in choices:
        return f"did you mean {_DTYPES[value.lower()]!r}?"
    return did_you_mean(value, choices)


def _number(value: Any, kind: str, key: str) -> str:
    if isinstance(value, bool):
        return "write a number"
    if isinstance(value, float):
        return f"write {round(value)}" if math.isfinite(value) else "write a number"
    if not isinstance(value, str):
        return "write one number" + (", not a list" if isinstance(value, list | tuple) else "")
    text = value.strip()
    if percent := re.fullmatch(r"([-+.\d]+)\s*%", text):
        return f"fractions are written as numbers: write {_divided(percent[1])}"
    if re.fullmatch(r"[-+]?\d+,\d+", text):
        return f"write {text.replace(',', '.')} with a point"
    if re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", text):
        return f"remove the quotes: write {text}"
    if unit := re.fullmatch(r"([-+]?[\d.]+)\s*([a-zA-Z/]+)", text):
        return f"write the number alone: {_in_unit_of(key, *unit.groups())}"
    return "write a whole number" if kind.startswith("int") else "write a number"


def _in_unit_of(key: str, number: str, unit: str) -> str:
    """A number with a unit as one in the unit that the key's name ends in, such as `load_ms`."""
    scales = next((scales for end, scales in _SCALES.items() if key.endswith(end)), {})
    try:
        return f"{float(number) * scales.get(unit, 1):.15g}"
    except ValueError:
        return number


def _divided(text: str) -> str:
    try:
        return f"{float(text) / 100:g}"
    except ValueError:
        return "0.01 for 1 %"


def _truth(value: Any) -> str:
    text = str(value).lower()
    if text in ("yes", "on", "1", "true", "y"):
        return "write true"
    if text in ("no", "off", "0", "false", "n"):
        return "write false"
    return "write true or false"


def _list(value: Any, path: Sequence[Any]) -> str:
    if isinstance(value, dict):
        return "write a list: each item behind a dash, or [a, b]"
    if path[-1:] == ("shape",):
        return "write it as a list: [batch, 3, 224, 224]"
    return f"write [{value}]"
