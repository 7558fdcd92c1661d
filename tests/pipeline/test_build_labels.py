"""Labels are numbered as the model's classes are, before anything is built."""

import json
import sys

import numpy as np
import onnx
import pytest
from needs import needs
from onnx import TensorProto, helper
from PIL import Image
from tiny_project import Heard

from optcli.artifact import OUTPUT_TENSORS, Artifact, Format
from optcli.errors import InputError
from optcli.models.formats import exporter_metadata
from optcli.pipeline import labels
from optcli.recipe import load

RECIPE = """
version: 1
name: labelled
model: {{source: "onnx:model.onnx"}}
inputs: [{{name: image, shape: [batch, 3, 8, 8]}}]
data: {data}
accuracy: {{metric: {metric}}}
variants: {{onnx: []}}
"""


@pytest.fixture
def folder(tmp_path):
    """A folder to write data into, with a model of three classes."""
    classifier(tmp_path, 3)
    return tmp_path


def classifier(folder, classes, **metadata):
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["image"], ["scores"])],
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", classes])],
    )
    model = helper.make_model(graph)
    helper.set_model_props(model, metadata)
    onnx.save(model, folder / "model.onnx")


def photos(folder, **counts):
    for name, count in counts.items():
        place = folder / "photos" / name.replace("__", "/")
        place.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(place / f"{number}.png")


def recipe(folder, data, metric="top1", *overrides):
    (folder / "recipe.yaml").write_text(RECIPE.format(data=data, metric=metric))
    return load(folder / "recipe.yaml", overrides)


def checked(read):
    """What the worker finds, here in this process."""
    return labels.check(labels._request(read, None), None)


BOTH = (
    "{training: {source: 'imagefolder:photos', split: train},"
    " evaluation: {source: 'imagefolder:photos', split: val}}"
)
ONE = "{evaluation: {source: 'imagefolder:photos'}}"


@pytest.mark.slow
def test_a_class_without_an_image_in_one_role_shifts_no_label(folder, tmp_store):
    photos(folder, train__ant=1, train__elk=1, train__fox=1, val__ant=1, val__fox=1)
    found = labels.with_labels(recipe(folder, BOTH), tmp_store)
    assert found.data["evaluation"].labels.map == {"ant": 0, "fox": 2}
    assert found.data["training"].labels is None
    assert "elk" in found.data_remarks[0].text
    again = labels.with_labels(recipe(folder, BOTH), tmp_store)
    assert again.data == found.data


@pytest.mark.slow
def test_what_is_known_is_asked_of_the_store(folder, tmp_store, monkeypatch):
    photos(folder, ant=1, bee=1, cat=1)
    labels.with_labels(recipe(folder, ONE), tmp_store)
    monkeypatch.setattr(labels, "run", None)
    labels.with_labels(recipe(folder, ONE), tmp_store)
    with pytest.raises(TypeError):
        labels.with_labels(recipe(folder, ONE, "top1", "labels.offset=1"), tmp_store)


def test_data_without_names_or_labels_to_judge_by_start_no_worker(folder, tmp_store, monkeypatch):
    monkeypatch.setattr(labels, "run", None)
    np.savez(folder / "rows.npz", image=np.zeros((1, 3, 8, 8)), label=np.zeros(1))
    read = recipe(folder, "{evaluation: {source: 'npz:rows.npz'}}")
    assert labels.with_labels(read, tmp_store) is read
    photos(folder, ant=1)
    # Whether anything is judged matters to evaluation data alone.
    read = recipe(folder, ONE)
    data = {"calibration": read.data["evaluation"]}
    unjudged = read.model_copy(update={"accuracy": None, "data": data})
    assert labels.with_labels(unjudged, tmp_store) is unjudged


@pytest.mark.slow
def test_the_file_s_own_names_number_the_classes(folder):
    classifier(folder, 3, task="classify", names="{0: 'fox', 1: 'ant', 2: 'elk'}")
    photos(folder, ant=1, fox=1)
    found = checked(recipe(folder, ONE))
    assert found.roles["evaluation"].map == {"ant": 1, "fox": 0}
    assert found.roles["evaluation"].classes == ("fox", "ant", "elk")


@pytest.mark.slow
def test_class_names_go_before_the_file_s(folder):
    classifier(folder, 2, task="classify", names="{0: 'fox', 1: 'ant'}")
    photos(folder, ant=1, fox=1)
    found = checked(recipe(folder, ONE, "top1", "class_names=[ant, fox]"))
    assert found.roles["evaluation"] is None


@pytest.mark.slow
def test_counts_are_compared(folder):
    photos(folder, ant=1, bee=1)
    assert "the model has 3 classes" in checked(recipe(folder, ONE)).doubts[0]
    classifier(folder, 1)
    with pytest.raises(InputError, match="'bee' of the evaluation data is number 1"):
        checked(recipe(folder, ONE))


@pytest.mark.slow
def test_imagenette_lies_inside_imagenet(folder):
    needs("package", "timm")
    imported = "timm" in sys.modules
    photos(folder, n03888257=1, n01440764=1)
    classifier(folder, 1000)
    assert checked(recipe(folder, ONE)).roles["evaluation"].map == {"n01440764": 0, "n03888257": 701}
    classifier(folder, 1001)
    assert checked(recipe(folder, ONE)).roles["evaluation"].map["n01440764"] == 1
    assert ("timm" in sys.modules) == imported  # that takes seconds


