"""Masks, keypoints and rotated boxes: as torch and pycocotools compute them, in the original."""

import numpy as np
import pytest

from optcli.accuracy import decoding
from optcli.errors import InputError
from optcli.outputs import instances, suppression
from optcli.settings.postprocess import PostprocessSettings

SIZE = (96, 128)  # of the input: height, width
# A picture of 200 x 100 in a letterbox of the input: (vertical, horizontal), (top, left).
PLACED = {"original_size": (100, 200), "scale": (0.64, 0.64), "padding": (16, 0)}
BOXES = np.array([[10, 20, 70, 60], [60, 30, 128, 80], [20, 40, 30, 50]], np.float32)
SCORES = np.array([0.9, 0.8, 0.7], np.float32)
LABELS = np.array([0, 1, 1])


def detector(classes=2, **how):
    return decoding.make(PostprocessSettings.model_validate(how), None, classes)


def centred(boxes=BOXES):
    return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], axis=1)


def columns(*behind, objectness=False):
    """A row for each box: centre, width, height, (objectness,) scores of two classes, and more."""
    scores = np.zeros((3, 2), np.float32)
    scores[np.arange(3), LABELS] = SCORES
    sure = [np.ones((3, 1))] if objectness else []
    return np.concatenate([centred(), *sure, scores, *behind], axis=1).astype(np.float32)


def rows(*behind, boxes=BOXES):
    parts = [boxes, SCORES[:, None], LABELS[:, None], *behind]
    found = np.concatenate(parts, axis=1).astype(np.float32)
    return np.concatenate([found, np.zeros((4, found.shape[1]), np.float32)])


def mapped(generator, count=8):
    """Coefficients, and smooth prototypes of a quarter of the input."""
    coarse = generator.standard_normal((count, 6, 8)).astype(np.float32)
    prototypes = np.repeat(np.repeat(coarse, 4, axis=1), 4, axis=2)
    return generator.standard_normal((3, count)).astype(np.float32), prototypes


def rendered(coefficients, prototypes, boxes, placed, size=SIZE):
    """Masks of an independent implementation: torch resizes to the input, one pixel at a time."""
    import torch

    logits = torch.tensor(coefficients) @ torch.tensor(prototypes).reshape(len(prototypes), -1)
    logits = logits.reshape(1, len(coefficients), *prototypes.shape[1:])
    height, width = placed["original_size"]
    (down, across), (top, left) = placed["scale"], placed["padding"]
    y = ((torch.arange(height) + 0.5) * down + top) / size[0] * 2 - 1
    x = ((torch.arange(width) + 0.5) * across + left) / size[1] * 2 - 1
    grid = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], dim=-1)[None].float()
    values = torch.nn.functional.grid_sample(logits, grid, padding_mode="border", align_corners=False)[
        0
    ].numpy()
    there = np.zeros(values.shape, bool)
    for index, (first_x, first_y, end_x, end_y) in enumerate(boxes):
        rows, columns = np.arange(height)[:, None], np.arange(width)[None]
        inside = (columns >= first_x) & (columns < end_x) & (rows >= first_y) & (rows < end_y)
        there[index] = (values[index] > 0) & inside
    return there


def decoded(masks):
    from pycocotools import mask

    return np.stack([mask.decode(each) for each in masks]).astype(bool)


