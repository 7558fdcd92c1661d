"""The mAP of masks, keypoints and rotated boxes: pycocotools' own, from beginning to end."""

import contextlib
import io
import json

import numpy as np
import pytest
from pycocotools import mask as library
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from optcli import data
from optcli.accuracy import bounds, objects, shards
from optcli.accuracy.metrics import Predictions
from optcli.accuracy.metrics.keypoint_map import KeypointMap
from optcli.accuracy.metrics.map import Map
from optcli.accuracy.metrics.mask_map import MaskMap
from optcli.accuracy.metrics.rotated_map import RotatedMap
from optcli.data import DataSettings
from optcli.errors import InputError
from optcli.outputs import instances
from optcli.settings import TensorSpec

SIZE = (60, 80)
IMAGE = TensorSpec(name="x", shape=("batch", 3, 64, 64))


def library_stats(dataset, results, kind, sigmas=None):
    """COCOeval as people call it, with all its settings."""
    with contextlib.redirect_stdout(io.StringIO()):
        ground = COCO()
        ground.dataset = dataset
        ground.createIndex()
        evaluation = COCOeval(ground, ground.loadRes(results), kind)
        if sigmas is not None:
            evaluation.params.kpt_oks_sigmas = np.array(sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats


def records_of(metric, targets, found, size=SIZE, batch=4):
    parts = []
    for start in range(0, len(targets), batch):
        rows = slice(start, start + batch)
        count = len(targets[rows])
        meta = [{"image_id": start + i, "original_size": size} for i in range(count)]
        ids = [str(start + i) for i in range(count)]
        seen = Predictions(ids, targets[rows], meta, {}, found[rows])
        parts.append(shards.moved(metric.records(seen), start))
    return shards.joined_records(parts)


def shapes(generator, count):
    """Boxes, and star-like polygons in them."""
    corner = generator.uniform(0, 40, (count, 2))
    boxes = np.concatenate([corner, corner + generator.uniform(8, 30, (count, 2))], axis=1)
    angles = np.sort(generator.uniform(0, 2 * np.pi, (count, 9)), axis=1)
    reach = generator.uniform(0.5, 1, (count, 9))
    round_ = np.stack([np.cos(angles) * reach, np.sin(angles) * reach], axis=2)
    sizes = (boxes[:, 2:] - boxes[:, :2])[:, None]
    return boxes, (boxes[:, None, :2] + sizes / 2 + round_ * sizes / 2).reshape(count, 18)


def segmented(count=16, seed=0):
    """Targets as data gives them, COCO's dataset of the same, detections, and COCO's results."""
    generator = np.random.default_rng(seed)
    targets, found, annotations, results = [], [], [], []
    for image in range(count):
        objects = int(generator.integers(0, 6))
        boxes, outlines = shapes(generator, objects)
        labels, crowd = generator.integers(0, 3, objects), generator.random(objects) < 0.15
        masks = [[outline.tolist()] for outline in outlines]
        for index in np.flatnonzero(crowd):
            masks[index] = library.merge(library.frPyObjects(masks[index], *SIZE))
        target = {"boxes": boxes, "labels": labels, "crowd": crowd, "segmentation": masks}
        targets.append(target)
        marks, near = [], outlines + generator.normal(0, 1.5, outlines.shape)
        _, wild = shapes(generator, 2)
        scores = np.round(generator.random(objects + 2), 2)
        for outline in (*near, *wild):
            marks.append(library.merge(library.frPyObjects([outline.tolist()], *SIZE)))
        own = np.concatenate([labels, generator.integers(0, 4, 2)])
        found.append(
            {"boxes": np.zeros((len(own), 4)), "labels": own, "scores": scores, "masks": marks}
        )
        for index, mask in enumerate(masks):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": int(labels[index]) + 1,
                    "segmentation": mask,
                    "bbox": [0, 0, 1, 1],
                    "area": 100,
                    "iscrowd": int(crowd[index]),
                }
            )
        for mark, label, score in zip(marks, own, scores, strict=True):
            results.append(
                {
                    "image_id": image,
                    "category_id": int(label) + 1,
                    "segmentation": mark,
                    "score": float(score),
                }
            )
    dataset = {
        "images": [{"id": i, "height": SIZE[0], "width": SIZE[1]} for i in range(count)],
        "categories": [{"id": label + 1} for label in range(4)],
        "annotations": annotations,
    }
    return targets, dataset, found, results


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_mask_map_is_the_librarys(seed):
    targets, dataset, found, results = segmented(seed=seed)
    records = records_of(MaskMap(), targets, found)
    wanted = library_stats(dataset, results, "segm")
    figures = MaskMap().figures(records)
    assert MaskMap().value(records) == pytest.approx(wanted[0], abs=1e-12)
    assert figures["map50"] == pytest.approx(wanted[1], abs=1e-12)
    assert 0.05 < wanted[0] < 0.95
    assert len(bounds.resampled(MaskMap(), records, np.arange(16))) == bounds.RESAMPLES
    # Masks as truth values are the same ones.
    plain = [{**each, "masks": [library.decode(mask) for mask in each["masks"]]} for each in found]
    again = records_of(MaskMap(), targets, plain)
    assert MaskMap().value(again) == MaskMap().value(records)


