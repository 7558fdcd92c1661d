"""AOTInductor packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import RunnerError, first_line
from optcli.formats import aoti as aoti_format
from optcli.formats.torch_calls import flatten_outputs
from optcli.runners import Runner
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    import torch


class AotiRunner(Runner):
    """Runs AOTInductor packages, on the CPU.

    The package's native code is loaded: only packages of the own store, or trusted ones, come here.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.AOTI,)
    needs: ClassVar[Needs] = Needs(("torch",))

    _model: Any = PrivateAttr(None)
    _names: tuple[str, ...] = PrivateAttr(())
    _precision: str = PrivateAttr("")
    _bound: dict[str, torch.Tensor] = PrivateAttr(default_factory=dict)
    _results: tuple[torch.Tensor, ...] = PrivateAttr(())

    def load(self, artifact: Artifact) -> None:
        import torch

        torch.set_num_threads(self.thread_count())
        try:
            self._model = aoti_format.open(artifact.path)
        except Exception as error:
            place = str(artifact.path / aoti_format.FILE)
            raise RunnerError(
                f"torch cannot load the package: {first_line(error)}",
                place=place,
                hint="it runs on the kind of CPU and with the version of torch that it was made with",
            ) from error
        self._names = tuple(artifact.facts.get("outputs", ()))
        self._precision = artifact.precision

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        import torch

        for spec in self.inputs:
            source = torch.from_numpy(feed[spec.name])
            bound = self._bound.get(spec.name)
            if bound is None or bound.shape != source.shape or bound.dtype != source.dtype:
                _require_fit(spec, tuple(source.shape))
                self._bound[spec.name] = source.clone(memory_format=torch.contiguous_format)
            else:
                bound.copy_(source)

    def execute(self) -> None:
        import torch

        if self._model is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        try:
            with torch.inference_mode():
                results = self._model(*(self._bound[spec.name] for spec in self.inputs))
        except Exception as error:
            raise RunnerError(f"the package failed: {first_line(error)}") from error
        self._results = tuple(flatten_outputs(results).values())

    def fetch(self) -> dict[str, np.ndarray]:
        if len(self._names) != len(self._results):
            raise RunnerError(
                f"the package gives {len(self._results)} outputs, the artifact names {len(self._names)}"
            )
        pairs = zip(self._names, self._results, strict=True)
        return {name: _to_numpy(tensor) for name, tensor in pairs}

    def effective(self) -> dict[str, Any]:
        import torch

        return {
            "precision": self._precision,
            "provider": "cpu",
            "threads": torch.get_num_threads(),
            "version": torch.__version__,
        }

    def close(self) -> None:
        self._model = None
        self._bound.clear()
        self._results = ()


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
