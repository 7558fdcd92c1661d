"""First recipes for folders of transformers: prepared as the processor does, decoded by the head."""

from __future__ import annotations

import pytest
import tiny_transformers
from PIL import Image

from optcli.recipe import load
from optcli.scaffold import draft

pytestmark = pytest.mark.long


def test_a_folder_becomes_a_recipe(tmp_path):
    tiny_transformers.written("vit", tmp_path / "models/vit")
    (tmp_path / "models/vit/model.safetensors").unlink()
    made = draft(str(tmp_path / "models/vit"), tmp_path)
    (tmp_path / "recipe.yaml").write_text(made.recipe)
    recipe = load(tmp_path / "recipe.yaml")
    assert (made.name, recipe.model.weights.file) == ("vit", "random")
    assert recipe.inputs[0].shape == ("batch", 3, 64, 64)
    assert "prepare: &prepare {channel_order: rgb, scale: 1/255, mean: [0.5], std: [0.5]" in made.recipe
    assert "needs data: evaluation with labels" in made.recipe


def test_a_detector_s_head_says_how_it_is_decoded(tmp_path):
    tiny_transformers.written("rt_detr", tmp_path / "net")
    (tmp_path / "photos").mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (80, 60)).save(tmp_path / f"photos/{name}.png")
    made = draft(f"hf:{tmp_path / 'net'}", tmp_path, data=tmp_path / "photos")
    said = "{boxes: {boxes: pred_boxes, scores: logits, format: cxcywh, normalized: true, activation:"
    assert f"\npostprocess: {said} sigmoid}}}}" in made.recipe
    assert "# accuracy: {metric: map" in made.recipe  # the photographs have no labels
    assert "weights:" not in made.recipe.split("inputs:")[0]
