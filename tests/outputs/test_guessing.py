"""What a first recipe takes outputs for: classes, pixels, and the forms of detectors."""

import pytest

from optcli.outputs import Probe, decoding, describe, guess, guessed_decoding
from optcli.outputs.describing import of_one_sample
from optcli.recipe import load
from optcli.scaffold.inspection import Tensor
from optcli.settings import TensorSpec

NAMES = str({number: f"thing{number}" for number in range(80)})
CELLS = 52 * 52 + 26 * 26 + 13 * 13  # of an image of 416 x 416


def spec(*shape: int | str) -> TensorSpec:
    record = {"name": "x", "dtype": "float32", "shape": list(shape)}
    ranges = {"batch": {"min": 1, "opt": 8, "max": 32}} if "batch" in shape else {}
    return TensorSpec.model_validate({**record, **ranges})


IMAGE = spec("batch", 3, 416, 416)


def outputs(*shapes, **named):
    """Outputs `y0`, `y1` ... of these shapes, and named ones; `labels` are int64."""
    shapes = {**{f"y{number}": shape for number, shape in enumerate(shapes)}, **named}
    return [
        Tensor(name=name, dtype="int64" if name == "labels" else "float32", shape=shape)
        for name, shape in shapes.items()
    ]


@pytest.mark.parametrize(
    ("shape", "kind", "count", "says"),
    [
        (["N", 10], "classes", 10, ""),
        (["N", 21, 416, 416], "pixels", 21, ""),
        (["N", 21, 104, 104], "pixels", 21, ""),
        (["N", 2048, 1, 1], "unknown", None, ""),
        ([1, CELLS, 85], "boxes", 80, "yolox: {}"),
        ([1, 84, CELLS], "boxes", 80, "transposed: true"),
        ([1, 3 * CELLS, 85], "boxes", 80, "objectness: true"),
        ([1, 7, 9], "unknown", None, ""),
        ([1, 300, 6], "unknown", None, ""),
        ([1, 56, CELLS], "boxes", 1, "classes: 1"),
    ],
)
def test_a_shape_is_guessed(shape, kind, count, says):
    found = guess(outputs(shape), [IMAGE], probe=Probe(20, rows=False))
    assert (found.kind, found.count) == (kind, count)
    assert says in found.postprocess


def test_an_input_that_is_no_image_may_stand_first():
    sized = TensorSpec.model_validate({"name": "size", "dtype": "int64", "shape": ["batch", 2]})
    assert guess(outputs([1, 84, CELLS]), [sized, IMAGE]).count == 80


def test_boxes_that_are_decoded_already():
    found = guess(outputs([1, CELLS, 85]), [spec(1, 3, 416, 416)], probe=Probe(409, rows=False))
    assert found.postprocess == "{yolox: {decoded: true}}"


# Rows are told from a detector of two classes by what they hold.
@pytest.mark.parametrize("shape", [[1, 300, 6], ["N", "M", 6], [1, 100, 6]])
def test_rows_of_six_are_told_by_their_values(shape):
    assert guess(outputs(shape), [IMAGE], probe=Probe(400, rows=True)).postprocess == "{rows: {}}"
    assert guess(outputs(shape), [IMAGE], probe=Probe(400, rows=False)).kind == "unknown"


def test_a_segmentation_model_has_no_class_for_its_masks():
    found = guess(outputs([1, 116, CELLS], [1, 32, 104, 104]), [IMAGE])
    assert (found.count, found.source) == (80, "shape")
    assert 'classes: 80, prototypes: "y1"' in found.postprocess


def test_a_detector_of_52_classes_is_no_pose_where_the_data_say_so():
    found = guess(outputs([1, 56, CELLS]), [IMAGE], classes=52)
    assert (found.count, "classes" in found.postprocess) == (52, False)


OLD = "{boxes: {format: cxcywh, transposed: true, classes: 80, nms: 0.65}}"
POSE = {"names": "{0: 'person'}", "kpt_shape": "[17, 3]"}
CANDIDATES = "format: cxcywh, transposed: true, classes"


