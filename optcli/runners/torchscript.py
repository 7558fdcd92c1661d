"""TorchScript."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import RunnerError, first_line
from optcli.formats import torch_devices
from optcli.formats import torchscript as torchscript_format
from optcli.formats.torch_calls import Arguments, flatten_outputs
from optcli.runners import Runner
from optcli.runners._torch_cuda import CudaCalls, tensor_of
from optcli.runners._torch_places import DEVICE, TF32, chosen, computed_in, needs_of, opened

if TYPE_CHECKING:
    import numpy as np
    import torch


class TorchscriptRunner(Runner):
    """Runs TorchScript in PyTorch's own interpreter, on the CPU or on a GPU.

    The precision is read back from the operators of the loaded network and their packed weights.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.TORCHSCRIPT,)
    needs: ClassVar[Needs] = Needs(("torch",))

    device: str = DEVICE
    tf32: bool = TF32

    _model: Any = PrivateAttr(None)
    _device: str = PrivateAttr("cpu")
    _cuda: CudaCalls | None = PrivateAttr(None)
    _call: Arguments = PrivateAttr(default_factory=lambda: Arguments(()))
    _names: tuple[str, ...] = PrivateAttr(())
    _effective: dict[str, Any] = PrivateAttr(default_factory=dict)
    _bound: tuple[tuple[Any, ...], dict[str, Any]] = PrivateAttr(((), {}))
    _result: Any = PrivateAttr(None)

    def requires(self) -> Needs:
        return needs_of(self.device, self.needs)

    def load(self, artifact: Artifact) -> None:
        import torch

        torch.set_num_threads(self.thread_count())
        with suppress(RuntimeError):  # can be set once in a process, before any work
            torch.set_num_interop_threads(1)
        self._device = chosen(self.device, artifact)
        self._cuda = opened(self._device, self.tf32)
        model = torchscript_format.open(artifact.path, self._device, trust=artifact.trusted)
        self._call = torchscript_format.arguments(model, self.inputs)
        self._names = tuple(artifact.facts.get("outputs", ()))
        optimized = bool(artifact.facts.get("optimize_for_inference"))
        precision = torchscript_format.precision(model)
        precision = computed_in(precision, self._device, self.tf32)
        self._effective = {
            "precision": precision,
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
        self._bound = self._call.split({name: self._sent(name, feed[name]) for name in feed})

    def execute(self) -> None:
        import torch

        if self._model is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        try:
            with torch.no_grad():
                self._result = (
                    self._compute() if self._cuda is None else self._cuda.compute(self._compute)
                )
        except Exception as error:
            raise RunnerError(f"TorchScript failed: {torchscript_format.reason(error)}") from error

    def fetch(self) -> dict[str, np.ndarray]:
        found = flatten_outputs(self._result)
        if len(self._names) != len(found):
            raise RunnerError(
                f"the network gives {len(found)} outputs, the artifact names {len(self._names)}"
            )
        found = dict(zip(self._names, found.values(), strict=True))
        if self._cuda is not None:
            return self._cuda.receive(found)
        return {name: _array(value) for name, value in found.items()}

    def device_ms(self) -> float | None:
        return None if self._cuda is None else self._cuda.device_ms()

    def effective(self) -> dict[str, Any]:
        import torch

        return {
            **self._effective,
            "provider": self._device,
            **torch_devices.described(self._device),
            "threads": torch.get_num_threads(),
            "version": torch.__version__,
        }

    def close(self) -> None:
        self._model = None
        self._result = None
        self._cuda = None
        self._bound = ((), {})

    def _sent(self, name: str, array: np.ndarray) -> torch.Tensor:
        return tensor_of(array) if self._cuda is None else self._cuda.send(name, array)

    def _compute(self) -> Any:
        positional, keyword = self._bound
        return self._model(*positional, **keyword)


def _array(value: torch.Tensor) -> np.ndarray:
    """A copy; bfloat16, which NumPy does not know, becomes float32."""
    import torch

    dtype = torch.float32 if value.dtype == torch.bfloat16 else value.dtype
    array: np.ndarray = value.detach().to("cpu", dtype, copy=True).contiguous().numpy()
    return array
