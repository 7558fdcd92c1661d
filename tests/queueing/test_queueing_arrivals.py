import numpy as np
import pytest

from optcli.errors import InputError
from optcli.measure.queueing.arrivals import Arrivals, Bursts, Constant, Gamma, Poisson, parse

PROCESSES = [
    Poisson(500),
    Constant(500),
    Gamma(500, 4),
    Gamma(500, 0.25),
    Bursts(400, 1400, 1800, 200),
    Bursts(0, 1000, 50, 50),
]


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_every_process(process):
    arrivals = process.draw(100_000, 7)
    assert arrivals.count == 100_000
    assert (np.diff(arrivals.times_ms) >= 0).all()
    assert arrivals.rate_per_s == pytest.approx(process.rate_per_s, rel=0.03)
    again = process.draw(100_000, 7)
    assert np.array_equal(arrivals.times_ms, again.times_ms)
    if not isinstance(process, Constant):
        assert not np.array_equal(arrivals.times_ms, process.draw(100_000, 8).times_ms)
    assert process.scaled(2).rate_per_s == pytest.approx(2 * process.rate_per_s)
    # By one seed a faster process brings each request no later.
    faster = process.scaled(1.3).draw(2000, 7).times_ms
    assert (faster <= arrivals.times_ms[:2000] + 1e-9).all()
    assert process.draw(1, 7).count == 1
    with pytest.raises(InputError, match="the number of requests is 0"):
        process.draw(0, 7)


@pytest.mark.parametrize(
    ("process", "cv2"),
    [(Poisson(300), 1), (Constant(300), 0), (Gamma(300, 4), 4), (Gamma(300, 0.5), 0.5)],
)
def test_the_variation_of_the_gaps(process, cv2):
    gaps = np.diff(process.draw(200_000, 3).times_ms)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(cv2, rel=0.05, abs=1e-9)


def test_bursts_have_the_rates_lengths_and_share_that_they_say():
    bursts = Bursts(400, 1400, 1800, 200)
    assert bursts.rate_per_s == 500
    # In windows of 20 ms the rate is that of a state: 8 or 28 requests in the mean.
    times = bursts.draw(400_000, 5).times_ms
    counts = np.bincount((times / 20).astype(int))
    assert np.mean(counts >= 18) == pytest.approx(0.1, abs=0.01)
    assert counts[counts < 18].mean() == pytest.approx(8, rel=0.05)
    assert counts[counts >= 18].mean() == pytest.approx(28, rel=0.06)


def test_arrivals_as_texts():
    assert parse("poisson", 100) == Poisson(100)
    assert parse(" constant ", 100) == Constant(100)
    assert parse("gamma:4", 100) == Gamma(100, 4)
    assert parse("bursts:1400,1800ms,200ms", 500) == Bursts(400, 1400, 1800, 200)
    assert parse("bursts:1000,50ms,0.05s", 500) == Bursts(0, 1000, 50, 50)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is no kind of arrivals"),
        ("posson", "'posson' is no kind"),
        ("poisson:3", "'poisson:3' is no kind"),
        ("gamma", "'gamma' is no kind"),
        ("gamma:x", "'x' in 'gamma:x' is no number"),
        ("gamma:0", "the squared coefficient of variation is 0.0"),
        ("gamma:nan", "the squared coefficient of variation is nan"),
        ("bursts:1400,1800ms", "is no kind of arrivals"),
        ("bursts:1400,1800,200", "'1800' is no time"),
        ("bursts:1400,0ms,0ms", "the length of a cycle is 0.0"),
        ("bursts:9000,1800ms,200ms", "are 900 requests/s in the mean, more than the rate 500"),
        ("bursts:-5,1800ms,200ms", "the rate in bursts is -5.0"),
    ],
)
def test_texts_that_are_no_arrivals(text, says):
    with pytest.raises(InputError) as raised:
        parse(text, 500)
    assert says in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(
    "make",
    [
        lambda: Poisson(0),
        lambda: Poisson(-1),
        lambda: Poisson(float("nan")),
        lambda: Poisson(None),
        lambda: Constant(0),
        lambda: Gamma(1, 0),
        lambda: Bursts(1, 0, 1, 1),
        lambda: Bursts(1, 2, 0, 1),
        lambda: Arrivals([2, 1]),
        lambda: Arrivals([-1, 1]),
        lambda: Arrivals([1, float("nan")]),
    ],
)
def test_arrivals_that_make_no_sense(make):
    with pytest.raises(InputError) as raised:
        make()
    assert raised.value.hint
