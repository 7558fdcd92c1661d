"""Steps of t(B): models that are compiled for some batch sizes, and what plans make of them."""

import numpy as np
import pytest

from optcli.measure.queueing import formulas
from optcli.measure.queueing.arrivals import Poisson
from optcli.measure.queueing.batching import Batching
from optcli.measure.queueing.choice import choose
from optcli.measure.queueing.curve import CompiledForms, Curve, with_forms
from optcli.measure.queueing.demand import Demand, Promise, offered_batches
from optcli.measure.queueing.simulation import simulate


def stepped(points, **forms):
    return with_forms(Curve.from_points(points), CompiledForms(**forms))


def test_a_batch_in_between_takes_as_long_as_the_compiled_size_it_is_padded_to():
    curve = stepped({1: 5.0, 8: 12.0, 16: 20.0}, compiled=(1, 8, 16))
    assert curve.times_ms(16) == [5.0, *[12.0] * 7, *[20.0] * 8]
    assert curve.padded == ((2, 8), (9, 16))
    assert [curve.padded_to(size) for size in (1, 2, 7, 8, 9, 16)] == [None, 8, 8, None, 16, None]
    # Known at two sizes, the line beyond them is that of the points.
    plain = Curve.from_points({1: 5.0, 8: 12.0, 16: 20.0})
    assert curve.time_ms(20) == plain.time_ms(20)
    assert (curve.fixed_ms, curve.largest_residual) == (plain.fixed_ms, plain.largest_residual)


def test_a_batch_in_between_goes_to_the_form_for_any_size_where_that_is_faster():
    # By the gains, the form for any size takes 6 ms at 1 and 20 ms at 8: 2 ms for each image.
    curve = stepped({1: 5.0, 8: 16.0}, compiled=(1, 8), gains={1: 1.2, 8: 1.25})
    assert curve.padded == ((6, 8),)
    assert curve.times_ms(8) == pytest.approx([5, 8, 10, 12, 14, 16, 16, 16])
    assert curve.sizes == (1, 8), "nothing else was measured"


def test_what_was_measured_says_which_form_computes_the_sizes_beside_it():
    points = {1: 5.0, 2: 9.0, 4: 13.0, 8: 16.0, 16: 37.0, 32: 69.0}
    curve = stepped(points, compiled=(1, 8))
    # 2 and 4 were computed in the form for any size: 2 ms for each image, over 8's from 6 on.
    assert curve.times_ms(8) == pytest.approx([5, 9, 11, 13, 15, 16, 16, 16])
    assert curve.padded == ((6, 8),)
    # Above 8 all go there, too: 9 does not take what the line from 8 to 16 says.
    form = [5 + 2 * size for size in range(9, 16)]
    assert [curve.time_ms(size) for size in range(9, 16)] == pytest.approx(form)


def test_sizes_that_were_measured_while_padded_are_no_points_of_their_own():
    forms = CompiledForms((1, 8), padded={4: 8}, gains={1: 1.2, 8: 2.0})
    assert forms.own([1, 2, 4, 8]) == [1, 2, 8]
    assert forms.own([1, 2, 4]) == [1, 2, 4], "where 8 is not known, 4 says what it takes"
    curve = with_forms(Curve.from_points({1: 5.0, 2: 8.0, 8: 16.0}), forms)
    assert curve.padded == ((4, 8),)
    assert curve.times_ms(8) == pytest.approx([5, 8, 12, 16, 16, 16, 16, 16])


def test_a_model_that_pads_nothing_keeps_to_its_forms():
    curve = stepped({1: 5.0, 8: 16.0}, compiled=(1, 8), gains={1: 1.2, 8: 1.25}, can_pad=False)
    assert curve.padded == ()
    assert curve.times_ms(8) == pytest.approx([5, 8, 10, 12, 14, 16, 16, 16])


