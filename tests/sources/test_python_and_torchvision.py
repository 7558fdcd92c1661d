"""Networks from torchvision and from the user's own code, written and opened again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from optcli.artifact import EXPECTED
from optcli.errors import InputError, MissingError, OptcliError, TrustError
from optcli.files.digest import FileDigests
from optcli.models.formats import torch as torch_format
from optcli.models.formats.torch_calls import example_inputs, flatten_outputs
from optcli.models.sources.python import PythonSource
from optcli.models.sources.torchvision import TorchvisionSource
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

CODE = """
    import torch
    from torch import nn
    from layers import block

    class Restless(nn.Module):
        def __init__(self, how):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 1), Forgetful() if how == "inside" else nn.ReLU())
            self.how = how

        def forward(self, input):
            output = self.body(input)
            return nn.functional.dropout(output, 0.5) if self.how == "outside" else output

    class Forgetful(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x)

    class Packed(nn.Module):
        def __init__(self, form):
            super().__init__()
            self.form, self.conv = form, nn.Conv2d(3, 4, 1)

        def forward(self, batch):
            if self.form == "a dict":
                return self.conv(batch["input"])
            return self.conv(torch.stack(list(batch)) if batch[0].ndim == 3 else batch[0])

    class Net(nn.Module):
        def __init__(self, num_classes=4, width=8):
            super().__init__()
            self.body = block(3, width)
            self.head = nn.Linear(width, num_classes)

        def forward(self, image):
            return self.head(self.body(image).mean((2, 3)))

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)

        def forward(self, image, ids):
            return {"sum": image.mean((1, 2, 3)), "deep": (self.embed(ids), None, 3)}

    def training():
        return Net().train()

    def half():
        return Net().half()

    def broken():
        return Net()[0]

    def needs(depth):
        return Net()

    def weights():
        return Net().state_dict()

    def not_a_number():
        net = Net()
        net.head.weight.data[0, 0] = float("nan")
        return net

    def infinite():
        net = Net()
        net.head.weight.data[0, 1] = float("-inf")
        return net

    def half_infinite():
        net = Net().half()
        net.head.weight.data[0, 1] = float("inf")
        return net

    def masked():
        net = Net()
        net.register_buffer("mask", torch.full((2, 2), float("-inf")))
        net.register_buffer("nothing", torch.zeros(0, 2))
        return net

    def damaged_mask():
        net = masked()
        net.mask[0, 0] = float("nan")
        return net

    def meta():
        with torch.device("meta"):
            return nn.Linear(2, 2)

    class Silent(nn.Module):
        def forward(self, image):
            return None

    class PerImage(nn.Module):
        def forward(self, image):
            return [one.sum() for one in image]

    number = 3
    ready = Net()
    """
LAYERS = """
    from torch import nn

    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
    """
IMAGE = [TensorSpec(name="input", shape=["batch", 3, 8, 8])]


@pytest.fixture
def folder(tmp_path):
    where = tmp_path / "models"
    where.mkdir()
    (where / "nets.py").write_text(dedent(CODE))
    (where / "layers.py").write_text(dedent(LAYERS))
    return where


def python(folder: Path, name: str, **options) -> PythonSource:
    return PythonSource(target=f"nets.py:{name}", folder=folder, **options)


def written(source, out: Path, inputs=IMAGE):
    out.mkdir()
    return source.write(out, inputs)


def failing(source, out: Path, inputs=IMAGE) -> OptcliError:
    with pytest.raises(InputError) as error:
        written(source, out, inputs)
    assert error.value.hint
    return error.value


def run(model, inputs=IMAGE):
    with torch.no_grad():
        return flatten_outputs(model(*example_inputs(inputs, 2).values()))


def state_of(folder: Path, **arguments) -> dict:
    """The state of the test's network, made in this process."""
    from optcli.models.formats.torch_build import build

    return build(
        {"kind": "python", "reference": "nets.py:Net", "arguments": arguments}, folder
    ).state_dict()