LAYOUTS = ["candidates", "transposed", "objectness", "rows", "classes", "channels last"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks_are_those_of_every_pixel(layout):
    coefficients, prototypes = mapped(np.random.default_rng(0))
    how = {"prototypes": "output1", "nms": 0.5}
    outputs = {"output0": columns(coefficients)[None], "output1": prototypes[None]}
    if layout == "rows":
        step = detector(rows=how)
        outputs["output0"] = rows(coefficients)[None]
    else:
        how |= {"format": "cxcywh"}
        if layout == "transposed":
            how["transposed"] = True
            outputs["output0"] = outputs["output0"].swapaxes(1, 2)
        elif layout == "objectness":
            how["objectness"] = True
            outputs["output0"] = columns(coefficients, objectness=True)[None]
        elif layout in ("classes", "channels last"):
            how["classes"] = 2
        if layout == "channels last":
            outputs["output1"] = np.moveaxis(outputs["output1"], 1, -1)
        step = detector(boxes=how)
    found = step(outputs, PLACED, SIZE)
    assert found["labels"].tolist() == LABELS.tolist()
    expected = (BOXES - [0, 16, 0, 16]) / 0.64
    assert np.allclose(found["boxes"], expected, atol=1e-3)
    wanted = rendered(coefficients, prototypes, expected, PLACED)
    ours = decoded(found["masks"])
    assert ours.shape == wanted.shape
    assert 0 < wanted.sum() < wanted.size
    # An edge that lies on the centre of a pixel may fall to either side.
    assert (ours != wanted).sum() <= 2
    assert not step.noted


@pytest.mark.slow
@pytest.mark.parametrize(
    "placed",
    [
        {"original_size": (96, 128), "scale": (1.0, 1.0), "padding": (0, 0)},
        {"original_size": (33, 500), "scale": (96 / 33, 128 / 500), "padding": (0, 0)},
        {"original_size": (900, 1200), "scale": (96 / 900, 128 / 1200), "padding": (0, 0)},
        {"original_size": (3, 3), "scale": (32.0, 32.0), "padding": (0, 16)},
    ],
)
def test_masks_of_larger_smaller_and_distorted_pictures(placed):
    generator = np.random.default_rng(1)
    coefficients, prototypes = mapped(generator)
    step = detector(rows={"prototypes": "p"})
    found = step({"o": rows(coefficients), "p": prototypes}, placed, SIZE)
    wanted = rendered(coefficients, prototypes, found["boxes"], placed)
    assert (decoded(found["masks"]) != wanted).mean() < 1e-4


def test_a_mask_ends_at_the_picture_and_may_be_empty():
    coefficients, prototypes = np.array([[1.0], [-1.0], [1.0]]), np.ones((1, 24, 32), np.float32)
    boxes = np.array([[-50, -50, 400, 400], [0, 0, 50, 50], [500, 500, 600, 600]])
    step = detector(rows={"prototypes": "p"})
    found = step({"o": rows(coefficients, boxes=boxes), "p": prototypes}, PLACED, SIZE)
    whole, negative, outside = decoded(found["masks"])
    assert whole.all()
    assert not negative.any()
    assert not outside.any()


@pytest.mark.slow
def test_the_text_of_a_mask_is_pycocotools_own():
    from pycocotools import mask

    generator = np.random.default_rng(2)
    for height, width in [(1, 1), (1, 9), (7, 1), (37, 53), (900, 1300)]:
        for share in (0.0, 0.02, 0.5, 1.0):
            pixels = (generator.random((height, width)) < share).astype(np.uint8)
            flat = np.concatenate([[0], pixels.T.reshape(-1), [0]])
            changes = np.flatnonzero(np.diff(flat))
            text = instances.run_lengths(changes, height * width)
            assert text == mask.encode(np.asfortranarray(pixels))["counts"].decode()


@pytest.mark.slow
def test_300_masks_take_little_time_and_memory():
    import tracemalloc

    generator = np.random.default_rng(3)
    prototypes = generator.standard_normal((32, 160, 160)).astype(np.float32)
    boxes = np.tile(np.array([[0, 0, 640, 640]], np.float32), (300, 1))
    boxes += generator.integers(-60, 60, boxes.shape)
    columns = [boxes, np.full((300, 1), 0.5), np.zeros((300, 1)), generator.random((300, 32)) - 0.5]
    outputs = {"o": np.concatenate(columns, axis=1).astype(np.float32), "p": prototypes}
    placed = {"original_size": (480, 640), "scale": (1.0, 1.0), "padding": (80, 0)}
    step = detector(rows={"prototypes": "p"})
    tracemalloc.start()
    found = step(outputs, placed, (640, 640))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found["masks"]) == 300
    assert most < 100e6


def test_whole_masks_and_keypoints_in_outputs_of_their_own():
    """torchvision's Mask R-CNN and Keypoint R-CNN: `masks [n, 1, H, W]`, `keypoints [n, 17, 3]`."""
    masks = np.zeros((3, 1, *SIZE), np.float32)
    masks[0, 0, 20:60, 10:70] = 0.9
    masks[1, 0, 30:80, 60:128] = 0.4
    points = np.random.default_rng(0).random((3, 17, 3)).astype(np.float32) * 60
    named = {"boxes": "boxes", "scores": "scores", "labels": "labels"}
    outputs = {"boxes": BOXES, "scores": SCORES, "labels": LABELS, "masks": masks, "points": points}
    step = detector(boxes={**named, "masks": "masks", "keypoints": "points"})
    found = step(outputs, {}, SIZE)
    first, second, third = decoded(found["masks"])
    expected = np.zeros(SIZE, bool)
    expected[20:60, 10:70] = True
    assert np.array_equal(first, expected)
    assert not second.any()
    assert not third.any()
    assert np.array_equal(found["keypoints"], points)
    cut = {**outputs, "masks": masks[:, :, ::4, ::4]}
    with pytest.raises(InputError, match=r"masks have the shape \[3, 1, 24, 32\], wanted \[3, 1, 96"):
        step(cut, {}, SIZE)
    with pytest.raises(InputError, match=r"masks have the shape \[3, 2, 28, 28\]"):
        step({**outputs, "masks": np.zeros((3, 2, 28, 28), np.float32)}, {}, SIZE)
    with pytest.raises(InputError, match=r"keypoints have the shape \[2, 17, 3\]"):
        step({**outputs, "points": points[:2]}, {}, SIZE)


