"""The limits of the judgement by parts, each on both of its sides."""

import numpy as np
import pytest

from optcli.accuracy import parts
from optcli.accuracy.parts import part_distances
from optcli.outputs import OutputMeaning, OutputPart

UNKNOWN = OutputMeaning("out", (OutputPart("unknown"),), "unknown")
EMBEDDING = OutputMeaning("out", (OutputPart("embedding", 0, 0, 2),), "recipe")
SCORES = OutputMeaning("out", (OutputPart("scores", 0, 0, 2),), "recipe")


def two(second, samples=2):
    """Rows `[samples, 2]`: the first value varies from 0 to 1, the second as given."""
    return np.stack([np.linspace(0, 1, samples), second], axis=1).astype(np.float32)


def only(mine, theirs, meaning, score=0.0):
    (found,) = part_distances(meaning, mine, theirs, score)
    return found


@pytest.mark.parametrize(("spread", "dead"), [(0.0625, 1), (0.0624, 0)])
def test_a_slice_matters_from_a_share_of_the_range_on(spread, dead, monkeypatch):
    monkeypatch.setattr(parts, "_MATTERS", 0.0625)  # the limit itself, exact in float32
    found = only(two([0.5, 0.5]), two([0.5, 0.5 + spread]), EMBEDDING)
    assert (found.dead_count, found.faded_count) == (dead, 1 - dead)


@pytest.mark.parametrize(("largest", "dead"), [(0.03125, 1), (0.0312, 0)])
def test_a_class_matters_from_a_share_of_the_score_on(largest, dead, monkeypatch):
    monkeypatch.setattr(parts, "_OF_THE_SCORE", 0.0625)
    theirs = two([0, largest])
    assert only(two([0, 0]), theirs, SCORES, score=0.5).dead_count == dead
    # Below the score that counts without one, that one does.
    assert only(two([0, 0]), two([0, largest / 2]), SCORES, score=0.1).dead_count == dead


@pytest.mark.parametrize(("left", "dead"), [(0.25, 1), (0.2501, 0)])
def test_what_varies_a_little_still_lives(left, dead, monkeypatch):
    monkeypatch.setattr(parts, "_DEAD", 0.25)
    found = only(two([0, left]), two([0, 1]), EMBEDDING)
    assert found.dead_count == dead


@pytest.mark.parametrize(("away", "wrong"), [(0.5, 0), (0.5001, 1)])
def test_a_slice_is_wrong_beyond_a_share_of_its_power(away, wrong):
    theirs = two([0.0, 1.0])  # twice 0.25 without the mean, of which half may be wrong
    mine = theirs + np.array([[0, away], [0, 0]], np.float32)
    assert only(mine, theirs, EMBEDDING).wrong_count == wrong


@pytest.mark.parametrize(("spread", "wrong"), [(0.25, 1), (0.2499, 0)])
def test_a_slice_is_prominent_from_a_share_of_the_range_on(spread, wrong, monkeypatch):
    monkeypatch.setattr(parts, "_PROMINENT", 0.25)
    theirs = two([0.5, 0.5 + spread])
    mine = two([0.5 + spread, 0.5])  # the other way round
    assert only(mine, theirs, EMBEDDING).wrong_count == wrong


@pytest.mark.parametrize(("largest", "wrong"), [(0.25, 1), (0.2499, 0)])
def test_a_score_is_prominent_from_the_one_that_counts_on(largest, wrong):
    theirs = np.array([[0, 0], [2, largest]], np.float32)
    mine = np.array([[0, largest], [2, 0]], np.float32)
    assert only(mine, theirs, SCORES).wrong_count == wrong


@pytest.mark.parametrize(("apart", "shift"), [(1.0, True), (1.01, False)])
def test_a_shift_is_half_of_what_is_wrong_at_least(apart, shift):
    theirs = np.array([[0.0], [4.0]])
    mine = theirs + np.array([[1 + apart], [1 - apart]])  # by 1 on average
    meaning = OutputMeaning("out", (OutputPart("embedding"),), "recipe")
    found = only(mine, theirs, meaning)
    assert (abs(found.shift) > 0) == shift


@pytest.mark.parametrize(("slices", "dead"), [(4, True), (5, False)])
def test_along_more_slices_nobody_looks_for_dead_ones(slices, dead, monkeypatch):
    """A part of a map: thousands of places that never change are no finding."""
    monkeypatch.setattr(parts, "MOST_SLICES", 4)
    theirs = np.random.default_rng(0).uniform(0, 1, (3, 2, slices))
    mine = theirs.copy()
    mine[:, :, 1] = 0.5
    meaning = OutputMeaning("out", (OutputPart("embedding"),), "recipe")
    found = only(mine, theirs, meaning)
    assert (found.dead, found.axis) == ((1,), 2) if dead else (found.dead, found.axis) == ((), 1)


@pytest.mark.parametrize(("size", "told"), [(5, True), (6, False), (4, False)])
def test_class_numbers_are_looked_for_among_so_many_columns(size, told, monkeypatch):
    monkeypatch.setattr(parts, "MOST_SLICES", 5)
    theirs = np.random.default_rng(0).uniform(0, 1, (3, 7, size))
    theirs[..., 2] = np.arange(21).reshape(3, 7) % 4
    found = part_distances(UNKNOWN, theirs, theirs, 0.0)
    assert ("class_numbers" in [each.part for each in found]) == told


@pytest.mark.parametrize(("least", "most", "told"), [(0, 1, True), (-1, 1, False), (0, 0, False)])
def test_class_numbers_start_at_zero_and_are_several(least, most, told):
    theirs = np.random.default_rng(0).uniform(0, 1, (3, 7, 6))
    theirs[..., 2] = least
    theirs[0, 0, 2] = most
    found = part_distances(UNKNOWN, theirs, theirs, 0.0)
    assert ("class_numbers" in [each.part for each in found]) == told


def test_two_samples_are_enough_and_one_is_not():
    theirs = two([0, 1])
    assert part_distances(EMBEDDING, theirs, theirs, 0.0)
    assert part_distances(EMBEDDING, theirs[:1], theirs[:1], 0.0) == ()
