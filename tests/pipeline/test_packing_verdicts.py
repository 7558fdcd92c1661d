"""A speed-up that does not pay because weights are packed on every call says so."""

from pathlib import Path

import pytest

from optcli.artifact import Artifact, Format, costly_packing
from optcli.pipeline.verdicts import _explained
from optcli.results import Estimate, Latency, Verdict

SLOW = Verdict(
    name="speed-up over eager",
    over="eager",
    outcome="reject",
    blocking=False,
    reason="0.60 times as fast as eager",
)
ROWS = tuple(
    Latency(
        batch_size=size,
        threads=1,
        samples=40,
        p50_ms=Estimate(value=2.0),
        mean_ms=2.0,
        throughput_per_s=500.0,
        measured_at="2026-03-01T12:00:00+00:00",
    )
    for size in (1, 8)
)


def facts(weights, share, share_of_time):
    found = {"weights": weights, "share": share, "share_of_time": share_of_time}
    return {"packs_each_call": {"1": found, "8": None}}


def explained(facts, *verdicts):
    artifact = Artifact("key", Format.AOTI, Path("."), "int8", 0, "digest", facts)
    return [each.reason for each in _explained(verdicts, artifact, ROWS)]


@pytest.mark.slow
def test_the_cause_stands_behind_the_figure():
    cause = "weights are packed on every call; fix the batch"
    assert explained(facts(53, 0.9, 0.8), SLOW) == [f"{SLOW.reason}: {cause}"]


def test_a_batch_that_is_fixed_already_is_no_remedy():
    known = {**facts(53, 0.9, 0.8), "routes": {"fixed": [1]}}
    (reason,) = explained(known, SLOW)
    assert reason == f"{SLOW.reason}: weights are packed on every call; try another runtime"
    other = {**known, "routes": {"fixed": [8]}}
    assert explained(other, SLOW)[0].endswith("fix the batch")


@pytest.mark.parametrize(
    "known", [{}, facts(0, 0.0, 0.0), facts(1, 0.0006, 0.05), facts(6, 0.06, 0.01)]
)
def test_nothing_is_said_where_it_is_not_the_cause(known):
    assert explained(known, SLOW) == [SLOW.reason]
    assert costly_packing(known) == {}


def test_other_verdicts_stay_as_they_are():
    other = SLOW.model_copy(update={"name": "accuracy", "over": None})
    gain = SLOW.model_copy(update={"outcome": "accept"})
    known = facts(53, 0.9, 0.8)
    assert explained(known, other, gain) == [other.reason, gain.reason]
    assert explained(known) == []
    assert costly_packing(known) == {1: 53}
