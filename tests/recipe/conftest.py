"""Passes, runners and a source that do nothing, under the names of the real ones.

The checks of a recipe must not depend on which options the real passes happen to have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from pydantic import Field, model_validator

from optcli import passes, runners
from optcli.artifact import Format
from optcli.data import layouts
from optcli.files import registry
from optcli.models import sources
from optcli.models.sources import Source
from optcli.passes import Pass
from optcli.recipe import Recipe, load
from optcli.runners import Runner

BASE = """\
version: 1
name: digits
model:
  source: net:digits
  weights: digits.safetensors
inputs:
  - {name: image, dtype: float32, shape: [batch, 1, 8, 8], batch: {min: 1, opt: 8, max: 64}}
data:
  calibration: {source: npz:digits.npz, split: calibration, samples: 16}
  evaluation:
    source: npz:digits.npz
    split: evaluation
accuracy: {metric: top1, max_drop: 0.01}
latency: {mode: quick, batch_sizes: [1, 8], threads: 2}
slo: {p99_ms: 50, rate_per_s: 200}
baseline: eager
variants:
  eager: []
  onnx: [export_onnx]
  onnx-int8:
    passes:
      - export_onnx
      - quantize_nncf:
          preset: mixed
    gate: true
  ov:
    passes: [export_onnx, to_openvino]
    runner: {name: openvino, threads: 2, hint: latency}
"""


class _Fake(Pass):
    def produces(self, source: Format) -> Format:
        return source

    def run(self, source: Any, job: Any) -> Any:
        raise AssertionError("a recipe is checked without running a pass")


class Export(_Fake):
    """Traces the network."""

    accepts: ClassVar = (Format.TORCH,)

    def produces(self, source: Format) -> Format:
        return Format.EXPORTED


class ExportOnnx(_Fake):
    """Writes ONNX."""

    accepts: ClassVar = (Format.TORCH,)
    opset: int = Field(20, ge=13, description="version of the operators")

    def produces(self, source: Format) -> Format:
        return Format.ONNX


class ToOpenvino(_Fake):
    """Converts to OpenVINO."""

    accepts: ClassVar = (Format.ONNX,)
    compress: bool = False

    def produces(self, source: Format) -> Format:
        return Format.OPENVINO


class QuantizeNncf(_Fake):
    """Quantizes."""

    accepts: ClassVar = (Format.ONNX, Format.OPENVINO)
    uses: ClassVar = ("calibration",)
    preset: Literal["performance", "mixed"] = "performance"
    samples: int = Field(300, ge=1)
    ignored: tuple[str, ...] = ()


class Prune(_Fake):
    """Removes channels."""

    accepts: ClassVar = (Format.TORCH,)
    uses: ClassVar = ("training",)
    ratio: float = Field(0.5, gt=0, lt=1)
    low: int = 1
    high: int = 2

    @model_validator(mode="after")
    def _ordered(self) -> Prune:
        if self.low > self.high:
            raise ValueError(f"wanted low <= high, found {self.low} and {self.high}")
        return self


class TorchCompile(_Fake):
    """Compiles the network; nothing can follow."""

    accepts: ClassVar = (Format.TORCH,)
    last: ClassVar = True


class _FakeRunner(Runner):
    def load(self, artifact: Any) -> None: ...
    def bind(self, feed: Any) -> None: ...
    def execute(self) -> None: ...
    def fetch(self) -> dict[str, Any]:
        return {}

    def effective(self) -> dict[str, Any]:
        return {}


class TorchRunner(_FakeRunner):
    """Runs torch."""

    runs: ClassVar = (Format.TORCH, Format.EXPORTED)


class OnnxruntimeRunner(_FakeRunner):
    """Runs ONNX."""

    runs: ClassVar = (Format.ONNX,)


class OpenvinoRunner(_FakeRunner):
    """Runs OpenVINO and ONNX."""

    runs: ClassVar = (Format.OPENVINO, Format.ONNX)
    hint: Literal["latency", "throughput"] = "latency"
    device: str = Field("CPU", pattern=r"^(CPU|GPU(\.\d)?)$", examples=["CPU", "GPU", "GPU.1"])


class Net(Source):
    """A network that is not there."""

    format: ClassVar = Format.TORCH

    def problems(self) -> list[tuple[str, str, str]]:
        if self.weights and not (self.folder / self.weights).is_file():
            return [("weights", f"no file {self.weights}", "paths are relative to the recipe")]
        return []

    def ingredients(self, digests: Any) -> dict[str, Any]:
        return {}

    def write(self, out: Path, inputs: Any) -> Any:
        raise AssertionError("a recipe is checked without building the model")


_CLASSES: dict[str, dict[str, type]] = {
    passes.__name__: {
        "export": Export,
        "export_onnx": ExportOnnx,
        "prune": Prune,
        "quantize_nncf": QuantizeNncf,
        "to_openvino": ToOpenvino,
        "torch_compile": TorchCompile,
    },
    runners.__name__: {
        "onnxruntime": OnnxruntimeRunner,
        "openvino": OpenvinoRunner,
        "torch": TorchRunner,
    },
    sources.__name__: {"net": Net, "onnx": Net},
    layouts.__name__: {name: layouts.find(name) for name in layouts.names()},
}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes instead of what optcli has."""
    monkeypatch.setattr(registry, "names", lambda package: tuple(_CLASSES[package]))
    monkeypatch.setattr(registry, "load", lambda package, name, base: _CLASSES[package][name])
    monkeypatch.setattr(registry, "entry_points", lambda group: {"theirs": "their.package:Theirs"})


@pytest.fixture
def folder(tmp_path: Path, fakes: None) -> Path:
    """A folder with all files that the good recipe names, and the recipe itself."""
    place = tmp_path / "recipes"
    place.mkdir()
    (place / "digits.safetensors").write_bytes(b"x")
    split = np.array(["calibration", "evaluation"] * 8)
    np.savez(place / "digits.npz", image=np.zeros((16, 1, 8, 8)), target=np.zeros(16), split=split)
    (place / "mine.py").write_text("class MyPass:\n    pass\n")
    (place / "recipe.yaml").write_text(BASE)
    return place


@pytest.fixture
def loaded(folder: Path) -> Callable[..., Recipe]:
    """Loads the good recipe with edits: (old, new) pairs that are replaced in its text."""

    def load_edited(*edits: tuple[str, str], overrides: tuple[str, ...] = ()) -> Recipe:
        text = BASE
        for old, new in edits:
            assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in the recipe"
            text = text.replace(old, new)
        (folder / "recipe.yaml").write_text(text)
        return load(folder / "recipe.yaml", overrides)

    return load_edited
