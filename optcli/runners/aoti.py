"""AOTInductor packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import RunnerError, first_line
from optcli.formats import aoti as aoti_format
from optcli.formats import torch_devices
from optcli.formats.aoti_models import Models, Routes
from optcli.formats.torch_calls import flatten_outputs
from optcli.runners import Runner
from optcli.runners._arrays import reads_in_place
from optcli.runners._torch_cuda import CudaCalls
from optcli.runners._torch_places import DEVICE, TF32, chosen, computed_in, needs_of, opened
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    import torch


class AotiRunner(Runner):
    """Runs AOTInductor packages, on what they were compiled for.

    Of a package with models of several batch sizes the batch chooses one; `observed` says which. The
    native code is loaded: only packages of the own store, or trusted ones, come here. To a GPU inputs
    go through pinned memory, and results come back the same way.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.AOTI,)
    needs: ClassVar[Needs] = Needs(("torch",))

    device: str = DEVICE
    tf32: bool = TF32

    _model: Models | None = PrivateAttr(None)
    _device: str = PrivateAttr("cpu")
    _cuda: CudaCalls | None = PrivateAttr(None)
    _names: tuple[str, ...] = PrivateAttr(())
    _precision: str = PrivateAttr("")
    _bound: dict[str, torch.Tensor] = PrivateAttr(default_factory=dict)
    _copied: set[str] = PrivateAttr(default_factory=set)
    _results: tuple[torch.Tensor, ...] = PrivateAttr(())

    def requires(self) -> Needs:
        return needs_of(self.device, self.needs)

    def load(self, artifact: Artifact) -> None:
        import torch

        torch.set_num_threads(self.thread_count())
        self._device = chosen(self.device, artifact)
        self._cuda = opened(self._device, self.tf32)
        try:
            routes = artifact.facts.get(aoti_format.ROUTES)
            self._model = aoti_format.open(artifact.path, self._device, routes)
        except Exception as error:
            place = str(artifact.path / aoti_format.FILE)
            raise RunnerError(
                f"torch cannot load the package: {first_line(error)}",
                place=place,
                hint="build it again here: it wants the processor and the torch that it was made with",
            ) from error
        self._names = tuple(artifact.facts.get("outputs", ()))
        self._precision = computed_in(artifact.precision, self._device, self.tf32)

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        import torch

        for spec in self.inputs:
            if self._cuda is not None:
                _require_fit(spec, feed[spec.name].shape)
                self._bound[spec.name] = self._cuda.send(spec.name, feed[spec.name])
                continue
            source = torch.from_numpy(feed[spec.name])
            bound = self._bound.get(spec.name)
            fresh = bound is None or bound.shape != source.shape or bound.dtype != source.dtype
            if fresh:
                _require_fit(spec, tuple(source.shape))
            if reads_in_place(feed[spec.name]):
                self._bound[spec.name] = source
                self._copied.discard(spec.name)
            elif fresh or spec.name not in self._copied:
                self._bound[spec.name] = source.clone(memory_format=torch.contiguous_format)
                self._copied.add(spec.name)
            else:
                self._bound[spec.name].copy_(source)

    def execute(self) -> None:
        import torch

        if self._model is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        try:
            with torch.inference_mode():
                results = self._compute() if self._cuda is None else self._cuda.compute(self._compute)
        except RunnerError:
            raise
        except Exception as error:
            raise RunnerError(f"the package failed: {first_line(error)}") from error
        self._results = tuple(flatten_outputs(results).values())

    def fetch(self) -> dict[str, np.ndarray]:
        if len(self._names) != len(self._results):
            raise RunnerError(
                f"the package gives {len(self._results)} outputs, the artifact names {len(self._names)}"
            )
        found = dict(zip(self._names, self._results, strict=True))
        if self._cuda is not None:
            return self._cuda.receive(found)
        return {name: _to_numpy(tensor) for name, tensor in found.items()}

    def device_ms(self) -> float | None:
        return None if self._cuda is None else self._cuda.device_ms()

    def effective(self) -> dict[str, Any]:
        import torch

        return {
            "precision": self._precision,
            "provider": self._device,
            **torch_devices.described(self._device),
            "threads": torch.get_num_threads(),
            "version": torch.__version__,
            **({"compiled_for": self._routes.compiled_for()} if self._routes.fixed else {}),
        }

    def observed(self) -> dict[str, Any]:
        if self._model is None or not self._routes.fixed:
            return {}
        return {"batches": {str(n): self._routes.said(n) for n in sorted(self._model.seen)}}

    def close(self) -> None:
        self._model = None
        self._cuda = None
        self._bound.clear()
        self._copied.clear()
        self._results = ()

    @property
    def _routes(self) -> Routes:
        return Routes() if self._model is None else self._model.routes

    def _compute(self) -> Any:
        assert self._model is not None
        return self._model(*(self._bound[spec.name] for spec in self.inputs))


def _require_fit(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    """Native code does not look at shapes: a wrong one would read memory that is not the input's."""
    low = tuple(spec.ranges[size].min if isinstance(size, str) else size for size in spec.shape)
    high = tuple(spec.ranges[size].max if isinstance(size, str) else size for size in spec.shape)
    if len(shape) != len(low) or not all(
        least <= size <= most for least, size, most in zip(low, shape, high, strict=True)
    ):
        raise RunnerError(
            f"the input {spec.name!r} has shape {list(shape)}, "
            f"the package takes {list(low)} to {list(high)}",
            hint="widen the range under the recipe's `inputs`, and build again",
        )


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy; bfloat16, which NumPy does not know, becomes float32."""
    import torch

    dtype = torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype
    array: np.ndarray = tensor.detach().to(dtype, copy=True).numpy()
    return array
