"""What a training says of itself: loss, images a second, the time that is left, by a clock of ours."""

import re

import pytest

from optcli.observer import left
from optcli.passes._torch.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "0 s left"),
        (59.4, "59 s left"),
        (60, "1 min 0 s left"),
        (125, "2 min 5 s left"),
        (3600, "1 h 0 min left"),
        (9000, "2 h 30 min left"),
    ],
)
def test_time_that_is_left_in_words(seconds, words):
    assert left(seconds) == words


def test_rate_and_time_left_follow_from_what_was_done():
    clock = Clock()
    pace = Pace(epochs=2, first=0, trained=100, judged=60, clock=clock)
    assert pace.images_per_s is None
    assert pace.summary() == ""
    clock.now += 6  # 60 judged are 60 units of 780
    pace.judge(60)
    assert pace.summary() == ", 1 min 12 s left"
    pace.begin_epoch()
    clock.now += 15
    pace.train(50)  # 210 units in 21 s
    assert pace.images_per_s == pytest.approx(50 / 15)
    assert pace.summary() == ", 3.33 images/s, 57 s left"
    clock.now += 15
    pace.train(50)
    clock.now += 6
    pace.judge(60)
    assert pace.images_per_s == pytest.approx(100 / 30), "judging does not count"
    pace.begin_epoch()
    clock.now += 0.05
    pace.train(100)
    assert re.match(r", 2000 images/s, \d+ s left", pace.summary())
    pace.judge(60)
    assert pace.summary() == ", 2000 images/s"


def test_a_training_that_goes_on_counts_what_it_does_itself():
    clock = Clock()
    pace = Pace(epochs=3, first=2, trained=10, judged=0, clock=clock)
    pace.begin_epoch()
    clock.now += 4
    pace.train(5)
    assert pace.summary() == ", 1.25 images/s, 4 s left"


def test_in_the_first_seconds_no_time_is_told():
    clock = Clock()
    pace = Pace(epochs=1, first=0, trained=10, judged=0, clock=clock)
    pace.begin_epoch()
    clock.now += 1
    pace.train(1)
    assert pace.summary() == ", 1 images/s"


@pytest.mark.parametrize(
    ("threads", "seconds", "processor_s", "told"),
    [
        (2, 30, 33, "2 threads get 1.1 s of processor time a second"),
        (2, 30, 57, None),
        (2, 10, 5, None),  # too early to tell
        (1, 30, 15, None),  # no fewer are possible
        (8, 60, 90, "8 threads get 1.5 s of processor time a second"),
    ],
)
def test_threads_that_wait_for_each_other_are_told_of(threads, seconds, processor_s, told):
    clock, processor = Clock(), Clock()
    pace = Pace(1, 0, 10, 0, clock, processor)
    clock.now += seconds
    processor.now += processor_s
    said = pace.idle(threads)
    assert said is None if told is None else told in str(said)
