"""Inputs that no data feed: the size of the original image, or numbers that are always the same."""

import json

import numpy as np
import pytest
from generated import picture, spec

from optcli.data import DataSettings
from optcli.data import open as open_data
from optcli.data.images import Images
from optcli.errors import InputError
from optcli.files.sample_cache import CachedSampleSet, CachingSampleSet, digests_of
from optcli.measure.latency.feeds import make
from optcli.pipeline._check_samples import drawn
from optcli.pipeline.check import _guessed
from optcli.sample import batch_of, collate
from optcli.settings import TensorSpec, batch_range

IMAGE = spec(3, 8, 16)
PREPARE = {"resize": [8, 16], "scale": "1/255"}


def sized(value="original_size", shape=("batch", 2), dtype="int64", name="size"):
    return TensorSpec(name=name, dtype=dtype, shape=shape, value=value)


def opened(folder, *inputs, **settings):
    return open_data(DataSettings.model_validate(settings), folder, inputs)


@pytest.fixture
def photos(tmp_path):
    """Three images of other sizes: width and height 20 x 12, 21 x 14, 22 x 16."""
    (tmp_path / "photos").mkdir()
    for number in range(3):
        image = picture(number, size=(20 + number, 12 + 2 * number))
        image.save(tmp_path / "photos" / f"{number}.png")
    return tmp_path


# --- what a recipe may say ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "shape", "whole"),
    [
        ("original_size", ("batch", 2), False),
        ("original_size", (2,), True),
        ([640, 480], (1, 2), False),
        ([640, 480], (8, 2), False),
        ([640, 480], (2,), True),
        ([0], (1,), True),
        ([1, 2, 3, 4, 5, 6], ("batch", 3, 2), False),
        ([1, 2, 3, 4, 5, 6], (3, 2), True),
    ],
)
def test_a_value_has_the_shape_of_a_sample_or_of_the_whole_input(said, shape, whole):
    one = sized(said, shape, "float32")
    assert one.whole == whole
    expected = [12.0, 34.0] if said == "original_size" else said
    assert one.row((12, 34)).shape == (shape if whole else shape[1:])
    assert one.row((12, 34)).ravel().tolist() == expected
    assert one.filled(3, (12, 34)).shape == one.concrete(3)
    assert one.filled(3, (12, 34)).dtype == np.float32


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"value": [640]}, "as many numbers as the shape has without the batch"),
        ({"value": "original_size", "shape": ["batch", 3, 8, 8]}, r"wanted shape: \[batch, 2\]"),
        ({"value": [1, 2], "shape": ["batch", "size"]}, "as many numbers"),
        ({"value": [1.5, 2]}, "numbers that int64 can hold"),
        ({"value": [300, 2], "dtype": "uint8"}, "numbers that uint8 can hold"),
        ({"value": "original_size", "dtype": "uint8"}, "numbers that uint8 can hold"),
        ({"value": [1, 2], "range": [0, 3]}, "range beside value"),
        ({"value": "scale_factor"}, "numbers that int64 can hold"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(more, message):
    with pytest.raises(ValueError, match=message):
        TensorSpec.model_validate({"name": "size", "dtype": "int64", "shape": ["batch", 2], **more})


def test_an_input_without_a_batch_is_no_batch_of_its_own():
    assert batch_range([sized([1, 2], (2,)), IMAGE]) == IMAGE.batch_range()
    fixed = TensorSpec(name="image", shape=(1, 3, 8, 16))
    assert batch_range([sized(shape=(2,)), fixed]).max == 1


# --- samples of every source -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("original_size", [[12, 20], [14, 21], [16, 22]]),
        ("original_size_wh", [[20, 12], [21, 14], [22, 16]]),
        ([640, 640], [[640, 640]] * 3),
    ],
)
def test_each_sample_has_the_size_of_its_image(photos, value, expected):
    samples = opened(photos, sized(value), IMAGE, source="imagefolder:photos", prepare=PREPARE)
    batch = collate(list(samples))
    assert list(batch.inputs) == ["size", "image"]
    assert batch.inputs["size"].tolist() == expected
    assert batch.inputs["size"].dtype == np.int64
    assert batch.inputs["image"].shape == (3, 3, 8, 16)