def test_a_network_comes_back_after_its_code_was_edited(folder, tmp_path):
    facts = written(python(folder, "Net", arguments={"width": 16}), tmp_path / "out")
    assert (facts.outputs, facts.precision) == (("output",), "fp32")
    before = run(torch_format.open(tmp_path / "out"))
    (folder / "nets.py").write_text("raise SystemExit\n")
    (folder / "layers.py").unlink()
    model = torch_format.open(tmp_path / "out")
    assert not model.training
    assert torch.equal(run(model)["output"], before["output"])
    assert str(folder) not in (tmp_path / "out" / "model.json").read_text()


def test_the_same_source_is_written_the_same(folder, tmp_path):
    for name in ("first", "second"):
        written(python(folder, "Net"), tmp_path / name)
    first, second = (
        (tmp_path / name / "weights.safetensors").read_bytes() for name in ("first", "second")
    )
    assert first == second


def test_several_inputs_and_nested_outputs(folder, tmp_path):
    inputs = [
        TensorSpec(name="ids", dtype="int64", shape=["batch", 5]),
        TensorSpec(name="image", shape=["batch", 3, 8, 8]),
    ]
    assert written(python(folder, "Two"), tmp_path / "out", inputs).outputs == ("sum", "deep.0")


@pytest.mark.parametrize("name", ["training", "ready", "masked"])
def test_what_else_gives_a_network(folder, tmp_path, name):
    written(python(folder, name), tmp_path / "out")
    assert not torch_format.open(tmp_path / "out").training


def test_precision_is_read_from_the_weights(folder, tmp_path):
    inputs = [TensorSpec(name="input", dtype="float16", shape=["batch", 3, 8, 8])]
    assert written(python(folder, "half"), tmp_path / "out", inputs).precision == "fp16"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("broken", "TypeError", "model.weights"),
        ("needs", "'depth'", "model.arguments"),
        ("weights", "is a dict (a state dict?)", "model.weights"),
        ("number", "of type int", "class of the network"),
        ("not_a_number", "NaN or infinity: head.weight, 1 of 32", "another checkpoint"),
        ("infinite", "NaN or infinity: head.weight, 1 of 32", "another checkpoint"),
        ("half_infinite", "NaN or infinity: head.weight, 1 of 32", "another checkpoint"),
        ("damaged_mask", "NaN or infinity: mask, 1 of 4", "another checkpoint"),
        ("meta", "meta device", "CPU"),
        ("Silent", "no tensor", "return a tensor"),
        ("PerImage", "depend on the batch size: 2 at batch 2, 1 at batch 1", "shape: [1, 3, 8, 8]"),
    ],
)
def test_what_is_no_network_is_explained(folder, tmp_path, name, message, hint):
    error = failing(python(folder, name), tmp_path / "out")
    assert message in error.message
    assert hint in error.hint


def test_the_line_of_the_users_code_is_named(folder, tmp_path):
    error = failing(python(folder, "broken"), tmp_path / "out")
    line = dedent(CODE).splitlines().index("    return Net()[0]") + 1
    assert error.place.endswith(f"nets.py:{line}")


def test_an_argument_that_does_not_exist(folder, tmp_path):
    error = failing(python(folder, "Net", arguments={"num_clases": 3}), tmp_path / "out")
    assert "did you mean 'num_classes'?" in error.hint


@pytest.mark.parametrize(
    ("how", "where"), [("inside", "body.1 (Forgetful)"), ("outside", "the forward of Restless")]
)
def test_dropout_that_is_always_on_is_named(folder, tmp_path, how, where):
    error = failing(python(folder, "Restless", arguments={"how": how}), tmp_path / "out")
    assert error.message == f"the same input gives two answers: {where} draws at random"
    assert "training=self.training" in error.hint


