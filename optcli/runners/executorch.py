"""ExecuTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import RunnerError, first_line
from optcli.models.formats import executorch as executorch_format
from optcli.runners._calls import CallsRunner

if TYPE_CHECKING:
    import numpy as np
    import torch
    from executorch.extension.pybindings.portable_lib import ExecuTorchMethod


class ExecutorchRunner(CallsRunner):
    """Runs ExecuTorch programs on this CPU, by the runtime that phones and boards have.

    The backends that the program hands parts of the network to are read from it, the number of threads
    is read back from the runtime.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.EXECUTORCH,)
    needs: ClassVar[Needs] = Needs(("executorch", "torch"))

    _settings: dict[str, Any] = PrivateAttr(default_factory=dict)

    def session(self) -> dict[str, Any]:
        return {"threads": self.thread_count()}

    def load(self, artifact: Artifact) -> None:
        # Before the program is loaded: XNNPACK takes the threads that there are then.
        threads = executorch_format.set_threads(self.session()["threads"])
        names = [spec.name for spec in self.inputs]
        method = executorch_format.open(artifact.path)
        self._loaded = ExecutorchCalls(method, names, artifact.facts.get("outputs", ()))
        self._settings = {
            "precision": artifact.precision,
            "provider": ",".join(executorch_format.backends(artifact.path)) or "portable",
            "threads": threads,
            "version": environment.version("executorch"),
        }

    def effective(self) -> dict[str, Any]:
        return dict(self._settings)


class ExecutorchCalls:
    """Calls of a program's method, whose inputs and outputs have these names; no names: by number."""

    def __init__(self, method: ExecuTorchMethod, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._method, self._inputs, self._outputs = method, inputs, tuple(outputs)
        self._bound: list[torch.Tensor] = []
        self._results: Sequence[torch.Tensor] = ()

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        """Take one batch."""
        import numpy as np
        import torch

        self._bound = [torch.from_numpy(np.ascontiguousarray(feed[name])) for name in self._inputs]

    def execute(self) -> None:
        """Compute. Raises `RunnerError` with what ExecuTorch says."""
        try:
            self._results = self._method(self._bound)
        except Exception as error:
            hint = "see the log; a batch larger than the recipe's `max` does not fit"
            raise RunnerError(f"ExecuTorch failed: {first_line(error)}", hint=hint) from error

    def fetch(self) -> dict[str, np.ndarray]:
        """The outputs by name. Raises `RunnerError` where they are others than were told."""
        names = self._outputs or tuple(f"output_{place}" for place in range(len(self._results)))
        if len(names) != len(self._results):
            raise RunnerError(
                f"the program gives {len(self._results)} outputs, wanted {len(names)}",
                hint="build it again",
            )
        # The runtime writes the next results where these are.
        return {name: value.numpy().copy() for name, value in zip(names, self._results, strict=True)}
