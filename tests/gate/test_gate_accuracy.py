"""Accuracy before the gate: an anchor that does not move, bars of both sides, guessing baselines."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from optcli.artifact import Artifact, Format
from optcli.gate import accuracy as judging
from optcli.gate.baselines import Baseline, BaselineVariant
from optcli.gate.side import Side
from optcli.results import Accuracy, Estimate
from optcli.results.gate import Terms
from optcli.settings.accuracy import AccuracySettings


def kept(digest):
    return BaselineVariant(
        Artifact("k", Format.ONNX, Path("."), "fp32", 1, digest, {}), "onnxruntime", {}
    )


def accuracy_of(drop, doubts=()):
    return Accuracy(
        metric="top1", value=0.9 - drop, baseline=0.9, samples=10_000, regressed=100, improved=10,
        drop=Estimate(value=drop, low=drop - 0.001, high=drop + 0.001),
        bounds=Estimate(value=drop, low=drop - 0.001, high=drop + 0.001), doubts=doubts,
    )  # fmt: skip


@pytest.fixture
def compared(monkeypatch):
    """`compared(losses)`: what is said of int8, whose losses are against digests of artifacts."""

    def compare(losses, *, bar=0.01, then=None, declared=(), own="float now", new=False, doubts=()):
        seen = []

        def beside(mine, base, around):
            digest = base.artifact.digest
            seen.append(digest)
            return accuracy_of(losses[digest]), accuracy_of(0.0, doubts)

        settings = AccuracySettings(metric="top1", max_drop=bar)
        before = {} if new else {"eager": kept("float then"), "int8": kept("int8 then")}
        gating = SimpleNamespace(
            made=SimpleNamespace(
                plan=SimpleNamespace(
                    recipe=SimpleNamespace(data={"evaluation": None}, accuracy=settings),
                    role_keys={"evaluation": "k"},
                    baseline="eager",
                )
            ),
            baseline=Baseline("", before, (), {}),
            origin=SimpleNamespace(
                recipe=None,
                terms=Terms(
                    baseline="eager", accuracy=AccuracySettings(metric="top1", max_drop=then or bar)
                ),
            ),
            changes=(), declared=frozenset(declared), store=None, logs=None, observer=None,
            options=SimpleNamespace(timeout_s=1, jobs=1),
        )  # fmt: skip
        monkeypatch.setattr(judging, "_compared", beside)
        monkeypatch.setattr(judging, "built_variants", lambda made, names: {"eager": kept(own)})
        side = Side("int8", kept("int8 now"), (), before.get("int8"))
        found, _ = judging.compare(gating, side, None)
        return {each.name: each for each in found if each.blocking}, seen

    return compare


def test_losses_within_the_bar_do_not_add_up_over_merges(compared):
    """Each merge loses 0.9 points against the last; against the float variant it is 1.8 by now."""
    found, _ = compared({"int8 then": 0.009, "float now": 0.018, "float then": 0.018})
    assert found["accuracy"].outcome == "accept"
    assert found["accuracy against its own eager"].outcome == "reject"
    assert found["accuracy against the baseline's eager"].outcome == "reject"


def test_a_float_variant_that_creeps_along_does_not_hide_the_loss(compared):
    found, _ = compared({"int8 then": 0.009, "float now": 0.005, "float then": 0.014})
    assert found["accuracy against its own eager"].outcome == "accept"
    assert found["accuracy against the baseline's eager"].outcome == "reject"


def test_one_artifact_is_compared_with_once(compared):
    _, seen = compared(dict.fromkeys(("int8 then", "float then"), 0.0), own="float then")
    assert seen == ["int8 then", "float then"]


def test_a_new_variant_is_judged_against_its_own_float_variant(compared):
    found, seen = compared({"float now": 0.5}, new=True)
    assert seen == ["float now"]
    assert found["accuracy against its own eager"].outcome == "reject"


def test_a_bar_that_was_raised_still_holds_unless_declared(compared):
    losses = dict.fromkeys(("int8 then", "float now", "float then"), 0.03)
    found, _ = compared(losses, bar=0.5, then=0.01)
    assert found["accuracy"].outcome == "accept"
    assert found["accuracy by the baseline's bar"].outcome == "reject"
    assert found["accuracy against its own eager by the baseline's bar"].outcome == "reject"
    declared, _ = compared(losses, bar=0.5, then=0.01, declared=["bar"])
    assert {each.outcome for each in declared.values()} == {"accept"}


def test_a_baseline_that_only_guesses_proves_nothing(compared):
    losses = dict.fromkeys(("int8 then", "float now", "float then"), 0.0)
    found, _ = compared(losses, doubts=("top1 10.0 % is hardly more than guessing gives",))
    doubts = [each for each in found.values() if each.outcome == "inconclusive"]
    assert doubts
    assert "no valid reference" in doubts[0].reason
