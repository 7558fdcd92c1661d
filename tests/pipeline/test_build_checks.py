"""A variant that cannot be built here is checked as far as can be, where its pass knows how."""

from optcli import environment
from optcli.digest import FileDigests
from optcli.errors import ExitCode
from optcli.pipeline.plan import plan
from optcli.recipe import load

CHECKED = """\
  plain: []
  rare: {passes: [{"./fakes.py:Copy": {note: a}}, "./fakes.py:Watchful"], required: REQUIRED}
"""


def test_the_steps_before_are_built_and_the_pass_is_asked(project):
    project.recipe(CHECKED.replace("REQUIRED", "false"))
    report = project.build()
    rare = report.variants["rare"]
    assert report.exit_code == ExitCode.DONE
    assert rare.status == "skipped"
    assert "optcli_no_such_package" in rare.reason
    assert rare.checked == ("the model has 1 input", "note a was seen")
    assert [step.name for step in rare.steps][-2:] == [
        "./fakes.py:Copy",
        "check for ./fakes.py:Watchful",
    ]
    assert (rare.artifact, rare.latency) == (None, ())
    again = project.build().variants["rare"]
    assert {step.status for step in again.steps} == {"cached"}
    assert again.checked == rare.checked


def test_required_it_fails_as_missing(project):
    project.recipe(CHECKED.replace("REQUIRED", "true"))
    report = project.build()
    assert report.exit_code == ExitCode.MISSING
    assert report.variants["rare"].checked


def test_a_pass_that_checks_nothing_costs_nothing(project):
    project.recipe('  plain: []\n  rare: [{"./fakes.py:Copy": {note: b}}, "./fakes.py:Unobtainable"]\n')
    rare = project.build().variants["rare"]
    assert (rare.status, rare.checked, rare.steps) == ("skipped", (), ())


def test_a_step_before_that_fails_fails_the_variant(project):
    project.recipe(
        '  plain: []\n  rare: [{"./fakes.py:Convert": {wrong: true}}, "./fakes.py:Watchful"]\n'
    )
    assert project.build().variants["rare"].status == "failed"


def test_an_engine_without_a_gpu_is_checked_for(project, monkeypatch):
    lacking = environment.Missing("no GPU", "find one")
    monkeypatch.setattr(environment, "missing", lambda needs: [lacking] if needs.gpu else [])
    project.recipe("  plain: []\n  engine: [{tensorrt_engine: {precision: fp16}}]\n")
    engine = plan(load(project.folder / "recipe.yaml"), {}, FileDigests()).variants[1]
    assert engine.missing == (lacking,)
    assert [step.name for step in engine.possible] == ["source onnx", "check for tensorrt_engine"]
    assert [step.only_checks for step in engine.possible] == [False, True]
    assert engine.possible[-1].key not in {step.key for step in engine.steps}
