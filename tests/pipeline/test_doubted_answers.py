"""When a baseline's images are tried in other preparations, and what it should have reached."""

from types import SimpleNamespace

import numpy as np
import pytest

from optcli import accuracy
from optcli.artifact import EXPECTED
from optcli.data import DataSettings
from optcli.pipeline.doubted_answers import _expected, _may_be_prepared_wrongly
from optcli.settings.accuracy import AccuracySettings

IMAGES = {"source": "imagefolder:photos", "prepare": {"scale": "1/255"}}


def evaluation(value, metric="top1", better="higher", doubts=(), count=200):
    arrays = {"correct": np.arange(count) < value * count} if metric == "top1" else {}
    arrays["resampled"] = value + 0.02 * np.sin(np.arange(1000.0))
    arrays["cluster"] = np.arange(count)
    return SimpleNamespace(value=value, metric=metric, better=better, doubts=doubts, array=arrays.get)


def recipe(settings=None, **data):
    evaluated = DataSettings.model_validate({**IMAGES, **data})
    return SimpleNamespace(
        data={"evaluation": evaluated}, accuracy=AccuracySettings.model_validate(settings or {})
    )


GUESSED = {"prepare": {"scale": "1/255", "guessed": True}}


@pytest.mark.parametrize(
    ("value", "metric", "better", "data", "expected", "tried"),
    [
        (0.7, "top1", "higher", {}, None, False),
        (0.4, "top1", "higher", {}, None, True),
        (0.7, "top1", "higher", GUESSED, None, True),
        (0.95, "top1", "higher", GUESSED, None, False),
        (0.6, "top1", "higher", {}, (0.76, "x"), True),
        (0.7, "top1", "higher", {}, (0.76, "x"), False),
        (0.3, "map", "higher", {}, None, False),
        (0.05, "map", "higher", {}, None, True),
        (0.3, "map", "higher", GUESSED, None, True),
        (0.3, "abs_rel", "lower", {}, None, False),
        (0.8, "abs_rel", "lower", {}, None, True),
        (0.05, "abs_rel", "lower", GUESSED, None, False),
        (0.2, "python:m.py:score", "higher", GUESSED, None, False),
        (0.4, "top1", "higher", {"source": "npz:a.npz", "prepare": None}, None, False),
    ],
)
def test_never_on_a_good_baseline(value, metric, better, data, expected, tried):
    found = evaluation(value, metric, better)
    assert _may_be_prepared_wrongly(found, recipe(**data), expected) is tried


def test_a_baseline_that_is_in_doubt_is_tried():
    assert _may_be_prepared_wrongly(evaluation(0.6, doubts=("guessing",)), recipe(), None)


def test_who_says_what_the_baseline_should_reach():
    facts = {EXPECTED: {"by": "training reached", "top1": 0.7}}
    assert _expected(recipe(), facts) == (0.7, "training reached")
    assert _expected(recipe({"metric": "top5"}), facts) is None
    assert _expected(recipe(), {}) is None
    assert _expected(recipe({"expected": 0.9}), facts)[0] == 0.9


def test_what_is_surely_ten_points_below_is_said_to_be():
    assert accuracy.surely_misses(evaluation(0.5), 0.7)
    assert not accuracy.surely_misses(evaluation(0.5, count=20), 0.7)
    assert not accuracy.surely_misses(evaluation(0.65), 0.7)
    assert accuracy.surely_misses(evaluation(0.2, "map"), 0.4)
    assert not accuracy.surely_misses(evaluation(0.3, "map"), 0.41)
    assert accuracy.surely_misses(evaluation(0.4, "abs_rel", "lower"), 0.1)
    assert not accuracy.surely_misses(evaluation(0.1, "abs_rel", "lower"), 0.4)
