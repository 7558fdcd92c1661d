"""Masks, keypoints and rotated boxes of a variant beside the baseline's, without labels."""

import numpy as np
import pytest

from optcli import accuracy
from optcli.accuracy.objects import Objects, records
from optcli.outputs import describe
from optcli.outputs.describing import SampleOutput
from optcli.sample import Sample
from optcli.settings import TensorSpec
from optcli.settings.postprocess import PostprocessSettings

IMAGES, EACH, SIDE = 6, 5, 128
CELLS = SIDE // 4
SPEC = TensorSpec(name="x", shape=(1, 1, SIDE, SIDE))
PLACED = {"original_size": (SIDE, SIDE), "scale": (1.0, 1.0), "padding": (0, 0)}


class Numbered:
    """Samples whose input says which one they are."""

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        pixels = np.full((1, SIDE, SIDE), index, np.float32)
        return Sample(f"image-{index}", {"x": pixels}, None, PLACED)


def boxes_of(generator):
    centres = generator.uniform(30, 98, (IMAGES, EACH, 2))
    sizes = generator.uniform(20, 50, (IMAGES, EACH, 2))
    return np.concatenate([centres, sizes], axis=2)


def columns(boxes, generator, behind):
    """Candidates `[images, 4 + 2 + more, detections]`: centre, width, height, scores of two classes."""
    scores = np.zeros((IMAGES, EACH, 2))
    labels = generator.integers(0, 2, (IMAGES, EACH))
    np.put_along_axis(scores, labels[..., None], generator.uniform(0.4, 0.9, (IMAGES, EACH, 1)), 2)
    return np.concatenate([boxes, scores, behind], axis=2).transpose(0, 2, 1).astype(np.float32)


def segmenter():
    """Masks that are the ellipse in a box: prototypes of an image are one map for each detection."""
    generator = np.random.default_rng(0)
    boxes = boxes_of(generator)
    y, x = np.mgrid[:CELLS, :CELLS] * 4 + 2
    centre, size = boxes[..., :2], boxes[..., 2:]
    apart = [
        (axis - centre[..., i, None, None]) / size[..., i, None, None] for i, axis in enumerate((x, y))
    ]
    prototypes = np.clip((0.25 - apart[0] ** 2 - apart[1] ** 2) * 20, -8, 8)
    coefficients = np.tile(np.eye(EACH), (IMAGES, 1, 1)) * generator.uniform(
        0.5, 1.5, (IMAGES, EACH, 1)
    )
    return {
        "output0": columns(boxes, generator, coefficients),
        "output1": prototypes.astype(np.float32),
    }


def poses(numbers=3):
    generator = np.random.default_rng(1)
    boxes = boxes_of(generator)
    points = (
        boxes[:, :, None, :2] + (generator.random((IMAGES, EACH, 4, 2)) - 0.5) * boxes[:, :, None, 2:]
    )
    if numbers == 3:
        points = np.concatenate([points, generator.uniform(0.6, 0.9, (IMAGES, EACH, 4, 1))], axis=3)
    return {"output0": columns(boxes, generator, points.reshape(IMAGES, EACH, -1))}


def rotated():
    generator = np.random.default_rng(2)
    boxes = boxes_of(generator)
    boxes[..., 3] = boxes[..., 2] / generator.uniform(2, 4, (IMAGES, EACH))
    return {"output0": columns(boxes, generator, generator.uniform(0.4, 1.4, (IMAGES, EACH, 1)))}


MODELS = {
    "masks": (segmenter, {"prototypes": "output1"}),
    "keypoints": (poses, {"keypoints": [4, 3]}),
    "angles": (rotated, {"angle": True}),
}


def changed(name, where, change):
    """The outputs of a model, some numbers of them changed."""
    outputs = MODELS[name][0]()
    output, numbers = where
    outputs[output][:, numbers] = change(outputs[output][:, numbers])
    return outputs


def judged(evaluate, name, mine, *, declared=True):
    make, behind = MODELS[name]
    how = {"boxes": {"format": "cxcywh", "transposed": True, **behind}}
    settings = PostprocessSettings.model_validate(how)
    theirs = make()
    evaluations = [
        evaluate(
            lambda x, outputs=outputs: {k: v[[int(x[0, 0, 0, 0])]] for k, v in outputs.items()},
            Numbered(),
            None,
            SPEC,
            postprocess=settings,
        )
        for outputs in (mine, theirs)
    ]
    seen = [SampleOutput(k, v.shape[1:], "float32") for k, v in theirs.items()]
    meanings = describe(seen, postprocess=settings) if declared else ()
    compared = accuracy.compare(*evaluations, meanings=meanings)
    verdict = accuracy.verdicts(compared, None)[0]
    assert compared.output_error.detections.confident > 20
    return verdict.outcome, verdict.reason