@pytest.mark.slow
def test_masks_of_boxes_are_pasted_as_torchvision_pastes_them():
    import torch
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    random = np.random.default_rng(0)
    coarse = torch.from_numpy(random.normal(0, 1, (3, 1, 6, 6)).astype(np.float32))
    smooth = torch.nn.functional.interpolate(coarse, (28, 28), mode="bicubic")
    masks = smooth.sigmoid()
    masks[2] = 1  # up to the edges of its box
    original = (192, 256)  # twice the input
    pasted = paste_masks_in_image(masks, torch.from_numpy(2 * BOXES), original)[:, 0] > 0.5
    named = {"boxes": "boxes", "scores": "scores", "labels": "labels", "masks": "masks"}
    outputs = {"boxes": BOXES, "scores": SCORES, "labels": LABELS, "masks": masks.numpy()}
    placement = {"original_size": original, "scale": (0.5, 0.5), "padding": (0, 0)}
    found = decoded(detector(boxes=named)(outputs, placement, SIZE)["masks"])
    for mine, theirs, box in zip(found, pasted.numpy(), 2 * BOXES, strict=True):
        assert (mine & theirs).sum() > 0.93 * (mine | theirs).sum()  # it rounds boxes to pixels
        left, top, right, bottom = box.astype(int)
        assert not mine[:top].any()
        assert not mine[:, :left].any()
        assert not mine[bottom:].any()
        assert not mine[:, right:].any()
    assert found[2].sum() == np.prod(2 * (BOXES[2, 2:] - BOXES[2, :2]))


@pytest.mark.parametrize("numbers", [2, 3])
@pytest.mark.parametrize("layout", ["candidates", "rows", "normalized"])
def test_keypoints_come_back_to_the_original(numbers, layout):
    points = np.random.default_rng(0).random((3, 5, numbers)).astype(np.float32) * 50 + 20
    given = points.copy()
    how = {"keypoints": [5, numbers]}
    if layout == "normalized":
        given[..., :2] /= [SIZE[1], SIZE[0]]
    flat = given.reshape(3, -1)
    if layout == "candidates":
        step = detector(boxes={"format": "cxcywh", "nms": 0.5, **how})
        outputs = {"o": columns(flat)[None]}
    elif layout == "rows":
        step, outputs = detector(rows=how), {"o": rows(flat)}
    else:
        step = detector(rows={**how, "normalized": True})
        outputs = {"o": rows(flat, boxes=BOXES / [SIZE[1], SIZE[0], SIZE[1], SIZE[0]])}
    found = step(outputs, PLACED, SIZE)["keypoints"]
    assert np.allclose(found[..., :2], (points[..., :2] - [0, 16]) / 0.64, atol=1e-3)
    assert np.array_equal(found[..., 2:], points[..., 2:])


def test_a_detection_of_two_classes_has_its_keypoints_twice():
    row = np.array([[40, 40, 20, 20, 0.9, 0.8, 41, 42, 43, 44]], np.float32)
    found = detector(boxes={"format": "cxcywh", "keypoints": [2, 2]})({"o": row}, {}, SIZE)
    assert found["labels"].tolist() == [0, 1]
    assert found["keypoints"].tolist() == [[[41, 42], [43, 44]]] * 2


@pytest.mark.parametrize("layout", ["candidates", "rows"])
def test_rotated_boxes_have_corners_and_an_upright_box_around_them(layout):
    angles = np.array([[0.0], [np.pi / 2], [np.pi / 4]])
    if layout == "candidates":
        step = detector(boxes={"format": "cxcywh", "angle": True, "nms": 0.5})
        outputs = {"o": columns(angles)}
    else:
        step = detector(rows={"format": "cxcywh", "angle": True})
        outputs = {"o": rows(angles, boxes=centred())}
    found = step(outputs, {"scale": (1.0, 1.0), "padding": (0, 0)}, SIZE)
    upright, turned, diagonal = found["corners"]
    assert np.allclose(sorted(upright.tolist()), [[10, 20], [10, 60], [70, 20], [70, 60]], atol=1e-4)
    # Width and height have changed places: 68 x 50 around (94, 55).
    assert np.allclose([turned.min(axis=0), turned.max(axis=0)], [[69, 21], [119, 89]], atol=1e-4)
    reach = 10 / np.sqrt(2)
    assert np.allclose(sorted(diagonal[:, 0]), [25 - reach, 25, 25, 25 + reach], atol=1e-4)
    assert np.allclose(found["boxes"][0], BOXES[0], atol=1e-4)
    assert np.allclose(found["boxes"][2], [25 - reach, 45 - reach, 25 + reach, 45 + reach], atol=1e-4)
    # Corners follow x towards y, once around: of a wide box turned by a little the right end sinks.
    tilted = instances.corners_of(np.array([[0.0, 0, 20, 2]]), np.array([0.1]))[0]
    assert tilted[tilted[:, 0] > 0, 1].min() > tilted[tilted[:, 0] < 0, 1].max()
    sides = np.linalg.norm(np.diff(tilted, axis=0, append=tilted[:1]), axis=1)
    assert np.allclose(sides, [2, 20, 2, 20])


