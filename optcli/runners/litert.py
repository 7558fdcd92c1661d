"""LiteRT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import RunnerError, first_line
from optcli.models.formats import litert as litert_format
from optcli.models.formats.litert import LitertTensor
from optcli.runners._calls import CallsRunner
from optcli.runners._shapes import Pieces
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter


class LitertRunner(CallsRunner):
    """Runs LiteRT models (`.tflite`) on this CPU, by default in XNNPACK.

    A file has one batch size: the runner computes larger batches piece by piece, and fills the last
    piece up. Which delegate took effect is read back, with the number of operators that it left out.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.LITERT,)
    needs: ClassVar[Needs] = Needs(("ai_edge_litert",))

    delegate: Literal["xnnpack", "none"] = Field(
        "xnnpack", description="what computes operators: XNNPACK, or LiteRT's own kernels alone"
    )

    _settings: dict[str, Any] = PrivateAttr(default_factory=dict)

    def session(self) -> dict[str, Any]:
        return {"threads": self.thread_count(), "delegate": self.delegate}

    def load(self, artifact: Artifact) -> None:
        wanted = self.session()
        interpreter = litert_format.open(
            artifact.path, wanted["threads"], delegate=wanted["delegate"] != "none"
        )
        self._loaded = LitertCalls(interpreter, self.inputs, artifact.facts)
        parts, left = litert_format.outside(interpreter)
        self._settings = {
            "precision": artifact.precision,
            "provider": "xnnpack" if parts else "litert",
            "delegated_parts": parts,
            "operators_outside": len(left),
            "threads": wanted["threads"],
            "version": environment.version("ai_edge_litert"),
        }

    def effective(self) -> dict[str, Any]:
        return dict(self._settings)


class LitertCalls:
    """Calls of an interpreter. Raises `RunnerError` where the file does not take the inputs."""

    def __init__(
        self, interpreter: Interpreter, inputs: Sequence[TensorSpec], facts: Mapping[str, Any]
    ) -> None:
        taken, self._given = litert_format.tensors(interpreter)
        by_name = {each.name: each for each in taken}
        self._inputs = [spec.name for spec in inputs]
        if len(inputs) != len(taken):
            raise RunnerError(f"the model takes {len(taken)} inputs, the recipe has {len(inputs)}")
        # By name where they have the recipe's names, else in their order.
        self._taken = [by_name[n] for n in self._inputs] if {*self._inputs} == {*by_name} else taken
        self._names = tuple(facts.get("outputs", ())) or tuple(each.name for each in self._given)
        self._channels_last = frozenset(facts.get(litert_format.CHANNELS_LAST, ()))
        self._pieces = Pieces(inputs, [each.sizes for each in self._taken])
        self._varies = any(None in each.sizes for each in self._taken)
        self._interpreter = interpreter
        self._feeds: list[list[np.ndarray]] = []
        self._results: list[list[np.ndarray]] = []

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        """Take one batch, in the types and the order of the file."""
        import numpy as np

        arrays = []
        for name, tensor in zip(self._inputs, self._taken, strict=True):
            array = feed[name]
            if name in self._channels_last:
                array = array.transpose(0, 2, 3, 1)
            arrays.append(np.ascontiguousarray(_as_stored(array, tensor), tensor.dtype))
        self._feeds = self._pieces.divided(arrays)

    def execute(self) -> None:
        """Compute, piece by piece. Raises `RunnerError` with what LiteRT says."""
        interpreter, self._results = self._interpreter, []
        try:
            for piece in self._feeds:
                for tensor, value in zip(self._taken, piece, strict=True) if self._varies else ():
                    if interpreter.tensor(tensor.place)().shape != value.shape:
                        interpreter.resize_tensor_input(tensor.place, value.shape)
                        interpreter.allocate_tensors()
                for tensor, value in zip(self._taken, piece, strict=True):
                    interpreter.set_tensor(tensor.place, value)
                interpreter.invoke()
                self._results.append([interpreter.get_tensor(each.place) for each in self._given])
        except Exception as error:
            hint = "the log has LiteRT's own words"
            raise RunnerError(f"LiteRT failed: {first_line(error)}", hint=hint) from error

    def fetch(self) -> dict[str, np.ndarray]:
        """The outputs by name, once: none is kept, so that memory is used again as in a plain loop."""
        if len(self._names) != len(self._given):
            raise RunnerError(
                f"the model gives {len(self._given)} outputs, wanted {len(self._names)}",
                hint="build it again",
            )
        results, self._results = zip(*self._results, strict=True), []
        return {
            name: _as_meant(self._pieces.joined(name, parts), tensor)
            for name, tensor, parts in zip(self._names, self._given, results, strict=True)
        }


def _as_stored(array: np.ndarray, tensor: LitertTensor) -> np.ndarray:
    """Values as the file takes them: integers that stand for them, which are still to be cast."""
    if not tensor.scale or array.dtype.kind != "f" or tensor.dtype.startswith("float"):
        return array
    import numpy as np

    limits = np.iinfo(tensor.dtype)
    integers = np.round(array / tensor.scale) + tensor.zero_point
    return integers.clip(limits.min, limits.max)


def _as_meant(array: np.ndarray, tensor: LitertTensor) -> np.ndarray:
    """What the file's integers stand for."""
    if not tensor.scale or array.dtype.kind == "f":
        return array
    import numpy as np

    return ((array.astype(np.float32) - tensor.zero_point) * tensor.scale).astype(np.float32)