@pytest.mark.slow
def test_the_names_of_torchvision_s_weights(folder):
    photos(folder, **{"garbage truck": 1, "tench": 1})
    read = recipe(folder, ONE, "top1", "model={source: torchvision:resnet18, weights: DEFAULT}")
    assert checked(read).roles["evaluation"].map == {"garbage truck": 569, "tench": 0}


def coco(folder, categories, used, width=8):
    (folder / "coco" / "images").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "coco" / "images" / "a.png")
    boxes = [
        {"id": n, "image_id": 1, "category_id": each, "bbox": [0, 0, 4, 4]}
        for n, each in enumerate(used)
    ]
    images = [{"id": 1, "file_name": "a.png", "width": width, "height": 8}]
    record = {
        "images": images,
        "annotations": boxes,
        "categories": [{"id": number, "name": name} for number, name in categories.items()],
    }
    (folder / "coco" / "instances.json").write_text(json.dumps(record))
    return "{evaluation: {source: 'coco:coco'}}"


@pytest.mark.slow
def test_a_dummy_category_is_none_where_the_model_has_one_class_less(folder):
    data = coco(folder, {0: "objects", 1: "cat", 2: "dog"}, (1, 2))
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["image"], ["rows"])],
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", 5, 6])],
    )
    onnx.save(helper.make_model(graph), folder / "model.onnx")
    found = checked(recipe(folder, data, "map", "postprocess={boxes: {}}"))
    assert found.roles["evaluation"].map == {"cat": 0, "dog": 1}
    assert "'objects'" in found.notes[0]


@pytest.mark.slow
def test_coco_s_ids_become_what_a_detector_of_torchvision_numbers(folder):
    data = coco(folder, {1: "person", 13: "stop sign"}, (1, 13))
    model = "model={source: torchvision:fasterrcnn_resnet50_fpn, weights: DEFAULT}"
    by_ids = "postprocess={boxes: {boxes: b, scores: s, labels: l}}"
    found = checked(recipe(folder, data, "map", model, by_ids)).roles["evaluation"]
    assert found.map == {"person": 1, "stop sign": 13}
    of_coco = "postprocess={boxes: {boxes: b, scores: s, labels: l, numbering: coco}}"
    found = checked(recipe(folder, data, "map", model, of_coco)).roles["evaluation"]
    assert (found.map, len(found.classes)) == ({"person": 0, "stop sign": 11}, 80)


@pytest.mark.slow
def test_images_that_are_not_as_annotated_are_said(folder):
    data = coco(folder, {1: "cat"}, (1,), width=16)
    found = checked(recipe(folder, data, "map", "postprocess={rows: {}}"))
    assert "evaluation: 1 of 1 image has another size" in found.doubts[0]


def test_remarks_are_told(folder):
    photos(folder, ant=1)
    heard = Heard()
    remark = labels.DataRemark(text="the data lack elk")
    labels.say(recipe(folder, ONE).model_copy(update={"data_remarks": (remark,)}), heard)
    assert heard.notes == ["the data lack elk"]


@pytest.mark.slow
def test_another_model_s_classes_are_known_by_its_facts(folder, tmp_store):
    photos(folder, ant=1, fox=1)
    outputs = [{"name": "scores", "dtype": "float32", "shape": [None, 3]}]
    said = {"task": "classify", "names": "{0: 'fox', 1: 'ant', 2: 'elk'}"}
    facts = {OUTPUT_TENSORS: outputs, **exporter_metadata.fact(said)}
    model = Artifact("k", Format.ONNX, folder, "fp32", 1, "d", facts)
    found = labels.with_labels(recipe(folder, ONE), tmp_store, model)
    assert found.data["evaluation"].labels.map == {"ant": 1, "fox": 0}
    nameless = Artifact("k", Format.ONNX, folder, "fp32", 1, "d", {OUTPUT_TENSORS: outputs})
    found = labels.with_labels(recipe(folder, ONE), tmp_store, nameless)
    assert found.data["evaluation"].labels is None
    assert "the model has 3 classes" in found.data_remarks[0].text


def test_labels_that_nothing_judges_are_named(folder, tmp_store):
    photos(folder, cat=1, dog=1, fox=1)
    data = '{evaluation: {source: "imagefolder:photos"}}'
    (folder / "recipe.yaml").write_text(
        RECIPE.replace("accuracy: {{metric: {metric}}}\n", "").format(data=data)
    )
    heard = Heard()
    checked = labels.with_labels(load(folder / "recipe.yaml"), tmp_store)
    labels.say(checked, heard)
    (note,) = checked.data_remarks
    assert "nothing is judged by the labels" in note.text
    assert not note.doubtful
    # One folder of images has no labels, and with a metric they are judged.
    flat = data.replace("photos", "photos/cat")
    (folder / "recipe.yaml").write_text(
        RECIPE.replace("accuracy: {{metric: {metric}}}\n", "").format(data=flat)
    )
    assert not labels.with_labels(load(folder / "recipe.yaml"), tmp_store).data_remarks


@pytest.mark.slow
def test_a_detector_is_trained_on_photos_of_any_classes(folder):
    photos(folder, tench=1, goldfish=1)
    data = coco(folder, {1: "cat", 2: "dog"}, (1, 2))
    more = "data.training={source: imagefolder:photos, prepare: {resize: [8, 8]}}"
    found = checked(recipe(folder, data, "map", "postprocess={boxes: {}}", more))
    assert set(found.roles) == {"evaluation"}
    assert "their labels are not used" in found.notes[0]
    with pytest.raises(InputError, match="training"):
        checked(recipe(folder, data, "top1", more))