@pytest.mark.slow
def test_mask_map_of_real_annotations(shared):
    """COCO's own annotations as `data: coco:` reads them, crowds and objects of several parts too."""
    folder = shared / "datasets" / "coco_tiny_val"
    dataset = json.loads((folder / "instances.json").read_text())
    settings = DataSettings.model_validate({"source": f"coco:{folder}"})
    samples = data.open(settings, folder, [IMAGE])
    targets = [target for _, target in samples.targets()]
    metas = {image["file_name"]: image for image in dataset["images"]}
    chosen = [metas[name] for name, _ in samples.targets()]
    assert len(chosen) == 80
    generator = np.random.default_rng(0)
    found, results = [], []
    categories = sorted(category["id"] for category in dataset["categories"])
    for image, target in zip(chosen, targets, strict=True):
        marks, labels, scores = [], [], []
        size = image["height"], image["width"]
        for label, mask in zip(target["labels"], target["segmentation"], strict=True):
            whole = mask if isinstance(mask, dict) else library.merge(library.frPyObjects(mask, *size))
            if isinstance(whole["counts"], list):
                whole = library.frPyObjects(whole, *size)
            moved = np.roll(library.decode(whole), int(generator.integers(-4, 5)), axis=1)
            marks.append(library.encode(np.asfortranarray(moved)))
            labels.append(int(label))
            scores.append(float(generator.random()))
            results.append(
                {
                    "image_id": image["id"],
                    "category_id": categories[int(label)],
                    "segmentation": marks[-1],
                    "score": scores[-1],
                }
            )
        boxes = np.zeros((len(marks), 4))
        found.append({"boxes": boxes, "labels": labels, "scores": scores, "masks": marks})
    parts = []
    for index, (image, target) in enumerate(zip(chosen, targets, strict=True)):
        meta = [{"image_id": image["id"], "original_size": (image["height"], image["width"])}]
        seen = Predictions([str(index)], [target], meta, {}, [found[index]])
        parts.append(shards.moved(MaskMap().records(seen), index))
    records = shards.joined_records(parts)
    wanted = library_stats(dataset, results, "segm")
    assert MaskMap().value(records) == pytest.approx(wanted[0], abs=1e-12)
    assert MaskMap().figures(records)["map75"] == pytest.approx(wanted[2], abs=1e-12)
    assert 0.3 < wanted[0] < 0.99


def posed(keypoints, count=24, seed=0):
    generator = np.random.default_rng(seed)
    targets, found, annotations, results = [], [], [], []
    for image in range(count):
        objects = int(generator.integers(0, 4))
        boxes, _ = shapes(generator, objects)
        sizes = boxes[:, 2:] - boxes[:, :2]
        places = boxes[:, None, :2] + generator.random((objects, keypoints, 2)) * sizes[:, None]
        visible = generator.integers(0, 3, (objects, keypoints, 1))
        visible[generator.random(objects) < 0.2] = 0
        points = np.concatenate([places, visible], axis=2)
        areas = sizes.prod(axis=1) * generator.uniform(0.3, 0.9, objects)
        crowd, labels = generator.random(objects) < 0.1, np.zeros(objects, int)
        targets.append(
            {"boxes": boxes, "labels": labels, "crowd": crowd, "areas": areas, "keypoints": points}
        )
        near = places + generator.normal(0, 1.5, places.shape)
        wild = generator.uniform(0, 60, (2, keypoints, 2))
        marks = np.concatenate([near, wild])
        scores = np.round(generator.random(len(marks)), 2)
        found.append(
            {
                "boxes": np.zeros((len(marks), 4)),
                "labels": np.zeros(len(marks), int),
                "scores": scores,
                "keypoints": marks,
            }
        )
        for index in range(objects):
            corner, size = boxes[index, :2], sizes[index]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": 1,
                    "keypoints": points[index].reshape(-1).tolist(),
                    "num_keypoints": int((visible[index] > 0).sum()),
                    "bbox": [*corner.tolist(), *size.tolist()],
                    "area": float(areas[index]),
                    "iscrowd": int(crowd[index]),
                }
            )
        for mark, score in zip(marks, scores, strict=True):
            triples = np.concatenate([mark, np.ones((keypoints, 1))], axis=1)
            results.append(
                {
                    "image_id": image,
                    "category_id": 1,
                    "keypoints": triples.reshape(-1).tolist(),
                    "score": float(score),
                }
            )
    dataset = {
        "images": [{"id": image} for image in range(count)],
        "categories": [{"id": 1}],
        "annotations": annotations,
    }
    return targets, dataset, found, results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "sigmas", "options"),
    [(17, None, {}), (5, [0.2] * 5, {}), (3, [0.1, 0.05, 0.3], {"sigmas": [0.1, 0.05, 0.3]})],
)
def test_keypoint_map_is_the_librarys(count, sigmas, options):
    targets, dataset, found, results = posed(count)
    metric = KeypointMap.model_validate(options)
    records = records_of(metric, targets, found)
    wanted = library_stats(dataset, results, "keypoints", sigmas)
    assert metric.value(records) == pytest.approx(wanted[0], abs=1e-12)
    assert metric.figures(records)["map50"] == pytest.approx(wanted[1], abs=1e-12)
    assert 0.05 < wanted[0] < 0.95
    # Keypoints with how surely each is visible are compared by their places alone.
    sure = [
        {**each, "keypoints": np.concatenate([each["keypoints"], each["keypoints"][..., :1]], axis=2)}
        for each in found
    ]
    assert metric.value(records_of(metric, targets, sure)) == metric.value(records)


