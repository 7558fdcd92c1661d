import numpy as np
import pytest

from optcli.errors import InputError
from optcli.queueing import (
    Batching,
    Curve,
    Poisson,
    Stage,
    break_even_share,
    cascade,
    replicate,
    with_cache,
)

LINE = Curve.from_line(4, 1)
STAGE = Stage(LINE, Batching(16, 10))


@pytest.mark.slow
def test_a_cache_takes_its_share_of_the_rate():
    mixture = with_cache(Poisson(800), 0.5, 1, STAGE)
    misses = replicate(Poisson(400), LINE, Batching(16, 10))
    (part,) = mixture.parts
    assert part.offered_per_s == pytest.approx(400, rel=0.02)
    assert part.p95_ms == pytest.approx(misses.p95_ms.value, rel=0.02)
    assert mixture.mean_ms == pytest.approx(0.5 * 1 + 0.5 * misses.mean_ms.value, rel=0.02)
    # The upper tenth of the misses is the upper twentieth of all.
    assert mixture.p95_ms == pytest.approx(part.percentile_ms(0.9), rel=0.01)
    assert mixture.p50_ms >= 1


def test_a_cache_that_holds_nothing_or_everything():
    nothing = with_cache(Poisson(400), 0, 1, STAGE)
    assert nothing.p95_ms == nothing.parts[0].p95_ms
    everything = with_cache(Poisson(400), 1, 1.5, STAGE)
    assert everything.parts == ()
    assert (everything.p50_ms, everything.p99_ms, everything.mean_ms) == (1.5, 1.5, 1.5)


def test_a_cascade_adds_the_heavy_model_for_its_share():
    cheap, heavy = Stage(Curve.parse("2ms"), Batching(1)), Stage(Curve.parse("20ms"), Batching(1))
    # So rarely that nothing queues.
    mixture = cascade(Poisson(0.1), cheap, heavy, 0.3)
    assert mixture.mean_ms == pytest.approx(2 + 0.3 * 20, rel=0.02)
    assert (mixture.p50_ms, mixture.p95_ms) == pytest.approx((2, 22))
    first, second = mixture.parts
    assert second.offered_per_s == pytest.approx(0.3 * first.offered_per_s, rel=0.02)
    assert cascade(Poisson(1), cheap, heavy, 0).parts[1:] == ()


def test_a_heavy_model_that_drops_costs_the_cascade_answers():
    cheap = Stage(Curve.parse("2ms"), Batching(1))
    heavy = Stage(Curve.parse("20ms"), Batching(1, queue_cap=1))
    mixture = cascade(Poisson(200), cheap, heavy, 0.5)
    assert mixture.drop_share == pytest.approx(0.5 * mixture.parts[1].drop_share, rel=0.05)
    assert mixture.drop_share > 0.2


def test_the_share_at_which_a_cascade_stops_paying():
    assert break_even_share(2, 20) == pytest.approx(0.9)
    assert break_even_share(30, 20) == 0
    share = break_even_share(2, 20)
    assert 2 + share * 20 == pytest.approx(20)


@pytest.mark.parametrize(
    "make",
    [
        lambda: with_cache(Poisson(1), 1.1, 1, STAGE),
        lambda: with_cache(Poisson(1), -0.1, 1, STAGE),
        lambda: with_cache(Poisson(1), np.nan, 1, STAGE),
        lambda: with_cache(Poisson(1), 0.5, -1, STAGE),
        lambda: cascade(Poisson(1), STAGE, STAGE, 2),
        lambda: break_even_share(0, 1),
        lambda: break_even_share(1, 0),
    ],
)
def test_mixtures_that_make_no_sense(make):
    with pytest.raises(InputError):
        make()
