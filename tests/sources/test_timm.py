"""Networks of timm, their weights and their own preprocessing."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from needs import imported

from optcli import environment
from optcli.errors import InputError, MissingError
from optcli.files.digest import FileDigests
from optcli.models.formats import torch as torch_format
from optcli.models.sources.timm import TimmSource
from optcli.settings import TensorSpec

pytestmark = [pytest.mark.slow, pytest.mark.needs("package", "timm")]

IMAGE = [TensorSpec(name="image", shape=["batch", 3, 96, 96])]


@pytest.fixture
def timm():
    return imported("timm")


def source(tmp_path: Path, target: str = "test_resnet", **options) -> TimmSource:
    return TimmSource(target=target, folder=tmp_path, **options)


def written(one: TimmSource, out: Path):
    out.mkdir()
    return one.write(out, IMAGE)


def test_a_network_is_written_and_opened_again(tmp_path, timm):
    facts = written(source(tmp_path, arguments={"num_classes": 7}), tmp_path / "out")
    assert facts.outputs == ("output",)
    assert facts.facts["weights"] == "random (seed 0)"
    again = torch_format.open(tmp_path / "out")
    torch.manual_seed(0)
    own = timm.create_model("test_resnet", num_classes=7).eval()
    feed = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        assert torch.equal(own(feed), again(feed))


def test_local_weights_must_fit(tmp_path, timm):
    torch.manual_seed(3)
    own = timm.create_model("test_resnet", num_classes=7).eval()
    torch.save(own.state_dict(), tmp_path / "own.pth")
    options = {"weights": "own.pth", "arguments": {"num_classes": 7}}
    written(source(tmp_path, **options), tmp_path / "a")
    feed = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        assert torch.equal(own(feed), torch_format.open(tmp_path / "a")(feed))
    with pytest.raises(InputError, match="weights do not fit") as caught:
        written(source(tmp_path, weights="own.pth"), tmp_path / "b")
    assert "num_classes: 7" in caught.value.hint


def test_its_key_holds_weights_by_content_and_the_version_of_timm(tmp_path):
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pth")
    digests = FileDigests()
    found = source(tmp_path, weights="a.pth").ingredients(digests)
    assert found["versions"].keys() == {"torch", "timm"}
    assert found["weights"] == {"file": digests.of(tmp_path / "a.pth")}
    assert source(tmp_path, weights="r160_in1k").ingredients(digests)["weights"] == {"tag": "r160_in1k"}
    assert source(tmp_path).ingredients(digests)["weights"] == {"random": 0}


@pytest.mark.parametrize(
    ("target", "options", "says", "hint"),
    [
        ("test_resnt", {}, "has no model 'test_resnt'", "did you mean 'test_resnet'?"),
        ("test_resnet.r169_in1k", {}, "no pretrained weights 'r169_in1k'", "did you mean 'r160_in1k'?"),
        ("test_resnet", {"weights": "r169"}, "no pretrained weights 'r169'", "r160_in1k"),
        (
            "test_resnet",
            {"arguments": {"clases": 3}},
            "timm cannot build test_resnet",
            "model.arguments",
        ),
    ],
)
def test_what_timm_does_not_have(tmp_path, target, options, says, hint):
    with pytest.raises(InputError) as caught:
        written(source(tmp_path, target, **options), tmp_path / "out")
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_names_and_files_are_checked_without_timm(tmp_path):
    (problem,) = source(tmp_path, "resnet 18").problems()
    assert problem[0] == "source"
    (problem,) = source(tmp_path, weights="gone.pth").problems()
    assert problem[0] == "weights"
    assert source(tmp_path, weights="a1_in1k").problems() == []


def test_pretrained_weights_without_a_network(tmp_path, monkeypatch):
    import huggingface_hub

    def offline(*_: object, **__: object) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(MissingError, match="cannot be downloaded: Name or service not known") as caught:
        written(source(tmp_path, weights="DEFAULT"), tmp_path / "out")
    assert "https://huggingface.co/timm/test_resnet" in caught.value.hint


def test_pretrained_weights_from_the_hubs_cache(tmp_path, monkeypatch, timm):
    import huggingface_hub
    from safetensors.torch import save_file

    torch.manual_seed(5)
    own = timm.create_model("test_resnet").eval()
    save_file(own.state_dict(), tmp_path / "cached.safetensors")
    cached = str(tmp_path / "cached.safetensors")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: cached)
    facts = written(source(tmp_path, weights="DEFAULT"), tmp_path / "out")
    assert facts.facts["weights"] == "r160_in1k"
    feed = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        assert torch.equal(own(feed), torch_format.open(tmp_path / "out")(feed))
    # timm fits its weights to another number of classes.
    written(source(tmp_path, weights="DEFAULT", arguments={"num_classes": 3}), tmp_path / "three")


def test_without_timm_the_command_that_installs_it_is_named(tmp_path, monkeypatch, project):
    head = 'version: 1\nname: tiny\nmodel: {source: "timm:test_resnet"}\ninputs:\n'
    project.recipe("  a: []\n", head=head + "  - {name: image, shape: [batch, 3, 96, 96]}\n")
    known = environment.version
    monkeypatch.setattr(environment, "version", lambda name: None if name == "timm" else known(name))
    with pytest.raises(MissingError, match="the package timm is not installed") as caught:
        project.build()
    assert caught.value.hint == "pip install timm"


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "test_vit", "inception_v3"])
def test_its_preparation_is_timms_own(name, timm):
    from PIL import Image
    from timm.data import create_transform, resolve_data_config

    from optcli.data import Preparation, steps
    from optcli.data.preset import resolved

    config = resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    own = create_transform(**config)
    ours = resolved(Preparation.model_validate(f"timm:{name}"))
    draw = np.random.default_rng(0)
    for size in ((500, 375), (300, 451), (640, 640)):
        image = Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8))
        pixels = steps.transformed(steps.decoded(image, ours), ours).pixels
        made = steps.laid_out(pixels, ours, "chw", ()).astype(np.float32)
        assert np.abs(made - own(image).numpy()).max() <= 1e-6


def test_a_preparation_that_cannot_be_told(timm):
    from optcli.data import Preparation
    from optcli.data.preset import resolved

    with pytest.raises(InputError, match="no model 'resnt18'"):
        resolved(Preparation(preset="timm:resnt18"))
    named = timm.list_pretrained()
    border = next(n for n in named if timm.get_pretrained_cfg(n).crop_mode == "border")
    with pytest.raises(InputError, match="border"):
        resolved(Preparation(preset=f"timm:{border}"))
    own = resolved(Preparation(preset="timm:resnet18", resize=300))
    assert (own.resize, own.crop) == (300, (224, 224))