def test_an_area_that_is_not_there_is_a_part_of_the_box():
    targets, _, _, _ = posed(5, count=4)
    without = {key: value for key, value in targets[0].items() if key != "areas"}
    sizes = without["boxes"][:, 2:] - without["boxes"][:, :2]
    fields = KeypointMap().truth(without, "a")["fields"]
    assert [each["area"] for each in fields] == pytest.approx((0.53 * sizes.prod(axis=1)).tolist())


def rotated(generator, count):
    centres = np.concatenate(
        [generator.uniform(10, 70, (count, 2)), generator.uniform(2, 40, (count, 2))], axis=1
    )
    return instances.corners_of(centres, generator.uniform(-2, 2, count))


def test_the_overlap_of_rotated_boxes_is_that_of_their_pixels():
    generator = np.random.default_rng(0)
    first, second = rotated(generator, 8), rotated(generator, 7)
    axis = np.arange(-40, 120, 0.2) + 0.1

    def inside(corners):
        along = np.roll(corners, -1, axis=0) - corners
        sides = np.stack(
            [
                dx * (axis[:, None] - y) > dy * (axis - x)
                for (x, y), (dx, dy) in zip(corners, along, strict=True)
            ]
        )
        return sides.all(axis=0) | ~sides.any(axis=0)

    pixels = [[inside(corners) for corners in each] for each in (first, second)]
    wanted = [[(a & b).sum() / (a | b).sum() for b in pixels[1]] for a in pixels[0]]
    assert np.allclose(objects.quadrangle_overlaps(first, second), wanted, atol=5e-3)
    assert (np.array(wanted) > 0.05).sum() > 5


def test_the_overlap_of_boxes_that_share_edges_is_exact():
    def upright(left, top, right, bottom):
        return [[left, top], [right, top], [right, bottom], [left, bottom]]

    boxes = np.array(
        [upright(0, 0, 4, 4), upright(2, 0, 6, 4), upright(4, 0, 8, 4), upright(1, 1, 2, 3)]
    )
    wanted = [[1, 1 / 3, 0, 1 / 8], [1 / 3, 1, 1 / 3, 0], [0, 1 / 3, 1, 0], [1 / 8, 0, 0, 1]]
    assert np.allclose(objects.quadrangle_overlaps(boxes, boxes), wanted)
    # In either order of the corners, beginning with any, far from the origin, and turned.
    for turn in (0.0, 0.7, np.pi / 4):
        cos, sin = np.cos(turn), np.sin(turn)
        moved = boxes @ np.array([[cos, sin], [-sin, cos]]) + 5000
        assert np.allclose(objects.quadrangle_overlaps(moved, moved), wanted, atol=1e-6)
        assert np.allclose(objects.quadrangle_overlaps(moved, moved[:, ::-1]), wanted, atol=1e-6)
        assert np.allclose(
            objects.quadrangle_overlaps(moved, np.roll(moved, 1, axis=1)), wanted, atol=1e-6
        )
    flat = np.array([upright(0, 0, 4, 0)])
    assert objects.quadrangle_overlaps(flat, boxes).max() == 0
    assert objects.quadrangle_overlaps(flat, flat).max() == 0
    assert objects.quadrangle_overlaps(boxes[:0], boxes).shape == (0, 4)


