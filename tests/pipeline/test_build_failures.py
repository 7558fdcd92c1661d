"""A step that fails costs its variant and nothing else."""

import pytest
from tiny_project import write_images
from warm_workers import descendants

from optcli.errors import ExitCode, InputError, MissingError, RecipeError, StepError, UsageError


@pytest.mark.long
def test_every_way_to_die_costs_one_variant(project, cold_workers):
    before = descendants()  # other tests' helpers, such as the tracker of multiprocessing
    project.recipe(
        """\
  plain: []
  copied: ["./fakes.py:Copy"]
  segfault: [{"./fakes.py:Misbehave": {way: segfault}}]
  abort: [{"./fakes.py:Misbehave": {way: abort}}]
  killed: [{"./fakes.py:Misbehave": {way: killed}}]
  raises: [{"./fakes.py:Misbehave": {way: raise}}, "./fakes.py:Copy"]
  empty: [{"./fakes.py:Misbehave": {way: empty}}]
"""
    )
    report = project.build(jobs=4)
    reasons = {name: variant.reason for name, variant in report.variants.items()}
    assert report.exit_code == ExitCode.FAILED
    assert report.variants["copied"].status == "built"
    assert report.variants["copied"].latency
    assert "segmentation fault" in reasons["segfault"]
    assert "aborted" in reasons["abort"]
    assert "memory ran out" in reasons["killed"]
    assert "ValueError: no such luck" in reasons["raises"]
    assert "model.onnx" in reasons["empty"]
    failed = {name for name, variant in report.variants.items() if variant.status == "failed"}
    assert failed == {"segfault", "abort", "killed", "raises", "empty"}
    assert all(report.variants[name].log for name in failed)
    # Alone, so that the time that it is given need not do for the others.
    project.recipe('  plain: []\n  hang: [{"./fakes.py:Misbehave": {way: hang}}]\n')
    report = project.build(timeout_s=4)
    assert report.exit_code == ExitCode.FAILED
    assert report.variants["plain"].status == "cached"
    assert "did not finish within 4 s" in report.variants["hang"].reason
    assert report.variants["hang"].log
    assert descendants() <= before


@pytest.mark.slow
def test_a_failed_step_is_tried_again_and_what_was_made_is_kept(project, unmeasured):
    variants = '  plain: []\n  bad: [{{"./fakes.py:Misbehave": {{way: {way}}}}}]\n'
    project.recipe(variants.format(way="raise"))
    assert project.build().exit_code == ExitCode.FAILED
    assert project.build().exit_code == ExitCode.FAILED
    assert project.built == []
    project.recipe(variants.format(way="slow"))
    assert project.build().exit_code == ExitCode.DONE
    assert project.built == ["bad › ./fakes.py:Misbehave"]


@pytest.mark.slow
def test_fail_fast_stops_at_the_first_failure(project, unmeasured):
    project.recipe(
        """\
  plain: []
  bad: [{"./fakes.py:Misbehave": {way: raise}}]
  good: ["./fakes.py:Copy"]
"""
    )
    report = project.build(keep_going=False)
    assert report.exit_code == ExitCode.FAILED
    assert report.variants["good"].status == "skipped"
    assert "stopped" in report.variants["good"].reason


@pytest.mark.slow
def test_a_wrong_conversion_is_caught(project, unmeasured):
    project.recipe(
        """\
  plain: []
  right: [{"./fakes.py:Convert": {wrong: false}}]
  wrong: [{"./fakes.py:Convert": {wrong: true}}]
""",
        data=DATA_ONLY,
    )
    report = project.build()
    assert report.exit_code == ExitCode.FAILED
    assert "does not compute what its parent computes" in report.variants["wrong"].reason
    checked = report.variants["right"].steps[-1].facts["checked_against_parent"]
    assert checked["largest_relative_error"] <= 1e-4
    assert checked["samples"] >= 12  # all of the images


DATA_ONLY = """\
data:
  calibration: {source: "imagefolder:images", prepare: {scale: 0.004}}
"""


@pytest.mark.slow
def test_the_next_attempt_runs_where_the_first_is_wrong(project, unmeasured):
    project.recipe('  plain: []\n  two: [{"./fakes.py:Convert": {wrong: true, way_out: true}}]\n')
    report = project.build()
    assert report.exit_code == ExitCode.DONE
    facts = report.variants["two"].steps[-1].facts
    assert "does not compute what its parent computes" in facts["tried_before"][0]


