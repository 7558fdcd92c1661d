"""What the runners of TensorRT and of TensorRT-RTX have in common: the room `engines` does the work."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from optcli.artifact import Artifact
from optcli.errors import RunnerError
from optcli.models.engines import TITLES, EngineError, sidecar
from optcli.models.engines.running.execution import open_here
from optcli.models.engines.running.remote import RemoteExecution
from optcli.results import flags
from optcli.runners import Runner

if TYPE_CHECKING:
    import numpy as np

    from optcli.models.engines.running.execution import EngineExecution


class EngineRunner(Runner):
    """Runs engines on one GPU: inputs from pinned memory, outputs into it, on a stream of its own.

    The engine's sidecar is looked at before anything is loaded: plans of another product, version or
    GPU are refused with both sides named.
    """

    product: ClassVar[str]

    device: int = Field(0, ge=0, description="which GPU, as the driver numbers those that it shows")
    cuda_graphs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="launch a call as one recorded graph: `auto` where possible, and says why not",
    )
    profile: int | None = Field(
        None, ge=0, description="optimization profile; default: the one that fits the inputs best"
    )

    _execution: EngineExecution | RemoteExecution | None = PrivateAttr(None)
    _names: tuple[str, ...] = PrivateAttr(())

    def load(self, artifact: Artifact) -> None:
        try:
            self._execution = self._opened_engine(self._job(artifact))
        except EngineError as error:
            raise _refused(error, os.fspath(artifact.path / sidecar.PLAN)) from error
        self._names = tuple(artifact.facts.get("outputs", ()))

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        try:
            self._calls.bind(feed)
        except EngineError as error:
            raise _refused(error) from error

    def execute(self) -> None:
        try:
            self._calls.execute()
        except EngineError as error:
            raise _refused(error) from error

    def fetch(self) -> dict[str, np.ndarray]:
        try:
            outputs = self._calls.fetch()
        except EngineError as error:
            raise _refused(error) from error
        # An engine may list its outputs in another order than the model.
        return (
            {name: outputs[name] for name in self._names}
            if set(self._names) == set(outputs)
            else outputs
        )

    def device_ms(self) -> float | None:
        try:
            return self._calls.device_ms()
        except EngineError as error:
            raise _refused(error) from error

    def host_ns(self) -> int | None:
        # Another interpreter times calls itself: the way to it is not in the number.
        return self._calls.host_ns() if isinstance(self._calls, RemoteExecution) else None

    def remote_peak_bytes(self) -> int:
        return self._calls.peak_bytes() if isinstance(self._calls, RemoteExecution) else 0

    def effective(self) -> dict[str, Any]:
        execution = self._calls
        try:
            description = execution.describe()
        except EngineError as error:
            raise _refused(error) from error
        product, built_on = description.pop("product"), execution.notes["built_on"]
        doubts = (
            [flags.built_on_other_gpu(built_on, description["gpu"]).model_dump()] if built_on else []
        )
        return {
            "precision": execution.notes["precision"],
            "provider": TITLES[product],
            **description,
            **({"flags": doubts} if doubts else {}),
        }

    def observed(self) -> dict[str, Any]:
        """Whether calls were launched as CUDA graphs, where they were timed, and with which profile."""
        settings = self.effective()
        return {name: settings[name] for name in ("cuda_graphs", "device_times", "profile")}

    def close(self) -> None:
        self.__dict__.pop("_calls", None)
        if self._execution is not None:
            self._execution.close()
            self._execution = None

    def _opened_engine(self, job: dict[str, Any]) -> EngineExecution | RemoteExecution:
        return open_here(job)

    def _job(self, artifact: Artifact) -> dict[str, Any]:
        return {
            "folder": os.fspath(artifact.path),
            "product": self.product,
            "device": self.device,
            "cuda_graphs": self.cuda_graphs,
            "profile": self.profile,
        }

    @cached_property
    def _calls(self) -> EngineExecution | RemoteExecution:
        """Kept beside pydantic's attributes, each look at which takes a microsecond."""
        if self._execution is None:
            raise RunnerError("the runner holds no engine", hint="open it first")
        return self._execution


def _refused(error: EngineError, place: str = "") -> RunnerError:
    return RunnerError(error.message, place=error.place or place, hint=error.hint)
