"""Drafts of recipes: for every kind of model, and each loads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sized_detector
from commands import hurried
from needs import needs
from tiny_project import write_images, write_model

from optcli import cli, environment
from optcli.artifact import Format
from optcli.errors import InputError, MissingError, UsageError
from optcli.recipe import MODELINE, load
from optcli.scaffold import InputText, draft, known_layouts
from optcli.scaffold.variants import offered
from optcli.scaffold.wording import input_line, quoted, safe_name, sized
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

NETWORKS = """
import torch
from torch import nn


class AnySize(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, picture):
        return self.head(self.conv(picture).mean((2, 3)))


class Scaled(AnySize):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 1, 1, 1))
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))

    def forward(self, picture):
        return super().forward(picture * self.scale)


class Digits(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(28 * 28, 10))


class Numbers(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(13, 3))


class Two(nn.Module):
    def forward(self, image, mask):
        return image * mask


class Packed(Digits):
    def forward(self, batch):
        return super().forward(batch["pixels"]) * batch["weight"]


class Together(nn.Module):
    def forward(self, images):
        return nn.functional.linear(images, images[0, 0, 0, 0, 0])


class Sized(nn.Sequential):
    def __init__(self, num_classes=10):
        head = nn.Linear(4, num_classes)
        super().__init__(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image):
        return self.conv(image.reshape(-1, 3, 37, 41))


class Lazy(nn.Sequential):
    def __init__(self):
        super().__init__(nn.LazyConv2d(4, 3))


class Film(nn.Sequential):
    def __init__(self):
        head = nn.Linear(4, 3)
        super().__init__(nn.Conv3d(3, 4, 3, 4), nn.AdaptiveAvgPool3d(1), nn.Flatten(), head)
