"""TorchScript."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import RunnerError, first_line
from optcli.formats import torchscript as torchscript_format
from optcli.formats.torch_calls import Arguments, flatten_outputs
from optcli.runners import Runner

if TYPE_CHECKING:
    import numpy as np
    import torch


class TorchscriptRunner(Runner):
    """Runs TorchScript in PyTorch's own interpreter, on the CPU.

    The precision is read back from the operators of the loaded network and their packed weights.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.TORCHSCRIPT,)
    needs: ClassVar[Needs] = Needs(("torch",))

    _model: Any = PrivateAttr(None)
    _call: Arguments = PrivateAttr(default_factory=lambda: Arguments(()))
    _names: tuple[str, ...] = PrivateAttr(())
    _effective: dict[str, Any] = PrivateAttr(default_factory=dict)
    _bound: tuple[tuple[Any, ...], dict[str, Any]] = PrivateAttr(((), {}))
    _result: Any = PrivateAttr(None)

    def load(self, artifact: Artifact) -> None:
        import torch

        torch.set_num_threads(self.thread_count())
        with suppress(RuntimeError):  # can be set once in a process, before any work
            torch.set_num_interop_threads(1)
        model = torchscript_format.open(artifact.path)
        self._call = torchscript_format.arguments(model, self.inputs)
        self._names = tuple(artifact.facts.get("outputs", ()))
        optimized = bool(artifact.facts.get("optimize_for_inference"))
        self._effective = {
            "precision": torchscript_format.precision(model),
            "optimize_for_inference": optimized,
        }
        if optimized:
            try:
                with torchscript_format.quiet():
                    model = torch.jit.optimize_for_inference(model)
            except Exception as error:
                raise RunnerError(
                    f"torch cannot optimize the network for this CPU: {first_line(error)}",
                    hint="set `optimize_for_inference: false`",
                ) from error
        self._model = model

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        self._bound = self._call.split({name: _tensor(array) for name, array in feed.items()})

    def execute(self) -> None:
        import torch

        if self._model is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        positional, keyword = self._bound
        try:
            with torch.no_grad():
                self._result = self._model(*positional, **keyword)
        except Exception as error:
            raise RunnerError(f"TorchScript failed: {torchscript_format.reason(error)}") from error

    def fetch(self) -> dict[str, np.ndarray]:
        found = flatten_outputs(self._result)
        if len(self._names) != len(found):
            raise RunnerError(
                f"the network gives {len(found)} outputs, the artifact names {len(self._names)}"
            )
        return {name: _array(value) for name, value in zip(self._names, found.values(), strict=True)}

    def effective(self) -> dict[str, Any]:
        import torch

        return {
            **self._effective,
            "provider": "cpu",
            "threads": torch.get_num_threads(),
            "version": torch.__version__,
        }

    def close(self) -> None:
        self._model = None
        self._result = None
        self._bound = ((), {})


def _tensor(array: np.ndarray) -> torch.Tensor:
    import torch

    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        # A read-only array is fine: networks do not write into their inputs.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)


def _array(value: torch.Tensor) -> np.ndarray:
    """A copy; bfloat16, which NumPy does not know, becomes float32."""
    import torch

    dtype = torch.float32 if value.dtype == torch.bfloat16 else value.dtype
    array: np.ndarray = value.detach().to("cpu", dtype, copy=True).contiguous().numpy()
    return array
