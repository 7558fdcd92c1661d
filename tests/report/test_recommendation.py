import pytest
from example import accuracy, latency, report, variant, verdict

from optcli.report import recommend
from optcli.results import Accuracy, Against, Estimate, flags


def in_turns(ratios):
    """`Found.ratio` of a few pairs: values around which the interval is 2 % wide to both sides."""

    def ratio(name, over, batch_size):
        if (name, over) in ratios:
            value = ratios[name, over]
        elif (over, name) in ratios:
            value = 1 / ratios[over, name]
        else:
            return None
        return Estimate(value=value, low=value * 0.98, high=value * 1.02)

    return ratio


def advise(ratios=(), baseline=None, first_only=False, **variants):
    base = baseline or variant(1_000_000, [latency(4, 1), latency(9, 1, 8)], accuracy())
    return recommend(
        {"eager": base, **variants}, "eager", in_turns(dict(ratios)), first_only=first_only
    )


def choose(ratios=(), **variants):
    found = advise(ratios, first_only=True, **variants)
    return found.recommended, found.sentence


def unfit(row):
    """As a build has it: no speed-up where the machine was not quiet."""
    return row.model_copy(update={"fit": False, "speedup": None})


def test_the_fastest_that_is_accepted():
    name, sentence = choose(
        onnx=variant(1_000_000, [latency(2, 2)], accuracy()),
        int8=variant(260_000, [latency(1, 4)], accuracy(1, 0)),
        broken=variant(100_000, [latency(0.5, 8)], accuracy(90), [verdict("accuracy", "reject")]),
        unsure=variant(100_000, [latency(0.5, 8)], None, [verdict("slo p99_ms", "inconclusive")]),
    )
    assert name == "int8"
    assert sentence == (
        "Serve int8: 4.00 times [3.92, 4.08] as fast as eager at batch size 1 (p50 1.00 ms),"
        " 26 % of eager's size, top-1 98.61 % (0.28 points lower)."
    )


def test_advice_that_does_not_block_does_not_exclude():
    name, _ = choose(
        int8=variant(260_000, [latency(1, 4)], None, [verdict("speed-up over onnx", "reject", False)])
    )
    assert name == "int8"


def test_doubtful_outputs_are_not_recommended():
    far = [verdict("outputs", "inconclusive", False, reason="7.5 dB")]
    name, sentence = choose(int8=variant(260_000, [latency(1, 4)], None, far))
    assert name is None
    assert sentence.endswith("int8 is 4.00 times [3.92, 4.08] as fast, but outputs: 7.5 dB.")


def test_what_is_not_known_of_the_outputs_is_said():
    _, sentence = choose(onnx=variant(1_000_000, [latency(2, 2)]))
    assert sentence.endswith("100 % of eager's size, outputs not compared.")
    unlabelled = accuracy().model_copy(update={"metric": None, "value": None, "drop": None})
    _, sentence = choose(onnx=variant(1_000_000, [latency(2, 2)], unlabelled))
    assert sentence.endswith(", outputs 34.2 dB from eager's, accuracy not known.")


def test_equally_fast_ones_are_told_apart_by_size_then_accuracy():
    name, sentence = choose(
        large=variant(1_000_000, [latency(1, 4.05)], accuracy()),
        small=variant(300_000, [latency(1, 4.0)], accuracy(3)),
        right=variant(310_000, [latency(1, 3.98)], accuracy(1)),
        slower=variant(100_000, [latency(2, 2)], accuracy()),
    )
    assert name == "right"
    assert "large and small are as fast within the intervals and larger or less accurate." in sentence


