"""Vision models of transformers: from a folder, from the cache, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import tiny_transformers
import torch

from optcli.errors import InputError, MissingError
from optcli.files.digest import FileDigests
from optcli.models import sources
from optcli.models.formats import exporter_metadata, torch_libraries
from optcli.models.formats import torch as torch_format
from optcli.outputs import exported
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow


def source(folder: Path, target: str, **options):
    return sources.named(f"hf:{target}", folder, **options)


def image(name: str) -> list[TensorSpec]:
    size = tiny_transformers.SIZE.get(name, 64)
    return [TensorSpec(name="pixel_values", shape=["batch", 3, size, size])]


def made(one, out: Path, name: str = "vit"):
    out.mkdir()
    return one.write(out, image(name))


def own_outputs(model, feed: torch.Tensor) -> dict[str, torch.Tensor]:
    """What transformers itself gives for the image: what the head says, or the embedding."""
    with torch.no_grad():
        if hasattr(model, "get_image_features"):
            return {"pooled": model.get_image_features(feed).pooler_output}
        given = model(pixel_values=feed)
    names = ("logits", "pred_boxes", "predicted_depth")
    return {name: given[name] for name in names if name in given} or {"pooled": given["pooler_output"]}


@pytest.mark.parametrize("name", tiny_transformers.NAMES)
def test_a_model_gives_what_transformers_gives(tmp_path, name):
    model = tiny_transformers.written(name, tmp_path / name)
    facts = made(source(tmp_path, name), tmp_path / "out", name)
    feed = torch.randn(image(name)[0].concrete(2))
    wanted = own_outputs(model, feed)
    with torch.no_grad():
        given = torch_format.open(tmp_path / "out")(feed)
    assert len(given) == len(wanted)
    for ours, theirs in zip(given.values(), wanted.values(), strict=True):
        torch.testing.assert_close(ours, theirs)
    known = exported(exporter_metadata.of_facts(facts.facts))
    assert known is not None
    tasks = {"segformer": "semantic", "detr": "detect", "rt_detr": "detect", "depth_anything": "depth"}
    embeds = name in ("clip", "siglip", "dinov2", "dinov3")
    assert known.task == ("embed" if embeds else tasks.get(name, "classify"))
    assert known.head == {"detr": "softmax", "rt_detr": "sigmoid"}.get(name, known.task)
    assert known.names == (("cat", "dog", "emu", "fox") if not embeds and name in _NAMED else ())


_NAMED = ("vit", "convnext", "swin", "segformer", "detr", "rt_detr")


def test_a_file_of_the_folder_is_refused_as_one(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="is a file, wanted a folder"):
        torch_libraries.snapshot("config.json", tmp_path)


def test_a_config_alone_is_drawn_only_where_the_recipe_says_so(tmp_path):
    tiny_transformers.written("vit", tmp_path / "vit")
    (tmp_path / "vit/model.safetensors").unlink()
    with pytest.raises(InputError, match="holds no weights") as caught:
        made(source(tmp_path, "vit"), tmp_path / "a")
    assert "weights: random" in caught.value.hint
    first = made(source(tmp_path, "vit", weights="random"), tmp_path / "b")
    assert first.facts["weights"] == "random (seed 0)"
    made(source(tmp_path, "vit", weights="random"), tmp_path / "c")
    feed = torch.randn(1, 3, 64, 64)
    one, other = (torch_format.open(tmp_path / place)(feed)["logits"] for place in "bc")
    assert torch.equal(one, other)


def test_arguments_take_the_place_of_the_config_s(tmp_path):
    tiny_transformers.written("vit", tmp_path / "vit")
    one = source(tmp_path, "vit", weights="random", arguments={"num_labels": 7})
    made(one, tmp_path / "out")
    assert torch_format.open(tmp_path / "out")(torch.zeros(1, 3, 64, 64))["logits"].shape == (1, 7)


def test_weights_without_the_head_are_refused(tmp_path):
    tiny_transformers.written("dinov2", tmp_path / "net")
    config = json.loads((tmp_path / "net/config.json").read_text())
    config["architectures"] = ["Dinov2ForImageClassification"]
    (tmp_path / "net/config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="the weights lack 2 tensors of Dinov2ForImageClassification"):
        made(source(tmp_path, "net"), tmp_path / "out", "dinov2")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"architectures": ["MyNet"], "auto_map": {"AutoModel": "mine.MyNet"}},
            "code in the repository, which never runs .trust_remote_code is off",
        ),
        ({"architectures": ["MyNet"]}, "found MyNet in config.json: no model of transformers"),
        (
            {"architectures": ["BertModel"]},
            "found BertModel of transformers, wanted image classification",
        ),
        ({"architectures": ["ViTForMaskedImageModeling"]}, "wanted image classification"),
        ({"architectures": ["ChineseCLIPModel"]}, 'alone: "architectures": ."ChineseCLIPVisionModel".'),
    ],
)
def test_what_is_no_vision_model_is_refused_by_name(tmp_path, change, says):
    tiny_transformers.written("vit", tmp_path / "vit")
    config = json.loads((tmp_path / "vit/config.json").read_text())
    (tmp_path / "vit/config.json").write_text(json.dumps(config | change))
    (tmp_path / "vit/mine.py").write_text("raise SystemExit('this ran')")
    with pytest.raises(InputError) as caught:
        made(source(tmp_path, "vit"), tmp_path / "out")
    assert re.search(says, f"{caught.value.message} {caught.value.hint}")


def test_its_key_holds_config_and_weights_by_content(tmp_path):
    tiny_transformers.written("vit", tmp_path / "vit")
    shutil.copytree(tmp_path / "vit", tmp_path / "copy")
    first = source(tmp_path, "vit").ingredients(FileDigests())
    assert source(tmp_path, "copy").ingredients(FileDigests()) == first
    config = tmp_path / "copy/config.json"
    config.write_text(config.read_text().replace("cat", "hen"))
    other = source(tmp_path, "copy")
    assert other.ingredients(FileDigests()) != first
    assert other.class_names() == ("hen", "dog", "emu", "fox")


def test_a_repository_is_read_from_the_cache_at_a_revision(tmp_path, monkeypatch):
    hub = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    for commit, seed in (("a" * 40, "main"), ("b" * 40, "v2")):
        place = hub / "models--me--vit" / "snapshots" / commit
        tiny_transformers.written("vit", place)
        refs = hub / "models--me--vit" / "refs" / seed
        refs.parent.mkdir(exist_ok=True)
        refs.write_text(commit)
    changed = hub / "models--me--vit/snapshots" / ("b" * 40) / "config.json"
    changed.write_text(changed.read_text().replace("cat", "hen"))
    facts = made(source(tmp_path, "me/vit"), tmp_path / "out")
    assert facts.facts["revision"] == "a" * 40
    assert source(tmp_path, "me/vit", revision="v2").class_names() == ("hen", "dog", "emu", "fox")
    with pytest.raises(MissingError, match="no repository at revision v3") as caught:
        source(tmp_path, "me/vit", revision="v3").class_names()
    assert "download: true" in caught.value.hint


def test_an_onnx_file_of_a_repository_is_an_onnx_source(tmp_path, monkeypatch):
    hub = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    place = hub / "models--me--net" / "snapshots" / ("a" * 40) / "onnx"
    place.mkdir(parents=True)
    (place / "model.onnx").write_bytes(b"x")
    (hub / "models--me--net/refs").mkdir()
    (hub / "models--me--net/refs/main").write_text("a" * 40)
    one = source(tmp_path, "me/net/onnx/model.onnx")
    assert (one.kind, one.file) == ("onnx", place / "model.onnx")
    (tmp_path / "local").mkdir()
    (tmp_path / "local/model.onnx").write_bytes(b"x")
    local = source(tmp_path, "local/model.onnx")
    assert (local.kind, local.file) == ("onnx", tmp_path / "local/model.onnx")
