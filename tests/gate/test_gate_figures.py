"""Figures of latency before the gate: without data, or on a machine that is not fit, nothing passes."""

import re

import numpy as np
import pytest
from pydantic import ValidationError

from optcli.errors import ExitCode
from optcli.gate import comparisons
from optcli.gate.latency import latencies, service_level
from optcli.gate.rule import ComparedFigure, decide, planned
from optcli.gate.running import answer
from optcli.results import Estimate, Latency, flags
from optcli.results.gate import GatedVariant
from optcli.settings.gate import GateBar, GateSettings
from optcli.settings.slo import SloSettings

BLOCKS, ADVICE = GateBar(limit=0.3, margin=0.1), GateBar(limit=0.3, margin=0.1, undecided="advice")
SAME, SLOWER = [0.001 * x for x in range(-4, 4)], [0.5 + 0.001 * x for x in range(8)]


def row(batch_size=1, p95=True, **changes):
    figure = Estimate(value=1.0, low=0.99, high=1.01)
    known = {
        "batch_size": batch_size, "threads": 1, "samples": 100, "p50_ms": figure, "mean_ms": 1.0,
        "p95_ms": figure if p95 else None, "throughput_per_s": 1000.0, "measured_at": "",
    }  # fmt: skip
    return Latency(**{**known, **changes})


def judged(bar, ratios, mine, theirs=None, q=0.95):
    figure = ComparedFigure(q, 1)
    rule = planned(bar, GateSettings(), 1)
    found = {} if ratios is None else {figure: decide(ratios, rule)}
    theirs = theirs or row()
    (made,) = latencies(found, {figure: rule}, {figure: bar}, [mine], [theirs])
    return made


def test_a_blocking_figure_without_data_is_no_pass():
    for ratios, mine in ((None, row()), (SAME, row(p95=False))):
        found = judged(BLOCKS, ratios, mine)
        assert (found.outcome, found.blocking, found.compared) == ("inconclusive", True, False)
        assert "too few calls" in found.reason
        assert judged(ADVICE, ratios, mine).blocking is False
    assert judged(GateBar(limit=0.05), None, row(), q=0.5).blocking
    assert judged(BLOCKS, SAME, row()).outcome == "accept"


@pytest.mark.parametrize("side", ["candidate", "baseline"])
@pytest.mark.parametrize("ratios", [SAME, SLOWER])
def test_a_machine_that_is_not_fit_decides_nothing(side, ratios):
    doubts = (flags.too_few_calls(99, 360, 368), flags.environment_not_fit(spread=0.4))
    unfit = row(fit=False, flags=doubts)
    sides = (unfit, row()) if side == "candidate" else (row(), unfit)
    found = judged(BLOCKS, ratios, *sides)
    assert (found.outcome, found.blocking, found.improved) == ("inconclusive", True, False)
    assert "IQR/median 40 %" in found.reason
    assert "p99" not in found.reason


@pytest.mark.parametrize("fit", [True, False])
@pytest.mark.parametrize("decided", [True, False])
def test_what_seems_worse_is_no_noise_to_wave_through(fit, decided):
    """Three times as slow: decided on a machine that was not fit, or cut short by the time cap."""
    ratios = SLOWER if decided else SLOWER[:2]
    found = judged(BLOCKS, ratios, row(fit=fit))
    _, _, code = answer({"v": gated(found)}, [], "main", "pass")
    assert code == (ExitCode.REJECTED if fit and decided else ExitCode.INCONCLUSIVE)
    unfit = judged(BLOCKS, SAME, row(fit=False))
    assert unfit.outcome == "inconclusive"
    assert answer({"v": gated(unfit)}, [], "main", "pass")[2] == ExitCode.DONE


def gated(*comparisons):
    return GatedVariant(runner="onnxruntime", comparisons=comparisons)


def test_the_promise_is_neither_kept_nor_broken_on_a_machine_that_is_not_fit():
    for limit in (0.5, 2.0):
        promise = SloSettings(p50_ms=limit)
        (found,) = service_level([row(fit=False)], promise, 1)
        assert (found.outcome, found.blocking) == ("inconclusive", True)
        (fit,) = service_level([row()], promise, 1)
        assert fit.outcome == ("accept" if limit == 2.0 else "reject")


def sentence(ratios, bar=None):
    bar = bar or GateBar(limit=0.05)
    rule = planned(bar, GateSettings(), 1)
    return comparisons.latency("p50", 1, 1.0, 1.0, decide(ratios, rule), rule, bar).reason


def test_words_between_margin_and_limit_do_not_contradict_the_figure():
    faster = np.random.default_rng(8).normal(-0.2, 0.7, 24)
    assert decide(faster, planned(GateBar(limit=0.05), GateSettings(), 1)).answer == "inconclusive"
    found = sentence(faster)
    assert "faster" in found
    assert not re.search(r"faster[^;]*between the margin", found)
    assert "it passes once it is surely less than 5 % slower" in found
    low, high = re.search(r"between ([\d.]+) % faster and ([\d.]+) % slower", found).groups()
    assert float(low) > 0
    assert float(high) >= 5
    # Too few pairs for any bound: that is said, and no bound is made up.
    assert "too few pairs for any bound" in sentence([0.0] * 3)


def test_a_gate_that_judges_no_latency_is_an_error_of_the_recipe():
    with pytest.raises(ValidationError, match="wanted a bar for one of them"):
        GateSettings(p50=None, p95=None)


def test_the_gate_judges_the_promised_size_and_memory_whatever_else_the_machine_does():
    promise = SloSettings(size_bytes=10, memory_bytes=100)
    measured = row(fit=False, peak_memory_bytes=120, memory_interval_bytes=(110, 130))
    size, memory = sorted(service_level([measured], promise, 11), key=lambda each: -len(each.name))
    assert {size.name, memory.name} == {"slo memory_bytes", "slo size_bytes"}
    for each in (size, memory):
        assert (each.metric, each.unit, each.outcome, each.blocking) == ("slo", "bytes", "reject", True)
    (alone,) = service_level((), SloSettings(size_bytes=10), 10)
    assert alone.outcome == "accept"