def test_ties_are_told_by_turns_that_two_candidates_took_with_each_other():
    wide = Estimate(value=4.0, low=1.5, high=40.0)

    def noisy(p50, size_bytes):
        row = latency(p50, 4.0).model_copy(update={"speedup": wide})
        return variant(size_bytes, [row], accuracy())

    both = {"fast": noisy(1.0, 1000), "small": noisy(1.02, 500)}
    name, sentence = choose({("fast", "small"): 1.05}, **both)
    assert (name, "as fast within" in sentence) == ("fast", False)
    name, sentence = choose({("fast", "small"): 1.01}, **both)
    assert (name, "fast is as fast within the intervals" in sentence) == ("small", True)
    name, _ = choose({("fast", "small"): 0.9}, **both)
    assert name == "small"


def test_those_of_two_groups_are_compared_by_way_of_the_baseline():
    near = {
        "a": variant(1000, [latency(1, 4)], accuracy()),
        "b": variant(500, [latency(1, 3.95)], None),
    }
    assert choose(**near)[0] == "b"
    far = {**near, "b": variant(500, [latency(1, 3)], accuracy())}
    assert choose(**far)[0] == "a"


@pytest.mark.parametrize(("speedup", "named"), [(1.5, "fast"), (1.01, None), (0.5, None)])
def test_only_what_is_faster_for_certain(speedup, named):
    name, sentence = choose(fast=variant(1000, [latency(3, speedup)], accuracy()))
    assert name == named
    if named is None:
        assert sentence.startswith(
            "Nothing beats eager for certain: the fastest that is accepted, fast, is"
        )


def test_what_is_fast_and_refused_is_said():
    name, sentence = choose(
        int8=variant(
            1000, [latency(1, 4)], None, [verdict("accuracy", "reject", reason="3 points lost")]
        )
    )
    assert name is None
    assert sentence == (
        "Nothing can be recommended instead of eager. int8 is 4.00 times [3.92, 4.08] as fast,"
        " but accuracy: 3 points lost."
    )


def test_every_batch_size_has_a_recommendation_of_its_own():
    odd = variant(1000, [latency(1, 4), latency(10, 0.9, 8)], accuracy())
    even = variant(1000, [latency(2, 2), latency(3, 3, 8)], accuracy())
    found = advise(odd=odd, even=even)
    assert found.recommended == "odd"
    assert {size: each.variant for size, each in found.by_batch.items()} == {1: "odd", 8: "even"}
    assert found.sentence.endswith(
        "At batch size 8 serve even instead: 3.00 times [2.94, 3.06] as fast as eager."
    )
    only = advise(odd=odd, even=even, first_only=True)
    assert list(only.by_batch) == [1]
    assert "batch size 8" not in only.sentence


def test_the_same_at_every_batch_size_and_nothing_at_another_are_said():
    good = variant(1000, [latency(1, 4), latency(3, 3, 8)], accuracy())
    assert advise(good=good).sentence.endswith(
        "At batch size 8 too: 3.00 times [2.94, 3.06] as fast as eager."
    )
    odd = variant(1000, [latency(1, 4), latency(10, 0.9, 8)], accuracy())
    assert advise(odd=odd).sentence.endswith("At batch size 8 nothing is recommended.")
    now = variant(1000, [latency(1, 4), unfit(latency(3, 3, 8))], accuracy())
    found = advise(now=now)
    assert found.sentence.endswith("At batch size 8 it cannot be told now.")
    assert (found.recommended, found.by_batch[8].withheld) == ("now", True)


@pytest.mark.parametrize(
    ("status", "said"), [("failed", "the baseline eager failed."), ("skipped", "eager was skipped.")]
)
def test_beside_a_baseline_that_was_not_built_nothing_is_recommended(status, said):
    gone = variant(1000, [latency(2, 1)], status=status, reason="x")
    found = advise(baseline=gone, fast=variant(1000, [latency(1, 2)]))
    assert found.recommended is None
    assert found.by_batch == {}
    assert found.sentence.endswith(said)


def test_beside_a_baseline_without_latency_nothing_is_recommended():
    found = advise(baseline=variant(1000, []), fast=variant(1000, [latency(1, 2)]))
    assert found.recommended is None
    assert found.sentence == "Nothing can be recommended: the baseline eager has no latency."


