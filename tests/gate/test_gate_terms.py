"""What the candidate is judged by: every way to bend it is named; only tightening needs no consent."""

import pytest

from optcli.errors import UsageError
from optcli.gate import terms
from optcli.results.gate import Terms, VariantTerms
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.gate import GateBar, GateSettings
from optcli.settings.slo import SloSettings

INPUTS = (TensorSpec(name="image", shape=("batch", 3, 4, 4)),)
SAMPLES = {"kind": "npz", "samples": None, "split": {"name": "test"}, "content": "a" * 64}
THEN = Terms(
    evaluation=SAMPLES,
    preparation={"scale": 0.004},
    postprocess={"python": "post.py:decode"},
    accuracy=AccuracySettings(metric="top1", max_drop=0.01),
    slo=SloSettings(p99_ms=50),
    gate=GateSettings(),
    inputs=INPUTS,
    code={"metric": "c" * 64, "postprocess": "d" * 64, "data.evaluation": "e" * 64},
    threads=2,
    baseline="eager",
    variants={"eager": VariantTerms(), "int8": VariantTerms(gate=True, threads=2)},
)


def gate(**changes):
    return {"gate": GateSettings(**changes)}


def accuracy(**changes):
    return {"accuracy": AccuracySettings(**{"metric": "top1", "max_drop": 0.01, **changes})}


def variants(**changes):
    return {"variants": {**THEN.variants, **changes}}


# Each bends the judgement in the candidate's favour, or may.
BENT = [
    ("evaluation", "data.evaluation", {"evaluation": None}),
    ("evaluation", "data.evaluation.samples", {"evaluation": {**SAMPLES, "samples": 5}}),
    ("evaluation", "data.evaluation.split", {"evaluation": {**SAMPLES, "split": None}}),
    ("evaluation", "data.evaluation.content", {"evaluation": {**SAMPLES, "content": "b" * 64}}),
    ("evaluation", "data.evaluation.kind", {"evaluation": {**SAMPLES, "kind": "python"}}),
    ("preparation", "data.evaluation.prepare.scale", {"preparation": {"scale": 0.0}}),
    ("postprocess", "postprocess", {"postprocess": None}),
    ("postprocess", "postprocess.python", {"postprocess": {"python": "post.py:other"}}),
    ("metric", "accuracy.metric", accuracy(metric="top5")),
    ("metric", "accuracy.options", accuracy(options={"ignore_index": 1})),
    ("metric", "accuracy.output", accuracy(output="other")),
    ("bar", "accuracy.max_drop", accuracy(max_drop=0.5)),
    ("bar", "accuracy.max_drop", accuracy(max_drop=None, min_ratio=0.5)),
    ("bar", "accuracy.policy", accuracy(policy="non-inferiority")),
    ("bar", "accuracy.margin", accuracy(margin=0.5)),
    ("bar", "accuracy.confidence", accuracy(confidence=0.6)),
    ("bar", "accuracy", {"accuracy": None}),
    ("bar", "slo.p99_ms", {"slo": None}),
    ("bar", "slo.p99_ms", {"slo": SloSettings(p99_ms=51)}),
    ("bar", "gate.p50.limit", gate(p50=GateBar(limit=0.5, margin=0.02))),
    ("bar", "gate.p50.limit", gate(p50=None)),
    ("bar", "gate.p50.margin", gate(p50=GateBar(limit=0.05, margin=0.04))),
    ("bar", "gate.p50.undecided", gate(p50=GateBar(limit=0.05, undecided="advice"))),
    ("bar", "gate.max_size_growth", gate(max_size_growth=None)),
    ("bar", "gate.max_memory_growth", gate(max_memory_growth=9.0)),
    ("rule", "gate.looks", gate(looks=(8,))),
    ("rule", "gate.false_alarms", gate(false_alarms=0.0001)),
    ("rule", "gate.robust", gate(robust="sign")),
    ("rule", "gate.max_seconds", gate(max_seconds=1)),
    ("rule", "gate.confirm", gate(confirm=True)),
    ("rule", "gate.batch_sizes", gate(batch_sizes=(8,))),
    ("rule", "gate.batch_sizes", gate(batch_sizes=(1, 64))),
    ("threads", "gate.threads", gate(threads=1)),
    ("threads", "latency.threads", {"threads": 1}),
    ("threads", "variants.int8.runner.threads", variants(int8=VariantTerms(gate=True, threads=1))),
    ("variants", "variants.int8.gate", variants(int8=VariantTerms(threads=2))),
    ("variants", "variants.int8", {"variants": {"eager": VariantTerms()}}),
    ("variants", "baseline", {"baseline": "int8"}),
    ("inputs", "inputs", {"inputs": (TensorSpec(name="image", shape=("batch", 3, 8, 8)),)}),
    ("code", "metric", {"code": {**THEN.code, "metric": "f" * 64}}),
    ("code", "postprocess", {"code": {**THEN.code, "postprocess": "f" * 64}}),
    ("code", "data.evaluation", {"code": {**THEN.code, "data.evaluation": "f" * 64}}),
]