def test_a_container_of_inputs_is_named(folder, tmp_path):
    error = failing(python(folder, "Packed", arguments={"form": "a dict"}), tmp_path / "out")
    assert "takes a dict of its inputs" in error.message
    assert "wrap it" in error.hint


def test_inputs_that_do_not_fit_are_shown(folder, tmp_path):
    inputs = [TensorSpec(name="input", shape=["batch", 1, 8, 8])]
    error = failing(python(folder, "Net"), tmp_path / "out", inputs)
    assert "input float32 [2, 1, 8, 8]" in error.message
    assert "3 channels" in error.message


def test_weights_of_another_number_of_classes(folder, tmp_path):
    torch.save(state_of(folder, num_classes=7), folder / "w.pth")
    error = failing(python(folder, "Net", weights="w.pth"), tmp_path / "out")
    assert error.place == str(folder / "w.pth")
    assert "model.arguments.num_classes: 7" in error.hint


def test_weights_are_read_before_the_users_code_runs(folder, tmp_path):
    class Evil:
        def __reduce__(self):
            return eval, ("1",)

    torch.save({"evil": Evil()}, folder / "w.pth")
    (folder / "nets.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Net: ...\n")
    with pytest.raises(TrustError):
        written(python(folder, "Net", weights="w.pth"), tmp_path / "out")
    assert not (tmp_path / "ran").exists()


def test_python_ingredients_follow_code_weights_and_arguments(folder, tmp_path):
    def key(**options):
        return json.dumps(python(folder, "Net", weights="w.pth", **options).ingredients(FileDigests()))

    torch.save(state_of(folder), folder / "w.pth")
    keys = [key(), key(arguments={"width": 16})]
    assert str(tmp_path) not in keys[0]
    (folder / "layers.py").write_text(dedent(LAYERS) + "# one line\n")
    keys.append(key())
    (folder / "w.pth").write_bytes(b"other")
    keys.append(key())
    assert len(set(keys)) == len(keys)
    (folder / "unrelated.py").write_text("x = 1\n")
    assert key() == keys[-1]


def test_problems_are_seen_without_running_anything(folder):
    source = python(folder, "Nett", weights="missing.pth")
    (folder / "other.pth").write_bytes(b"")
    (where, message, hint), (weights, missing, near) = source.problems()
    assert (where, weights) == ("source", "weights")
    assert "'Nett'" in message
    assert "'Net'" in hint
    assert "missing.pth" in missing
    assert "other.pth" in near
    assert python(folder, "Net").problems() == []


def torchvision(folder: Path, name: str, **options) -> TorchvisionSource:
    return TorchvisionSource(target=name, folder=folder, **options)


def test_a_torchvision_network_without_weights_is_the_same_each_time(tmp_path):
    facts = [
        written(torchvision(tmp_path, "mnasnet0_5", arguments={"num_classes": 3}), tmp_path / name)
        for name in ("a", "b")
    ]
    assert facts[0] == facts[1]
    assert "random (seed 0)" in facts[0].facts["weights"]
    first, second = (run(torch_format.open(tmp_path / name))["output"] for name in ("a", "b"))
    assert first.shape == (2, 3)
    assert torch.equal(first, second)


def test_segmentation_keeps_its_output_names(tmp_path):
    facts = written(torchvision(tmp_path, "lraspp_mobilenet_v3_large"), tmp_path / "out")
    assert facts.outputs == ("out",)


