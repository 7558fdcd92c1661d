"""Core ML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import RunnerError, raised_as
from optcli.models.formats import coreml as coreml_format
from optcli.models.formats.coreml import FeatureDescription
from optcli.runners import Runner
from optcli.runners._shapes import Pieces

if TYPE_CHECKING:
    import numpy as np
    from coremltools.models import MLModel

_UNITS = {
    "all": "ALL", "cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "neural_engine": "CPU_AND_NE",
}  # fmt: skip


class CoremlRunner(Runner):
    """Runs Core ML models (`.mlpackage`) on macOS.

    It has run on no Mac yet: optcli's machines have Linux, where a build reports such a variant as
    built. A file has one batch size: the runner computes larger batches piece by piece.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.COREML,)
    needs: ClassVar[Needs] = Needs(("coremltools",), system="Darwin")

    compute_units: Literal["all", "cpu", "gpu", "neural_engine"] = Field(
        "all",
        description="what may compute beside the CPU; Core ML chooses among them for each operator",
    )

    _model: MLModel | None = PrivateAttr(None)
    _taken: list[FeatureDescription] = PrivateAttr(default_factory=list)
    _names: tuple[str, ...] = PrivateAttr(())
    _pieces: Pieces | None = PrivateAttr(None)
    _feeds: list[dict[str, np.ndarray]] = PrivateAttr(default_factory=list)
    _settings: dict[str, Any] = PrivateAttr(default_factory=dict)
    _results: list[dict[str, np.ndarray]] = PrivateAttr(default_factory=list)

    def session(self) -> dict[str, Any]:
        return {"compute_units": self.compute_units}

    def load(self, artifact: Artifact) -> None:
        self._model = coreml_format.load(artifact.path, _UNITS[self.compute_units])
        taken, given = coreml_format.tensors(self._model)
        specs = [spec.name for spec in self.inputs]
        by_name = {each.name: each for each in taken}
        if {*specs} != {*by_name}:
            raise RunnerError(
                f"the model takes {', '.join(by_name)}, the recipe has {', '.join(specs)}",
                hint="name the recipe's inputs as the model does",
            )
        self._taken = [by_name[name] for name in specs]
        self._pieces = Pieces(self.inputs, [each.sizes for each in self._taken])
        self._names = tuple(artifact.facts.get("outputs", ())) or tuple(each.name for each in given)
        self._settings = {
            "precision": artifact.precision,
            "provider": f"coreml:{self._model.compute_unit.name.lower()}",
            "version": environment.version("coremltools"),
        }

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        arrays = [
            feed[spec.name].astype(each.dtype, copy=False)
            for spec, each in zip(self.inputs, self._taken, strict=True)
        ]
        assert self._pieces is not None
        names = [each.name for each in self._taken]
        self._feeds = [dict(zip(names, each, strict=True)) for each in self._pieces.divided(arrays)]

    def execute(self) -> None:
        if self._model is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        with raised_as(RunnerError, "Core ML failed", hint="the log has Core ML's own words"):
            self._results = self._model.predict(self._feeds)

    def fetch(self) -> dict[str, np.ndarray]:
        assert self._pieces is not None
        return {
            name: self._pieces.joined(name, [piece[name] for piece in self._results])
            for name in self._names
        }

    def effective(self) -> dict[str, Any]:
        return dict(self._settings)

    def close(self) -> None:
        self._model, self._feeds, self._results = None, [], []
