"""What outputs mean: by the recipe, by an exporter's metadata, by their shapes; else nobody knows."""

from dataclasses import dataclass

import pytest

from optcli.errors import InputError
from optcli.outputs import OutputPart, describe, exported
from optcli.settings.outputs import OutputSettings
from optcli.settings.postprocess import PostprocessSettings

NAMES = str({number: f"thing{number}" for number in range(80)})
POSE = {"task": "pose", "names": "{0: 'person'}", "kpt_shape": "[17, 3]"}


@dataclass(frozen=True)
class Seen:
    name: str
    shape: tuple[int, ...] | None
    dtype: str = "float32"


def parts(outputs, **known):
    """The parts of each output as (kind, from, to), and the sources."""
    found = describe([Seen(*each) for each in outputs], **known)
    listed = [[(part.kind, part.start, part.stop) for part in each.parts] for each in found]
    return listed, [each.source for each in found]


def settings(**outputs):
    return {name: OutputSettings.model_validate(value) for name, value in outputs.items()}


def decoding(**how):
    return PostprocessSettings.model_validate(how)


@pytest.mark.parametrize(
    ("metadata", "shape", "wanted"),
    [
        ({"task": "detect", "names": NAMES}, (84, 8400), [("boxes", 0, 4), ("scores", 4, 84)]),
        (
            {"task": "detect", "names": NAMES},
            (25200, 85),
            [("boxes", 0, 4), ("objectness", 4, 5), ("scores", 5, 85)],
        ),
        (
            {"task": "detect", "names": NAMES},
            (300, 6),
            [("boxes", 0, 4), ("scores", 4, 5), ("class_numbers", 5, 6)],
        ),
        (
            {"task": "segment", "names": NAMES},
            (116, 8400),
            [("boxes", 0, 4), ("scores", 4, 84), ("mask_coefficients", 84, 116)],
        ),
        (POSE, (56, 8400), [("boxes", 0, 4), ("scores", 4, 5), ("keypoints", 5, 56)]),
        (
            {"task": "obb", "names": "['ship', 'plane']"},
            (7, 8400),
            [("boxes", 0, 4), ("scores", 4, 6), ("angle", 6, 7)],
        ),
        ({"task": "classify", "names": NAMES}, (80,), [("logits", 0, None)]),
    ],
)
def test_an_exporter_says_what_its_outputs_are(metadata, shape, wanted):
    assert parts([("output0", shape)], metadata=metadata) == ([wanted], ["metadata"])


def test_prototypes_stand_beside_mask_coefficients():
    outputs = [("output0", (116, 8400)), ("output1", (32, 160, 160))]
    found, sources = parts(outputs, metadata={"task": "segment", "names": NAMES})
    assert found[1] == [("prototypes", 0, None)]
    assert sources == ["metadata"] * 2


# A pose or a segmentation is never taken for a detector of 52 or 112 classes.
@pytest.mark.parametrize("shape", [(56, 8400), (116, 8400), (84, 100), (6, 300)])
def test_other_shapes_than_the_metadata_say_are_unknown(shape):
    metadata = {"task": "detect", "names": "{0: 'a', 1: 'b', 2: 'c'}"}
    assert parts([("output0", shape)], metadata=metadata) == ([[("unknown", 0, None)]], ["unknown"])


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"task": "detect"},
        {"task": "dance", "names": NAMES},
        {"task": "detect", "names": "__import__('os').getcwd()"},
        {"task": "detect", "names": "{0: 'a', 2: 'c'}"},
        {"task": "detect", "names": "[" * 5000},
        {"task": "pose", "names": NAMES},
        {"task": "pose", "names": NAMES, "kpt_shape": "[17]"},
    ],
)
def test_damaged_metadata_say_nothing(metadata):
    assert exported(metadata) is None


def test_the_recipe_comes_before_the_metadata():
    said = settings(output0=["boxes", {"scores": 48}, {"mask_coefficients": 32}])
    found, sources = parts(
        [("output0", (84, 8400))], settings=said, metadata={"task": "detect", "names": NAMES}
    )
    assert found == [[("boxes", 0, 4), ("scores", 4, 52), ("mask_coefficients", 52, 84)]]
    assert sources == ["recipe"]


