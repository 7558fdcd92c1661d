import pytest

from optcli.measure.latency import process


class Clock:
    """Calls that take what they are told, on a clock of their own."""

    def __init__(self, monkeypatch, took_ns):
        self.now, self.calls, self.took_ns = 0, 0, took_ns
        monkeypatch.setattr(process.time, "perf_counter_ns", lambda: self.now)

    def call(self):
        took = int(self.took_ns(self.calls, self.now))
        self.calls += 1
        self.now += took
        return took


@pytest.fixture
def clock(monkeypatch):
    return lambda took_ns: Clock(monkeypatch, took_ns)


def test_calls_that_take_the_same_are_steady_after_half_a_second(clock):
    model = clock(lambda call, now: 90e6 if call == 0 else 10e6)
    found = process.warm_up_until_steady(model.call, 10, 10.0)
    assert found.steady is True
    assert found.first_ms == 90
    assert found.usual_ns == 10e6
    assert 0.5e9 <= model.now < 0.75e9
    assert found.calls == model.calls
    assert found.seconds == model.now / 1e9
    assert found.steady_after == model.calls - 40  # the two windows of 0.2 s


def test_what_gets_faster_is_warmed_up_until_it_does_no_more(clock):
    falling = clock(lambda call, now: 20e6 - 3e6 * min(now / 1e9, 3))
    found = process.warm_up_until_steady(falling.call, 10, 10.0)
    assert falling.now > 2e9
    assert found.usual_ns == pytest.approx(11e6, rel=0.03)


def test_what_is_never_steady_is_given_up_at_the_cap_and_said(clock):
    model = clock(lambda call, now: 10e6 if int(now / 0.2e9) % 2 else 20e6)
    found = process.warm_up_until_steady(model.call, 10, 4.0)
    assert found.steady is False
    assert 4e9 <= model.now < 4.5e9
    assert found.steady_after == found.calls


def test_slow_calls_are_as_many_as_asked_for_unless_the_cap_comes_first(clock):
    assert process.warm_up_until_steady(clock(lambda *_: 0.3e9).call, 10, 10.0).calls == 10
    capped = process.warm_up_until_steady(clock(lambda *_: 3e9).call, 10, 10.0)
    assert (capped.calls, capped.steady) == (4, False)


def test_by_count(clock):
    times = iter([50, 40, 30, 20, 10, 11, 12, 13])
    found = process.warm_up_by_count(clock(lambda *_: next(times) * 1e6).call, 8, 10.0)
    assert (found.calls, found.first_ms, found.usual_ns) == (8, 50, 12e6)
    assert (found.steady, found.steady_after) == (None, 8)
