"""Axes: values at their pixels, round ticks, never too many."""

from __future__ import annotations

import pytest

from optcli.report.html import marks
from optcli.report.html.marks import Scale, from_zero, label, spanning


@pytest.mark.parametrize("log", [False, True])
def test_ends_and_middle(log):
    scale = Scale(1.0, 100.0, 10.0, 110.0, log)
    assert (scale(1.0), scale(100.0)) == (10.0, 110.0)
    assert scale(10.0 if log else 50.5) == pytest.approx(60.0)
    assert scale(1e9) == 110.0
    assert scale(-5.0) == 10.0


def test_a_large_range_is_logarithmic_and_zero_is_not():
    assert spanning([1.0, 100.0], 0, 100).log
    assert not spanning([1.0, 2.0], 0, 100).log
    assert not spanning([0.0, 100.0], 0, 100).log


@pytest.mark.parametrize(
    "values", [[0.051, 0.052], [1, 3], [0.2, 60], [1e-3, 1e6], [99.2, 99.2], [5.0], [], [80, 120_000]]
)
@pytest.mark.parametrize("width", [280, 700])
def test_ticks_are_within_the_axis_and_apart(values, width):
    for scale in (spanning(values, 0, width), from_zero(values, 0, width)):
        ticks = scale.ticks()
        assert 1 <= len(ticks) <= max(4, width // 64 + 1)
        assert all(scale.low <= tick <= scale.high for tick in ticks)
        assert ticks == sorted(set(ticks))
        assert len({label(tick) for tick in ticks}) == len(ticks)


def test_round_ticks():
    assert Scale(0.1, 100, 0, 700, log=True).ticks() == [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    assert Scale(0, 10, 0, 400).ticks() == [0, 2, 4, 6, 8, 10]


def test_labels():
    assert [label(each) for each in (0.05, 1.0, 250, 20_000, 1_500_000)] == [
        "0.05",
        "1",
        "250",
        "20k",
        "1.5M",
    ]


def test_long_names_keep_both_ends():
    shown = marks.shortened("a-variant-with-a-rather-long-name-int8", 100)
    assert len(shown) <= 15
    assert shown.startswith("a-var")
    assert shown.endswith("int8")
