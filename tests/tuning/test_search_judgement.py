"""The finalists of a search, as the report of their build judges them."""

from types import SimpleNamespace
from typing import Any

import pytest

from optcli.report import wording
from optcli.report.tuning import answer
from optcli.results import (
    Accuracy,
    Estimate,
    Latency,
    RecipeSummary,
    Report,
    VariantReport,
    Verdict,
)
from optcli.results.tuning import Tuning, TuningTrial
from optcli.tuning import judgement
from optcli.tuning.finalists import FinalistChoice

SURE = Estimate(value=2.0, low=1.9, high=2.1)
UNSURE = Estimate(value=1.05, low=0.97, high=1.13)


def row(batch_size: int, speedup: Estimate | None = SURE, *, fit: bool = True) -> Latency:
    return Latency(
        batch_size=batch_size,
        threads=1,
        samples=100,
        p50_ms=Estimate(value=2.0 * batch_size),
        mean_ms=2.0,
        throughput_per_s=500.0,
        speedup=speedup,
        measured_at="2026-03-01T12:00:00+00:00",
        fit=fit,
    )


def verdict(name: str, outcome: Any = "accept", *, blocking: bool = True) -> Verdict:
    return Verdict(name=name, outcome=outcome, blocking=blocking, reason="because")


def judged(
    *rows: Latency,
    verdicts: tuple[Verdict, ...] = (verdict("accuracy"),),
    policy: str = "fixed-set",
    batch_sizes: tuple[int, ...] = (1,),
    objective: str = "p50",
    baseline: Latency | None = None,
    core_hour: float | None = None,
    agreement: float | None = None,
) -> Tuning:
    """The search whose one finalist was built with these rows and verdicts.

    With an `agreement` the recipe has no metric.
    """
    accuracy = Accuracy(metric="top1", value=0.89, baseline=0.9, samples=100, drop=Estimate(value=0.01))
    if agreement is not None:
        accuracy = Accuracy(metric=None, value=None, baseline=None, samples=100, agreement=agreement)
    variant = VariantReport(status="built", latency=rows, accuracy=accuracy, verdicts=verdicts)
    plain = VariantReport(status="built", latency=(baseline,) if baseline else ())
    report = Report(
        recipe=RecipeSummary(name="tiny-tuned", path="", digest=""),
        environment={},
        baseline="plain",
        started="2026-03-01T12:00:00+00:00",
        finished="2026-03-01T12:00:01+00:00",
        variants={"plain": plain, "v": variant},
        recommended=None,
        recommendation="",
        exit_code=0,
    )
    tuning = Tuning(
        recipe="tiny",
        path="",
        objective=objective,
        batch_sizes=batch_sizes,
        reference="openvino fp32",
        bar=0.02,
        validation="data.validation",
        minutes=1.0,
        seconds=1.0,
        trials=(),
        outcome="none",
        answer="",
    )
    trial = TuningTrial(
        number=1,
        label="openvino int8",
        why="",
        parameters={},
        passes=(),
        loss=Estimate(value=0.004),
        stage="inside",
    )
    recipe: Any = SimpleNamespace(
        accuracy=None if agreement else SimpleNamespace(policy=policy, confidence=0.95),
        tune=SimpleNamespace(core_hour=core_hour),
    )
    return judgement.with_finalists(tuning, report, {"v": FinalistChoice(trial, "fastest")}, recipe)


def test_a_winner_that_is_known_to_be_faster() -> None:
    found = judged(row(1))
    assert (found.winner, found.outcome, found.baseline) == ("v", "faster", "plain")
    assert found.finalists[0].optimism == pytest.approx(0.006)


def test_faster_has_to_be_known_at_every_batch_size() -> None:
    assert judged(row(1), row(8), batch_sizes=(1, 8)).outcome == "faster"
    assert judged(row(1), row(8, UNSURE), batch_sizes=(1, 8)).outcome == "accurate"
    assert judged(row(1), batch_sizes=(1, 8)).outcome == "accurate", "batch 8 was not measured"


def test_a_row_of_a_busy_machine_gives_no_score_and_no_faster() -> None:
    found = judged(row(1, None, fit=False))
    assert found.finalists[0].score is None
    assert (found.winner, found.outcome) == ("v", "accurate")