@pytest.mark.parametrize(
    ("task", "more", "shapes", "count", "says"),
    [
        ("detect", {}, [[1, 84, 50]], 80, "{boxes: {format: cxcywh, transposed: true, nms: 0.65}}"),
        ("detect", {}, [[1, 5000, 85]], 80, "{boxes: {format: cxcywh, objectness: true, nms: 0.65}}"),
        ("detect", {}, [["N", 300, 6]], 80, "{rows: {}}"),
        ("segment", {}, [[1, 116, "A"]], 80, OLD),
        (
            "segment",
            {},
            [[1, 116, "A"], [1, 32, "h", "w"]],
            80,
            f'{{boxes: {{{CANDIDATES}: 80, prototypes: "y1", nms: 0.65}}}}',
        ),
        ("segment", {}, [[1, 300, 38], [1, 32, 104, 104]], 80, '{rows: {prototypes: "y1"}}'),
        ("segment", {}, [[1, 300, 38], [1, 104, 104, 32]], 80, '{rows: {prototypes: "y1"}}'),
        (
            "pose",
            POSE,
            [[1, 56, 50]],
            1,
            f"{{boxes: {{{CANDIDATES}: 1, keypoints: [17, 3], nms: 0.65}}}}",
        ),
        ("pose", {**POSE, "kpt_shape": "(5, 2)"}, [[1, 300, 16]], 1, "{rows: {keypoints: [5, 2]}}"),
        ("detect", {"names": "['one']"}, [["N", 300, 6]], 1, "{rows: {}}"),
        (
            "detect",
            {"names": "['one']"},
            [["N", 25200, 6]],
            1,
            "{boxes: {format: cxcywh, objectness: true, nms: 0.65}}",
        ),
        ("obb", {}, [[1, 85, 50]], 80, f"{{boxes: {{{CANDIDATES}: 80, angle: true, nms: 0.65}}}}"),
        ("obb", {}, [[1, 300, 7]], 80, "{rows: {format: cxcywh, angle: true}}"),
        ("detect", {}, [[1, 99, 50]], 80, ""),
        ("classify", {}, [[1, 80]], 80, ""),
    ],
)
def test_the_exporter_is_believed(task, more, shapes, count, says):
    metadata = {"task": task, "names": NAMES, **more}
    found = guess(outputs(*shapes), [IMAGE], metadata=metadata)
    assert (found.count, found.source) == (count, "metadata")
    assert found.postprocess == says
    assert (found.kind == "unknown") == (not says and task != "classify")
    without = task == "segment" and len(shapes) == 1
    assert bool(found.note) == (found.kind == "unknown" or without)
    if found.kind == "boxes":  # and the decoding says the same of the outputs as the metadata
        known = decoding(outputs(*shapes), [IMAGE], metadata)
        seen = of_one_sample(outputs(*shapes))
        said = [each.parts for each in describe(seen, postprocess=known)]
        if not without:
            written = describe(seen, metadata=metadata)
            assert said == [each.parts for each in written]


def test_outputs_of_boxes_beside_scores():
    detr = outputs(logits=["N", 300, 80], pred_boxes=["N", 300, 4])
    found = guess(detr, [IMAGE], classes=80)
    names = "boxes: pred_boxes, scores: logits, format: cxcywh, normalized: true"
    assert found.postprocess == f"{{boxes: {{{names}, activation: sigmoid}}}}"
    found = guess(detr, [IMAGE], classes=79)
    assert found.postprocess == f"{{boxes: {{{names}, activation: softmax, background: last}}}}"
    assert found.count == 79
    faces = outputs(scores=[1, 4420, 2], boxes=[1, 4420, 4])
    options = "normalized: true, background: first, nms: 0.65"
    found = guess(faces, [IMAGE], probe=Probe(1, rows=False, decoding_options=options))
    assert found.postprocess == f"{{boxes: {{boxes: boxes, scores: scores, {options}}}}}"
    assert found.count == 1
    said = "{boxes: {boxes: boxes, scores: scores, labels: labels}}"
    for shapes in (
        {"boxes": ["n", 4], "labels": ["n"], "scores": ["n"]},
        {"labels": ["N", 300], "boxes": ["N", 300, 4], "scores": ["N", 300]},
    ):
        assert guess(outputs(**shapes), [IMAGE]).postprocess == said


@pytest.mark.parametrize(
    ("kind", "shape"), [("masks", ["n", 1, 416, 416]), ("keypoints", ["n", 17, 3])]
)
def test_what_a_detector_of_torchvision_gives_for_each_box(kind, shape):
    shapes = {"boxes": ["n", 4], "labels": ["n"], "scores": ["n"], kind: shape}
    shapes[f"{kind}_scores"] = ["n", 17]
    found = outputs(**shapes)
    said = guess(found, [IMAGE]).postprocess
    assert said == f"{{boxes: {{boxes: boxes, scores: scores, labels: labels, {kind}: {kind}}}}}"
    # Without a recipe the boxes are looked at, and them alone.
    settings = guessed_decoding(found, [IMAGE], None)
    assert settings.boxes.labels == "labels"
    assert settings.boxes.masks is settings.boxes.keypoints is None


def test_every_decoding_is_one_that_a_recipe_may_have(tmp_path):
    seen = [
        (outputs([1, CELLS, 85]), {}),
        (outputs([1, 84, CELLS]), {}),
        (outputs([1, 3 * CELLS, 85]), {}),
        (outputs([1, 56, CELLS]), {}),
        (outputs([1, 116, CELLS], [1, 32, 104, 104]), {}),
        (outputs([1, 300, 6]), {"probe": Probe(400, rows=True)}),
        (outputs(logits=["N", 300, 80], pred_boxes=["N", 300, 4]), {"classes": 79}),
        (outputs(boxes=["n", 4], labels=["n"], scores=["n"]), {}),
        (outputs(boxes=["n", 4], labels=["n"], scores=["n"], keypoints=["n", 17, 3]), {}),
    ]
    (tmp_path / "m.onnx").write_bytes(b"x")
    for number, (shapes, more) in enumerate(seen):
        found = guess(shapes, [IMAGE], **more)
        recipe = tmp_path / f"{number}.yaml"
        recipe.write_text(
            "version: 1\nname: x\nmodel: {source: 'onnx:m.onnx'}\n"
            "inputs: [{name: x, shape: [1, 3, 416, 416]}]\nvariants: {onnx: []}\n"
            f"postprocess: {found.postprocess}\n"
        )
        assert load(recipe).postprocess is not None