@pytest.mark.slow
def test_rotated_map_of_upright_boxes_is_the_map_of_boxes():
    generator = np.random.default_rng(3)
    targets, found = [], []
    for _ in range(20):
        boxes, _ = shapes(generator, int(generator.integers(0, 5)))
        labels = generator.integers(0, 3, len(boxes))
        near = np.concatenate([boxes + generator.normal(0, 1.5, boxes.shape), [[1, 1, 9, 9]]])
        given = []
        for each in (boxes, near):
            given.append(
                np.stack([each[:, [0, 1]], each[:, [2, 1]], each[:, [2, 3]], each[:, [0, 3]]], 1)
            )
        targets.append({"boxes": boxes, "labels": labels, "corners": given[0]})
        found.append(
            {
                "boxes": near,
                "labels": np.append(labels, 1),
                "scores": generator.random(len(near)),
                "corners": given[1],
            }
        )
    upright = Map().value(records_of(Map(), targets, found))
    records = records_of(RotatedMap(), targets, found)
    assert RotatedMap().value(records) == pytest.approx(upright, abs=1e-12)
    assert 0.1 < upright < 0.9
    # Polygons of four corners, as annotations in COCO's format have them, are corners.
    as_polygons = [
        {
            **{k: v for k, v in each.items() if k != "corners"},
            "segmentation": [[c.reshape(-1).tolist()] for c in each["corners"]],
        }
        for each in targets
    ]
    again = records_of(RotatedMap(), as_polygons, found)
    assert RotatedMap().value(again) == RotatedMap().value(records)
    # The same boxes, turned where they stand, are others.
    turned = [{**each, "corners": np.roll(each["corners"], 1, axis=2)} for each in found]
    assert RotatedMap().value(records_of(RotatedMap(), targets, turned)) < upright / 2


ONE = {"boxes": [[0, 0, 9, 9]], "labels": [0]}
MARK = {**ONE, "scores": [0.5]}


@pytest.mark.parametrize(
    ("metric", "target", "decoded", "message"),
    [
        (MaskMap, ONE, MARK, "the target has no segmentation"),
        (MaskMap, {**ONE, "segmentation": []}, MARK, "1 boxes and 0 masks"),
        (MaskMap, {**ONE, "segmentation": [None]}, MARK, "the segmentation of object 0 is None"),
        (MaskMap, {**ONE, "segmentation": [[[1, 2, 3, 4]]]}, MARK, "segmentation of object 0"),
        (MaskMap, {**ONE, "segmentation": [{"size": [9, 9], "counts": [81]}]}, MARK, "9, 9"),
        (
            MaskMap,
            {**ONE, "segmentation": [[[1, 1, 5, 1, 5, 5]]]},
            MARK,
            "detections of a have no masks",
        ),
        (
            MaskMap,
            {**ONE, "segmentation": [[[1, 1, 5, 1, 5, 5]]]},
            {**MARK, "masks": [np.ones((9, 9))]},
            "a mask of a has",
        ),
        (
            MaskMap,
            {**ONE, "segmentation": [[[1, 1, 5, 1, 5, 5]]]},
            {**MARK, "masks": []},
            "1 boxes and 0 masks for a",
        ),
        (KeypointMap, ONE, MARK, "the target has no keypoints"),
        (KeypointMap, {**ONE, "keypoints": [[1, 2, 2]]}, MARK, "the shape"),
        (KeypointMap, {**ONE, "keypoints": [[[1, 2, 2]]]}, MARK, "detections of a have no keypoints"),
        (
            KeypointMap,
            {**ONE, "keypoints": [[[1, 2, 2]]]},
            {**MARK, "keypoints": np.zeros((1, 3, 2))},
            "a detection has 3 keypoints, and an object has 1",
        ),
        (RotatedMap, ONE, MARK, "1 boxes, and corners of 0"),
        (RotatedMap, {**ONE, "corners": np.zeros((1, 4, 2))}, MARK, "have no corners"),
    ],
)
def test_what_does_not_fit_is_said(metric, target, decoded, message):
    with pytest.raises(InputError, match=message) as caught:
        metric().records(Predictions(["a"], [target], [{"original_size": SIZE}], {}, [decoded]))
    assert caught.value.hint


def test_sigmas_are_one_for_each_keypoint():
    target = {**ONE, "keypoints": [[[1, 2, 2]]]}
    with pytest.raises(InputError, match="2 sigmas, and an object has 1 keypoints"):
        KeypointMap(sigmas=(0.1, 0.2)).kind([KeypointMap().truth(target, "a")])


def test_an_image_without_objects_needs_no_keypoints():
    empty = {"boxes": [], "labels": [], "keypoints": []}
    records = records_of(KeypointMap(), [empty], [{**MARK, "keypoints": np.zeros((1, 3, 2))}])
    assert len(records["detection_score"]) == 1
    assert not len(records["truth_class"])