@pytest.mark.parametrize(
    ("policy", "other"), [("fixed-set", "non-inferiority"), ("non-inferiority", "accuracy")]
)
def test_certainty_is_that_of_samples_not_seen(policy: str, other: str) -> None:
    here = (verdict("accuracy"), verdict(other, blocking=False))
    assert judged(row(1), verdicts=here, policy=policy).finalists[0].certain
    open_one = (verdict("accuracy"), verdict(other, "inconclusive", blocking=False))
    if other == "accuracy":
        open_one = open_one[1:]
    assert not judged(row(1), verdicts=open_one, policy=policy).finalists[0].certain


def test_what_a_blocking_verdict_rejects_does_not_win() -> None:
    found = judged(row(1), verdicts=(verdict("accuracy", "reject"),))
    assert (found.winner, found.outcome) == (None, "none")
    unknown = judged(row(1), verdicts=(verdict("accuracy", "inconclusive"),))
    assert unknown.finalists[0].outcome == "inconclusive"


def test_the_confidence_allows_for_the_number_of_finalists() -> None:
    recipe: Any = SimpleNamespace(accuracy=SimpleNamespace(confidence=0.95))
    assert judgement.confidence_of(recipe, 5) == pytest.approx(0.99)


@pytest.mark.parametrize(("its_bytes", "outcome"), [(90, "faster"), (110, "accurate")])
def test_a_smaller_process_is_what_memory_looks_for(its_bytes: int, outcome: str) -> None:
    slower = row(1, Estimate(value=0.75, low=0.7, high=0.8))
    slower = slower.model_copy(update={"peak_memory_bytes": its_bytes})
    baseline = row(1, None).model_copy(update={"peak_memory_bytes": 100})
    found = judged(slower, objective="memory", baseline=baseline)
    assert (found.winner, found.outcome) == ("v", outcome)
    assert ("not known to be smaller" in answer(found)) is (outcome == "accurate")


def tail(row_: Latency, p99_ms: float | None) -> Latency:
    """The row with such a p99, known to a tenth."""
    known = Estimate(value=p99_ms, low=0.9 * p99_ms, high=1.1 * p99_ms) if p99_ms else None
    return row_.model_copy(update={"p99_ms": known})


@pytest.mark.parametrize(
    ("before_ms", "its_ms", "outcome", "ratio"),
    [
        (8.0, 4.0, "faster", 2.0),
        (4.0, 4.4, "accurate", 4.0 / 4.4),
        (4.4, 4.0, "accurate", 1.1),
        (8.0, None, "accurate", None),
    ],
)
def test_by_p99_the_winner_is_faster_where_its_p99_is_surely_shorter(
    before_ms: float, its_ms: float | None, outcome: str, ratio: float | None
) -> None:
    """Half the median in all cases: calls that are short as a rule may have a long tail."""
    baseline = tail(row(1, None), before_ms)
    found = judged(tail(row(1), its_ms), objective="p99", baseline=baseline)
    assert (found.winner, found.outcome) == ("v", outcome)
    known = found.finalists[0].p99_speedup
    assert ratio is None or known[1].value == pytest.approx(ratio)
    said = answer(found)
    if ratio is None:
        assert not known
        assert found.finalists[0].score is None
        assert "too short for the calls that p99 needs" in said
    else:
        assert f"{wording.number(ratio)}x" in said
        assert "by p99" in said


@pytest.mark.parametrize(("agreement", "outcome"), [(0.995, "accept"), (0.98, "reject")])
def test_without_a_metric_the_bar_is_one_other_output_in_a_hundred(
    agreement: float, outcome: str
) -> None:
    found = judged(row(1), verdicts=(), agreement=agreement)
    assert found.finalists[0].outcome == outcome
    assert (found.winner is None) is (outcome == "reject")
    assert ("0.50 % of the evaluation samples" in answer(found)) is (outcome == "accept")


def test_cost_counts_the_threads() -> None:
    """Half the threads in three quarters of the speed: 1.5 times as many images in a core-hour."""
    baseline = row(1, None).model_copy(update={"threads": 2})
    slower = row(1, Estimate(value=0.75, low=0.7, high=0.8))
    found = judged(slower, objective="cost", baseline=baseline, core_hour=0.036)
    (finalist,) = found.finalists
    assert finalist.cheaper[1].value == pytest.approx(1.5)
    assert finalist.cheaper[1].low == pytest.approx(1.4)
    assert finalist.cost_per_1000[1] == pytest.approx(0.036 * 2.0 / 3.6e6 * 1000)
    assert found.outcome == "faster"
    money = "as many images for the same money as plain"
    assert f"1.50x {money} [1.40, 1.60] at batch size 1" in answer(found)
    assert judged(slower, baseline=baseline).outcome == "accurate", "by latency it is slower"