"""


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look in this process: a worker costs seconds. The command's own test has its worker.

    With one thread: beside other tests several spend most of their time waiting for each other.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if "command" not in request.node.name:
        from optcli.scaffold.looking import look

        monkeypatch.setattr("optcli.scaffold.run", lambda _, request, *__, **___: look(request, None))
        monkeypatch.setattr(
            "optcli.scaffold.known_layouts.run",
            lambda _, request, *__, **___: known_layouts.look(request, None),
        )
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets.py").write_text(NETWORKS)
    write_model(tmp_path / "model.onnx")
    write_images(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(place: Path, text: str):
    path = place / "recipe.yaml"
    path.write_text(text)
    assert text.startswith(MODELINE + "\n")
    return load(path)


def shapes(recipe) -> list:
    return [(one.name, one.dtype, one.shape) for one in recipe.inputs]


def write_program_and_script(place: Path) -> None:
    import torch

    from optcli.settings import user_code

    net = torch.nn.Sequential(torch.nn.Linear(4, 3))
    batch = torch.export.Dim("n", min=2, max=9)
    program = torch.export.export(net, (torch.zeros(3, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, place / "program.pt2")
    network = user_code.load("nets.py:AnySize", place)().eval()
    torch.jit.trace(network, torch.zeros(1, 1, 32, 32)).save(place / "script.pt")


def write_number(path: Path) -> None:
    """A model with an input that has no dimension."""
    import onnx
    from onnx import TensorProto, helper

    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("image", ["N", 3, 8, 8]), ("share", []), ("scaled", ["N", 3, 8, 8]))
    ]
    node = helper.make_node("Mul", ["image", "share"], ["scaled"])
    graph = helper.make_graph([node], "net", values[:2], values[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "inputs"),
    [
        ("nets.py:AnySize", [("picture", "float32", ("batch", 1, 224, 224))]),
        ("nets.py:Scaled", [("picture", "float32", ("batch", 3, 224, 224))]),
        ("python:nets.py:Digits", [("input", "float32", ("batch", 1, 28, 28))]),
        ("python:nets.py:Film", [("input", "float32", ("batch", 3, 16, 112, 112))]),
        ("nets.py:Numbers", [("input", "float32", ("batch", 13))]),
        ("model.onnx", [("image", "float32", ("batch", 3, 4, 4))]),
        ("onnx:model.onnx", [("image", "float32", ("batch", 3, 4, 4))]),
        ("model.xml", [("image", "float32", ("batch", 3, 4, 4))]),
        ("program.pt2", [("input", "float32", ("batch", 4))]),
        ("script.pt", [("picture", "float32", ("batch", 1, 224, 224))]),
        ("torchvision:squeezenet1_1", [("image", "float32", ("batch", 3, 224, 224))]),
        ("torchvision:inception_v3", [("image", "float32", ("batch", 3, 299, 299))]),
        ("timm:test_resnet", [("image", "float32", ("batch", 3, 160, 160))]),
    ],
)
def test_every_kind_of_model_gives_a_recipe_that_loads(place, what, inputs):
    if what.startswith("timm:"):
        needs("package", "timm")
    if what in ("program.pt2", "script.pt"):
        write_program_and_script(place)
    if what == "model.xml":
        import openvino

        openvino.save_model(openvino.convert_model(place / "model.onnx"), place / what)
    made = draft(what, place)
    recipe = loaded(place, made.recipe)
    assert shapes(recipe) == inputs
    assert recipe.data == {}
    assert tuple(recipe.variants) == made.variants
    assert not any("int8" in name for name in made.variants), "nothing to calibrate with"
    assert what == "script.pt" or "needs data: calibration" in made.recipe


def test_bounds_of_a_program_are_kept(place):
    write_program_and_script(place)
    batch = draft("program.pt2", place).inputs[0].ranges["batch"]
    assert (batch.min, batch.opt, batch.max) == (1, 8, 9)


def test_sizes_of_a_file_that_vary(place):
    from optcli.scaffold.shapes import from_file

    tensor = {"name": "x", "dtype": "float32", "shape": ["N", 3, "h 2", None]}
    one = from_file(tensor, {"h 2": [32, 128]})
    assert one.shape == ("batch", 3, "h_2", "size_3")
    assert (one.ranges["h_2"].min, one.ranges["h_2"].opt, one.ranges["h_2"].max) == (128, 128, 128)
    assert one.ranges["size_3"].opt == 224


def test_data_fills_its_section_and_brings_the_variants_in_8_bits(place, monkeypatch):
    monkeypatch.setattr(environment, "cpu", lambda: {"flags": ["avx512_vnni"]})
    recipe = loaded(place, draft("model.onnx", place, data=Path("photos")).recipe)
    assert recipe.data["calibration"].split.start == 0
    assert recipe.data["calibration"].split.stop == recipe.data["evaluation"].split.start == 0.5
    assert recipe.accuracy is not None, "two folders, two classes"
    assert {"onnx-int8", "openvino-int8"} <= set(recipe.variants)
    for index in range(3):
        write_images(place / "split" / ("train", "val")[index % 2])
    write_images(place / "split" / "val" / "more")
    recipe = loaded(place, draft("model.onnx", place, data=Path("split")).recipe)
    assert (recipe.data["calibration"].split.name, recipe.data["evaluation"].split.name) == (
        "train",
        "val",
    )
    assert recipe.accuracy is None, "the folder has three classes, the model two"


@pytest.mark.parametrize(
    ("flags", "offered"), [(["amx_bf16"], True), (["avx512_vnni"], False), ([], False)]
)
def test_bfloat16_is_offered_where_the_cpu_computes_in_it(place, monkeypatch, flags, offered):
    monkeypatch.setattr(environment, "cpu", lambda: {"flags": flags})
    text = draft("model.onnx", place).recipe
    assert ("# openvino-bf16: {passes" not in text) == offered
    if offered:
        variant = loaded(place, text).variants["openvino-bf16"]
        assert variant.runner.configured.precision == "bf16"
    else:
        assert "this CPU does not compute in bf16" in text


def test_the_preparation_is_that_of_the_weights(place):
    recipe = loaded(place, draft("torchvision:squeezenet1_1", place, data=Path("photos")).recipe)
    assert recipe.data["evaluation"].prepare.preset == "torchvision:squeezenet1_1"
    recipe = loaded(place, draft("nets.py:Digits", place, data=Path("photos")).recipe)
    assert recipe.data["evaluation"].prepare.resize == (28, 28)
    assert recipe.data["evaluation"].prepare.channel_order == "grey"


def test_a_network_gets_as_many_classes_as_the_data_have(place):
    made = draft("nets.py:Sized", place, data=Path("photos"))
    assert loaded(place, made.recipe).model.arguments == {"num_classes": 2}
    assert any("num_classes: 2, and its weights are random" in note for note in made.notes)
    given = draft(
        "nets.py:Sized", place, data=Path("photos"), overrides=("model.arguments.num_classes=7",)
    )
    recipe = loaded(place, given.recipe)
    assert recipe.model.arguments == {"num_classes": 7}
    assert recipe.accuracy is None
    assert any("2 class folders, the model 7 classes" in note for note in given.notes)


def test_weights_of_as_many_classes_are_taken(place):
    import torch

    from optcli.settings import user_code

    network = user_code.load("nets.py:Sized", place)(num_classes=2)
    torch.save(network.state_dict(), place / "two.pth")
    made = draft("nets.py:Sized", place, weights="two.pth", data=Path("photos"))
    recipe = loaded(place, made.recipe)
    assert (recipe.model.weights.file, recipe.model.arguments) == ("two.pth", {"num_classes": 2})
    assert recipe.accuracy is not None


DETECTOR = """
import torch
from types import SimpleNamespace
from torch import nn