@pytest.mark.parametrize("name", MODELS)
def test_the_same_and_what_rounding_makes_of_it_is_accepted(evaluate, name):
    outputs = MODELS[name][0]()
    assert judged(evaluate, name, outputs)[0] == "accept"
    generator = np.random.default_rng(9)
    for key, array in outputs.items():
        scale = 0.004 * np.ptp(array, axis=(0, *range(2, array.ndim)), keepdims=True)
        noisy = array + scale * generator.standard_normal(array.shape)
        outputs[key] = noisy.astype(np.float32)
    assert judged(evaluate, name, outputs)[0] == "accept"


POINTS, ANGLE = slice(6, 18), slice(6, 7)


def _one_keypoint(numbers):
    numbers = numbers.copy()
    numbers[:, 3:5] += 12
    return numbers


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("name", "where", "change", "outcome", "said"),
    [
        ("masks", ("output0", slice(6, 11)), np.zeros_like, "reject", "mask coefficients"),
        ("masks", ("output1", slice(None)), np.zeros_like, "reject", "prototypes"),
        ("masks", ("output1", slice(None)), np.ones_like, "reject", "prototypes"),
        (
            "masks",
            ("output1", slice(None)),
            lambda maps: np.roll(maps, 2, axis=3),
            "inconclusive",
            "the masks of the same detections overlap by",
        ),
        (
            "masks",
            ("output0", slice(6, 11)),
            lambda numbers: -numbers,
            "inconclusive",
            "the masks of the same detections overlap by 0%",
        ),
        ("keypoints", ("output0", POINTS), np.zeros_like, "reject", "keypoints"),
        (
            "keypoints",
            ("output0", POINTS),
            lambda points: points + 3,
            "inconclusive",
            "the keypoints of the same detections lie",
        ),
        (
            "keypoints",
            ("output0", POINTS),
            _one_keypoint,
            "inconclusive",
            "of an object's size apart",
        ),
        (
            "keypoints",
            ("output0", slice(8, 18, 3)),
            lambda sure: sure / 2,
            "inconclusive",
            "of the keypoints that the baseline sees 0% are seen",
        ),
        ("angles", ("output0", ANGLE), np.zeros_like, "reject", "angle"),
        (
            "angles",
            ("output0", ANGLE),
            lambda angle: angle + 0.15,
            "inconclusive",
            "turned by 9 degrees",
        ),
    ],
)  # fmt: skip
def test_what_is_dead_or_moved_is_named_and_not_accepted(
    evaluate, name, where, change, outcome, said, declared
):
    found, reason = judged(evaluate, name, changed(name, where, change), declared=declared)
    if declared:
        assert found == outcome, reason
        assert said in reason
    else:  # nobody says what the parts are: it is not accepted all the same
        assert found != "accept", reason


def test_one_moved_keypoint_of_many_is_named():
    points = np.zeros((20, 17, 3))
    points[:, :, 2] = 1
    moved = points.copy()
    moved[:, 5, 0] = 8
    from optcli.accuracy.objects import changes

    every = np.arange(20)
    apart = changes(
        Objects(keypoints=moved), Objects(keypoints=points), every, every, np.full(20, 40.0)
    )
    assert apart["moved_keypoints"] == (5,)
    assert apart["keypoint_distance"] == pytest.approx(8 / 40 / 17)


def test_records_hold_every_mask_and_come_back_whole():
    masks = [{"size": [9, 7], "counts": text} for text in ("0cf", b"abc0", "")]
    decoded = [
        {"masks": masks, "corners": np.zeros((3, 4, 2))},
        {"masks": [], "corners": np.zeros((0, 4, 2))},
    ]
    kept = records(decoded, [np.array([2, 0, 1]), np.array([], int)])
    back = Objects.of_records(kept)
    assert [each["counts"] for each in back.masks] == [b"", b"0cf", b"abc0"]
    assert back.corners.shape == (3, 4, 2)
    assert back.keypoints is None
    assert Objects.of_records(records([{}], [np.array([], int)])) == Objects()
