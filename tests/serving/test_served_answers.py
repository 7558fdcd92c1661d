"""A bundle's `postprocess.py` gives what optcli's metrics and decoding give from the same outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copied_modules import load
from small_variants import variant

from optcli import data
from optcli.accuracy import decoding
from optcli.accuracy.metrics._classes import best
from optcli.artifact import Format
from optcli.data import DataSettings
from optcli.errors import InputError, UsageError
from optcli.outputs import Exported
from optcli.pipeline.decoding import Decoding
from optcli.pipeline.model_files.built_variant import BuiltVariant, Samples
from optcli.scaffold.inspection.findings import Tensor
from optcli.serving.prediction.of_recipe import ImageServing, image_serving
from optcli.settings.postprocess import PostprocessSettings

images, postprocess = load("images"), load("postprocess")
PLACEMENT = {"original_size": (100, 200), "scale": (0.5, 0.25), "padding": (3, -4)}
SIZE = (64, 64)


def spec(*shape: int | str) -> dict[str, Any]:
    return {"name": "image", "shape": shape, "batch": {"min": 1, "opt": 2, "max": 8}}


def serving(folder: Path, shape: tuple[int | None, ...], **samples: Any) -> ImageServing:
    one = built(folder, spec("batch", 3, *SIZE), {"source": "imagefolder:set"}, **samples)
    return image_serving(one, outputs(shape))


def built(folder: Path, wanted: dict[str, Any], source: dict[str, Any], **samples: Any) -> BuiltVariant:
    (folder / "set").mkdir(exist_ok=True)
    if "postprocess" in samples:
        samples["decoding"] = Decoding(samples.pop("postprocess"), "recipe")
    kept = Samples(data=DataSettings.model_validate(source), folder=folder, **samples)
    return replace(variant(folder, Format.ONNX, wanted), samples=kept)


def outputs(*shapes: tuple[int | None, ...]) -> tuple[Tensor, ...]:
    named = [Tensor(name=f"out{i}", dtype="float32", shape=shape) for i, shape in enumerate(shapes)]
    return tuple(named)


def answered(how: ImageServing, arrays: Mapping[str, np.ndarray], **changes: Any) -> Any:
    """What is answered, through the file's own form."""
    content = json.loads(json.dumps({**how.postprocess, **changes}))
    answer = postprocess.Postprocess(content).answer(arrays, PLACEMENT)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    return answer


def classes(folder: Path, row: list[float], **how: Any) -> list[dict[str, Any]]:
    made = serving(folder, (None, len(row)))
    settings = {**made.postprocess["classes"], **how}
    return answered(made, {"out0": np.array(row, np.float32)}, classes=settings)["classes"]


def test_the_best_classes_come_first_with_their_probability(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(0, 3, (40, 10)).astype(np.float32)
    predicted, confidence = best(rows.astype(np.float64))
    for row, label, share in zip(rows, predicted, confidence, strict=True):
        answer = classes(tmp_path, row.tolist())
        assert [each["label"] for each in answer] == np.argsort(-row)[:5].tolist()
        assert answer[0] == {"label": label, "score": share}
        whole = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
        np.testing.assert_allclose([each["score"] for each in answer], np.sort(whole)[::-1][:5])


def test_probabilities_stay_as_they_are(tmp_path: Path) -> None:
    answer = classes(tmp_path, [0.25, 0.5, 0.125, 0.125])
    assert answer == [
        {"label": 1, "score": 0.5},
        {"label": 0, "score": 0.25},
        {"label": 2, "score": 0.125},  # equal ones in their order, as the metric ranks them
        {"label": 3, "score": 0.125},
    ]


def test_what_the_scores_are_can_be_said(tmp_path: Path) -> None:
    assert [each["score"] for each in classes(tmp_path, [0.0, 100.0], activation="sigmoid")] == [1, 0.5]
    assert [each["score"] for each in classes(tmp_path, [3.0, 4.0], activation="none")] == [4, 3]
    assert len(classes(tmp_path, [3.0, 4.0, 1.0], top=1)) == 1


def test_scores_of_another_shape(tmp_path: Path) -> None:
    made = serving(tmp_path, (None, 3, 1, 1))
    row = np.array([1, 3, 2], np.float32)
    assert answered(made, {"out0": row[None, :, None, None]}) == answered(made, {"out0": row})
    for wrong in (np.zeros((1, 3, 4), np.float32), np.zeros(0, np.float32)):
        with pytest.raises(ValueError, match=r"wanted \[classes\]"):
            answered(made, {"out0": wrong})
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="infinite or NaN"):
            answered(made, {"out0": np.array([1, value], np.float32)})
    with pytest.raises(ValueError, match="no output 'out0', it has other"):
        answered(made, {"other": row})


