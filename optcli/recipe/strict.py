"""Everything that pydantic finds wrong, and what it takes in silence: true for 1 and "2" for 2.

Its strict mode sees truth values and quoted numbers where a number is wanted, but not inside a model
that looks at its data before they are checked, and to it a literal 1 is equal to true. So the data are
checked once more with each such value replaced by something that only the field it was meant for
complains about in the right words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError

# Silent conversions ("2" for 2, true for 1) hide mistakes: these come from strict checking.
_SCALARS = ("int_type", "int_parsing", "float_type", "bool_type", "string_type")
_NUMBER = re.compile(r"\s*[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)
# What a field says that would have taken the value as it was meant.
_MEANT = {
    bool: {"bool_type", "bool_parsing"},
    str: {
        "string_type",
        "literal_error",
        "enum",
        "path_type",
        "value_error",
        "model_type",
        "dict_type",
    },
}


def errors_in(model: type[BaseModel], data: Any) -> list[Any]:
    """Everything pydantic finds wrong: strict about scalars, easy about lists and tuples."""
    errors: list[Any] = []
    try:
        model.model_validate(data)
    except ValidationError as error:
        errors.extend(error.errors(include_url=False))
    try:
        model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        known = {one["loc"] for one in errors}
        errors.extend(
            one
            for one in error.errors(include_url=False)
            if one["type"] in _SCALARS
            and one["loc"] not in known
            and isinstance(one["input"], str | int | float)
        )
    known = {one["loc"] for one in errors}
    return errors + [one for one in _mistaken(model, data) if one["loc"] not in known]


class _Stand:
    """Stands for a value."""

    def __init__(self, value: bool | str) -> None:
        self.value = value


def _mistaken(model: type[BaseModel], data: Any) -> list[Any]:
    """The errors of pydantic for truth values and quoted numbers that a number is wanted for."""
    stands: list[_Stand] = []
    marked = _marked(data, stands)
    if not stands:
        return []
    try:
        model.model_validate(marked)
    except ValidationError as error:
        return list(_misplaced(error.errors(include_url=False)))
    except (TypeError, ValueError, AttributeError):
        return []  # a model's own look at its data; the ordinary check has had its say
    return []


def _marked(data: Any, stands: list[_Stand]) -> Any:
    if isinstance(data, dict):
        return {key: _marked(item, stands) for key, item in data.items()}
    if isinstance(data, list):
        return [_marked(item, stands) for item in data]
    if isinstance(data, bool) or (isinstance(data, str) and _NUMBER.fullmatch(data)):
        stands.append(_Stand(data))
        return stands[-1]
    return data


def _misplaced(errors: Iterable[Any]) -> Iterable[Any]:
    by_value: dict[int, list[Any]] = {}
    for error in errors:
        if isinstance(error["input"], _Stand):
            by_value.setdefault(id(error["input"]), []).append(error)
    for group in by_value.values():
        value = group[0]["input"].value
        if not {error["type"] for error in group} & _MEANT[type(value)]:
            yield from ({**error, "input": value} for error in group)
