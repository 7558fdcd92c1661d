"""The three steps of a call in ONNX Runtime, with nothing between them and the session.

Plain objects, not part of the runner's pydantic model: a look at a private attribute of such a model
takes a microsecond or two, and a small network takes fifty in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from optcli.errors import RunnerError, first_line

if TYPE_CHECKING:
    import numpy as np
    from onnxruntime import InferenceSession


class OnnxruntimeCalls:
    """Calls on the CPU through `session.run`, as a client would make them.

    The session reads the bound arrays where they lie and hands out arrays of its own: on two cores
    of an EPYC a network of 4 µs takes 5 µs with I/O binding, which binds anew for every input.
    """

    __slots__ = ("_feed", "_halves", "_names", "_outputs", "session")

    def __init__(self, session: InferenceSession, names: Sequence[str], halves: frozenset[str]) -> None:
        self.session, self._names, self._halves = session, list(names), halves
        self._feed: dict[str, np.ndarray] = {}
        self._outputs: Sequence[np.ndarray] = ()

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        """Take the arrays; those whose input a pass made half as wide are cast."""
        self._feed = {**feed, **as_halves(feed, self._halves)} if self._halves else feed

    def execute(self) -> None:
        """Compute. Raises `RunnerError` with what ONNX Runtime says."""
        try:
            self._outputs = self.session.run(self._names, self._feed)
        except Exception as error:
            raise RunnerError(f"ONNX Runtime failed: {first_line(error)}") from error

    def fetch(self) -> dict[str, np.ndarray]:
        """The outputs by name, once: none is kept, so that memory is used again as in a plain loop."""
        outputs, self._outputs = self._outputs, ()
        return dict(zip(self._names, outputs, strict=True))


def as_halves(feed: dict[str, np.ndarray], halves: frozenset[str]) -> dict[str, np.ndarray]:
    """The inputs that a pass has made float16: what a client would send."""
    return {name: feed[name].astype("float16") for name in halves if name in feed}
