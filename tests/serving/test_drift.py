"""Drift: what drifts is named, what does not is not, and chance alone raises no alarm."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from drifting import IMAGE, described, drift, normalized, photographs, seen
from small_variants import variant

from optcli.artifact import Format
from optcli.errors import InputError, UsageError
from optcli.results.loadtest import Drift
from optcli.serving.drift import compared, comparing, input_statistics
from optcli.settings import TensorSpec


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> input_statistics.Statistics:
    place = tmp_path_factory.mktemp("calibration")
    return described(place, {"image": normalized(photographs(400, 0))})


def of(calibration: input_statistics.Statistics, pixels: np.ndarray, **more: object) -> Drift:
    return drift(seen(calibration, {"image": pixels}, **more))  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_same_kind_of_images_has_not_drifted(calibration):
    found = of(calibration, normalized(photographs(300, 1)))
    assert (found.outcome, found.inputs[0].drifted) == ("accept", 0)
    assert found.inputs[0].tests == 12
    assert (found.kept, found.seen) == (300, 300)
    assert found.inputs[0].rows == pytest.approx(300)
    assert "none of 12 statistics drifted" in found.sentence
    assert found.inputs[0].detectable < comparing.COARSEST


def test_a_brighter_stream_is_named_with_its_channel_and_by_how_much(calibration):
    found = of(calibration, normalized(np.minimum(photographs(300, 1) + 25, 255)))
    (one,) = found.inputs
    assert found.outcome == "reject"
    first = one.statistics[0]
    assert first.statistic == "mean"
    assert first.shift_sd == pytest.approx(25 / 29.5, abs=0.25)
    assert "calibration sd higher" in found.sentence
    assert f"channel {first.channel}: mean" in found.sentence
    assert first.p < 1e-6
    drifted = {(each.statistic, each.channel) for each in one.statistics if each.drifted}
    assert {("mean", 0), ("mean", 1), ("mean", 2)} <= drifted
    assert "std" not in {name for name, _ in drifted}


def test_one_brighter_channel_drifts_alone(calibration):
    pixels = photographs(300, 1)
    pixels[:, 2] += 30
    (one,) = of(calibration, normalized(pixels)).inputs
    means = {each.channel for each in one.statistics if each.drifted and each.statistic == "mean"}
    assert means == {2}
    assert one.statistics[0].channel == 2


def test_values_outside_of_the_calibration_are_counted(calibration):
    pixels = photographs(200, 1)
    pixels[:, 1, 0, :4] = 4000
    (one,) = of(calibration, normalized(pixels)).inputs
    assert [each.outside for each in one.channels] == [
        pytest.approx(0, abs=0.01),
        pytest.approx(4 / 64, abs=0.01),
        pytest.approx(0, abs=0.01),
    ]
    assert one.channels[1].seen_range[1] > one.channels[1].reference_range[1]
    assert ("max", 1) in {(each.statistic, each.channel) for each in one.statistics if each.drifted}


def test_too_few_inputs_are_inconclusive_and_told_how_many_do(calibration):
    for count, said in ((0, "0 different inputs"), (12, "12 different inputs"), (50, "50 different")):
        found = of(calibration, normalized(photographs(count, 1)))
        assert found.outcome == "inconclusive"
        assert said in found.sentence
    needed = int(found.sentence.split("about ")[1].split()[0])
    assert of(calibration, normalized(photographs(needed - 2, 1))).outcome == "inconclusive"
    assert of(calibration, normalized(photographs(needed, 1))).outcome == "accept"


def test_a_small_reference_is_named_in_place_of_the_inputs(tmp_path):
    found = drift(
        seen(
            described(tmp_path, {"image": photographs(30, 0)}),
            {"image": photographs(400, 1)},
        )
    )
    assert found.outcome == "inconclusive"
    assert "the reference has 30 different samples" in found.sentence


def test_few_inputs_that_are_far_away_are_enough(calibration):
    assert of(calibration, photographs(25, 1)).outcome == "reject"


def test_an_image_that_comes_again_and_again_counts_once(calibration):
    images = normalized(photographs(40, 1))
    found = of(calibration, np.repeat(images, 20, 0))
    assert found.kept == 800
    assert found.inputs[0].rows == pytest.approx(40)
    assert found.outcome == "inconclusive"
    assert "the same inputs come again" in found.notes[0]


@pytest.mark.slow
def test_days_count_by_their_traffic(calibration):
    bright = normalized(np.minimum(photographs(200, 2) + 60, 255))
    usual = normalized(photographs(200, 1))
    few = seen(calibration, {"image": usual}, {"image": bright}, counts=(10_000, 250))
    many = seen(calibration, {"image": usual}, {"image": bright}, counts=(250, 10_000))
    assert drift(few).outcome == "accept"
    assert drift(many).outcome == "reject"
    assert drift(few).seen == 10_250


@pytest.mark.long
@pytest.mark.slow
def test_chance_alone_raises_an_alarm_in_one_of_a_hundred_at_most(tmp_path):
    """Images of a kind against each other: twelve statistics each, and no drift."""
    alarms = 0
    for seed in range(150):
        calibration = described(tmp_path / str(seed), {"image": photographs(60, 1000 + seed)})
        alarms += of(calibration, photographs(90, 5000 + seed)).outcome == "reject"
    assert alarms <= 3  # with a rate of 1 % more have a probability of 0.07


@pytest.mark.slow
def test_the_p_value_is_never_too_small():
    """A single statistic: as often as p says, or seldomer."""
    rng = np.random.default_rng(0)
    sizes = ((25, 25), (30, 200), (200, 120))
    for first, second in sizes:
        even = [np.full(each, 1 / each) for each in (first, second)]
        found = np.array(
            [
                comparing.p_value(
                    comparing.distance(
                        rng.standard_normal(first), even[0], rng.standard_normal(second), even[1]
                    ),
                    first,
                    second,
                )
                for _ in range(2000)
            ]
        )
        for level in (0.05, 0.01):
            assert (found <= level).mean() <= level + 2 * np.sqrt(level * (1 - level) / 2000)


def test_the_distance_is_that_of_kolmogorov_and_smirnov_with_ties_too():
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    for size in (1, 7, 50):
        first, second = rng.integers(0, 9, size), rng.integers(1, 12, size + 3)
        found = comparing.distance(
            first, np.full(size, 1 / size), second, np.full(size + 3, 1 / (size + 3))
        )
        assert found == pytest.approx(ks_2samp(first, second).statistic)


def test_holm_corrects_for_the_number_of_tests():
    assert comparing.holm([0.01, 0.04, 0.03]) == [0.03, pytest.approx(0.06), pytest.approx(0.06)]
    assert comparing.holm([0.9, 0.8]) == [1.0, 1.0]
    assert comparing.holm([]) == []


def test_every_input_has_its_own_answer(tmp_path):
    rng = np.random.default_rng(0)
    features = {"name": "features", "shape": ("batch", 5)}
    calibration = described(
        tmp_path,
        {"image": photographs(300, 0), "features": rng.standard_normal((300, 5))},
        IMAGE,
        features,
    )
    now = rng.standard_normal((200, 5))
    now[:, 3] += 1.5
    found = drift(seen(calibration, {"image": photographs(200, 2), "features": now}))
    assert [each.outcome for each in found.inputs] == ["accept", "reject"]
    assert found.sentence.startswith("reject: drift of features: feature 3: mean")
    assert [each.name for each in found.verdicts] == ["drift of image", "drift of features"]
    # A feature has one value a row: no spread, and no distance from other features.
    assert {each.statistic for each in found.inputs[1].statistics} == {"mean"}


def test_another_size_is_a_drift(tmp_path):
    sizes = {"min": 4, "opt": 8, "max": 16}
    spec = {"name": "image", "shape": ("batch", 3, "side", "side"), "side": sizes}
    calibration = described(tmp_path, {"image": photographs(200, 0)}, spec)
    smaller = photographs(200, 1)[:, :, :6, :6]
    (one,) = drift(seen(calibration, {"image": smaller})).inputs
    assert one.statistics[0].statistic == "size"
    assert one.statistics[0].seen == pytest.approx(108)
    assert one.statistics[0].shift_sd is None
    assert "number of values 108 in place of 192" in one.reason


@pytest.mark.parametrize(
    ("spec", "axis", "channels", "single"),
    [
        ({"shape": ("batch", 3, 32, 32)}, 0, 3, False),
        ({"shape": ("batch", 32, 32, 3)}, 2, 3, False),
        ({"shape": (1, 1, 8, 8)}, 0, 1, False),
        ({"shape": ("batch", 64, 8, 8)}, None, 1, False),
        ({"shape": ("batch", 28, 28)}, None, 1, False),
        ({"shape": ("batch", 2, 16000)}, 0, 2, False),
        ({"shape": ("batch", 8, 3, 64, 64)}, 0, 8, False),
        ({"shape": ("batch", 20)}, 0, 20, True),
        ({"shape": ("batch", 4000)}, None, 1, False),
        ({"shape": ("batch",)}, None, 1, True),
    ],
)
def test_where_the_channels_are(spec, axis, channels, single):
    how = compared.described(TensorSpec.model_validate({"name": "x", **spec}), None)
    assert (how["axis"], how["channels"], how["single"]) == (axis, channels, single)
    sizes = [2 if isinstance(size, str) else size for size in spec["shape"]]
    row = np.zeros(sizes, np.float32)[0]
    assert input_statistics.of_row(row, how).shape == (len(input_statistics.names(how)),)


def test_the_statistics_of_a_row():
    how = compared.described(TensorSpec.model_validate(IMAGE), None)
    how |= {"low": [0.0, 0.0, 0.0], "high": [1.0, 1.0, 1.0]}
    row = np.zeros((3, 8, 8), np.float32)
    row[1, 0] = 2.0
    found = dict(zip(input_statistics.names(how), input_statistics.of_row(row, how), strict=True))
    assert found["mean", 1] == 0.25
    assert found["max", 1] == 2.0
    assert found["min", 1] == 0.0
    assert found["outside", 1] == 0.125
    assert found["std", 1] == pytest.approx(row[1].std())
    assert found["mean", 0] == found["std", 0] == found["outside", 0] == 0.0


def test_a_reference_says_what_it_is_of(tmp_path):
    found = described(tmp_path, {"image": photographs(600, 0)}, role="evaluation")
    assert found.about["reference"] == {
        "role": "evaluation",
        "source": "npz:data.npz",
        "samples": 512,
        "of": 600,
    }
    assert len(found.reference[0]) == 512
    answer = drift(seen(found, {"image": photographs(200, 1)}))
    assert "no calibration data: its evaluation data are the reference" in answer.notes[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.about.update(schema=2),
        lambda found: found.about.pop("inputs"),
        lambda found: found.about["inputs"][0].update(channels=10**9),
        lambda found: found.reference.__setitem__(0, found.reference[0][:, :3]),
        lambda found: found.reference.__setitem__(0, np.full_like(found.reference[0], np.nan)),
        lambda found: found.reference.clear(),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, change):
    found = described(tmp_path, {"image": photographs(30, 0)})
    change(found)
    with pytest.raises(ValueError, match="holds no statistics of inputs"):
        input_statistics.unpacked(found.packed())


def test_bytes_that_are_no_npz_are_refused():
    for content in (b"", b"PK", b"\x80\x04}", json.dumps({}).encode()):
        with pytest.raises(ValueError, match="holds no statistics of inputs"):
            input_statistics.unpacked(content)


def test_a_recipe_without_data_is_refused(tmp_path: Path):
    built = variant(tmp_path, Format.ONNX, IMAGE)
    with pytest.raises(UsageError, match="no data that inputs could be compared with") as caught:
        compared.of_calibration("net", built, tmp_path / "log")
    assert "calibration" in caught.value.hint


def test_empty_data_are_refused(tmp_path):
    with pytest.raises(InputError, match="no samples were found"):
        described(tmp_path, {"image": photographs(0, 0)})
