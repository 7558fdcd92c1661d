"""PyTorch itself: networks as they are, and exported programs."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import RunnerError, first_line
from optcli.formats import exported as exported_format
from optcli.formats import torch as torch_format
from optcli.formats.torch_calls import Arguments, arguments, flatten_outputs
from optcli.runners import Runner

if TYPE_CHECKING:
    import numpy as np
    import torch


class TorchRunner(Runner):
    """Runs networks in PyTorch as they are (eager), on the CPU.

    Inputs share memory with the arrays that are bound; nothing records gradients.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.TORCH, Format.EXPORTED)
    needs: ClassVar[Needs] = Needs(("torch",))

    channels_last: bool = Field(
        False, description="keep images and convolutions with the channels last in memory"
    )

    _model: Callable[..., Any] | None = PrivateAttr(None)
    _call: Arguments = PrivateAttr(default_factory=lambda: Arguments(()))
    _names: tuple[str, ...] = PrivateAttr(())
    _precision: str = PrivateAttr("fp32")
    _bound: tuple[tuple[Any, ...], dict[str, Any]] = PrivateAttr(((), {}))
    _result: Any = PrivateAttr(None)

    def load(self, artifact: Artifact) -> None:
        import torch

        torch.set_num_threads(self.thread_count())
        with suppress(RuntimeError):  # can be set once in a process, before any work
            torch.set_num_interop_threads(1)
        if artifact.format == Format.EXPORTED:
            for name in artifact.facts.get("imports", ()):
                importlib.import_module(name)  # brings the operators that the program calls
            program = exported_format.open(artifact.path)
            model = program.module()
            self._call = Arguments(tuple(spec.name for spec in self.inputs))
            self._names = tuple(artifact.facts.get("outputs", ()))
        else:
            model = torch_format.open(artifact.path)
            self._call = arguments(model, self.inputs)
        self._precision = torch_format.precision(model)
        if self.channels_last:
            # Only convolutions gain; on a fully connected layer it means nothing.
            model = model.to(memory_format=torch.channels_last)
        self._model = model

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        tensors = {name: self._tensor(array) for name, array in feed.items()}
        self._bound = self._call.split(tensors)

    def execute(self) -> None:
        import torch

        if self._model is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        positional, keyword = self._bound
        try:
            with torch.no_grad():
                self._result = self._model(*positional, **keyword)
        except Exception as error:
            raise RunnerError(f"PyTorch failed: {type(error).__name__}: {first_line(error)}") from error

    def fetch(self) -> dict[str, np.ndarray]:
        found = flatten_outputs(self._result)
        if self._names:
            found = dict(zip(self._names, found.values(), strict=True))
        return {name: _array(value) for name, value in found.items()}

    def effective(self) -> dict[str, Any]:
        import torch

        return {
            "precision": self._precision,
            "provider": "cpu",
            "threads": torch.get_num_threads(),
            "channels_last": self.channels_last,
            "version": torch.__version__,
        }

    def close(self) -> None:
        self._model = None
        self._result = None
        self._bound = ((), {})

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        import torch

        with warnings.catch_warnings():
            # A read-only array is fine: networks do not write into their inputs.
            warnings.filterwarnings("ignore", message=".*not writable.*")
            tensor = torch.from_numpy(array)
        if self.channels_last and tensor.ndim == 4:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor


def _array(value: torch.Tensor) -> np.ndarray:
    import torch

    if value.dtype == torch.bfloat16:  # NumPy has no such type
        value = value.float()
    array: np.ndarray = value.detach().cpu().contiguous().numpy()
    return array