def test_the_output_that_the_metric_reads(tmp_path: Path) -> None:
    one = built(tmp_path, spec("batch", 3, 8, 8), {"source": "imagefolder:set"}, output="out1")
    made = image_serving(one, outputs((None, 7), (None, 3)))
    arrays = {"out0": np.zeros(7, np.float32), "out1": np.array([1, 5, 2], np.float32)}
    assert answered(made, arrays)["classes"][0]["label"] == 1


def rows_of(count: int, columns: int, seed: int = 0) -> np.ndarray:
    """Boxes that overlap, with scores, as a network gives them."""
    draw = np.random.default_rng(seed)
    corners = draw.uniform(0, 50, (count, 2)).astype(np.float32)
    extent = draw.uniform(4, 14, (count, 2)).astype(np.float32)
    return np.concatenate([corners, extent, draw.uniform(0, 1, (count, columns - 4))], axis=1).astype(
        np.float32
    )


def inside(found: Mapping[str, Any], height: int, width: int) -> dict[str, np.ndarray]:
    """What lies in the image, with boxes that end at its edges: answers have no others."""
    left, top, right, bottom = found["boxes"].T
    chosen = (right > 0) & (bottom > 0) & (left < width) & (top < height)
    boxes = np.clip(found["boxes"][chosen], 0, [width, height, width, height])
    return {"boxes": boxes, **{name: found[name][chosen] for name in ("scores", "labels")}}


def same_as_own(folder: Path, settings: dict[str, Any], arrays: dict[str, np.ndarray]) -> int:
    """Compare with optcli's own decoding; gives how many boxes there are."""
    how = PostprocessSettings.model_validate(settings)
    shapes = [(None, *array.shape) for array in arrays.values()]
    one = built(folder, spec("batch", 3, *SIZE), {"source": "imagefolder:set"}, postprocess=how)
    interface = outputs(*shapes)
    made = image_serving(one, interface)
    answer = answered(made, arrays)
    step = decoding.make(how, folder)
    assert step is not None
    own = step(arrays, PLACEMENT, SIZE)
    own = inside(own, 100, 200)
    assert [each["box"] for each in answer["boxes"]] == own["boxes"].tolist()
    assert [each["score"] for each in answer["boxes"]] == own["scores"].tolist()
    assert [each["label"] for each in answer["boxes"]] == own["labels"].tolist()
    assert answer["image"] == {"height": 100, "width": 200}
    return len(own["boxes"])


