"""Element types of engines' inputs and outputs: how NumPy holds them, and those that it does not know.

bfloat16 and FP8 lie in memory as bits; outside an engine they are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.engines import EngineError

if TYPE_CHECKING:
    import numpy as np

_STORED = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
    "BF16": "uint16",
    "FP8": "uint8",
}


@dataclass(frozen=True)
class Element:
    """One element type, named as TensorRT's `DataType` has it."""

    name: str

    @property
    def stored(self) -> np.dtype[Any]:
        """What its bits are held as. Raises `EngineError` for a type that fills no whole bytes."""
        import numpy as np

        if self.name not in _STORED:
            raise EngineError(
                f"inputs and outputs of type {self.name} cannot be handed over",
                hint="let the model take and give float32 or float16",
            )
        return np.dtype(_STORED[self.name])

    def store(self, view: np.ndarray, values: np.ndarray) -> None:
        """Write values into memory of this type. Raises `EngineError` where they would be cut off."""
        import numpy as np

        try:
            if self.name == "BF16":
                np.copyto(view, _to_bfloat16(values))
            elif self.name == "FP8":
                raise TypeError("FP8 is not rounded to here")
            else:
                np.copyto(view, values, casting="same_kind")
        except TypeError as error:
            raise EngineError(f"{values.dtype} does not fit into {self.name}: {error}") from error

    def load(self, view: np.ndarray) -> np.ndarray:
        """A copy of what lies in memory, in a type that NumPy has."""
        if self.name == "BF16":
            return (view.astype("uint32") << 16).view("float32")
        if self.name == "FP8":
            values: np.ndarray = _e4m3()[view]
            return values
        return view.copy()


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper half of float32's bits, rounded to the nearest, ties to even."""
    import numpy as np

    wide = np.ascontiguousarray(values, dtype=np.float32)
    bits = wide.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(wide), 0x7FC0, rounded).astype(np.uint16)


def _e4m3() -> np.ndarray:
    """The 256 values of FP8 E4M3 in the order of their bits: no infinities, NaN at all ones.

    Micikevicius et al., FP8 Formats for Deep Learning, 2022.
    """
    import numpy as np

    bits = np.arange(128)
    exponent, mantissa = bits >> 3, bits & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    positive = np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    positive[127] = np.nan
    return np.concatenate([positive, -positive]).astype(np.float32)
