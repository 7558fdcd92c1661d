import pytest
from example import accuracy, latency, report, variant, verdict

from optcli.report import recommend


def choose(**variants):
    return recommend({"eager": variant(1_000_000, [latency(4, 1)], accuracy()), **variants}, "eager")


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
        " 26 % of its size, top-1 98.61 % (0.28 points lower)."
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
    assert sentence.endswith("100 % of its size, outputs not compared.")
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


def test_a_noisy_baseline_makes_nobody_equal():
    def beside_noise(p50, size_bytes):
        row = latency(p50, 8 / p50)
        wide = row.speedup.model_copy(update={"low": 1.5, "high": 40.0})
        return variant(size_bytes, [row.model_copy(update={"speedup": wide})], accuracy())

    name, sentence = choose(fast=beside_noise(1, 1000), half=beside_noise(2, 500))
    assert name == "fast"
    assert "within the intervals" not in sentence


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


def test_only_the_first_batch_size_decides():
    rows = [latency(1, 4, 8), latency(4, 0.9, 1)]
    assert choose(odd=variant(1000, rows, accuracy()))[0] is None


def test_beside_a_baseline_that_failed_nothing_is_recommended():
    failed = variant(1000, [latency(2, 1)], status="failed", reason="x")
    fast = variant(1000, [latency(1, 2)])
    name, sentence = recommend({"eager": failed, "fast": fast}, "eager")
    assert (name, sentence) == (None, "Nothing can be recommended: the baseline eager failed.")


def test_nothing_measured_and_nothing_to_choose():
    assert choose() == (None, "There is only the baseline eager: nothing to choose from.")
    name, sentence = choose(failed=variant(1000, [latency(1, 4)], status="failed", reason="x"))
    assert (name, sentence) == (
        None,
        "Nothing can be recommended: no variant was measured beside eager.",
    )
    assert recommend({}, "eager")[0] is None


def test_an_unfit_environment_is_said():
    flags = ("environment not fit (IQR/median 40 %)",)
    _, sentence = choose(int8=variant(1000, [latency(1, 4, flags=flags)], accuracy()))
    assert sentence.endswith("measure again when it is quiet.")


def test_the_examples_own_choice():
    found = report()
    assert recommend(found.variants, "eager")[0] == "onnx-int8"