@pytest.mark.parametrize(
    ("settings", "shapes"),
    [
        ({"boxes": {}}, [(60, 9)]),
        ({"boxes": {"format": "xywh", "nms": 0.3, "score": 0.4}}, [(60, 9)]),
        ({"boxes": {"format": "cxcywh", "nms": 0.5, "transposed": True}}, [(9, 60)]),
        ({"boxes": {"objectness": True, "nms": 0.5, "multi_label": False}}, [(60, 9)]),
        (
            {"boxes": {"scores": "out1", "activation": "softmax", "background": "last"}},
            [(60, 4), (60, 5)],
        ),
        (
            {"boxes": {"scores": "out1", "activation": "sigmoid", "background": "first"}},
            [(60, 4), (60, 5)],
        ),
        ({"boxes": {"scores": "out1", "transposed": True, "nms": 0.4}}, [(4, 60), (5, 60)]),
        ({"boxes": {"normalized": True, "first_label": 1, "score": 0.3}}, [(60, 9)]),
        ({"boxes": {"scores": "out1", "labels": "out2", "first_label": 1}}, [(60, 4), (60,), (60,)]),
        ({"boxes": {"classes": 3, "objectness": True, "nms": 0.4}}, [(60, 12)]),
        ({"rows": {"first_label": 1, "nms": 0.5}}, [(60, 6)]),
        ({"yolox": {}}, [(84, 7)]),
        ({"yolox": {"strides": [16], "nms": 0.2, "multi_label": False}}, [(16, 8)]),
        ({"yolox": {"decoded": True, "score": 0.5}}, [(30, 6)]),
    ],
)
def test_boxes_are_those_of_optclis_own_decoding(
    tmp_path: Path, settings: dict[str, Any], shapes: list[tuple[int, ...]]
) -> None:
    arrays = {}
    for number, shape in enumerate(shapes):
        rows = rows_of(max(shape), 4 + min(shape) if len(shape) > 1 else 5, number)
        if len(shape) == 1:  # scores, and the numbers of classes
            values = rows[:, 4] if number == 1 else np.arange(len(rows)) % 3 + 1
        elif number == 0:
            values = rows_of(max(shape), min(shape), number)
            if "rows" in settings:
                values[:, 5] = np.arange(len(values)) % 3 + 1
        else:
            values = rows[:, 4:]
        arrays[f"out{number}"] = values.T if len(shape) > 1 and values.shape != shape else values
        assert arrays[f"out{number}"].shape == shape
    if settings.get("boxes", {}).get("normalized"):
        arrays["out0"][:, :4] /= SIZE[0]
    assert same_as_own(tmp_path, settings, arrays) > 3


def test_boxes_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    rows = rows_of(30, 6)
    rows[3, 0], rows[4, 4:], rows[5, 2] = np.nan, np.nan, np.inf
    assert 0 < same_as_own(tmp_path, {"boxes": {}}, {"out0": rows}) <= 54
    rows[6, 4] = np.inf
    made = serving(
        tmp_path, (None, 30, 6), postprocess=PostprocessSettings.model_validate({"boxes": {}})
    )
    assert all(np.isfinite(each["score"]) for each in answered(made, {"out0": rows})["boxes"])


def test_no_box_at_all(tmp_path: Path) -> None:
    assert same_as_own(tmp_path, {"boxes": {"score": 1.0, "nms": 0.5}}, {"out0": rows_of(9, 6)}) == 0


def test_outputs_of_another_shape_are_refused(tmp_path: Path) -> None:
    yolox = serving(
        tmp_path, (None, 84, 85), postprocess=PostprocessSettings.model_validate({"yolox": {}})
    )
    with pytest.raises(ValueError, match=r"shape \[85, 84\], wanted \[84, 5 \+ classes\]"):
        answered(yolox, {"out0": np.zeros((85, 84), np.float32)})
    with pytest.raises(ValueError, match="size of the input is needed"):
        answered(yolox, {"out0": np.zeros((84, 85), np.float32)}, size=None)
    boxes = serving(
        tmp_path, (None, 9, 6), postprocess=PostprocessSettings.model_validate({"boxes": {}})
    )
    with pytest.raises(ValueError, match=r"wanted \[boxes, 4 \+ classes\]"):
        answered(boxes, {"out0": np.zeros((9, 4), np.float32)})
    with pytest.raises(ValueError, match="has the kind 'masks'"):
        answered(boxes, {}, kind="masks")
    with pytest.raises(ValueError, match="schema None"):
        answered(boxes, {}, schema=None)


# --- names ------------------------------------------------------------------------------------------