@pytest.mark.slow
def test_a_missing_package_skips_or_fails_where_required(project, unmeasured):
    variant = '  plain: []\n  rare: {{passes: ["./fakes.py:Unobtainable"], required: {required}}}\n'
    project.recipe(variant.format(required="false"))
    report = project.build()
    assert report.exit_code == ExitCode.DONE
    assert report.variants["rare"].status == "skipped"
    assert "optcli_no_such_package" in report.variants["rare"].reason
    project.recipe(variant.format(required="true"))
    assert project.build().exit_code == ExitCode.MISSING


@pytest.mark.slow
def test_a_corrupt_model_is_an_error_not_a_report(project):
    model = project.folder / "model.onnx"
    model.write_bytes(model.read_bytes()[:100])
    project.recipe("  plain: []\n")
    with pytest.raises(InputError, match=r"model\.onnx"):
        project.build()


@pytest.mark.long
@pytest.mark.slow
def test_a_crash_of_the_model_is_said_of_the_model(project):
    (project.folder / "net.py").write_text(
        "import os, signal, torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, image):\n"
        "        os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    recipe = project.recipe("  plain: []\n")
    recipe.write_text(recipe.read_text().replace("onnx:model.onnx", "python:net.py:Net"))
    with pytest.raises(StepError, match="it crashed with a segmentation fault") as caught:
        project.build()
    assert caught.value.place == "python:net.py:Net"
    assert caught.value.hint.startswith("it crashed in forward, line 4 of net.py; log: ")


@pytest.mark.slow
def test_a_model_that_gives_nan_is_an_error(project):
    from onnx import load, numpy_helper, save

    model = load(project.folder / "model.onnx")
    values = numpy_helper.to_array(model.graph.initializer[0]).copy()
    values[0] = float("nan")
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, "weight"))
    save(model, project.folder / "model.onnx")
    project.recipe("  plain: []\n")
    with pytest.raises(InputError, match="NaN"):
        project.build()


@pytest.mark.slow
def test_options_of_a_users_pass_are_checked_with_their_place(project):
    project.recipe('  plain: []\n  bad:\n    - "./fakes.py:Copy":\n        noet: x\n')
    with pytest.raises(RecipeError) as caught:
        project.build()
    (problem,) = caught.value.problems
    assert problem.file.endswith("recipe.yaml")
    assert "noet" in problem.message
    assert "note" in problem.hint


def test_an_unknown_variant_in_only(project):
    project.recipe("  plain: []\n  other: []\n")
    with pytest.raises(UsageError, match="no variant 'othre'") as caught:
        project.build(only=["othre"])
    assert "other" in caught.value.hint


@pytest.mark.slow
def test_evaluation_must_not_overlap_with_calibration(project):
    data = """\
data:
  calibration: {source: "imagefolder:images", prepare: {scale: 0.004}}
  evaluation: {source: "imagefolder:images", prepare: {scale: 0.004}}
"""
    project.recipe("  plain: []\n", data=data)
    with pytest.raises(InputError, match="evaluation"):
        project.build()


@pytest.mark.slow
def test_a_damaged_image_in_the_midst_is_found_before_anything_is_measured(project):
    """The data step looks at a few samples; the rest is read when accuracy is judged."""
    write_images(project.folder / "more", count=40)
    damaged = project.folder / "more" / "a" / "02.png"  # not among those
    damaged.write_bytes(damaged.read_bytes()[:60])
    data = """\
data:
  evaluation: {source: "imagefolder:more", prepare: {scale: 0.004}}
accuracy: {metric: top1, max_drop: 0.5}
"""
    project.recipe("  plain: []\n  other: []\n", data=data)
    with pytest.raises(InputError, match="not a readable image") as caught:
        project.build()
    assert "02.png" in f"{caught.value.place} {caught.value.message}"
    assert not list(project.store.glob("measurement/*"))
    assert not (project.artifacts / "tiny" / "samples.npz").exists()


def test_nothing_can_be_built_where_the_source_needs_something_missing(project, monkeypatch):
    from optcli import environment

    real = environment.version
    monkeypatch.setattr(environment, "version", lambda name: None if name == "onnx" else real(name))
    project.recipe("  plain: []\n")
    with pytest.raises(MissingError, match="onnx"):
        project.build()