@pytest.mark.parametrize(
    ("value", "shape", "wanted"),
    [
        ("embedding", (128,), OutputPart("embedding")),
        (["boxes", "scores"], (8400, 84), OutputPart("scores", 1, 4, 84)),
        ({"parts": ["boxes", "scores"], "axis": 1}, (84, 84), OutputPart("scores", 0, 4, 84)),
        (["boxes", {"scores": 3}], (7, 20), OutputPart("scores", 0, 4, 7)),
        (["boxes", {"kind": "scores", "size": 3}], (20, 7), OutputPart("scores", 1, 4, 7)),
        ([{"scores": 3}, "boxes"], (2, 20, 7), OutputPart("boxes", 2, 3, 7)),
        ("rows", (300, 6), OutputPart("class_numbers", 1, 5, 6)),
        (["rows", {"mask_coefficients": 32}], (300, 38), OutputPart("scores", 1, 4, 5)),
    ],
)
def test_parts_lie_along_the_dimension_of_their_size(value, shape, wanted):
    (meaning,) = describe([Seen("out", shape)], settings=settings(out=value))
    assert wanted in meaning.parts


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (["boxes", {"scores": 3}], "the parts are 7 numbers, and a sample of output 'out' is [6, 20]"),
        ({"parts": ["boxes", "scores"], "axis": 3}, "the parts are more than 4 numbers"),
    ],
)
def test_parts_of_another_size_are_an_error(value, said):
    with pytest.raises(InputError) as failure:
        describe([Seen("out", (6, 20))], settings=settings(out=value))
    assert said in failure.value.message
    assert failure.value.place == "outputs.out"
    with pytest.raises(InputError, match="the model has no output 'ou'"):
        describe([Seen("out", (6, 20))], settings=settings(ou=value))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (["boxes", "scores", "keypoints"], "scores and keypoints have no size"),
        ([{"boxes": 5}], "boxes are 4 numbers, found 5"),
        (["boxs"], "Input should be"),
        ([], "at least 1 item"),
    ],
)
def test_wrong_parts_are_refused(value, said):
    with pytest.raises(ValueError, match=said):
        settings(out=value)


def test_the_decoding_of_a_recipe_says_what_it_reads():
    yolox = decoding(yolox={})
    wanted = [("boxes", 0, 4), ("objectness", 4, 5), ("scores", 5, 85)]
    assert parts([("out", (3549, 85))], postprocess=yolox) == ([wanted], ["recipe"])
    one = decoding(boxes={"transposed": True})
    assert parts([("out", (84, 20))], postprocess=one)[0] == [[("boxes", 0, 4), ("scores", 4, 84)]]
    several = decoding(boxes={"boxes": "b", "scores": "s", "labels": "l"})
    masks = decoding(boxes={"format": "cxcywh", "prototypes": "p"})
    found, _ = parts([("o", (20, 46)), ("p", (32, 8, 8))], postprocess=masks)
    assert found[0][1:] == [("scores", 4, 14), ("mask_coefficients", 14, 46)]
    assert found[1] == [("prototypes", 0, None)]
    outputs = [("s", (9,)), ("b", (9, 4)), ("l", (9,), "int64")]
    found, _ = parts(outputs, postprocess=several)
    assert [each[0][0] for each in found] == ["scores", "boxes", "class_numbers"]
    # Another shape than the decoding reads is not cut.
    assert parts([("out", (3, 2))], postprocess=yolox)[1] == ["unknown"]
    assert parts([("out", None)], postprocess=yolox)[1] == ["unknown"]


def test_the_metric_says_what_it_reads():
    outputs = [("a", (10,)), ("b", (19, 8, 8))]
    found, sources = parts(outputs, metric_reads="class_map", metric_output="b")
    assert found == [[("logits", 0, None)], [("class_map", 0, None)]]
    assert sources == ["shape", "recipe"]
    assert parts([("a", (10,), "int64")])[1] == ["unknown"]