def folders(place: Path, *names: str) -> None:
    from PIL import Image

    for name in names:
        (place / "set" / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(place / "set" / name / "one.png")


def test_names_of_the_recipe_come_first(tmp_path: Path) -> None:
    folders(tmp_path, "a", "b")
    made = serving(tmp_path, (None, 2), class_names=("cat", "dog"))
    row = np.array([1, 3], np.float32)
    assert [each["name"] for each in answered(made, {"out0": row})["classes"]] == ["dog", "cat"]
    (tmp_path / "names.txt").write_text("Katze\nHündin \n\n", encoding="utf-8")
    listed = serving(tmp_path, (None, 2), class_names="names.txt")
    assert [each["name"] for each in answered(listed, {"out0": row})["classes"]] == ["Hündin", "Katze"]
    assert not any("names" in note for note in listed.notes)


def test_names_of_the_data_follow(tmp_path: Path) -> None:
    folders(tmp_path, "wolf", "bear")
    made = serving(tmp_path, (None, 2))
    assert made.postprocess["names"] == ["bear", "wolf"]
    other = serving(tmp_path, (None, 3))
    assert other.postprocess["names"] is None
    assert "the data have 2 classes, the model 3" in other.notes[0]


def test_without_names_answers_have_numbers(tmp_path: Path) -> None:
    made = serving(tmp_path, (None, 2))
    assert "names: the data cannot be read" in made.notes[0]
    assert answered(made, {"out0": np.array([1, 3], np.float32)})["classes"][0].keys() == {
        "label",
        "score",
    }


@pytest.mark.parametrize(
    ("names", "content", "message"),
    [
        (("a", "b", "c"), None, "names 3 classes, the model has 2"),
        ("names.txt", b"a\n\nb\n", "line 2 is empty"),
        ("names.txt", b"\n", "the file is empty"),
        ("names.txt", b"\xff\xfe", "cannot be read"),
        ("gone.txt", None, "cannot be read"),
    ],
)
def test_names_that_do_not_fit(tmp_path: Path, names: Any, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "names.txt").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        serving(tmp_path, (None, 2), class_names=names)
    assert caught.value.hint


DETECTOR = PostprocessSettings.model_validate({"boxes": {"transposed": True}})


def test_what_the_models_file_says_serves_answers(tmp_path: Path) -> None:
    exporter = Exported("detect", ("cat", "dog"))
    one = built(
        tmp_path,
        spec("batch", 3, *SIZE),
        {"source": "imagefolder:set"},
        decoding=Decoding(DETECTOR, "metadata", exporter),
    )
    made = image_serving(one, outputs((None, 6, 9)))
    assert made.postprocess["kind"] == "boxes"
    assert made.postprocess["names"] == ["cat", "dog"]
    assert "as the model's file says: postprocess: {boxes: {transposed: true}}" in made.notes[0]
    assert "names that the model's file gives them" in made.notes[1]
    # A file of two names does not name the classes of three.
    assert image_serving(one, outputs((None, 7, 9))).postprocess["names"] is None


def test_a_guess_answers_nothing(tmp_path: Path) -> None:
    guess = Decoding(DETECTOR, "shape")
    source = {"source": "imagefolder:set"}
    one = built(tmp_path, spec("batch", 3, *SIZE), source, decoding=guess)
    with pytest.raises(UsageError, match="wanted an output of scores") as caught:
        image_serving(one, outputs((None, 6, 9)))
    assert "suggests `postprocess: {boxes: {transposed: true}}`" in caught.value.hint


def test_names_of_a_detector_are_counted_too(tmp_path: Path) -> None:
    for settings, shapes in (
        ({"yolox": {}}, [(None, 84, 7)]),
        ({"boxes": {"objectness": True}}, [(None, 9, 7)]),
        ({"boxes": {"transposed": True}}, [(None, 6, 9)]),
        ({"boxes": {"scores": "out1", "background": "first"}}, [(None, 9, 4), (None, 9, 3)]),
    ):
        how = PostprocessSettings.model_validate(settings)
        one = built(
            tmp_path,
            spec("batch", 3, *SIZE),
            {"source": "imagefolder:set"},
            postprocess=how,
            class_names=("a", "b", "c"),
        )
        with pytest.raises(InputError, match="names 3 classes, the model has 2"):
            image_serving(one, outputs(*shapes))


# --- real models ------------------------------------------------------------------------------------


def run(file: Path, name: str, row: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs for one row, without the batch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, (out[0] for out in session.run(None, {name: row[None]})), strict=True))


