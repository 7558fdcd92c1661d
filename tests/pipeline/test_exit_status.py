"""How a build ends: which verdicts count for its exit code, and the line that says so."""

from types import SimpleNamespace

import pytest

from optcli.errors import ExitCode, StepError
from optcli.pipeline.exit_status import exit_status
from optcli.report import Advice
from optcli.results import ArtifactSummary, Recommendation, VariantReport, Verdict, flags

NOTHING = Advice(recommended=None, sentence="", by_batch={})


def verdict(outcome, name="accuracy", blocking=True):
    return Verdict(name=name, outcome=outcome, blocking=blocking, reason="because")


def variant(*outcomes, status="built", **more):
    artifact = ArtifactSummary(key="k", format="onnx", path="p", precision="fp32", size_bytes=1)
    judged = tuple(verdict(each) if isinstance(each, str) else each for each in outcomes)
    return VariantReport(status=status, artifact=artifact, verdicts=judged, **more)


def end(variants, marks=None, advice=NOTHING, errors=None, missing=(), unmeasurable=(), data=()):
    """`marks` are what the recipe says of variants, `missing` those that lack something here."""
    said = {name: SimpleNamespace(required=False, gate=False) for name in ("eager", *variants)}
    said |= {
        name: SimpleNamespace(**{"required": False, "gate": False, **one})
        for name, one in (marks or {}).items()
    }
    planned = [
        SimpleNamespace(
            name=name,
            required=one.required,
            missing=("a GPU",) if name in missing else (),
            unmeasurable=("a GPU",) if name in unmeasurable else (),
        )
        for name, one in said.items()
    ]
    latency = SimpleNamespace(min_speedup=None, is_off=False)
    recipe = SimpleNamespace(variants=said, data=data, slo=None, latency=latency)
    plan = SimpleNamespace(recipe=recipe, baseline="eager", variants=planned)
    return exit_status(plan, {"eager": variant("accept"), **variants}, errors or {}, advice)


def serve(name):
    choice = Recommendation(variant=name, sentence="")
    return Advice(recommended=name, sentence="", by_batch={1: choice})


def test_a_rejected_experiment_beside_an_accepted_one_is_a_finding():
    found = end({"int8": variant("reject"), "onnx": variant("accept")}, advice=serve("onnx"))
    assert found.code == ExitCode.DONE
    assert found.reason == "onnx is accepted and recommended; rejected: int8"


@pytest.mark.parametrize(
    ("outcomes", "code", "said"),
    [
        (("reject", "reject"), ExitCode.REJECTED, "one is rejected (accuracy); two is rejected"),
        (("inconclusive", "inconclusive"), ExitCode.INCONCLUSIVE, "one is undecided (accuracy)"),
        (("inconclusive", "reject"), ExitCode.REJECTED, "one is undecided (accuracy); two is rejected"),
        (("accept", "reject"), ExitCode.DONE, "; rejected: two"),
        (("accept", "inconclusive"), ExitCode.DONE, "; undecided: two"),
    ],
)
def test_where_no_variant_is_accepted_the_verdicts_count(outcomes, code, said):
    one, two = outcomes
    found = end({"one": variant(one), "two": variant(two)})
    assert found.code == code
    assert said in found.reason
    assert found.reason.startswith("no variant is accepted: ") == (code != ExitCode.DONE)


@pytest.mark.parametrize("mark", ["required", "gate"])
@pytest.mark.parametrize(
    ("outcome", "code"), [("reject", ExitCode.REJECTED), ("inconclusive", ExitCode.INCONCLUSIVE)]
)
def test_what_the_recipe_marks_must_be_accepted(mark, outcome, code):
    variants = {"kept": variant(outcome), "onnx": variant("accept")}
    found = end(variants, {"kept": {mark: True}}, serve("onnx"))
    assert found.code == code
    assert found.reason.startswith(f"kept, marked {mark}, is ")


def test_advice_on_speed_fails_nothing():
    slow = variant("accept", verdict("reject", "speed-up", blocking=False))
    assert end({"slow": slow}, {"slow": {"gate": True}}).code == ExitCode.DONE


def test_a_withheld_recommendation_fails_nothing():
    withheld = Recommendation(variant=None, sentence="", withheld=True)
    advice = Advice(recommended=None, sentence="", by_batch={1: withheld})
    undecided = verdict("inconclusive", "speed-up", blocking=False)
    found = end({"onnx": variant("accept", undecided)}, {"onnx": {"gate": True}}, advice)
    assert found.code == ExitCode.DONE
    assert "too unsteady for a recommendation" in found.reason


def test_a_refused_baseline_counts():
    found = end({"eager": variant("reject"), "onnx": variant("accept")})
    assert (found.code, found.reason) == (
        ExitCode.REJECTED,
        "eager, the baseline, is rejected (accuracy)",
    )


def test_what_was_not_run_is_not_asked():
    built = variant(flags=(flags.no_gpu(),))
    assert end({"engine": built}).code == ExitCode.DONE
    found = end({"engine": built, "int8": variant("reject")})
    assert found.code == ExitCode.REJECTED


@pytest.mark.parametrize("mark", ["required", "gate"])
def test_what_the_recipe_marks_and_nobody_could_run_is_undecided(mark):
    built = variant(flags=(flags.no_gpu(),), reason="no GPU")
    variants, marks = {"engine": built, "onnx": variant("accept")}, {"engine": {mark: True}}
    found = end(variants, marks, unmeasurable=("engine",), data=("evaluation",))
    assert found.code == ExitCode.INCONCLUSIVE
    said = f"engine, marked {mark}, is undecided: it was built and not run (no GPU)"
    assert found.reason == said
    assert end(variants, marks, unmeasurable=("engine",)).code == ExitCode.DONE, "nothing was asked"


def test_failures_and_what_is_missing_come_first():
    failed = VariantReport(status="failed", reason="it crashed")
    found = end({"aoti": failed, "int8": variant("reject")}, errors={"aoti": StepError("it crashed")})
    assert (found.code, found.reason) == (ExitCode.FAILED, "aoti failed")
    skipped = VariantReport(status="skipped", reason="no GPU", required=True)
    found = end({"trt": skipped}, {"trt": {"required": True}}, missing=("trt",))
    assert (found.code, found.reason) == (
        ExitCode.MISSING,
        "trt is required and was skipped: no GPU",
    )
    skipped = VariantReport(status="skipped", reason="no GPU")
    assert end({"trt": skipped}, missing=("trt",)).code == ExitCode.DONE
