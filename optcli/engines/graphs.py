"""CUDA graphs of an execution: recorded after a plain call, void once shapes or addresses change."""

from __future__ import annotations

from collections.abc import Callable

from optcli.engines import EngineError
from optcli.engines.gpu import Gpu, Graph, Stream

WANTED = ("on", "off", "auto")


class Graphs:
    """Whether calls are launched as a recorded graph, and why not where they are not.

    `auto` goes on without where recording is impossible, `on` makes an error of it. The first call with
    new shapes is always a plain one: TensorRT does in it what it does only once.
    """

    def __init__(self, gpu: Gpu, stream: Stream, wanted: str) -> None:
        if wanted not in WANTED:
            raise EngineError(f"cuda_graphs is {wanted!r}", hint=f"one of: {', '.join(WANTED)}")
        self.wanted = wanted
        self._gpu, self._stream = gpu, stream
        self._graph: Graph | None = None
        self._without = "not wanted" if wanted == "off" else ""
        self._built_in = False

    @property
    def state(self) -> str:
        """`on`, `off (why)` or `not yet`: in words for a report."""
        if self._built_in:
            return "off (not wanted)" if self.wanted == "off" else "on (TensorRT-RTX's own)"
        if self._graph is not None:
            return "on"
        return f"off ({self._without})" if self._without else "not yet"

    def built_in(self) -> None:
        """The product records graphs itself."""
        self._built_in = True

    def forbid(self, why: str) -> None:
        """Note why calls with these inputs and outputs cannot be recorded; empty: they can.

        Raises `EngineError` where graphs are `on`.
        """
        if self.wanted == "off" or self._built_in:
            return
        self._without = why
        if why and self.wanted == "on":
            raise EngineError(
                f"no CUDA graph can be recorded: {why}", hint="set `cuda_graphs: auto` or `off`"
            )

    def launch(self) -> bool:
        """Launch what was recorded; false where nothing is."""
        if self._graph is None:
            return False
        self._graph.launch(self._stream)
        return True

    def after_a_call(self, enqueue: Callable[[], None]) -> None:
        """Record, where that is wanted, possible and not done yet."""
        if self._graph is not None or self._without or self._built_in:
            return
        try:
            self._graph = Graph(self._gpu, self._stream, enqueue)
        except EngineError as error:
            self.forbid(error.message.splitlines()[0])

    def drop(self) -> None:
        """What was recorded no longer holds."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None
