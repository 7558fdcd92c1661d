"""What a recipe may say under `outputs`: what the values of each output are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, GetJsonSchemaHandler, model_validator

from optcli.settings import Settings

Rows = TypeVar("Rows")

Kind = Literal[
    "boxes",
    "objectness",
    "scores",
    "class_numbers",
    "rows",
    "mask_coefficients",
    "prototypes",
    "keypoints",
    "angle",
    "logits",
    "class_map",
    "embedding",
    "depth",
    "unknown",
]
# Of kinds that are always as many numbers.
SIZES: Mapping[str, int] = {"boxes": 4, "objectness": 1, "class_numbers": 1, "rows": 6, "angle": 1}


@dataclass(frozen=True)
class OutputPart:
    """Some entries `start` to `stop` of the dimension `axis` of a sample (from 0, without the batch).

    `axis` None: the whole output.
    """

    kind: Kind
    axis: int | None = None
    start: int = 0
    stop: int | None = None

    def of(self, rows: Rows) -> Rows:
        """The part of an array or tensor `[samples, ...]`; nothing is copied."""
        if self.axis is None:
            return rows
        return rows[(slice(None),) * (self.axis + 1) + (slice(self.start, self.stop),)]  # type: ignore[index, no-any-return]


class PartSettings(Settings):
    """A part of an output: a kind, such as `boxes`, or `{scores: 80}` with how many numbers it is."""

    kind: Kind = Field(
        description="`boxes`, `objectness`, `scores` of classes, `class_numbers`, `rows` (x1, y1, x2,"
        " y2, score, class), `mask_coefficients`, their `prototypes`, `keypoints`, `angle`; or what a"
        " whole output is: `logits` of an image, `class_map`, `embedding`, `depth`, `unknown`"
    )
    size: int | None = Field(
        None, ge=1, description="how many numbers it is; one part may leave that out"
    )

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        if isinstance(value, Mapping) and len(value) == 1 and not {"kind", "size"} & value.keys():
            ((kind, size),) = value.items()
            return {"kind": kind, "size": size}
        return value

    @model_validator(mode="after")
    def _of_a_known_size(self) -> Self:
        usual = SIZES.get(self.kind)
        if usual is not None and self.size not in (None, usual):
            raise ValueError(f"{self.kind} are {usual} numbers, found {self.size}")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        kinds = {"enum": list(Kind.__args__)}  # type: ignore[attr-defined]
        sizes = {
            "type": "object",
            "propertyNames": kinds,
            "additionalProperties": {"type": "integer", "minimum": 1},
            "minProperties": 1,
            "maxProperties": 1,
        }
        return {"anyOf": [kinds, sizes, handler(schema)]}


class OutputSettings(Settings):
    """What an output is: its parts along one dimension, or one kind for all of it.

    `output0: boxes` is short for `output0: {parts: [boxes]}`, and a list stands for its parts.
    """

    parts: tuple[PartSettings, ...] = Field(min_length=1, description="parts, in their order")
    axis: int | None = Field(
        None,
        ge=1,
        description="dimension that holds the parts, the batch being dimension 0; default: the only one"
        " of their size, or the last",
    )

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return {"parts": value}
        if isinstance(value, str):
            return {"parts": [value]}
        if isinstance(value, Mapping) and isinstance(value.get("parts"), str):
            return {**value, "parts": [value["parts"]]}
        return value

    @model_validator(mode="after")
    def _sizes_are_known(self) -> Self:
        without = [part.kind for part in self.parts if part.size is None and part.kind not in SIZES]
        if len(without) > 1:
            raise ValueError(
                f"{' and '.join(without)} have no size: one part may go without, such as {{scores: 80}}"
            )
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        whole = handler(schema)
        parts = handler.resolve_ref_schema(whole)["properties"]["parts"]
        return {"anyOf": [{"type": "string"}, parts, whole]}