def test_a_package_says_itself_from_where_batches_are_padded_and_what_is_cut():
    forms = CompiledForms((1, 4), padded_from={1: 1, 4: 3}, pieces=True)
    assert forms.own([1, 2, 3, 4, 8]) == [1, 2, 4, 8]
    curve = with_forms(Curve.from_points({1: 2.0, 4: 5.0, 8: 10.0}), forms)
    assert curve.padded == ((3, 4),)
    # 5 is 4 + 1; 7 is 4 + 3, which is padded to 4.
    assert curve.times_ms(8) == pytest.approx([2, 3.5, 5, 5, 7, 8.5, 10, 10])


def test_a_compiled_size_that_was_not_measured_is_taken_from_the_others():
    curve = stepped({1: 5.0, 8: 12.0}, compiled=(1, 4, 8))
    assert curve.times_ms(8) == [5, 8, 8, 8, 12, 12, 12, 12]
    assert (curve.sizes, curve.padded) == ((1, 8), ((2, 4), (5, 8)))


def test_one_compiled_size_is_a_curve_up_to_it():
    curve = stepped({8: 12.0}, compiled=(8,))
    assert curve.times_ms(8) == [12.0] * 8
    assert not curve.is_extrapolated(1)
    assert curve.is_extrapolated(9)
    # A rate of 400 needs a batch of 4.8, 1000 one of 12.
    assert formulas.fewest_wait_sealed_ms(400, curve) == pytest.approx(3.8 / 0.4)
    assert formulas.fewest_wait_sealed_ms(1000, curve) == float("inf")


def test_the_least_wait_of_sealed_batches_knows_the_step():
    """On the straight line a batch of 2.7 would do; all batches of 2 to 8 take 12 ms."""
    straight = Curve.from_points({1: 5.0, 8: 12.0})
    curve = with_forms(straight, CompiledForms((1, 8)))
    assert formulas.fewest_wait_sealed_ms(400, straight) == pytest.approx((1.6 / 0.6 - 1) / 0.4)
    least = formulas.fewest_wait_sealed_ms(400, curve)
    assert least == pytest.approx(3.8 / 0.4)
    arrivals = Poisson(400).draw(20_000, 1)
    sealed = Batching(batch=32, wait_ms=0.6 * least, instances=1, semantics="sealed")
    assert simulate(arrivals, curve, sealed).grows


def test_draws_of_a_padded_batch_are_those_of_the_size_it_is_padded_to():
    samples = {1: np.array([4.0, 6.0]), 8: np.array([10.0, 14.0])}
    curve = with_forms(Curve.from_samples(samples), CompiledForms((1, 8), gains={1: 1.2, 8: 1.5}))
    table = curve.quantiles_ms(8)
    assert table.mean(axis=1) == pytest.approx(curve.times_ms(8))
    first = curve.padded[0][0]
    assert np.array_equal(table[first - 1], table[7])


def test_a_curve_is_scaled_with_its_steps():
    curve = stepped({1: 5.0, 8: 16.0}, compiled=(1, 8), gains={1: 1.2, 8: 1.25})
    half = curve.scaled(0.5)
    assert half.times_ms(8) == pytest.approx([time / 2 for time in curve.times_ms(8)])
    assert half.padded == curve.padded


@pytest.mark.slow
def test_the_choice_takes_no_padded_size_where_the_compiled_one_is_as_good():
    points = {1: 5.0, 8: 12.0}
    demand = Demand(Poisson(200), Promise({0.95: 60.0}), requests=5000)
    straight, curve = (
        Curve.from_points(points),
        with_forms(Curve.from_points(points), CompiledForms((1, 8))),
    )
    assert offered_batches(straight, demand) == [1, 2, 4, 8]
    assert offered_batches(curve, demand) == [1, 8]
    assert choose(straight, demand).best.batching.batch == 4
    assert choose(curve, demand).best.batching.batch == 8
    # Where 8 may not be, its form still computes batches of 4.
    few = Demand(Poisson(300), Promise({0.95: 60.0}), requests=5000, largest_batch=6)
    assert offered_batches(curve, few) == [1, 2, 4]
