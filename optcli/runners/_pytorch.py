"""What the runners that are PyTorch's share: where they compute, and copies to and from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from optcli.artifact import Artifact
from optcli.environment import Needs
from optcli.errors import RunnerError, first_line
from optcli.models.formats import torch_devices
from optcli.models.formats.torch_devices import CPU, CUDA
from optcli.runners import Runner
from optcli.runners._torch_cuda import TorchCudaCalls, tensor_of
from optcli.workers import memory

if TYPE_CHECKING:
    import numpy as np
    import torch

AUTO = "auto"


class PytorchRunner(Runner):
    """A runtime of PyTorch, on the CPU or on one GPU."""

    needs: ClassVar[Needs] = Needs(("torch",))

    device: str = Field(
        AUTO,
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="`cpu`, `cuda` or `cuda:N`; `auto`: what the artifact was compiled for, "
        "else the CPU",
    )
    tf32: bool = Field(
        False,
        description="on a GPU: let the factors of FP32 products and convolutions be rounded to TF32, "
        "which PyTorch by itself does in convolutions",
    )

    _device: str = PrivateAttr(CPU)
    _keeps_memory: bool = PrivateAttr(False)
    _cuda: TorchCudaCalls | None = PrivateAttr(None)
    _names: tuple[str, ...] = PrivateAttr(())
    _model: Callable[..., Any] | None = PrivateAttr(None)
    # Arguments by position and by name; the AOTInductor runner has its own.
    _bound: Any = PrivateAttr(((), {}))
    _result: Any = PrivateAttr(None)

    def requires(self) -> Needs:
        return Needs(self.needs.packages, gpu=True) if self.device.startswith(CUDA) else self.needs

    def execute(self) -> None:
        import torch

        if self._model is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        try:
            with torch.no_grad():
                self._result = self._computed(self._compute)
        except RunnerError:
            raise
        except Exception as error:
            raise RunnerError(self._failure(error)) from error

    def close(self) -> None:
        self._model = None
        self._result = None
        self._cuda = None
        self._bound = ((), {})

    def device_ms(self) -> float | None:
        return None if self._cuda is None else self._cuda.device_ms()

    def _compute(self) -> Any:
        assert self._model is not None
        positional, keyword = self._bound
        return self._model(*positional, **keyword)

    def _failure(self, error: Exception) -> str:
        """What is said of a call that failed."""
        return f"PyTorch failed: {type(error).__name__}: {first_line(error)}"

    def _choose_device(self, artifact: Artifact) -> None:
        """Set threads and device, with FP32 on a GPU as exact as it was asked for: see `chosen`.

        On the CPU the process keeps the memory of activations from call to call.
        """
        import torch

        torch.set_num_threads(self.thread_count())
        with suppress(RuntimeError):  # can be set once in a process, before any work
            torch.set_num_interop_threads(1)
        self._device = chosen(self.device, artifact)
        if self._device == CPU:
            self._keeps_memory = memory.keep_freed()
        else:
            torch_devices.exact(self.tf32)
            self._cuda = TorchCudaCalls(self._device)

    def _precision_of(self, precision: str) -> str:
        """The precision of products: `tf32` of an FP32 network that may round so."""
        rounded = self.tf32 and precision == "fp32" and self._device != CPU
        return "tf32" if rounded else precision

    def _sent(self, name: str, array: np.ndarray) -> torch.Tensor:
        """An input where the network computes; on the CPU it shares memory with the array."""
        return tensor_of(array) if self._cuda is None else self._cuda.send(name, array)

    def _computed(self, compute: Callable[[], Any]) -> Any:
        """What `compute` gives, once it is there."""
        return compute() if self._cuda is None else self._cuda.compute(compute)

    def _received(
        self, outputs: Mapping[str, torch.Tensor], *, copy: bool = True
    ) -> dict[str, np.ndarray]:
        """The outputs as arrays; bfloat16, which NumPy does not know, becomes float32."""
        if self._cuda is not None:
            return self._cuda.receive(dict(outputs))
        import torch

        arrays: dict[str, np.ndarray] = {}
        for name, value in outputs.items():
            dtype = torch.float32 if value.dtype == torch.bfloat16 else value.dtype
            arrays[name] = value.detach().to(CPU, dtype, copy=copy).contiguous().numpy()
        return arrays

    def _named(self, outputs: Mapping[str, torch.Tensor], what: str) -> dict[str, torch.Tensor]:
        """The outputs under the names that the artifact gives them, in their order."""
        if len(self._names) != len(outputs):
            raise RunnerError(
                f"the {what} gives {len(outputs)} outputs, the artifact names {len(self._names)}"
            )
        return dict(zip(self._names, outputs.values(), strict=True))

    def _where(self) -> dict[str, Any]:
        """For `effective`: device, threads, memory and version."""
        import torch

        return {
            "provider": self._device,
            **torch_devices.described(self._device),
            "threads": torch.get_num_threads(),
            "keeps_freed_memory": self._keeps_memory,
            "version": torch.__version__,
        }


def chosen(device: str, artifact: Artifact) -> str:
    """`cpu` or `cuda:N`, which is there.

    Raises `MissingError` where it is not, `RunnerError` where the artifact was compiled for another.
    """
    made_for = artifact.facts.get(torch_devices.FACT)
    wanted = (made_for or CPU) if device == AUTO else device
    if made_for is not None and wanted.partition(":")[0] != made_for:
        raise RunnerError(
            f"it was compiled for {made_for}, and the runner is to run it on {wanted}",
            hint=f"set the pass's and the runner's `device` alike, or leave the runner's {AUTO}",
        )
    return torch_devices.require(wanted)