def test_rotated_boxes_are_suppressed_by_what_they_share_when_rotated():
    # Two crossing bars share little, although the boxes around them are nearly the same.
    bars = np.array([[50, 50, 80, 8], [50, 50, 80, 8], [51, 50, 80, 8], [51, 50, 80, 8]])
    angles = np.array([np.pi / 4, -np.pi / 4, np.pi / 4, -np.pi / 4])
    stay, more = suppression.rotated_suppressed(bars, angles, np.zeros(4, int), 0.5, 10)
    assert (stay.tolist(), more) == ([0, 1], False)
    by_class = suppression.rotated_suppressed(bars, angles, np.array([0, 0, 1, 1]), 0.5, 10)
    assert by_class[0].tolist() == [0, 1, 2, 3]
    assert suppression.rotated_suppressed(bars, angles, np.zeros(4, int), None, 3)[0].tolist() == [
        0,
        1,
        2,
    ]
    stay, more = suppression.rotated_suppressed(bars, angles, np.zeros(4, int), 0.5, 1)
    assert (stay.tolist(), more) == ([0], True)


def test_probiou_is_that_of_its_definition():
    """1 - Hellinger distance of the Gaussians of two boxes, integrated numerically."""
    boxes = np.array([[0.0, 0, 6, 2], [1.0, 0.5, 5, 3]])
    angles = np.array([0.3, 0.9])
    shapes = suppression._gaussians(boxes, angles)
    axis = np.linspace(-15, 15, 1201)
    points = np.stack(np.meshgrid(axis, axis), axis=-1)
    densities = []
    for x, y, a, b, c in shapes.T:
        covariance = np.array([[a, c], [c, b]])
        apart = points - [x, y]
        exponent = np.einsum("...i,ij,...j", apart, np.linalg.inv(covariance), apart)
        densities.append(np.exp(-exponent / 2) / (2 * np.pi * np.sqrt(np.linalg.det(covariance))))
    shared = np.sqrt(densities[0] * densities[1]).sum() * (axis[1] - axis[0]) ** 2
    found = suppression._probabilistic_iou(shapes[:, :1], shapes[:, 1:])[0]
    assert found == pytest.approx(1 - np.sqrt(1 - shared), abs=1e-4)
    assert suppression._probabilistic_iou(shapes[:, :1], shapes[:, :1])[0] > 0.999


@pytest.mark.parametrize(
    ("how", "outputs", "message"),
    [
        ({"rows": {"keypoints": [5, 3]}}, {"o": rows(np.zeros((3, 4)))}, "4 numbers .* wanted 15"),
        ({"rows": {"angle": True, "format": "cxcywh"}}, {"o": rows()}, "0 numbers .* wanted 1 "),
        ({"rows": {"prototypes": "p"}}, {"o": rows(), "p": np.zeros((8, 24, 32))}, "0 numbers"),
        (
            {"rows": {"prototypes": "p"}},
            {"o": rows(np.zeros((3, 7))), "p": np.zeros((8, 24, 32))},
            r"prototypes have the shape \[8, 24, 32\], wanted \[7,",
        ),
        ({"rows": {"prototypes": "q"}}, {"o": rows(np.zeros((3, 8)))}, "no output 'q'"),
        (
            {"boxes": {"format": "cxcywh", "keypoints": [5, 3], "classes": 2}},
            {"o": columns(np.zeros((3, 4)))},
            "4 numbers",
        ),
    ],
)
def test_outputs_that_do_not_hold_what_is_said_are_refused(how, outputs, message):
    with pytest.raises(InputError, match=message):
        detector(**how)(outputs, PLACED, SIZE)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"rows": {"keypoints": [5, 3], "prototypes": "p"}}, "several of prototypes"),
        ({"boxes": {"angle": True}}, "format: cxcywh"),
        ({"boxes": {"scores": "s", "keypoints": [17, 3]}}, "outputs of their own"),
        ({"rows": {"keypoints": [17, 4]}}, "2"),
    ],
)
def test_settings_that_do_not_go_together(how, message):
    with pytest.raises(ValueError, match=message):
        PostprocessSettings.model_validate(how)
