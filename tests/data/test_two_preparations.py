"""One model has one preparation, and calibration samples that reach far beyond the others are named."""

import numpy as np
import pytest

from optcli.data import DataSettings, two_preparations
from optcli.data.reaches import far_apart
from optcli.sample import Sample


def roles(**prepare):
    return {
        role: DataSettings.model_validate({"source": "imagefolder:photos", "prepare": each})
        for role, each in prepare.items()
    }


@pytest.mark.parametrize(
    ("calibration", "said"),
    [
        ({"channel_order": "bgr", "scale": "1/255"}, "channel_order bgr and rgb"),
        ({"channel_order": "rgb"}, "values from 0 to 255 and 0 to 1 (scale, mean, std)"),
        ({"scale": "1/255", "mean": [0.5], "std": [0.5]}, "values from -1 to 1 and 0 to 1"),
        ({"scale": "1/255", "range": [0, 4095]}, "range [0.0, 4095.0] and None"),
        (None, "values from 0 to 255 and 0 to 1"),
    ],
)
def test_other_values_are_named(calibration, said):
    found = list(
        two_preparations(
            roles(calibration=calibration, evaluation={"channel_order": "rgb", "scale": "1/255"})
        )
    )
    (role, other, how) = found[0]
    assert (role, other) == ("calibration", "evaluation")
    assert said in "; ".join(how)


@pytest.mark.parametrize(
    "calibration",
    [
        {"scale": "1/255", "crop": 8, "interpolation": "bicubic", "orient": True},
        {"scale": 0.003921569, "channel_order": "rgb"},
        {"mean": 0, "std": 255},
        {"scale": "1/255", "mean": [0, 0, 0], "std": [1, 1, 1]},
    ],
)
def test_the_same_values_in_other_words_are_one_preparation(calibration):
    assert not list(two_preparations(roles(calibration=calibration, evaluation={"scale": "1/255"})))


def test_a_role_may_say_that_it_is_meant():
    both = roles(calibration=None, evaluation={"scale": "1/255"})
    both["calibration"] = both["calibration"].model_copy(update={"allow_difference": True})
    assert not list(two_preparations(both))


def test_stored_arrays_may_hold_any_values():
    both = roles(evaluation={"scale": "1/255"})
    both["calibration"] = DataSettings(source="npz:rows.npz")
    assert not list(two_preparations(both))


@pytest.mark.slow
def test_presets_are_spelled_out_where_asked():
    both = roles(calibration="torchvision:resnet18", evaluation={"scale": "1/255"})
    assert not list(two_preparations(both))
    ((role, _, how),) = two_preparations(both, presets=True)
    assert role == "calibration"
    assert "scale, mean, std" in how[0]


def samples(*largest, kind=np.float32):
    return [
        Sample(f"{n}.png", {"image": np.array([0, each], kind)}, None, {})
        for n, each in enumerate(largest)
    ]


def test_samples_that_reach_far_beyond_the_others_are_named_with_what_they_cost():
    (said,) = far_apart(samples(1, 1, 2, 1e6, 1, 1))
    assert said.startswith(
        "1 of 6 calibration samples reach far beyond the others in input 'image': 3.png"
    )
    assert "to 1e+06, the others to 1" in said
    assert "0.00026 of 255 steps" in said


@pytest.mark.parametrize(
    ("own", "theirs", "said"),
    [(255, 1, "evaluation uses 1 of 255 steps"), (1, 255, "cut off what is 255 times as large")],
)
def test_calibration_that_lies_far_from_what_is_judged(own, theirs, said):
    (found,) = far_apart(samples(*[own] * 5), samples(theirs, theirs))
    assert f"reach to {own} in input 'image', and those of evaluation to {theirs}" in found
    assert said in found
    assert far_apart(samples(*[own] * 5), samples(own)) == []


def test_samples_alike_and_too_few_of_them_say_nothing():
    assert far_apart(samples(1, 2, 8, 0.5, 1)) == []
    assert far_apart(samples(1, 1e6)) == []
    assert far_apart(samples(0, 0, 0, 0, 1)) == []
    assert far_apart(samples(0, 1, 1, 1, 200, kind=np.uint8)) == []