def test_a_factor_says_how_its_image_was_resized(photos):
    factor = sized("scale_factor", dtype="float32")
    samples = opened(photos, factor, IMAGE, source="imagefolder:photos", prepare=PREPARE)
    expected = np.array([[8 / 12, 16 / 20], [8 / 14, 16 / 21], [8 / 16, 16 / 22]], np.float32)
    assert collate(list(samples)).inputs["size"] == pytest.approx(expected)
    box = {"letterbox": {"size": [8, 16], "fill": 0}}
    samples = opened(photos, factor, IMAGE, source="imagefolder:photos", prepare=box)
    assert samples[0].inputs["size"] == pytest.approx([8 / 12, 8 / 12], rel=0.05)
    # Random inputs are of the input's own size.
    assert factor.filled(2, (8, 16)).tolist() == [[1, 1], [1, 1]]


def test_annotated_images_have_sizes_too(photos):
    images = [{"id": n, "file_name": f"{n}.png"} for n in range(3)]
    record = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "a"}]}
    (photos / "instances.json").write_text(json.dumps(record))
    source = {"source": "coco:instances.json", "root": "photos", "prepare": PREPARE}
    samples = opened(photos, IMAGE, sized(), **source)
    assert [sample.inputs["size"].tolist() for sample in samples] == [[12, 20], [14, 21], [16, 22]]


def test_an_npz_need_not_have_the_array(tmp_path):
    np.savez(tmp_path / "rows.npz", image=np.zeros((2, 20, 30, 3), np.uint8))
    samples = opened(tmp_path, IMAGE, sized(), source="npz:rows.npz", prepare=PREPARE)
    assert samples[1].inputs["size"].tolist() == [20, 30]


def test_code_gives_the_image_alone_and_may_say_the_size(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def samples(meta):\n"
        "    return [{'inputs': np.zeros((3, 8, 16)), 'meta': meta}]\n"
    )
    source = {"source": "python:mine.py:samples"}
    known = {"arguments": {"meta": {"original_size": [7, 5]}}}
    assert opened(tmp_path, IMAGE, sized(), **source, **known)[0].inputs["size"].tolist() == [7, 5]
    unknown = opened(tmp_path, IMAGE, sized(), **source, arguments={"meta": {}})
    with pytest.raises(InputError, match="'size' takes the size of the original image") as error:
        unknown[0]
    assert "value: [640, 640]" in error.value.hint
    factor = opened(tmp_path, IMAGE, sized("scale_factor", dtype="float32"), **source, **known)
    with pytest.raises(InputError, match="the factors by which its image was resized") as error:
        factor[0]
    assert "meta scale, or write the numbers: value: [1, 1]" in error.value.hint
    constant = opened(tmp_path, IMAGE, sized([640, 480]), **source, arguments={"meta": {}})
    assert constant[0].inputs["size"].tolist() == [640, 480]


def test_an_input_without_a_batch_is_not_stacked_and_is_kept_as_it_is(photos, tmp_path):
    source = {"source": "imagefolder:photos", "prepare": PREPARE}
    samples = opened(photos, IMAGE, sized(shape=(2,)), **source)
    keeping = CachingSampleSet(samples, tmp_path / "kept" / "part-0", shared_bytes=1 << 20)
    for position in range(3):
        batch = batch_of(keeping, [position])
        keeping.contents([position], batch)
        assert batch.inputs["size"].tolist() == [12 + 2 * position, 20 + position]
        assert batch_of(keeping, [position]).inputs["size"].shape == (2,)  # from where it is kept
    keeping.spent_s = 1.0
    assert keeping.finish()
    kept = CachedSampleSet(tmp_path / "kept")
    again = batch_of(kept, [2])
    assert again.inputs["size"].tolist() == [16, 22] == kept[2].inputs["size"].tolist()
    assert again.inputs["image"].shape == (1, 3, 8, 16)
    assert collate([kept[1]]).inputs["size"].tolist() == [14, 21] == keeping[1].inputs["size"].tolist()
    # Of several samples with a constant, each has its digest.
    several = collate(list(opened(photos, IMAGE, sized([1, 2], (2,)), **source)))
    assert several.inputs["size"].tolist() == [1, 2]
    assert len(set(digests_of(several, 3).tolist())) == 3