def test_beside_a_baseline_that_is_refused_itself_nothing_is_recommended():
    broken = variant(1000, [latency(2, 1)], None, [verdict("outputs", "reject", reason="NaN")])
    found = advise(baseline=broken, fast=variant(1000, [latency(1, 2)]))
    assert found.recommended is None
    assert found.sentence.endswith("eager is not accepted itself (outputs: NaN).")


def test_nothing_measured_and_nothing_to_choose():
    assert choose() == (None, "There is only the baseline eager: nothing to choose from.")
    name, sentence = choose(failed=variant(1000, [latency(1, 4)], status="failed", reason="x"))
    assert (name, sentence) == (
        None,
        "Nothing can be recommended: no variant was measured beside eager.",
    )
    assert recommend({}, "eager", in_turns({})).recommended is None


@pytest.mark.parametrize("disturbed", ["eager", "int8", "both"])
def test_what_either_side_s_disturbance_hides_is_withheld(disturbed):
    row, base = latency(1, 4), latency(4, 1)
    if disturbed != "int8":
        base = base.model_copy(update={"fit": False})
    if disturbed != "eager":
        row = row.model_copy(update={"fit": False})
    # A report of an older build still has the ratio: the fitness alone decides.
    found = advise(
        baseline=variant(1_000_000, [base], accuracy()), int8=variant(1000, [row], accuracy())
    )
    assert found.recommended is None
    assert found.by_batch[1].withheld
    assert found.sentence == (
        "int8 is built, and its accuracy is accepted."
        " int8 is the fastest here; by how much cannot be told now:"
        " measure again when the machine is quiet."
    )


def test_flags_decide_nothing():
    row = latency(1, 4).model_copy(update={"flags": (flags.environment_not_fit(spread=0.4),)})
    name, sentence = choose(int8=variant(1000, [row], accuracy()))
    assert name == "int8"
    assert "quiet" not in sentence


def test_where_nothing_seems_faster_not_even_that_is_said_of_a_disturbed_machine():
    name, sentence = choose(slow=variant(1000, [unfit(latency(9, 0.5))], accuracy()))
    assert name is None
    assert "accepted. Whether anything beats eager cannot be told now" in sentence


@pytest.mark.parametrize(
    ("compared", "done"),
    [
        (Accuracy(metric=None, value=None, baseline=None, samples=9), "compared with eager's outputs"),
        (None, "int8 and other are built. "),
    ],
)
def test_on_a_disturbed_machine_it_is_said_first_what_was_done(compared, done):
    row = latency(1, 4).model_copy(update={"fit": False})
    made = {name: variant(1000, [row], compared) for name in ("int8", "other")}
    found = advise(baseline=variant(1_000_000, [latency(4, 1)], compared), **made)
    assert found.by_batch[1].withheld
    assert found.sentence.startswith("int8 and other are built")
    assert done in found.sentence
    assert found.sentence.endswith("measure again when the machine is quiet.")


def test_a_disturbed_variant_neither_wins_nor_stands_in_the_way():
    name, sentence = choose(
        calm=variant(1000, [latency(2, 2)], accuracy()),
        disturbed=variant(1000, [unfit(latency(1, 4))], accuracy()),
        slow=variant(1000, [unfit(latency(3, 1.3))], accuracy()),
    )
    assert name == "calm"
    assert sentence.endswith(
        "disturbed could not be compared and may be faster: measure again when the machine is quiet."
    )


def test_the_gain_over_the_fastest_in_fp32_is_said():
    against = Against(variant="onnx", speedup=Estimate(value=2.0, low=1.9, high=2.1))
    row = latency(1, 4).model_copy(update={"over_fp32": against})
    _, sentence = choose(int8=variant(1000, [row], accuracy()))
    assert "(p50 1.00 ms), 2.00 times as fast as onnx, the fastest in fp32, " in sentence


def test_the_examples_own_choice():
    found = report()
    assert recommend(found.variants, "eager", in_turns({})).recommended == "onnx-int8"
