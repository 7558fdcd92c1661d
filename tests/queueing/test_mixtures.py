import pytest

from optcli.errors import InputError
from optcli.queueing import (
    Batching,
    Curve,
    Poisson,
    Stage,
    break_even_share,
    cascade,
)

LINE = Curve.from_line(4, 1)
STAGE = Stage(LINE, Batching(16, 10))


def test_a_cascade_adds_the_heavy_model_for_its_share():
    cheap, heavy = Stage(Curve.parse("2ms"), Batching(1)), Stage(Curve.parse("20ms"), Batching(1))
    # So rarely that nothing queues.
    mixture = cascade(Poisson(0.1), cheap, heavy, 0.3)
    assert mixture.mean_ms == pytest.approx(2 + 0.3 * 20, rel=0.02)
    assert (mixture.p50_ms, mixture.p95_ms) == pytest.approx((2, 22))
    first, second = mixture.parts
    assert second.latencies_ms.size == pytest.approx(0.3 * first.latencies_ms.size, rel=0.02)
    assert cascade(Poisson(1), cheap, heavy, 0).parts[1:] == ()


def test_the_share_at_which_a_cascade_stops_paying():
    assert break_even_share(2, 20) == pytest.approx(0.9)
    assert break_even_share(30, 20) == 0
    share = break_even_share(2, 20)
    assert 2 + share * 20 == pytest.approx(20)


@pytest.mark.parametrize(
    "make",
    [
        lambda: cascade(Poisson(1), STAGE, STAGE, 2),
        lambda: break_even_share(0, 1),
        lambda: break_even_share(1, 0),
    ],
)
def test_mixtures_that_make_no_sense(make):
    with pytest.raises(InputError):
        make()
