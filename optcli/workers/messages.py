"""What crosses between processes: values of declared types, as plain JSON data on the way.

A message is a frozen dataclass, or any other type that pydantic reads: a model, a list of strings. What
a worker sends is data from an untrusted side: it is checked against the type that is waited for.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Any, TypeVar

from optcli.errors import StepError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


def to_record(message: Any, kind: Any = None) -> Any:
    """Plain JSON data of a value of the type `kind`, by default its own class; `read` reads it back.

    Fields of pydantic models that were not set are left out: whoever reads sets the same defaults.
    Raises `pydantic_core.PydanticSerializationError` for a value of another type.
    """
    (record,) = _adapter(kind or type(message)).dump_python(
        (message,), mode="json", by_alias=True, exclude_unset=True, warnings="error"
    )
    return record


def read(kind: type[T], record: Any) -> T:
    """The value of type `kind` that a record holds. Raises `StepError` where it holds no such value.

    A field that is missing, of another type or not of the type `kind` is named in the error.
    """
    from pydantic import ValidationError

    try:
        (message,) = _adapter(kind).validate_python((record,))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"][1:])) or "all of it"
        name = getattr(kind, "__name__", str(kind))
        raise StepError(
            f"a message between two processes is no {name}: {field}: {first['msg']}",
            hint="both must run the same optcli; if they do, report this as a bug",
        ) from error
    else:
        return typing.cast(T, message)


def types_of(function: Callable[..., Any]) -> tuple[Any, Any]:
    """The types of the message that a worker function takes and of the value that it gives."""
    hints = typing.get_type_hints(function)
    first = next(iter(inspect.signature(function).parameters))
    return hints[first], hints["return"]


def _new_adapter(kind: Any) -> TypeAdapter[tuple[Any]]:
    """Reads and writes a tuple of one value: a dataclass has the tuple's settings, and none itself."""
    from pydantic import ConfigDict, TypeAdapter

    of_one: Any = GenericAlias(tuple, (kind,))
    return TypeAdapter(of_one, config=ConfigDict(extra="forbid", ser_json_inf_nan="constants"))


_adapter: Callable[[Any], TypeAdapter[tuple[Any]]] = cache(_new_adapter)