@pytest.mark.parametrize(
    ("name", "options", "message", "hint"),
    [
        ("resnet188", {}, "no model 'resnet188'", "did you mean 'resnet18'?"),
        ("resnet18", {"weights": "V1"}, "no weights 'V1'", "IMAGENET1K_V1"),
        ("resnet18", {"arguments": {"clases": 3}}, "clases", "model.arguments"),
    ],
)
def test_what_torchvision_does_not_have(tmp_path, name, options, message, hint):
    error = failing(torchvision(tmp_path, name, **options), tmp_path / "out")
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    "weights", ["DEFAULT", "IMAGENET1K_V1", "MobileNet_V3_Small_Weights.IMAGENET1K_V1"]
)
def test_listed_weights_come_from_the_cache_of_torch_hub(tmp_path, monkeypatch, weights):
    from torchvision import models

    entry = models.MobileNet_V3_Small_Weights.IMAGENET1K_V1
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    cached = tmp_path / "hub" / "checkpoints" / Path(entry.url).name
    cached.parent.mkdir(parents=True)
    model = models.mobilenet_v3_small().eval()
    torch.save(model.state_dict(), cached)
    facts = written(torchvision(tmp_path, "mobilenet_v3_small", weights=weights), tmp_path / "out")
    assert facts.facts["weights"] == str(entry)
    expected = facts.facts[EXPECTED]
    assert [expected["top1"], expected["top5"]] == pytest.approx([0.67668, 0.87402])
    assert torch.equal(run(torch_format.open(tmp_path / "out"))["output"], run(model)["output"])


def test_the_old_names_in_torchvisions_densenets(tmp_path):
    from torchvision import models

    model = models.densenet121(num_classes=2).eval()
    old = {
        re.sub(r"(denselayer\d+\.(?:norm|conv))([12])\.", r"\1.\2.", name): value
        for name, value in model.state_dict().items()
        if "num_batches_tracked" not in name
    }
    assert any(".norm.1." in name for name in old)
    torch.save(old, tmp_path / "w.pth")
    inputs = [TensorSpec(name="input", shape=["batch", 3, 32, 32])]
    source = torchvision(tmp_path, "densenet121", weights="w.pth", arguments={"num_classes": 2})
    written(source, tmp_path / "out", inputs)
    found = run(torch_format.open(tmp_path / "out"), inputs)
    assert torch.equal(found["output"], run(model, inputs)["output"])


def test_weights_that_cannot_be_downloaded_are_missing(tmp_path, monkeypatch):
    def offline(*_, **__):
        raise OSError("no network here")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(MissingError, match="no network here") as error:
        written(torchvision(tmp_path, "mobilenet_v3_small", weights="DEFAULT"), tmp_path / "out")
    assert str(tmp_path / "hub" / "checkpoints") in error.value.hint


def test_a_detector_with_listed_weights_is_built_as_they_want_it():
    from torchvision.ops import FrozenBatchNorm2d

    from optcli.models.formats.torch_build import build

    source = {"kind": "torchvision", "name": "fasterrcnn_resnet50_fpn", "arguments": {}}
    plain = build(source, Path())
    listed = build({**source, "weights": "FasterRCNN_ResNet50_FPN_Weights.COCO_V1"}, Path())
    assert not any(isinstance(m, FrozenBatchNorm2d) for m in plain.modules())
    assert any(isinstance(m, FrozenBatchNorm2d) for m in listed.modules())


def test_torchvision_ingredients_follow_the_contents_of_a_file(tmp_path):
    (tmp_path / "w.pth").write_bytes(b"one")
    source = torchvision(tmp_path, "resnet18", weights="w.pth")
    first = source.ingredients(FileDigests())
    assert str(tmp_path) not in json.dumps(first)
    (tmp_path / "w.pth").write_bytes(b"two")
    assert source.ingredients(FileDigests()) != first
    assert torchvision(tmp_path, "resnet18").ingredients(FileDigests()) != first


def test_torchvision_problems(tmp_path):
    assert torchvision(tmp_path, "resnet18", weights="DEFAULT").problems() == []
    assert torchvision(tmp_path, "resnet18", weights="w.pth").problems()[0][0] == "weights"
    assert torchvision(tmp_path, "resnet-18").problems()[0][0] == "source"


