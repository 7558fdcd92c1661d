"""ONNX Runtime."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import RunnerError, first_line
from optcli.formats import onnx as onnx_format
from optcli.formats import ort as ort_format
from optcli.runners import Runner
from optcli.runners._onnxruntime_calls import DeviceCalls, HostCalls

if TYPE_CHECKING:
    import numpy as np
    from onnxruntime import InferenceSession

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


_NO_BF16 = "it has no bfloat16 on the CPU: set `runner: openvino`, or `provider: cuda`"


class OnnxruntimeRunner(Runner):
    """Runs ONNX models, and those that it optimized before, in ONNX Runtime.

    On the CPU it is called as a client would call it, with NumPy arrays. A provider that the session
    does not really use is an error, never a silent fall-back.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.ONNX, Format.ORT)
    needs: ClassVar[Needs] = Needs(("onnx", "onnxruntime"))

    provider: Literal["cpu", "cuda"] = Field("cpu", description="what computes: `cpu` or `cuda`")
    optimization_level: Literal["disabled", "basic", "extended", "all"] = Field(
        "all", description="how far ONNX Runtime may rewrite the graph when it loads it"
    )

    _session: InferenceSession | None = PrivateAttr(None)
    _artifact: Artifact | None = PrivateAttr(None)

    def load(self, artifact: Artifact) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.thread_count()
        options.inter_op_num_threads = 1
        options.graph_optimization_level = getattr(
            onnxruntime.GraphOptimizationLevel, _LEVELS[self.optimization_level]
        )
        # Threads may spin within a call, as they do by default, but not on after it: that would
        # steal the cores of whatever is measured in turn.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3
        if self._profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = os.fspath(self._profile / "onnxruntime")
        ahead = artifact.format == Format.ORT
        path = artifact.path / (ort_format.FILE if ahead else onnx_format.FILE)
        try:
            self._session = onnxruntime.InferenceSession(
                os.fspath(path), options, providers=[_PROVIDERS[self.provider]]
            )
        except Exception as error:
            brain = artifact.precision == "bf16" and self.provider == "cpu"
            raise RunnerError(
                f"ONNX Runtime cannot load the model: {first_line(error)}",
                place=str(path),
                hint=_NO_BF16 if brain else "",
            ) from error
        self._artifact = artifact
        self._require_provider(self._session)

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        self._calls.bind(feed)

    def execute(self) -> None:
        self._calls.execute()

    def fetch(self) -> dict[str, np.ndarray]:
        return self._calls.fetch()

    def effective(self) -> dict[str, Any]:
        import onnxruntime

        session = self._opened()
        assert self._artifact is not None
        level = session.get_session_options().graph_optimization_level
        found: dict[str, Any] = {
            "precision": _precision(self._artifact),
            "provider": session.get_providers()[0],
            "threads": session.get_session_options().intra_op_num_threads,
            "spinning": "within a call",
            "optimization_level": next(
                name
                for name, constant in _LEVELS.items()
                if getattr(onnxruntime.GraphOptimizationLevel, constant) == level
            ),
            "version": onnxruntime.__version__,
        }
        if self._artifact.format == Format.ORT:
            # Loading adds hardly anything to what was saved.
            saved = str(self._artifact.facts.get("optimization_level", "unknown"))
            if self.optimization_level != "all" and self.optimization_level != saved:
                found["flags"] = [
                    f"optimized to the level {saved} when it was saved, whatever is asked"
                ]
            found["optimization_level"] = saved
        return found

    def end_profile(self) -> Path:
        """The file of ONNX Runtime's own profiler, on every call since it was opened for profiling."""
        return Path(self._opened().end_profiling())

    def close(self) -> None:
        self.__dict__.pop("_calls", None)
        self._session = None

    @cached_property
    def _calls(self) -> HostCalls | DeviceCalls:
        session = self._opened()
        names = [output.name for output in session.get_outputs()]
        inputs = session.get_inputs()
        halves = frozenset(each.name for each in inputs if each.type == "tensor(float16)")
        if self.provider == "cpu":
            return HostCalls(session, names, halves)
        return DeviceCalls(session, names, halves, self.provider)

    def _opened(self) -> InferenceSession:
        if self._session is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        return self._session

    def _require_provider(self, session: InferenceSession) -> None:
        wanted, found = _PROVIDERS[self.provider], session.get_providers()[0]
        if found != wanted:
            self.close()
            raise RunnerError(
                f"ONNX Runtime fell back to {found}, wanted {wanted}",
                hint="install the provider's libraries and driver, or set `provider: cpu`",
            )


def _precision(artifact: Artifact) -> str:
    if artifact.format == Format.ORT:
        return "int8" if ort_format.is_quantized(artifact.path) else artifact.precision
    return onnx_format.precision(onnx_format.outline(artifact.path))
