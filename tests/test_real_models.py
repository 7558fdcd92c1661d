"""Recipes of real models, built from end to end: what a person would try first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from real_recipes import BLOCK, FASHION, HURRIED, RESNET, RESNET20, TWO, TWO_INPUTS, YOLOX

from optcli.pipeline.building import build
from optcli.results import Report, VariantReport

pytestmark = pytest.mark.slow


def built(folder: Path, recipe: str, **files: str) -> Report:
    """The report of a recipe whose local modules are `files`."""
    (folder / "recipe.yaml").write_text(recipe + HURRIED)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    report = build(folder / "recipe.yaml", store=folder / "store", artifacts=folder / "artifacts")
    assert {variant.status for variant in report.variants.values()} == {"built"}, report.to_json()
    return report


def outcomes(variant: VariantReport) -> dict[str, str]:
    return {verdict.name: verdict.outcome for verdict in variant.verdicts}


@pytest.fixture
def found(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARED", str(shared))


@pytest.mark.usefixtures("found")
@pytest.mark.long
def test_a_resnet_from_two_files_and_a_pth(tmp_path: Path) -> None:
    report = built(tmp_path, RESNET20, resnet=RESNET, block=BLOCK)
    eager, int8, pruned = report.variants.values()
    assert eager.accuracy.value == 483 / 600
    assert abs(int8.accuracy.drop.value) <= 0.01
    assert int8.runner["precision"] == "int8"
    assert int8.artifact.size_bytes < 0.4 * eager.artifact.size_bytes
    assert pruned.artifact.size_bytes < eager.artifact.size_bytes
    assert outcomes(pruned)["accuracy"] == "reject"
    assert report.exit_code == 0  # int8 is accepted: pruned was tried and found wanting
    assert "rejected: pruned" in report.exit_reason
    assert (tmp_path / "artifacts/resnet20/pruned/code/block.py").read_text() == BLOCK


@pytest.mark.usefixtures("found")
@pytest.mark.long
def test_a_mobilenet_of_torchvision_with_weights_of_ones_own(tmp_path: Path) -> None:
    eager, int8 = built(tmp_path, FASHION).variants.values()
    assert eager.accuracy.value == 545 / 600
    assert abs(int8.accuracy.drop.value) <= 0.01
    assert (int8.runner["precision"], eager.runner["precision"]) == ("int8", "fp32")


@pytest.mark.long
@pytest.mark.usefixtures("found")
def test_a_detector_without_labels_is_judged_by_what_it_finds(tmp_path: Path) -> None:
    report = built(tmp_path, YOLOX)
    onnx, openvino, int8 = report.variants.values()
    assert onnx.accuracy.value is None
    assert openvino.accuracy.output_error.sqnr_db > 90
    assert outcomes(openvino)["outputs"] == "accept"
    assert int8.accuracy.output_error.sqnr_db < 20
    (verdict,) = [each for each in int8.verdicts if each.name == "outputs"]
    assert verdict.outcome == "accept"
    assert "which is a guess" in verdict.reason
    assert "only labels show" in verdict.reason
    assert [row.batch_size for row in onnx.latency] == [1]


@pytest.mark.long
def test_two_inputs_and_a_dictionary_of_outputs(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    np.savez(
        tmp_path / "two.npz",
        image=draw.standard_normal((80, 1, 16, 16)).astype(np.float32),
        numbers=draw.standard_normal((80, 5)).astype(np.float32),
        label=draw.integers(0, 3, 80),
        split=np.repeat(["calibration", "evaluation"], 40),
    )
    eager, int8, openvino = built(tmp_path, TWO_INPUTS, two=TWO).variants.values()
    # The metric reads the third output; were it the first, no label of 3 classes would fit it.
    assert eager.accuracy.samples == openvino.accuracy.samples == 40
    assert openvino.accuracy.drop.value == 0
    assert openvino.accuracy.output_error.sqnr_db > 90
    assert int8.accuracy.output_error.sqnr_db > 10
