"""Optimization profiles, and everything that is wrong with one found before a build."""

import copy

import pytest

from optcli.models.engines import EngineError, job

INPUTS = [{"name": "image", "shape": [-1, 3, None, 8]}, {"name": "scale", "shape": [1]}]
GOOD = {
    "image": {"min": [1, 3, 16, 8], "opt": [4, 3, 32, 8], "max": [8, 3, 64, 8]},
    "scale": {"min": [1], "opt": [1], "max": [1]},
}


def changed(name, bound, shape):
    profile = copy.deepcopy(GOOD)
    profile[name][bound] = shape
    return profile


def test_from_inputs_with_symbols():
    inputs = [{"name": "image", "shape": ["batch", 3, "height", 8]}, {"name": "scale", "shape": [1]}]
    ranges = {"batch": {"min": 1, "opt": 4, "max": 8}, "height": {"min": 16, "opt": 32, "max": 64}}
    assert job.profile_of_inputs(inputs, ranges) == GOOD


def test_a_symbol_without_a_range_is_named():
    with pytest.raises(EngineError, match="image has a size 'batch' without a range"):
        job.profile_of_inputs([{"name": "image", "shape": ["batch"]}], {})


def test_from_shapes_seen():
    seen = {"image": [(1, 3, 20), (8, 3, 10), (2, 3, 30)]}
    assert job.profile_of_shapes(seen) == {
        "image": {"min": [1, 3, 10], "opt": [2, 3, 20], "max": [8, 3, 30]}
    }


def test_a_good_one_passes():
    job.check_profiles([GOOD], INPUTS, batch_sizes=[1, 8])
    job.check_profiles([], [{"name": "image", "shape": [1, 3]}])
    only_what_varies = {"image": GOOD["image"]}
    job.check_profiles([only_what_varies], INPUTS)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (
            changed("image", "opt", [9, 3, 32, 8]),
            "input image, dimension 0: wanted min <= opt <= max, found",
        ),
        (changed("image", "min", [5, 3, 16, 8]), "found min 5, opt 4, max 8"),
        (changed("image", "min", [-1, 3, 16, 8]), "found min -1"),
        (changed("image", "max", [8, 4, 64, 8]), "dimension 1: the model fixes it to 3, .* 3 to 4"),
        (changed("image", "opt", [4, 3, 32]), "opt has 3 dimensions, and the model 4"),
        (changed("scale", "max", [2]), "input scale, dimension 0: the model fixes it to 1"),
        ({"picture": GOOD["image"]}, "profile 0 names picture, and the model has image, scale"),
        ({"scale": GOOD["scale"]}, "profile 0 says nothing of image, whose sizes vary"),
    ],
)
def test_what_does_not_fit_is_named(profile, message):
    with pytest.raises(EngineError, match=message) as raised:
        job.check_profiles([profile], INPUTS)
    assert raised.value.hint


def test_sizes_that_vary_need_a_profile():
    with pytest.raises(EngineError, match="sizes of image vary, and there is no optimization profile"):
        job.check_profiles([], INPUTS)


def test_every_batch_size_lies_in_one_of_the_profiles():
    single = changed("image", "max", [4, 3, 64, 8])
    large = copy.deepcopy(GOOD)
    large["image"] = {"min": [16, 3, 16, 8], "opt": [16, 3, 32, 8], "max": [32, 3, 64, 8]}
    job.check_profiles([single, large], INPUTS, batch_sizes=[1, 4, 16, 32])
    with pytest.raises(EngineError, match=r"batch size 8 .*image: 1 to 4, 16 to 32"):
        job.check_profiles([single, large], INPUTS, batch_sizes=[1, 8])


def test_the_second_of_two_is_checked_too():
    with pytest.raises(EngineError, match="profile 1, input image"):
        job.check_profiles([GOOD, changed("image", "opt", [9, 3, 32, 8])], INPUTS)
