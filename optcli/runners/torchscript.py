"""TorchScript."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr

from optcli.artifact import Artifact, Format
from optcli.errors import RunnerError, raised_as
from optcli.models.formats import torchscript as torchscript_format
from optcli.models.formats.torch_calls import Arguments, flatten_outputs
from optcli.runners._pytorch import PytorchRunner

if TYPE_CHECKING:
    import numpy as np


class TorchscriptRunner(PytorchRunner):
    """Runs TorchScript in PyTorch's own interpreter, on the CPU or on a GPU.

    The precision is read back from the operators of the loaded network and their packed weights.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.TORCHSCRIPT,)

    _call: Arguments = PrivateAttr(default_factory=lambda: Arguments(()))
    _effective: dict[str, Any] = PrivateAttr(default_factory=dict)

    def load(self, artifact: Artifact) -> None:
        import torch

        self._choose_device(artifact)
        model = torchscript_format.open(artifact.path, self._device, trust=artifact.trusted)
        self._call = torchscript_format.arguments(model, self.inputs)
        self._names = tuple(artifact.facts.get("outputs", ()))
        optimized = bool(artifact.facts.get("optimize_for_inference"))
        precision = self._precision_of(torchscript_format.precision(model))
        self._effective = {"precision": precision, "optimize_for_inference": optimized}
        if optimized:
            hint = "set `optimize_for_inference: false`"
            with (
                raised_as(RunnerError, "torch cannot optimize the network for this CPU", hint=hint),
                torchscript_format.quiet(),
            ):
                model = torch.jit.optimize_for_inference(model)
        self._model = model

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        self._bound = self._call.split({name: self._sent(name, feed[name]) for name in feed})

    def fetch(self) -> dict[str, np.ndarray]:
        return self._received(self._named(flatten_outputs(self._result), "network"))

    def effective(self) -> dict[str, Any]:
        return {**self._effective, **self._where()}

    def _failure(self, error: Exception) -> str:
        return f"TorchScript failed: {torchscript_format.reason(error)}"
