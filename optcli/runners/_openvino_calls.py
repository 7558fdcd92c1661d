"""The three steps of a call in OpenVINO, with nothing between them and the request.

A plain object, not part of the runner's pydantic model, whose private attributes take a microsecond or
two to look up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from optcli.errors import RunnerError
from optcli.models.formats import openvino as openvino_format
from optcli.runners._arrays import reads_in_place

if TYPE_CHECKING:
    import numpy as np
    from openvino import CompiledModel


class OpenvinoCalls:
    """Calls of one compiled model: small inputs are copied into memory that the request keeps."""

    __slots__ = ("_buffers", "_halves", "_held", "_request", "compiled", "names")

    def __init__(
        self, compiled: CompiledModel, outputs: Sequence[str], halves: Collection[str]
    ) -> None:
        self.compiled = compiled
        self._request = compiled.create_infer_request()
        self.names, self._halves = tuple(outputs), frozenset(halves)
        self._buffers: dict[str, np.ndarray] = {}
        self._held: dict[str, np.ndarray] = {}

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        """Take the arrays, which must stay as they are until the next; some are cast.

        Those are cast whose input a pass made half as wide.
        """
        import numpy as np

        for name, array in feed.items():
            # What a pass has made of the inputs is what a client would send.
            dtype = np.dtype(np.float16) if name in self._halves else array.dtype
            if array.dtype == dtype and reads_in_place(array):
                self._take(name, array)
                self._held[name] = array
                self._buffers.pop(name, None)
                continue
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != array.shape or buffer.dtype != dtype:
                buffer = self._buffers[name] = np.empty(array.shape, dtype)
                self._take(name, buffer)
            np.copyto(buffer, array, casting="same_kind")

    def execute(self) -> None:
        """Compute. Raises `RunnerError` with what OpenVINO says."""
        try:
            self._request.infer()
        except RuntimeError as error:
            raise RunnerError(f"OpenVINO failed: {openvino_format.reason(error)}") from error

    def fetch(self) -> dict[str, np.ndarray]:
        """Copies of the outputs, by name."""
        request = self._request
        return {
            name: request.get_output_tensor(index).data.copy() for index, name in enumerate(self.names)
        }

    def layers(self) -> Sequence[Any]:
        """What OpenVINO counted of each layer, where it was compiled with `PERF_COUNT`."""
        counts: Sequence[Any] = self._request.get_profiling_info()
        return counts

    def _take(self, name: str, array: np.ndarray) -> None:
        """Let the request read an array where it lies."""
        import openvino

        try:
            self._request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        except RuntimeError as error:
            raise RunnerError(
                f"OpenVINO refuses the input {name!r}: {openvino_format.reason(error)}"
            ) from error
