"""Calibration samples reach a quantizer in batches that fit the model, and one at a time."""

import numpy as np
import pytest
from tiny_networks import IMAGE, Heard, Noise, artifact, job

from optcli.artifact import Format
from optcli.errors import StepError
from optcli.passes._quantization.calibration import CalibrationFeeds, ModelInput
from optcli.passes._tensorrt.engine import profiles_of
from optcli.sample import Sample
from optcli.settings import TensorSpec

TAKES = (ModelInput("image", "float32", (None, 3, None, 16)),)


def feeds(tmp_path, samples, takes=TAKES, most=300, observer=None):
    source = artifact(tmp_path, Format.ONNX)
    made = job(source, tmp_path / "out", (IMAGE,), calibration=samples, observer=observer or Heard())
    return CalibrationFeeds(made, takes, most)


def test_a_dynamic_model_gets_one_sample_at_a_time(tmp_path):
    samples, heard = Noise((IMAGE,), count=5), Heard()
    found = feeds(tmp_path, samples, observer=heard)
    assert (len(found), found.samples, found.batch_size) == (5, 5, 1)
    arrays = [each["image"] for each in found]
    assert [array.shape for array in arrays] == [(1, 3, 16, 16)] * 5
    assert np.array_equal(arrays[3][0], samples[3].inputs["image"])
    assert heard.fractions == [0.2, 0.4, 0.6, 0.8, 1.0]


def test_nothing_is_read_before_it_is_needed_and_each_round_reads_anew(tmp_path):
    samples = Noise((IMAGE,), count=4)
    found = feeds(tmp_path, samples)
    assert samples.read == []
    rounds = iter(found)
    next(rounds)
    assert samples.read == [0]
    assert len(list(found)) == len(list(found)) == 4


def test_a_fixed_batch_is_filled_from_the_beginning(tmp_path):
    samples = Noise((IMAGE,), count=5)
    found = feeds(tmp_path, samples, (ModelInput("image", "float32", (3, 3, 16, 16)),))
    assert (len(found), found.samples, found.batch_size) == (2, 5, 3)
    assert [each["image"].shape[0] for each in found] == [3, 3]
    assert samples.read == [0, 1, 2, 3, 4, 0]


def test_fewer_samples_are_spread_over_a_sorted_set(tmp_path):
    samples = Noise((IMAGE,), count=100)
    found = feeds(tmp_path, samples, most=4)
    assert len(list(found)) == 4
    assert samples.read == [0, 25, 50, 75]


@pytest.mark.parametrize("samples", [None, Noise((IMAGE,), count=0)])
def test_no_samples_are_an_error_with_a_hint(tmp_path, samples):
    with pytest.raises(StepError, match="no calibration samples") as failure:
        feeds(tmp_path, samples)
    assert "calibration" in failure.value.hint


@pytest.mark.parametrize(
    ("takes", "message"),
    [
        (
            ModelInput("image", "float32", (None, 1, 16, 16)),
            "found 3x16x16 float32, wanted 1x16x16 float32",
        ),
        (ModelInput("image", "float32", (1, 3, 16)), "found 3x16x16 float32, wanted 3x16 float32"),
        (ModelInput("image", "uint8", (1, 3, 16, 16)), "found 3x16x16 float32, wanted 3x16x16 uint8"),
        (ModelInput("pixels", "float32", (1, 3, 16, 16)), "has no 'pixels'.*it has image"),
    ],
)
def test_a_sample_that_does_not_fit_says_found_and_wanted(tmp_path, takes, message):
    with pytest.raises(StepError, match=message) as failure:
        list(feeds(tmp_path, Noise((IMAGE,)), (takes,)))
    assert "sample 0" in failure.value.message


def test_a_sample_that_is_not_finite_is_an_error(tmp_path):
    with pytest.raises(StepError, match="NaN or infinity"):
        list(feeds(tmp_path, Noise((IMAGE,), scale=float("nan"))))


def test_an_input_without_a_batch_is_fed_as_it_is(tmp_path):
    """SAM's `orig_im_size`: its first size is no batch size, neither here nor in TensorRT's profile."""
    specs = (
        TensorSpec(name="size", dtype="int64", shape=(2,), value="original_size"),
        TensorSpec(name="image", shape=(1, 3, 16, 16)),
    )
    image = np.zeros((3, 16, 16), np.float32)
    samples = [
        Sample(str(n), {"size": np.array([20 + n, 30]), "image": image}, whole=frozenset({"size"}))
        for n in range(3)
    ]
    made = job(artifact(tmp_path, Format.ONNX), tmp_path / "out", specs, calibration=samples)
    takes = [ModelInput("size", "int64", (2,)), ModelInput("image", "float32", (1, 3, 16, 16))]
    found = CalibrationFeeds(made, takes, 300)
    assert found.batch_size == 1
    assert [each["size"].tolist() for each in found] == [[20, 30], [21, 30], [22, 30]]
    assert {each["image"].shape for each in found} == {(1, 3, 16, 16)}
    (profile,) = profiles_of("seen", made)
    assert profile["size"]["max"] == [2]