@pytest.mark.parametrize(
    ("kind", "target", "arguments", "weights", "size"),
    [
        (TorchvisionSource, "squeezenet1_1", {}, "squeezenet1_1.pth", 224),
        (
            TorchvisionSource,
            "mobilenet_v3_small",
            {"num_classes": 10},
            "mobilenet_v3_small_fashion.safetensors",
            64,
        ),
        (
            PythonSource,
            "train_fashion.py:build",
            {"name": "vit_tiny", "size": 32},
            "vit_tiny_fashion.safetensors",
            32,
        ),
    ],
)
def test_real_models_agree_with_their_onnx_files(
    shared, tmp_path, kind, target, arguments, weights, size
):
    import onnxruntime

    inputs = [TensorSpec(name="input", shape=["batch", 3, size, size])]
    source = kind(target=target, arguments=arguments, weights=weights, folder=shared / "models")
    assert source.problems() == []
    written(source, tmp_path / "out", inputs)
    found = run(torch_format.open(tmp_path / "out"), inputs)["output"].numpy()
    session = onnxruntime.InferenceSession(shared / "models" / f"{Path(weights).stem}.onnx")
    wanted = session.run(None, {"input": example_inputs(inputs, 2)["input"].numpy()})[0]
    assert abs(found - wanted).max() <= 1e-4 * abs(wanted).max()


READING = """
import json, os, tempfile
from importlib.metadata import entry_points
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, path):
        super().__init__()
        with open(path) as stream:
            self.width = json.load(stream)["width"]

    def forward(self, image):
        return image.mean((1, 2, 3)) * self.width


def plugins(path):
    return Net(path) if entry_points(group="widths") else None


def scratch():
    with tempfile.NamedTemporaryFile("w+") as stream:
        json.dump({"width": 2}, stream)
        stream.flush()
        return Net(stream.name)
"""


@pytest.mark.parametrize("where", ["recipe", "current folder", "link"])
def test_a_network_that_reads_a_file_which_no_key_holds_is_refused(tmp_path, monkeypatch, where):
    """Else another file there gives the old artifact, and a gate has the same file on both sides."""
    here, project = tmp_path / "here", tmp_path / "project"
    for each in (here, project):
        each.mkdir()
    (project / "nets.py").write_text(READING)
    place = (here if where == "current folder" else project) / "width.json"
    place.write_text('{"width": 2}')
    if where == "link":
        (here / "linked.json").symlink_to(place)
        place = here / "linked.json"
    monkeypatch.chdir(here)
    source = python(project, "Net", arguments={"path": str(place)})
    error = failing(source, tmp_path / "out")
    assert re.search(r"reads .*width.json while it is made", error.message)
    assert error.hint == "give weights by `model.weights`, numbers by `model.arguments`"


def test_files_that_are_nobodys_project_may_be_read(tmp_path, monkeypatch):
    project = tmp_path / "project"
    (project / ".cache").mkdir(parents=True)
    (project / "nets.py").write_text(READING)
    monkeypatch.chdir(project)
    (project / ".cache" / "width.json").write_text('{"width": 2}')
    hidden = {"path": ".cache/width.json"}
    assert written(python(project, "Net", arguments=hidden), tmp_path / "a").outputs
    assert written(python(project, "scratch"), tmp_path / "b").outputs


def test_entry_points_of_an_editable_install_may_be_read(tmp_path, monkeypatch):
    """A checkout on `sys.path` has the metadata of its own install inside the project's folder."""
    project = tmp_path / "project"
    metadata = project / "mine.egg-info"
    metadata.mkdir(parents=True)
    (project / "nets.py").write_text(READING)
    (metadata / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[widths]\none = nets:Net\n")
    (tmp_path / "width.json").write_text('{"width": 2}')
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    arguments = {"path": str(tmp_path / "width.json")}
    assert written(python(project, "plugins", arguments=arguments), tmp_path / "a").outputs
    weights = metadata / "width.json"
    weights.write_text('{"width": 2}')
    error = failing(python(project, "Net", arguments={"path": str(weights)}), tmp_path / "b")
    assert "reads mine.egg-info/width.json" in error.message