class Detector(nn.Module):
    def __init__(self, fixed_size=(32, 24)):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.transform = SimpleNamespace(
            min_size=(28,), image_mean=[0.5] * 3, image_std=[0.2] * 3, fixed_size=fixed_size
        )

    def forward(self, images):
        return [self._detections(image) for image in images]

    def _detections(self, image):
        seen = self.conv(image).mean((1, 2)).softmax(0)
        labels = torch.ones(4, dtype=torch.int64)
        return {"boxes": seen[:, None].expand(4, 4), "scores": seen, "labels": labels}
"""


@pytest.mark.parametrize(
    ("overrides", "size"), [((), (24, 32)), (("model.arguments={fixed_size: []}",), (28, 28))]
)
def test_a_detector_of_a_list_of_images_says_itself_what_it_takes(place, overrides, size):
    (place / "detectors.py").write_text(DETECTOR)
    made = draft("detectors.py:Detector", place, overrides=overrides)
    (image,) = loaded(place, made.recipe).inputs
    assert (image.shape, image.range) == ((1, 3, *size), (0, 1))
    assert (
        f"prepare: &prepare {{resize: [{size[0]}, {size[1]}], channel_order: rgb, scale: 1/255}}"
        in (made.recipe)
    )
    assert "A GUESS: the model" not in made.recipe
    assert "transformer" not in made.recipe
    assert "boxes: output_0.boxes, scores: output_0.scores, labels: output_0.labels" in made.recipe
    assert any("the batch is fixed at 1" in note for note in made.notes)


def test_a_guess_is_called_one(place):
    made = draft("model.onnx", place, data=Path("photos"))
    assert "# A GUESS: " in made.recipe
    assert any(note.startswith("`prepare:` is a guess") for note in made.notes)
    known = draft("torchvision:squeezenet1_1", place, data=Path("photos"))
    assert "GUESS" not in known.recipe
    said = draft(
        "model.onnx",
        place,
        data=Path("photos"),
        overrides=("data.calibration.prepare={scale: 1/255}", "data.evaluation.prepare={scale: 1/255}"),
    )
    assert not any("guess" in note for note in said.notes)
    assert loaded(place, said.recipe).data["evaluation"].prepare.mean == (0.0,)


def test_large_images_come_in_small_batches(place):
    given = (InputText.read("image:float32[batch,3,720,720]"),)
    recipe = loaded(place, draft("nets.py:Sized", place, inputs=given).recipe)
    assert recipe.inputs[0].ranges["batch"].max == 2
    assert recipe.latency.batch_sizes == (1, 2)


@pytest.mark.parametrize(
    ("rows", "whole", "name", "value"),
    [
        ("batch", False, "orig_target_sizes", "original_size_wh"),
        (1, True, "orig_im_size", "original_size"),
        ("batch", False, "image_size", "original_size"),
        ("batch", False, "points", None),
        ("batch", True, "orig_im_size", "original_size"),
    ],
)
def test_an_input_for_the_size_of_the_image_gets_it(place, rows, whole, name, value):
    sized_detector.write_model(place / "sized.onnx", rows, whole=whole, name=name)
    said = draft("sized.onnx", place)
    text = said.recipe
    inputs = loaded(place, text).inputs
    assert inputs[1].value == value
    assert inputs[0].shape[0] == (1 if whole else rows)
    assert any("the batch is fixed at 1" in note for note in said.notes) == (whole and rows != 1)
    assert ("A GUESS: width, height" in text) == (value == "original_size_wh")
    assert ("A GUESS: height, width" in text) == (value == "original_size")


def test_the_inputs_of_paddle_detection_get_their_values():
    batch = {"min": 1, "opt": 1, "max": 4}
    names = {"im_shape": ["b", 2], "image": ["b", 3, 64, 48], "scale_factor": ["b", 2]}
    inputs = [TensorSpec(name=name, shape=shape, b=batch) for name, shape in names.items()]
    assert [each.value for each in sized(inputs)] == [(64, 48), None, "scale_factor"]
    assert "value: [64, 48]}    # A GUESS" in input_line(sized(inputs)[0])
    # Beside an input that says something else nothing is known.
    other = TensorSpec(name="points", shape=("b", 2), b=batch)
    assert sized([*inputs, other]) == (*inputs, other)
    # Of one image, whatever the batch of images: the batch is 1.
    alone = TensorSpec(name="scale_factor", shape=(1, 2))
    assert [each.shape for each in sized([inputs[1], alone])] == [(1, 3, 64, 48), (1, 2)]
    # How large an image of any size is after the resize, nobody knows.
    varying = TensorSpec(name="image", shape=("b", 3, "h", "w"), b=batch)
    assert [each.value for each in sized([inputs[0], varying])] == [None, None]


def test_paths_are_relative_to_the_recipe(place):
    below = place / "recipes"
    below.mkdir()
    recipe = loaded(below, draft("model.onnx", below, data=place / "photos").recipe)
    assert recipe.model.source == "onnx:../model.onnx"
    recipe = loaded(below, draft("nets.py:Digits", below).recipe)
    assert recipe.model.source == "python:../nets.py:Digits"


@pytest.mark.parametrize(
    ("what", "error", "says", "hint"),
    [
        ("resnet18", UsageError, "where the model comes from", "torchvision:resnet18"),
        ("model.caffemodel", UsageError, "is no model", "such as torchvision:resnet50"),
        ("model.onn", UsageError, "wanted a model's file", "did you mean 'model.onnx'?"),
        ("torchvision:resnt18", InputError, "no model 'resnt18'", "did you mean 'resnet18'?"),
        ("onnx:gone.onnx", InputError, "gone.onnx", "model.onnx"),
        ("nets.py:Gone", InputError, "defines no 'Gone'", ""),
        ("nets.py:Two", InputError, "takes 2 inputs (image, mask)", '"mask:float32['),
        ("torchvision:raft_small", InputError, "takes 2 inputs (image1, image2)", '"image2:float32['),
        ("nets.py:Odd", InputError, "no usual size", "--input"),
        ("nets.py:Lazy", InputError, "has lazy layers", "call it once"),
        ("nets.py:Together", InputError, "fits the network: IndexError: too many", "--input"),
        ("nets.py:Packed", InputError, "a dict of its inputs (it asks for 'pixels')", "wrap it"),
        ("number.onnx", InputError, "'share' is a single number", "as a constant"),
    ],
)
def test_what_cannot_be_drafted(place, what, error, says, hint):
    if what == "number.onnx":
        write_number(place / what)
    with pytest.raises(error) as caught:
        draft(what, place)
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_inputs_may_be_said(place):
    given = tuple(InputText.read(f"{name}:float32[n,3,32,32]") for name in ("image", "mask"))
    recipe = loaded(place, draft("nets.py:Two", place, inputs=given).recipe)
    assert [one.name for one in recipe.inputs] == ["image", "mask"]
    assert recipe.inputs[0].ranges["n"].max == 32
    with pytest.raises(InputError, match="does not take the recipe's inputs"):
        draft("nets.py:Digits", place, inputs=(InputText.read("x:float32[n,5]"),))


@pytest.mark.parametrize(
    "text", ["image", "image[1,2]", "image:float31[1]", "image:float32[]", "a:int8[0]"]
)
def test_an_input_in_a_wrong_word(text):
    with pytest.raises(UsageError) as caught:
        InputText.read(text)
    assert "--input" in caught.value.hint


def test_variants_go_by_the_machine(monkeypatch):
    monkeypatch.setattr(environment, "cpu", lambda: {"flags": ["avx2"]})
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setattr(environment, "version", lambda name: None if name == "openvino" else "1")
    by_name = {one.name: one for one in offered(Format.TORCH, attention=True, calibrated=True)}
    assert "VNNI" in by_name["onnx-int8"].reason
    assert "C++ compiler" in by_name["aoti"].reason
    assert by_name["openvino"].reason == "the package openvino is not installed: pip install openvino"
    assert by_name["onnx"].reason == by_name["eager"].reason == ""
    assert "model_type: transformer" in by_name["onnx-int8"].passes
    assert offered(Format.ONNX, attention=False, calibrated=False)[0].name == "onnx"


def test_without_nncf_onnx_runtime_quantizes(monkeypatch):
    monkeypatch.setattr(environment, "cpu", lambda: {"flags": ["avx512_vnni"]})
    monkeypatch.setattr(environment, "version", lambda name: None if name == "nncf" else "1")
    by_name = {one.name: one for one in offered(Format.ONNX, attention=True, calibrated=True)}
    assert by_name["onnx-int8"].passes == "[quantize_onnxruntime]"
    assert by_name["onnx-int8"].reason == ""
    of_openvino = offered(Format.OPENVINO, attention=False, calibrated=True)
    assert [one.name for one in of_openvino] == ["openvino", "openvino-bf16", "openvino-int8"]
    for int8 in (by_name["openvino-int8"], of_openvino[2]):
        assert int8.reason == "the package nncf is not installed: pip install nncf"


def test_a_library_that_is_not_there(place, monkeypatch):
    known = environment.version
    monkeypatch.setattr(environment, "version", lambda name: None if name == "timm" else known(name))
    with pytest.raises(MissingError) as caught:
        draft("timm:resnet18", place)
    assert caught.value.hint == "pip install timm"


@pytest.mark.parametrize(
    "text", ["plain", "a b", "no", "1", "é:x", 'say "x"', "a: b", "a #b", "input.1", "-"]
)
def test_quoting_survives_yaml(text):
    from ruamel.yaml import YAML

    assert YAML(typ="safe").load(f"{{a: {quoted(text)}}}")["a"] == text


def test_names_can_be_folders():
    assert safe_name("models/my net.v2:Net") == "Net"
    assert safe_name("ü/é.") == "model"


def test_names_that_need_quotes(place):
    write_model(place / "my model é.onnx")
    recipe = loaded(place, draft("my model é.onnx", place).recipe)
    assert recipe.model.source == "onnx:my model é.onnx"
    assert recipe.name == "my-model"


def test_the_command_refuses_what_makes_no_recipe(place, capsys):
    line = ["init", "model.onnx", "--out", "made/x.yaml"]
    assert cli.run([*line, "--set", "latency.batch_size=[1]"]) == 2
    said = capsys.readouterr().err
    assert "--set latency.batch_size=[1]: unknown key 'batch_size' in latency" in said
    assert "did you mean 'batch_sizes'?" in said
    assert not list((place / "made").glob("*.yaml")), "nothing is left"
    assert cli.run([*line, "--set", "latency.batch_sizes=[2]"]) == 0
    assert load(place / "made" / "x.yaml").latency.batch_sizes == (2,)


@pytest.mark.long
def test_the_command_writes_a_recipe_that_builds(place, capsys, monkeypatch):
    monkeypatch.setenv("OPTCLI_STORE", "")
    out = ["init", "model.onnx", "--data", "photos", "--out", "made/first.yaml"]
    assert cli.run(out) == 0
    assert capsys.readouterr().out == "wrote made/first.yaml: optcli build made/first.yaml\n"
    schema = json.loads((place / "made" / "recipe.schema.json").read_text())
    assert schema["title"] == "optcli recipe"
    assert cli.run(out) == 2
    assert "--force" in capsys.readouterr().err
    assert cli.run([*out, "--force"]) == 0
    sets = [f"data.{role}.prepare.resize=4" for role in ("calibration", "evaluation")]
    smaller = [word for text in [*sets, "latency.batch_sizes=[1]"] for word in ("--set", text)]
    built = cli.run([*hurried(["build", "made/first.yaml"]), *smaller])
    assert built in (0, 1, 5), capsys.readouterr().err
    report = json.loads((place / "artifacts" / "model" / "report.json").read_text())
    assert {each["status"] for each in report["variants"].values()} == {"built"}
    capsys.readouterr()
    assert cli.run(["init", "model.onnx", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["recipe"].startswith(MODELINE)
    assert record["out"] is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "runtime"), [("a.tflite", "LiteRT"), ("a.pte", "ExecuTorch")])
def test_a_damaged_file_for_a_small_runtime_is_named(place, name, runtime):
    (place / name).write_bytes(b"hello")
    with pytest.raises(InputError, match=f"{runtime} cannot load") as caught:
        draft(name, place)
    assert caught.value.place == str(place / name)


def test_an_image_without_a_batch_is_refused_where_data_are_images(tmp_path):
    from onnx import TensorProto, helper, save

    image = helper.make_tensor_value_info("image", TensorProto.UINT8, [12, 20, 3])
    same = helper.make_tensor_value_info("same", TensorProto.UINT8, [12, 20, 3])
    node = helper.make_node("Identity", ["image"], ["same"])
    graph = helper.make_graph([node], "one", [image], [same])
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    write_images(tmp_path / "images")
    draft(str(tmp_path / "m.onnx"), tmp_path)
    with pytest.raises(InputError, match=r"\[12, 20, 3\] is one image") as caught:
        draft(str(tmp_path / "m.onnx"), tmp_path, data=tmp_path / "images")
    assert "[1, 12, 20, 3]" in caught.value.hint
