"""Detections by a decoding that nobody has declared: where they are sensible, they count."""

import numpy as np
import pytest

from optcli import accuracy
from optcli.settings import TensorSpec
from optcli.settings.postprocess import PostprocessSettings

IMAGE = TensorSpec(name="x", shape=("batch", 3, 64, 64), batch={"min": 1, "opt": 4, "max": 8})
GUESS = PostprocessSettings.model_validate({"boxes": {"format": "cxcywh", "transposed": True}})
CELLS = 20


class Images:
    """Eight images without labels, each of its own noise."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        from optcli.sample import Sample

        image = np.random.default_rng(index).uniform(0, 1, (3, 64, 64)).astype(np.float32)
        return Sample(str(index), {"x": image}, None)


def detections(images):
    """Boxes as centre and size, and scores of three classes, `[n, 7, cells]`; most are weak."""
    rows = []
    for image in images:
        random = np.random.default_rng(int(image.sum() * 1000))
        boxes = np.concatenate([random.uniform(20, 44, (2, CELLS)), random.uniform(5, 30, (2, CELLS))])
        scores = random.uniform(0, 0.02, (3, CELLS))
        scores[random.integers(0, 3, 6), np.arange(6)] = random.uniform(0.5, 0.9, 6)
        rows.append(np.concatenate([boxes, scores]))
    return {"output0": np.array(rows, np.float32)}


def rounded(images):
    """An honest INT8 model: weak scores all round to other values, what counts stays."""
    rows = detections(images)["output0"]
    rows[:, :4] = np.round(rows[:, :4] * 4) / 4
    weak = rows[:, 4:] < 0.05
    coarse, fine = (np.round(rows[:, 4:] * steps) / steps for steps in (60, 100))
    rows[:, 4:] = np.where(weak, 2 * coarse, fine)
    return {"output0": rows}


def dead(images):
    rows = detections(images)["output0"]
    rows[:, 4:] = 0
    return {"output0": rows}


def fewer(images):
    rows = detections(images)["output0"]
    rows[:, 4:, ::3] *= 0.01
    return {"output0": rows}


def judged(evaluate, variant, baseline=detections, *, guessed=True):
    both = [
        evaluate(each, Images(), None, IMAGE, postprocess=GUESS, guessed=guessed, reference=n == 0)
        for n, each in enumerate((baseline, variant))
    ]
    found = accuracy.compare(both[1], both[0])
    return found, {each.name: each for each in accuracy.verdicts(found, None)}["outputs"]


def test_an_honest_model_is_accepted_by_its_detections(evaluate):
    found, verdict = judged(evaluate, rounded)
    assert verdict.outcome == "accept"
    assert found.output_error.detections.guessed
    assert "decoded as their form suggests, which is a guess" in verdict.reason
    assert "48 of the baseline's 48 detections" in verdict.reason


@pytest.mark.parametrize(("variant", "outcome"), [(dead, "reject"), (fewer, "inconclusive")])
def test_a_model_that_finds_less_is_not(evaluate, variant, outcome):
    _, verdict = judged(evaluate, variant)
    assert verdict.outcome == outcome


def outside(images):
    """The same rows as two corners would stand there: most boxes lie outside of the image."""
    rows = detections(images)["output0"]
    rows[:, 2:4] += 100
    return {"output0": rows}


def without_area(images):
    """Fractions of the image: no box has an area of a pixel."""
    rows = detections(images)["output0"]
    rows[:, :4] /= 64
    return {"output0": rows}


def angles(images):
    """What stands in the place of a class is an angle, or a logit: above 1."""
    rows = detections(images)["output0"]
    rows[:, 6] += 1.2
    return {"output0": rows}


@pytest.mark.parametrize("baseline", [outside, without_area, angles])
def test_what_is_no_detection_decides_nothing(evaluate, baseline):
    def variant(images):
        rows = baseline(images)["output0"]
        rows[:, 4:] *= 0.5
        return {"output0": rows}

    found, verdict = judged(evaluate, variant, baseline)
    assert found.output_error.detections is None
    assert found.scores is None
    assert found.decoding == ()
    assert verdict.outcome == "inconclusive", "values are compared as without any decoding"
    assert "guess" not in verdict.reason


def test_what_a_recipe_says_is_taken_as_it_is(evaluate):
    found, _ = judged(evaluate, outside, outside, guessed=False)
    assert found.output_error.detections.confident == 48
    assert not found.output_error.detections.guessed
