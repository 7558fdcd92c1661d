"""Which variants the gate judges: all that either side would serve."""

from types import SimpleNamespace

from optcli.gate.terms import chosen, suggested_by
from optcli.results import (
    ArtifactSummary,
    Estimate,
    Latency,
    RecipeSummary,
    Recommendation,
    Report,
    VariantReport,
)
from optcli.results.gate import Terms, VariantTerms


def variant(speedup=None, fit=True):
    figure = Estimate(value=1.0, low=0.9, high=1.1)
    row = Latency(
        batch_size=1, threads=1, samples=9, p50_ms=figure, mean_ms=1.0, throughput_per_s=1.0,
        measured_at="", fit=fit, speedup=speedup and Estimate(value=speedup, low=speedup, high=speedup),
    )  # fmt: skip
    artifact = ArtifactSummary(key="k", format="onnx", path=".", precision="fp32", size_bytes=1)
    return VariantReport(status="built", artifact=artifact, latency=(row,))


def report(recommended, recommendations=(), **variants):
    return Report(
        recipe=RecipeSummary(name="r", path="r", digest="d"), environment={}, baseline="eager",
        recommended=recommended, recommendation="", started="", finished="", exit_code=0,
        recommendations=dict(recommendations), variants={"eager": variant(1.0), **variants},
    )  # fmt: skip


def advice(name, withheld=False):
    return Recommendation(variant=name, sentence="", withheld=withheld)


def test_what_is_recommended_at_any_batch_size_is_judged():
    two = {1: advice("int8"), 8: advice("fp16")}
    assert suggested_by(report("int8", two)) == ("int8", "fp16")
    assert suggested_by(report("int8", {1: advice("int8"), 8: advice(None)})) == ("int8", "eager")


def test_where_nothing_pays_the_baseline_is_served():
    assert suggested_by(report(None, {1: advice(None)}, slow=variant(0.5))) == ("eager",)


def test_where_the_machine_cannot_tell_all_that_may_be_served_are_judged():
    withheld = {1: advice(None, withheld=True)}
    found = report(None, withheld, int8=variant(None, fit=False), slow=variant(0.5))
    assert suggested_by(found) == ("eager", "int8")


def choose(now, before, marked=(), marked_before=(), only=()):
    """What is judged of these variants, and what is gone; unmarked sides recommend int8 and int4."""
    recipe = SimpleNamespace(variants={n: SimpleNamespace(gate=n in marked) for n in now})
    terms = Terms(baseline="eager", variants={n: VariantTerms(gate=n in marked_before) for n in before})
    return chosen(recipe, only, terms, lambda: ("int4",), lambda: ("int8",))


def test_both_sides_choose():
    every = ("eager", "int8", "int4")
    found, gone = choose(every, every)
    assert (found, gone) == ({"int8": ("recommended-before",), "int4": ("recommended",)}, [])
    found, _ = choose(every, every, marked=["eager"], marked_before=["int8"])
    assert found == {"eager": ("marked",), "int8": ("marked-before",)}
    assert choose(every, every, only=["int4"]) == ({"int4": ("named",)}, [])


def test_a_recommended_variant_that_is_gone_or_loses_its_place_by_a_mark_is_named():
    every = ("eager", "int8", "int4")
    found, gone = choose(("eager", "int4"), every)
    assert list(found) == ["int4"]
    assert [(each.kind, each.place, each.open) for each in gone] == [
        ("variants", "variants.int8", True)
    ]
    found, gone = choose(every, every, marked=["eager"])
    assert set(found) == {"eager", "int8"}
    assert [each.place for each in gone] == ["variants.int8.gate"]
