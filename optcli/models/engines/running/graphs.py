"""CUDA graphs of an execution: recorded after a plain call, void once shapes or addresses change."""

from __future__ import annotations

from collections.abc import Callable

from optcli.models.engines import EngineError
from optcli.models.engines.driver import CudaEvent, CudaGraph, Gpu, Stream

MODES = ("on", "off", "auto")


class Graphs:
    """Whether calls are launched as a recorded graph, and why not where they are not.

    `auto` goes on without where recording is impossible, `on` makes an error of it. The first call with
    new shapes is always a plain one: TensorRT does in it what it does only once.
    """

    def __init__(self, gpu: Gpu, stream: Stream, mode: str) -> None:
        """Raises `EngineError` for what is neither `on`, `off` nor `auto`."""
        if mode not in MODES:
            raise EngineError(f"cuda_graphs is {mode!r}", hint=f"one of: {', '.join(MODES)}")
        self.mode = mode
        self._gpu, self._stream = gpu, stream
        self._start, self._stop = CudaEvent(gpu), CudaEvent(gpu)
        self._graph: CudaGraph | None = None
        self._timed_inside = False
        self._without = "not wanted" if mode == "off" else ""
        # Whether the product records graphs itself.
        self.built_in = False

    @property
    def state(self) -> str:
        """`on`, `off (why)` or `not yet`: in words for a report."""
        if self.built_in:
            return "off (not wanted)" if self.mode == "off" else "on (TensorRT-RTX's own)"
        if self._graph is not None:
            return "on"
        return f"off ({self._without})" if self._without else "not yet"

    @property
    def timed(self) -> str:
        """Where the events of the device's time lie: in the recorded graph, or around its launch.

        Around it, the time that the processor takes to launch the graph is in the figure.
        """
        return "in the graph" if self._timed_inside else "around the launch"

    def forbid(self, why: str) -> None:
        """Note why calls with these inputs and outputs cannot be recorded; empty: they can.

        Raises `EngineError` where graphs are `on`.
        """
        if self.mode == "off" or self.built_in:
            return
        self._without = why
        if why and self.mode == "on":
            raise EngineError(
                f"no CUDA graph can be recorded: {why}", hint="set `cuda_graphs: auto` or `off`"
            )

    def run(self, enqueue: Callable[[], None]) -> None:
        """Launch what was recorded, else enqueue; between two events, whichever it is."""
        if self._graph is not None and self._timed_inside:
            self._graph.launch(self._stream)
            return
        self._start.record(self._stream)
        if self._graph is not None:
            self._graph.launch(self._stream)
        else:
            enqueue()
        self._stop.record(self._stream)

    def device_ms(self) -> float:
        """Milliseconds on the GPU between the events of the last `run`, which must be over."""
        return self._stop.since_ms(self._start)

    def after_a_call(self, enqueue: Callable[[], None]) -> None:
        """Record, where that is wanted, possible and not done yet."""
        if self._graph is not None or self._without or self.built_in:
            return
        try:
            self._graph, self._timed_inside = self._recorded_with_events(enqueue), True
        except EngineError:
            try:
                self._graph, self._timed_inside = CudaGraph(self._gpu, self._stream, enqueue), False
            except EngineError as error:
                self.forbid(error.message.splitlines()[0])

    def _recorded_with_events(self, enqueue: Callable[[], None]) -> CudaGraph:
        """With the events inside: the time until the processor has launched it is none of the GPU's.

        Tried at once, since not every driver gives times of such events.
        """

        def between() -> None:
            self._start.record(self._stream, in_graph=True)
            enqueue()
            self._stop.record(self._stream, in_graph=True)

        graph = CudaGraph(self._gpu, self._stream, between)
        try:
            graph.launch(self._stream)
            self._stream.synchronize()
            self.device_ms()
        except EngineError:
            graph.close()
            raise
        return graph

    def drop(self) -> None:
        """What was recorded no longer holds."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None
