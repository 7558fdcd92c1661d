"""`optcli tune`: where it starts, what it prints, its exit code."""

import json

import pytest
from tiny_project import DATA

from optcli import tuning
from optcli.results import Estimate, Report
from optcli.results.tuning import Finalist, Repair, Trial, Tuning

FINALIST = Finalist(variant="best", trial=0, why="the fastest", outcome="accept", certain=True)
INT8 = "  int8: [quantize_onnxruntime]   # static\n"


def found(outcome="repaired", **more):
    speed = {"repaired": 1.4, "accurate": 0.9}.get(outcome)
    trials = [Trial(number=0, label="as it is", options={}, value=0.2, seconds=1.0)]
    if speed:
        ratio = Estimate(value=speed, low=speed - 0.05, high=speed + 0.05)
        trial = {"options": {"types": ["Conv"]}, "inside": True, "value": 0.9, "speedup": ratio}
        trials.append(Trial(number=1, label="products only", seconds=2.0, **trial))
    given = {"recipe": "tiny", "variant": "int8", "quantizing_pass": "quantize_onnxruntime"}
    given |= {"runner": "onnxruntime", "metric": "top1", "baseline": 0.9, "batch_size": 1}
    given |= {"stopped_because": "all trials are used up", "seconds": 3.0, "patch": "-a\n+b\n"}
    chosen = 1 if speed else None
    return Repair(**given, trials=tuple(trials), chosen=chosen, outcome=outcome, **more)


@pytest.fixture
def asked(monkeypatch):
    """What the room was asked to do; it answers with `answer`."""
    calls = {"answer": found()}

    def repair(recipe, variant, **more):
        calls.update(recipe=recipe, variant=variant, **more)
        return calls["answer"]

    monkeypatch.setattr(tuning, "repair", repair)
    return calls


@pytest.mark.slow
def test_a_variant_of_a_recipe(place, optcli, asked):
    place.recipe(f"  plain: []\n{INT8}", data=DATA)
    said = optcli(
        *("tune", "recipe.yaml", "--from", "int8", "--trials", 5, "--minutes", 2, "--write"),
    )
    assert said.code == 0, said.err
    assert str(asked["recipe"]) == "recipe.yaml"
    assert (asked["variant"], asked["trials"], asked["max_seconds"], asked["write"]) == (
        *("int8", 5, 120),
        True,
    )
    assert (
        "Trial 1 (products only) is inside the bar: 1.40x [1.35, 1.45] as fast as in float" in said.out
    )
    assert "\n-a\n+b\n" in said.out


@pytest.mark.parametrize(("outcome", "code"), [("repaired", 0), ("accurate", 5), ("unrepaired", 1)])
def test_the_exit_code_says_how_it_ended(place, optcli, asked, outcome, code):
    place.recipe(f"  plain: []\n{INT8}", data=DATA)
    asked["answer"] = found(outcome)
    said = optcli("tune", "recipe.yaml", "--from", "int8", "--json")
    assert said.code == code
    assert json.loads(said.out)["outcome"] == outcome


@pytest.mark.slow
def test_without_a_recipe_it_is_that_of_the_last_build(place, optcli, asked):
    (path,) = place.artifacts.glob("*/report.json")
    said = optcli("tune", "--from", "int8")
    assert said.code == 0, said.err
    assert str(asked["recipe"]) == Report.load(path).recipe.path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outcome", "why", "code"),
    [
        ("faster", "the time is used up", 0),
        ("accurate", "it was interrupted", 5),
        ("none", "the time is used up", 1),
        ("none", "it was interrupted", 130),
    ],
)
def test_a_search_says_how_it_ended(place, optcli, monkeypatch, outcome, why, code):
    place.recipe("  plain: []\n", data=DATA)
    asked = {}

    def tune(recipe, **options):
        asked.update(options, recipe=recipe)
        return Tuning(
            recipe="tiny",
            path="",
            objective="p50",
            batch_sizes=(1,),
            reference="openvino fp32",
            bar=0.01,
            validation="data.validation",
            minutes=options["minutes"],
            seconds=1.0,
            trials=(),
            outcome=outcome,
            answer="Serve nothing.",
            stopped_because=why,
            finalists=() if outcome == "none" else (FINALIST,),
        )

    monkeypatch.setattr("optcli.tuning.tune", tune)
    said = optcli("tune", "recipe.yaml", "--minutes", 2, "--seed", 3, "--out", "other.yaml")
    assert said.code == code
    assert ("interrupted" in said.err) == (code == 130), said.err
    assert "\nServe nothing.\n" in said.out
    assert (asked["minutes"], asked["seed"], str(asked["out"])) == (2.0, 3, "other.yaml")
    said = optcli("tune", "recipe.yaml", "--minutes", 2, "--json")
    assert json.loads(said.out)["outcome"] == outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--write",), "--write needs --from VARIANT"),
        (("--from", "int8", "--seed", 3), "--seed has no effect beside --from"),
        (("--from", "int8", "--restart"), "--restart has no effect beside --from"),
    ],
)
def test_options_of_the_search_and_of_the_repair_stay_apart(place, optcli, options, says):
    place.recipe(f"  plain: []\n{INT8}", data=DATA)
    said = optcli("tune", "recipe.yaml", *options)
    assert said.code == 2
    assert says in said.err


def test_the_recipe_of_a_report_that_is_gone(place, optcli, asked):
    (path,) = place.artifacts.glob("*/report.json")
    report = Report.load(path)
    gone = report.recipe.model_copy(update={"path": "gone.yaml"})
    path.write_text(report.model_copy(update={"recipe": gone}).to_json())
    said = optcli("tune", "--from", "int8")
    assert said.code == 2
    assert "the recipe of this report is gone: gone.yaml" in said.err
    assert "recipe" not in asked
