"""ExecuTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import RunnerError, raised_as
from optcli.models.formats import executorch as executorch_format
from optcli.runners import Runner

if TYPE_CHECKING:
    import numpy as np
    import torch
    from executorch.extension.pybindings.portable_lib import ExecuTorchMethod


class ExecutorchRunner(Runner):
    """Runs ExecuTorch programs on this CPU, by the runtime that phones and boards have.

    The backends that the program hands parts of the network to are read from it, the number of threads
    is read back from the runtime.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.EXECUTORCH,)
    needs: ClassVar[Needs] = Needs(("executorch", "torch"))

    _method: ExecuTorchMethod | None = PrivateAttr(None)
    _settings: dict[str, Any] = PrivateAttr(default_factory=dict)
    _names: tuple[str, ...] = PrivateAttr(())
    _bound: list[torch.Tensor] = PrivateAttr(default_factory=list)
    _results: Sequence[torch.Tensor] = PrivateAttr(())

    def session(self) -> dict[str, Any]:
        return {"threads": self.thread_count()}

    def load(self, artifact: Artifact) -> None:
        # Before the program is loaded: XNNPACK takes the threads that there are then.
        threads = executorch_format.set_threads(self.session()["threads"])
        self._method = executorch_format.open(artifact.path)
        self._names = tuple(artifact.facts.get("outputs", ()))
        self._settings = {
            "precision": artifact.precision,
            "provider": ",".join(executorch_format.backends(artifact.path)) or "portable",
            "threads": threads,
            "version": environment.version("executorch"),
        }

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        import numpy as np
        import torch

        self._bound = [torch.from_numpy(np.ascontiguousarray(feed[spec.name])) for spec in self.inputs]

    def execute(self) -> None:
        if self._method is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        hint = "the log has ExecuTorch's own words; a batch larger than the recipe's `max` does not fit"
        with raised_as(RunnerError, "ExecuTorch failed", hint=hint):
            self._results = self._method(self._bound)

    def fetch(self) -> dict[str, np.ndarray]:
        names = self._names or tuple(f"output_{place}" for place in range(len(self._results)))
        if len(names) != len(self._results):
            raise RunnerError(
                f"the program gives {len(self._results)} outputs, wanted {len(names)}",
                hint="build it again",
            )
        # The runtime writes the next results where these are.
        return {name: value.numpy().copy() for name, value in zip(names, self._results, strict=True)}

    def effective(self) -> dict[str, Any]:
        return dict(self._settings)

    def close(self) -> None:
        self._method = None
        self._bound, self._results = [], ()
