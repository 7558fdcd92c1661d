"""AOTInductor packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr

from optcli.artifact import ROUTES, Artifact, Format
from optcli.errors import RunnerError, first_line
from optcli.models.formats import aoti as aoti_format
from optcli.models.formats.aoti import Models, Routes
from optcli.models.formats.torch_calls import flatten_outputs
from optcli.runners import reads_in_place
from optcli.runners._pytorch import PytorchRunner
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    import torch


class AotiRunner(PytorchRunner):
    """Runs AOTInductor packages, on what they were compiled for.

    If a package has models for several batch sizes, the runner takes the one for the batch, and
    `observed` names it. It loads native code, and so opens only packages of the own store or trusted
    ones. Inputs go to a GPU through pinned memory, and results come back the same way.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.AOTI,)

    _model: Models | None = PrivateAttr(None)
    _precision: str = PrivateAttr("")
    _bound: dict[str, torch.Tensor] = PrivateAttr(default_factory=dict)
    _copied: set[str] = PrivateAttr(default_factory=set)
    _results: dict[str, torch.Tensor] = PrivateAttr(default_factory=dict)

    def load(self, artifact: Artifact) -> None:
        self._choose_device(artifact)
        try:
            routes = artifact.facts.get(ROUTES)
            self._model = aoti_format.open(artifact.path, self._device, routes)
        except Exception as error:
            place = str(artifact.path / aoti_format.FILE)
            raise RunnerError(
                f"torch cannot load the package: {first_line(error)}",
                place=place,
                hint="build it again here: it needs the processor and the torch that it was made with",
            ) from error
        self._names = tuple(artifact.facts.get("outputs", ()))
        self._precision = self._precision_of(artifact.precision)

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
                results = self._computed(self._compute)
        except RunnerError:
            raise
        except Exception as error:
            raise RunnerError(f"the package failed: {first_line(error)}") from error
        self._results = flatten_outputs(results)

    def fetch(self) -> dict[str, np.ndarray]:
        return self._received(self._named(self._results, "package"))

    def effective(self) -> dict[str, Any]:
        return {
            "precision": self._precision,
            **self._where(),
            **self._compiled(),
        }

    def observed(self) -> dict[str, Any]:
        if self._model is None or not self._routes.fixed:
            return {}
        return {"batches": {str(n): self._routes.route_of(n) for n in sorted(self._model.seen)}}

    def close(self) -> None:
        self._model = None
        self._cuda = None
        self._bound.clear()
        self._copied.clear()
        self._results = {}

    @property
    def _routes(self) -> Routes:
        return Routes() if self._model is None else self._model.routes

    def _compiled(self) -> dict[str, Any]:
        routes = self._routes
        if not routes.fixed:
            return {}
        return {"compiled_for": routes.compiled_for(), "routes": routes.to_record()}

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
