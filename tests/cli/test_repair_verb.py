"""`optcli verify-accuracy --repair`: whom it repairs, what it prints, its exit code."""

import json

import pytest
from tiny_project import DATA

from optcli import tuning
from optcli.results import Estimate, Report, Verdict
from optcli.results.repair import Repair, Trial

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


def test_a_variant_of_a_recipe(place, optcli, asked):
    place.recipe(f"  plain: []\n{INT8}", data=DATA)
    said = optcli(
        "verify-accuracy",
        *("recipe.yaml", "--repair", "int8", "--trials", 5, "--max-minutes", 2, "--write"),
        *("--repair-engine", "nncf"),
    )
    assert said.code == 0, said.err
    assert str(asked["recipe"]) == "recipe.yaml"
    assert (asked["variant"], asked["trials"], asked["max_seconds"], asked["write"]) == (
        *("int8", 5, 120),
        True,
    )
    assert asked["engine"] == "nncf"
    assert (
        "Trial 1 (products only) is inside the bar: 1.40x [1.35, 1.45] as fast as in float" in said.out
    )
    assert said.out.endswith("-a\n+b\n")


@pytest.mark.parametrize(("outcome", "code"), [("repaired", 0), ("accurate", 5), ("unrepaired", 1)])
def test_the_exit_code_says_how_it_ended(place, optcli, asked, outcome, code):
    place.recipe(f"  plain: []\n{INT8}", data=DATA)
    asked["answer"] = found(outcome)
    said = optcli("verify-accuracy", "--repair", "recipe.yaml", "--json")
    assert said.code == code
    assert json.loads(said.out)["outcome"] == outcome
    assert (str(asked["recipe"]), asked["variant"]) == ("recipe.yaml", None)


def test_without_a_name_it_is_the_variant_that_the_last_build_rejected(place, optcli, asked):
    (path,) = place.artifacts.glob("*/report.json")
    report = Report.load(path)
    name = list(report.variants)[-1]
    verdict = Verdict(name="accuracy", outcome="reject", blocking=True, reason="too much lost")
    worse = report.variants[name].model_copy(update={"verdicts": (verdict,)})
    changed = report.model_copy(update={"variants": {**report.variants, name: worse}})
    path.write_text(changed.to_json())
    said = optcli("verify-accuracy", "--repair")
    assert said.code == 0, said.err
    assert asked["variant"] == name
    assert str(asked["recipe"]) == report.recipe.path


def test_the_recipe_of_a_report_that_is_gone(place, optcli, asked):
    (path,) = place.artifacts.glob("*/report.json")
    report = Report.load(path)
    gone = report.recipe.model_copy(update={"path": "gone.yaml"})
    path.write_text(report.model_copy(update={"recipe": gone}).to_json())
    said = optcli("verify-accuracy", "--repair")
    assert said.code == 2
    assert "the recipe of this report is gone: gone.yaml" in said.err
    assert "recipe" not in asked


def test_more_than_one_file(place, optcli, asked):
    said = optcli("verify-accuracy", "a.yaml", "b.yaml", "--repair")
    assert said.code == 2
    assert "wanted one recipe or report" in said.err
    assert "recipe" not in asked
