"""TensorRT of any version, and TensorRT-RTX, behind one interface.

Every module here runs on Python 3.10 with the standard library and numpy alone, and imports nothing
else of optcli: TensorRT 8.6 lives on CPython 3.10 only, so its work is done by that interpreter
(`child.py`, `process.py`). Nothing touches TensorRT's Builder or Runtime before a driver is known to be
there: without one they end the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TITLES = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}


class EngineError(Exception):
    """An engine that could not be built, read or run.

    `message` says what was found and wanted, `place` where, `hint` what mends it; `lines` are the last
    lines of TensorRT's own log.
    """

    def __init__(
        self, message: str, *, place: str = "", hint: str = "", lines: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.message, self.place, self.hint, self.lines = message, place, hint, tuple(lines)

    def to_record(self) -> dict[str, Any]:
        """Plain data that `from_record` turns back into the same error."""
        return {
            "message": self.message,
            "place": self.place,
            "hint": self.hint,
            "lines": list(self.lines),
        }

    @staticmethod
    def from_record(record: dict[str, Any]) -> EngineError:
        """The error that `to_record` wrote."""
        return EngineError(**record)
