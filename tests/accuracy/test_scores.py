"""How far scores moved: what a fixed threshold lets through beside the baseline."""

import numpy as np
import pytest

from optcli import accuracy
from optcli.accuracy.differences import _change, score_advice


def changed(mine, theirs, of="detections", threshold=0.25):
    return _change(np.asarray(mine, np.float32), np.asarray(theirs, np.float32), of, threshold)


SCORES = np.linspace(0.05, 0.95, 91)


def test_halved_scores_are_named_with_the_threshold_that_lets_as_many_through():
    change = changed(SCORES / 2, SCORES)
    assert (change.count, change.baseline, change.equal) == (46, 71, pytest.approx(0.125))
    assert score_advice(change) == (
        "scores moved: a fixed threshold of 0.25 lets 46 detections through where the baseline has 71,"
        " 35% fewer; 0.12 would let as many through"
    )
    assert "63% more" in score_advice(changed(SCORES * 2, SCORES - 0.2))


def test_little_is_no_advice():
    assert score_advice(changed(SCORES - 0.01, SCORES)) is None
    assert score_advice(changed(SCORES[:10] / 9, SCORES[:10] * 9)) is None
    assert changed([], SCORES).equal is None
    assert changed(SCORES, SCORES * 0).equal is None


def test_a_classifier_that_grew_unsure_is_told_where_top1_sees_nothing(evaluate):
    flat = lambda x: {"y": x * 0.01}  # noqa: E731
    found = accuracy.compare(evaluate(flat), evaluate(lambda x: {"y": x * 20}))
    assert found.drop.value == 0
    assert (found.scores.of, found.scores.count, found.scores.baseline) == ("answers", 0, 10)
    many = found.scores.model_copy(update={"baseline": 100})
    for is_baseline, told in ((False, 1), (True, 0)):
        verdicts = accuracy.verdicts(
            found.model_copy(update={"scores": many}), None, is_baseline=is_baseline
        )
        moved = [each for each in verdicts if each.name == "scores"]
        assert [(each.outcome, each.blocking) for each in moved] == [("inconclusive", False)] * told