# --- calls without samples ---------------------------------------------------------------------------


def test_timed_calls_have_the_value_or_the_size_of_the_input(tmp_path):
    inputs = (IMAGE, sized(), sized([640, 480], name="other"), sized([1, 2], (2,), name="whole"))
    (feed, *_) = make(inputs, None, [2], 0)[2]
    assert feed["size"].tolist() == [[8, 16]] * 2
    assert feed["other"].tolist() == [[640, 480]] * 2
    assert feed["whole"].tolist() == [1, 2]
    images = np.zeros((3, 3, 8, 16))
    sizes = np.arange(6).reshape(3, 2)
    np.savez(tmp_path / "real.npz", image=images, size=sizes, whole=sizes)
    feeds = make(inputs, tmp_path / "real.npz", [1], 0)[1]
    assert feeds[1]["size"].tolist() == [[2, 3]]
    assert feeds[1]["whole"].tolist() == [2, 3]


@pytest.mark.parametrize("shape", [("batch", 2), (2,)])
def test_conversions_are_checked_on_the_value(tmp_path, shape):
    image = IMAGE if len(shape) == 2 else TensorSpec(name="image", shape=(1, 3, 8, 16))
    inputs = (sized("original_size_wh", shape), image)
    (random,) = drawn(inputs, None)
    for rows in random.batches:
        feed = random.feed(rows)
        assert feed["size"].tolist() == ([16, 8] if len(shape) == 1 else [[16, 8]] * len(rows))
        assert feed["image"].shape == (len(rows), 3, 8, 16)
    sizes = np.arange(6).reshape(3, 2)
    np.savez(tmp_path / "probe.npz", image=np.zeros((3, 3, 8, 16), np.float32), size=sizes)
    real, _ = drawn(inputs, tmp_path / "probe.npz")
    assert real.feed([0])["size"].tolist() == ([0, 1] if len(shape) == 1 else [[0, 1]])
    assert len(real) == 3


def test_no_range_is_asked_for_where_there_is_a_value():
    assert [each.name for each in _guessed((IMAGE, sized(dtype="float32")), None)] == ["image"]


# --- images of a server ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "whole", "expected"),
    [
        ("original_size", False, [[12, 20], [14, 21]]),
        ("original_size_wh", False, [[20, 12], [21, 14]]),
        ([640, 480], False, [[640, 480]] * 2),
        ("original_size", True, [12, 20]),
        ("scale_factor", False, [[2, 3], [2, 3]]),
    ],
)
def test_a_server_fills_them_as_samples_are_filled(value, whole, expected):
    images = Images(
        {
            **dict.fromkeys(("dtype", "shape", "ranges", "layout", "formats", "most_pixels", "steps")),
            "schema": 1,
            "input": "image",
            "values": {"size": {"dtype": "int32", "shape": [2], "whole": whole, "value": value}},
        }
    )
    rows = [np.zeros((3, 8, 16), np.float32)] * 2
    places = [{"original_size": size, "scale": (2.0, 3.0)} for size in ((12, 20), (14, 21))]
    feed = images.feed(rows, places)
    assert feed["size"].tolist() == expected
    assert feed["size"].dtype == np.int32
    assert feed["image"].shape == (2, 3, 8, 16)