@pytest.mark.slow
def test_yolox_finds_in_photographs_what_optcli_finds(shared: Path, tmp_path: Path) -> None:
    place = shared / "datasets" / "coco_tiny_val"
    prepare = {"letterbox": {"size": 416, "fill": 114, "align": "top_left"}, "channel_order": "bgr"}
    wanted = {"name": "images", "shape": (1, 3, 416, 416)}
    after = PostprocessSettings.model_validate({"yolox": {}})
    one = built(tmp_path, wanted, {"source": f"coco:{place}", "prepare": prepare}, postprocess=after)
    found = (Tensor(name="output", dtype="float32", shape=(1, 3549, 85)),)
    made = image_serving(one, found)
    assert [note for note in made.notes if "plan" not in note] == []
    made.write(tmp_path)
    taking = images.Images.from_file(tmp_path / "images.json")
    answering = postprocess.Postprocess.from_file(tmp_path / "postprocess.json")
    assert one.samples.data is not None
    samples = data.open(one.samples.data, tmp_path, one.inputs)
    step = decoding.make(after, tmp_path)
    assert step is not None
    seen = set()
    for index in range(0, 80, 8):
        sample = samples[index]
        array, placement = taking.prepared((place / "images" / sample.id).read_bytes())
        np.testing.assert_array_equal(array, sample.inputs["images"])
        arrays = run(shared / "models" / "yolox_nano.onnx", "images", array)
        answer = answering.answer(arrays, placement)
        own = inside(step(arrays, sample.meta, (416, 416)), *placement["original_size"])
        assert len(answer["boxes"]) == len(own["boxes"]) > 0
        assert [each["box"] for each in answer["boxes"]] == own["boxes"].tolist()
        assert [each["label"] for each in answer["boxes"]] == own["labels"].tolist()
        seen |= {each["name"] for each in answer["boxes"] if each["score"] > 0.5}
    assert "person" in seen


@pytest.mark.slow
def test_resnet20_names_the_classes_that_the_metric_counts(shared: Path, tmp_path: Path) -> None:
    place = shared / "datasets" / "cifar10_subset" / "test"
    prepare = {"scale": "1/255", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    wanted = {"name": "input", "shape": ("batch", 3, 32, 32)}
    one = built(tmp_path, wanted, {"source": f"imagefolder:{place}", "prepare": prepare})
    made = image_serving(one, (Tensor(name="logits", dtype="float32", shape=(None, 10)),))
    assert made.postprocess["names"] is not None
    assert made.postprocess["names"][:3] == ["airplane", "automobile", "bird"]
    taking, answering = images.Images(made.images), postprocess.Postprocess(made.postprocess)
    assert one.samples.data is not None
    samples = data.open(one.samples.data, tmp_path, one.inputs)
    right = 0
    for index in range(0, 2000, 40):
        sample = samples[index]
        array, placement = taking.prepared((place / sample.id).read_bytes())
        np.testing.assert_array_equal(array, sample.inputs["input"])
        arrays = run(shared / "models" / "resnet20_cifar10.onnx", "input", array)
        answer = answering.answer(arrays, placement)["classes"]
        predicted, confidence = best(arrays["logits"][None].astype(np.float64))
        assert (answer[0]["label"], answer[0]["score"]) == (predicted[0], confidence[0])
        assert answer[0]["name"] == made.postprocess["names"][answer[0]["label"]]
        right += answer[0]["label"] == sample.target
    assert right >= 35  # of 50; 81 % of all 2,000


@pytest.mark.slow
def test_torchvision_and_coco_say_their_names(shared: Path, tmp_path: Path) -> None:
    coco = DataSettings(source=f"coco:{shared / 'datasets' / 'coco_tiny_val'}")
    names = data.class_names(coco, tmp_path)
    assert names is not None
    assert (len(names), names[0], names[79]) == (80, "person", "toothbrush")
    fashion = {"source": "torchvision:FashionMNIST", "root": str(shared / "datasets"), "split": "test"}
    found = data.class_names(DataSettings.model_validate(fashion), tmp_path)
    assert found is not None
    assert (len(found), found[9]) == (10, "Ankle boot")
    npz = tmp_path / "set.npz"
    np.savez(npz, image=np.zeros((2, 4, 4, 3), np.uint8))
    assert data.class_names(DataSettings(source=f"npz:{npz}"), tmp_path) is None
