"""LiteRT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import RunnerError, raised_as
from optcli.models.formats import litert as litert_format
from optcli.models.formats.litert import LitertTensor
from optcli.runners import Runner
from optcli.runners._shapes import Pieces

if TYPE_CHECKING:
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter


class LitertRunner(Runner):
    """Runs LiteRT models (`.tflite`) on this CPU, by default in XNNPACK.

    A file has one batch size: the runner computes larger batches piece by piece, and fills the last
    piece up. Which delegate took effect is read back, with the number of operators that it left out.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.LITERT,)
    needs: ClassVar[Needs] = Needs(("ai_edge_litert",))

    delegate: Literal["xnnpack", "none"] = Field(
        "xnnpack", description="what computes operators: XNNPACK, or LiteRT's own kernels alone"
    )

    _interpreter: Interpreter | None = PrivateAttr(None)
    _taken: list[LitertTensor] = PrivateAttr(default_factory=list)
    _given: list[LitertTensor] = PrivateAttr(default_factory=list)
    _names: tuple[str, ...] = PrivateAttr(())
    _channels_last: frozenset[str] = PrivateAttr(frozenset())
    _settings: dict[str, Any] = PrivateAttr(default_factory=dict)
    _pieces: Pieces = PrivateAttr(Pieces([]))
    _results: list[list[np.ndarray]] = PrivateAttr(default_factory=list)

    def session(self) -> dict[str, Any]:
        return {"threads": self.thread_count(), "delegate": self.delegate}

    def load(self, artifact: Artifact) -> None:
        wanted = self.session()
        self._interpreter = litert_format.open(
            artifact.path, wanted["threads"], delegate=wanted["delegate"] != "none"
        )
        taken, self._given = litert_format.tensors(self._interpreter)
        by_name = {each.name: each for each in taken}
        specs = [spec.name for spec in self.inputs]
        if len(specs) != len(taken):
            raise RunnerError(f"the model takes {len(taken)} inputs, the recipe has {len(specs)}")
        # By name where they have the recipe's names, else in their order.
        self._taken = [by_name[name] for name in specs] if {*specs} == {*by_name} else taken
        self._names = tuple(artifact.facts.get("outputs", ())) or tuple(e.name for e in self._given)
        self._channels_last = frozenset(artifact.facts.get(litert_format.CHANNELS_LAST, ()))
        parts, left = litert_format.outside(self._interpreter)
        self._settings = {
            "precision": artifact.precision,
            "provider": "xnnpack" if parts else "litert",
            "delegated_parts": parts,
            "operators_outside": len(left),
            "threads": wanted["threads"],
            "version": environment.version("ai_edge_litert"),
        }

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        import numpy as np

        arrays = []
        for spec, tensor in zip(self.inputs, self._taken, strict=True):
            array = feed[spec.name]
            if spec.name in self._channels_last:
                array = array.transpose(0, 2, 3, 1)
            arrays.append(np.ascontiguousarray(_as_stored(array, tensor)))
        self._pieces = Pieces.of(arrays, self.inputs, [each.sizes for each in self._taken])

    def execute(self) -> None:
        interpreter = self._interpreter
        if interpreter is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        self._results = []
        with raised_as(RunnerError, "LiteRT failed", hint="the log has LiteRT's own words"):
            for piece in self._pieces.feeds:
                for tensor, value in zip(self._taken, piece, strict=True):
                    if None in tensor.sizes and interpreter.tensor(tensor.place)().shape != value.shape:
                        interpreter.resize_tensor_input(tensor.place, value.shape)
                        interpreter.allocate_tensors()
                for tensor, value in zip(self._taken, piece, strict=True):
                    interpreter.set_tensor(tensor.place, value)
                interpreter.invoke()
                self._results.append([interpreter.get_tensor(each.place) for each in self._given])

    def fetch(self) -> dict[str, np.ndarray]:
        if len(self._names) != len(self._given):
            raise RunnerError(
                f"the model gives {len(self._given)} outputs, wanted {len(self._names)}",
                hint="build it again",
            )
        answers = {}
        for place, (name, tensor) in enumerate(zip(self._names, self._given, strict=True)):
            parts = [piece[place] for piece in self._results]
            answers[name] = _as_meant(self._pieces.joined(name, parts), tensor)
        return answers

    def effective(self) -> dict[str, Any]:
        return dict(self._settings)

    def close(self) -> None:
        self._interpreter = None
        self._pieces, self._results = Pieces([]), []


def _as_stored(array: np.ndarray, tensor: LitertTensor) -> np.ndarray:
    """Values as the file takes them: integers that stand for them, or another width."""
    import numpy as np

    if not tensor.scale or array.dtype.kind != "f" or tensor.dtype.startswith("float"):
        return array.astype(tensor.dtype, copy=False)
    limits = np.iinfo(tensor.dtype)
    integers = np.round(array / tensor.scale) + tensor.zero_point
    return integers.clip(limits.min, limits.max).astype(tensor.dtype)


def _as_meant(array: np.ndarray, tensor: LitertTensor) -> np.ndarray:
    """What the file's integers stand for."""
    import numpy as np

    if not tensor.scale or array.dtype.kind == "f":
        return array
    return ((array.astype(np.float32) - tensor.zero_point) * tensor.scale).astype(np.float32)
