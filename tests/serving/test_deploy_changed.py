"""Artifacts of every format, changed: one fixed row, two inputs, neither of the usual name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from copied_modules import RAY_FILES
from needs import needs
from ruamel.yaml import YAML
from small_bundles import bundled, sealed_plan
from small_variants import onnx_model, variant
from test_deploy_kserve import URI, require_fields
from test_deploy_parts import looked_at, tensors, written
from test_deploy_ray import _computes_the_same

import optcli
from optcli.artifact import Format
from optcli.errors import UsageError
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.results.plan import Plan
from optcli.serving.deploy import repository
from optcli.serving.targets import kserve

BATCH = {"batch": {"min": 1, "opt": 2, "max": 8}}
CHANGES: dict[str, tuple[dict[str, Any], ...]] = {
    "one fixed row": ({"name": "picture", "shape": (1, 3, 4, 4)},),
    "two inputs": (
        {"name": "picture", "shape": ("batch", 3, 4, 4), **BATCH},
        {"name": "scale", "shape": ("batch", 5), **BATCH},
    ),
}
EVERY = pytest.mark.parametrize("change", CHANGES)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("hurried_plans")]


@cache
def plan_of(target: str, *, batched: bool) -> Plan:
    """Batches of four where the model has a batch, else one row at a time."""
    batch = 4 if batched else 1
    asked = {"curve": "6ms+1ms*b", "rate_per_s": 60, "slo": {"p95_ms": 60}}
    return optcli.plan(**asked, batch=batch, target=target)


def onnx_of(folder: Path, specs: Sequence[dict[str, Any]]) -> Path:
    """A network that adds up all inputs of a row."""
    onnx_model(folder, {spec["name"]: list(spec["shape"]) for spec in specs}, output="sums")
    return folder / "model.onnx"


def network(specs: Sequence[dict[str, Any]]) -> Any:
    """The same in PyTorch, with parameters of these names, and example inputs."""
    import torch

    class Sums(torch.nn.Module):
        def forward(self, picture):
            return picture.flatten(1).sum(1, keepdim=True)

    class Two(torch.nn.Module):
        def forward(self, picture, scale):
            return picture.flatten(1).sum(1, keepdim=True) + scale.sum(1, keepdim=True)

    rows = 2 if specs[0]["shape"][0] == "batch" else 1
    examples = tuple(torch.ones(rows, *spec["shape"][1:]) for spec in specs)
    return (Two() if len(specs) == 2 else Sums()).eval(), examples


def built_as(kind: str, folder: Path, specs: Sequence[dict[str, Any]]) -> BuiltVariant:
    """An artifact of a format, as a build would have left it."""
    place = folder / "model"
    if kind == "onnx":
        onnx_of(place, specs)
        return variant(place, Format.ONNX, *specs)
    if kind == "onnx in openvino":
        onnx_of(place, specs)
        return variant(place, Format.ONNX, *specs, runner={"name": "openvino"})
    place.mkdir(parents=True)
    if kind == "openvino":
        import openvino

        converted = openvino.convert_model(onnx_of(folder / "source", specs))
        openvino.save_model(converted, place / "model.xml")
        return variant(place, Format.OPENVINO, *specs)
    if kind == "ort":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(place / "model.ort")
        options.add_session_config_entry("session.save_model_format", "ORT")
        onnxruntime.InferenceSession(onnx_of(folder / "source", specs), options)
        return variant(place, Format.ORT, *specs)
    import torch

    model, examples = network(specs)
    if kind == "torchscript":
        torch.jit.save(torch.jit.trace(model, examples), place / "model.pt")
        return variant(place, Format.TORCHSCRIPT, *specs, outputs=["sums"])
    sizes = None
    if "batch" in specs[0]["shape"]:
        rows = torch.export.Dim("rows", min=1, max=8)
        sizes = tuple({0: rows} for _ in specs)
    exported = torch.export.export(model, examples, dynamic_shapes=sizes)
    torch._inductor.aoti_compile_and_package(exported, package_path=str(place / "model.pt2"))
    return variant(place, Format.AOTI, *specs, outputs=["sums"])


@EVERY
@pytest.mark.parametrize("kind", ["onnx", "openvino", "torchscript"])
def test_triton_and_kserve_serve_what_the_artifact_takes(tmp_path, kind, change):
    specs = CHANGES[change]
    batched = change != "one fixed row"
    plan = plan_of("triton", batched=batched)
    built = built_as(kind, tmp_path, specs)
    config, _ = written(built, plan, tmp_path / "out")
    assert config.max_batch_size == (4 if batched else 0)
    skipped = 1 if batched else 0
    assert tensors(config.input) == {
        spec["name"]: ("TYPE_FP32", list(spec["shape"][skipped:])) for spec in specs
    }
    assert tensors(config.output) == {"sums": ("TYPE_FP32", [1, 1][skipped:])}
    for warm in config.model_warmup:
        assert {name: list(each.dims) for name, each in warm.inputs.items()} == {
            spec["name"]: list(spec["shape"][skipped:]) for spec in specs
        }
    one = plan.recommended
    assert one is not None
    interface = looked_at(built, tmp_path / "looked")
    served = repository.served_of("small", built, interface, one, repository.backend_for(built))
    kserve._write_manifest(tmp_path / "service.yaml", kserve.inference_of(served, plan, URI))
    manifest = YAML(typ="safe").load((tmp_path / "service.yaml").read_text())
    require_fields("V1beta1InferenceService", manifest, "InferenceService")


@EVERY
@pytest.mark.parametrize("kind", ["onnx", "onnx in openvino", "openvino", "ort", "torchscript"])
def test_a_bundle_computes_what_the_artifact_does(tmp_path, monkeypatch, kind, change):
    _holds(kind, change, tmp_path, monkeypatch)


@pytest.mark.long
def test_a_bundle_computes_what_a_compiled_package_does(tmp_path, monkeypatch):
    needs("c compiler")
    _holds("aoti", "two inputs", tmp_path, monkeypatch)


def _holds(kind: str, change: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = CHANGES[change]
    batched = change != "one fixed row"
    built = built_as(kind, folder, specs)
    made = bundled(built, plan_of("ray", batched=batched), folder / "out").bundle
    assert made.batched == batched
    assert [each.name for each in made.inputs] == [spec["name"] for spec in specs]
    assert made.inputs[0].shape == ((-1 if batched else 1), 3, 4, 4)
    assert [each.name for each in made.outputs] == ["sums"]
    assert made.outputs[0].shape == ((-1 if batched else 1), 1)
    _computes_the_same(built, made, folder, monkeypatch, rows=(1, 3, 4, 6) if batched else (1,))


def test_a_plan_with_batches_does_not_fit_one_fixed_row(tmp_path):
    built = built_as("onnx", tmp_path, CHANGES["one fixed row"])
    with pytest.raises(UsageError, match="cannot batch this model") as caught:
        bundled(built, sealed_plan(), tmp_path / "out")
    assert "--batch 1" in caught.value.hint


def test_a_bundle_brings_in_the_compiler_for_a_package_that_needs_its_operators(monkeypatch):
    import torch

    monkeypatch.syspath_prepend(str(RAY_FILES))
    beside = ("torch_tensors", "model_aoti")
    saved = {name: sys.modules.pop(name, None) for name in beside}
    imported = []

    def loader(path, name, *_):
        if not imported:
            raise RuntimeError("Could not find schema for quantized_decomposed::add")
        return (path, name)

    try:
        model_aoti = importlib.import_module("model_aoti")
        monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", loader)
        monkeypatch.setattr(model_aoti, "importlib", SimpleNamespace(import_module=imported.append))
        assert model_aoti._opened("model.pt2", "batch_8") == ("model.pt2", "batch_8")
    finally:
        for name in beside:
            sys.modules.pop(name, None)
        sys.modules.update({name: module for name, module in saved.items() if module is not None})
    assert imported == ["torch._inductor"]