@pytest.mark.parametrize(("kind", "place", "changed"), BENT)
def test_what_bends_the_judgement_is_named_and_open(kind, place, changed):
    found = terms.changes(THEN, THEN.model_copy(update=changed), ["int8"])
    assert (kind, place) in [(each.kind, each.place) for each in found if each.open]
    assert not [each for each in found if each.kind not in (kind, "bar")]


@pytest.mark.parametrize(
    "changed",
    [
        accuracy(max_drop=0.005),
        accuracy(confidence=0.99),
        {"slo": SloSettings(p99_ms=40, p50_ms=10)},
        gate(p50=GateBar(limit=0.03)),
        gate(p95=GateBar(limit=0.3, margin=0.1)),
        gate(max_size_growth=0.01),
        variants(eager=VariantTerms(gate=True)),
    ],
)
def test_what_makes_it_tighter_needs_nobodys_consent(changed):
    found = terms.changes(THEN, THEN.model_copy(update=changed), ["int8"])
    assert not [each for each in found if each.open]


def test_the_same_terms_have_no_change_and_survive_a_round_trip():
    assert terms.changes(THEN, Terms.model_validate_json(THEN.model_dump_json()), ["int8"]) == []
    assert terms.changes(THEN.model_copy(update={"evaluation": None}), THEN)[0].tighter
    without = THEN.model_copy(update={"accuracy": None})
    lax = THEN.model_copy(update=accuracy(interface="any"))
    assert [each.tighter for each in terms.changes(without, THEN)] == [True]
    assert [each.open for each in terms.changes(without, lax)] == [True]
    preset = THEN.model_copy(update=accuracy(max_drop=None, preset="mlperf-99"))
    ratio = THEN.model_copy(update=accuracy(max_drop=None, min_ratio=0.99))
    assert terms.changes(preset, ratio) == []


def test_both_sides_bars_hold_and_the_baseline_says_how_it_is_measured():
    before = GateSettings(p95=GateBar(limit=0.2), looks=(8, 16), threads=2)
    now = GateSettings(
        p50=GateBar(limit=0.5), p95=None, looks=(8,), false_alarms=0.001, threads=1,
        batch_sizes=(4,), max_size_growth=None, max_memory_growth=0.01,
    )  # fmt: skip
    both = terms.stricter_gate(before, now, ())
    assert (both.p50.limit, both.p50.margin_or_default) == (0.05, pytest.approx(0.02))
    assert both.p95.limit == 0.2
    assert (both.looks, both.false_alarms, both.threads) == ((8, 16), 0.01, 2)
    assert (both.batch_sizes, both.max_size_growth, both.max_memory_growth) == ((1, 4), 0.05, 0.01)
    assert terms.stricter_gate(before, now, {"bar", "rule", "threads"}) == now
    slo = terms.stricter_slo(SloSettings(p99_ms=50), SloSettings(p99_ms=90, p50_ms=5), ())
    assert (slo.p99_ms, slo.p50_ms) == (50, 5)
    assert terms.stricter_slo(SloSettings(p99_ms=50), None, ()).p99_ms == 50
    assert terms.stricter_slo(SloSettings(p99_ms=50), None, {"bar"}) is None


def test_unknown_kinds_are_an_error_with_the_list():
    assert terms.accepted(["evaluation,bar", "threads"]) == {"evaluation", "bar", "threads"}
    assert terms.accepted([]) == frozenset()
    with pytest.raises(UsageError) as failure:
        terms.accepted(["evalution"])
    assert "did you mean 'evaluation'" in failure.value.hint
    assert "untracked-data" in failure.value.hint
    with pytest.raises(UsageError):
        terms.accepted(["bar,"])
