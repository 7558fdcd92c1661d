"""A pull request that changes what it is judged by: it is named, whatever it tries, and no pass."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from gated_project import COPIED, commit, git, judge, of
from tiny_project import DATA, write_model

from optcli.cli import run
from optcli.errors import ExitCode, UsageError
from optcli.gate import baselines
from optcli.gate import saving as builds
from optcli.gate.origins import GateRun
from optcli.gate.running import gate
from optcli.results import Report, flags
from optcli.store import Store

UNTRACKED = ("untracked-data",)


def change(project, *pairs):
    path = project.folder / "recipe.yaml"
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def opened(report):
    return {(each.kind, each.place) for each in report.changes if each.open}


@pytest.mark.long
@pytest.mark.slow
def test_all_in_git_and_nothing_changed_passes(judged, pairs):
    shutil.rmtree(judged.store)
    report = judge(judged, accept=())
    assert (report.outcome, report.changes) == ("accept", ())
    assert of(report, "accuracy").blocking


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("max_drop: 0.01", "max_drop: 1.0", "bar"),
        ("threads: 1}", "threads: 2}", "threads"),
        ("variants:", "gate: {p50: {limit: 100, margin: 0.02}}\nvariants:", "bar"),
    ],
)
def test_a_bar_or_threads_of_the_pull_requests_own_do_not_pass(judged, pairs, old, new, kind):
    change(judged, (old, new))
    report = judge(judged, accept=())
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert {each for each, _ in opened(report)} == {kind}
    assert f"--accept {kind}" in report.sentence
    assert judge(judged, accept=(), on_inconclusive="pass").exit_code == ExitCode.INCONCLUSIVE
    assert judge(judged, accept=(kind,)).outcome == "accept"


@pytest.mark.slow
def test_the_baselines_bars_hold_besides(judged, pairs):
    """A gate limit, a promise and a loss that the pull request allows itself are judged as before."""
    change(judged, ("variants:", "slo: {p99_ms: 1000}\ngate: {p50: {limit: 1}}\nvariants:"))
    commit(judged, "a promise")
    change(judged, ("p99_ms: 1000", "p99_ms: 1.0e+9"), ("limit: 1}", "limit: 9}"))
    judge(judged, accept=())
    (_, _, settings, _), = pairs.seen  # fmt: skip
    assert (settings.p50.limit, pairs.slo[0].p99_ms) == (1, 1000)


@pytest.mark.long
@pytest.mark.slow
def test_a_worse_model_is_rejected_by_the_evaluation_that_the_pull_request_bends(judged, pairs):
    """Evaluation removed; the bar removed; images made black; and all but one sample left out."""
    write_model(judged.folder / "model.onnx", seed=1)  # right by chance
    path = judged.folder / "recipe.yaml"
    text = path.read_text()
    evaluation = next(line for line in text.splitlines(keepends=True) if "evaluation:" in line)
    bar = "accuracy: {metric: top1, max_drop: 0.01}\n"
    black = evaluation.replace("scale: 0.004", "scale: 1.0e-9")
    few = evaluation.replace("prepare:", "samples: 1, prepare:")
    for bent in (
        text.replace(evaluation, "").replace(bar, ""),
        text.replace(bar, ""),
        text.replace(evaluation, black).replace("ion: {source", "ion: {allow_difference: true, source"),
        text.replace(evaluation, few),
    ):
        assert bent != text
        path.write_text(bent)
        report = judge(judged, accept=())
        assert report.exit_code == ExitCode.REJECTED
        assert opened(report)
        rejects = [c for c in report.variants["copied"].comparisons if c.outcome == "reject"]
        assert any("by the baseline's recipe" in each.name for each in rejects)


@pytest.mark.long
@pytest.mark.slow
def test_other_labels_or_files_of_the_evaluation_are_named(judged, pairs):
    """Images that move to another class, and labels that are all the same."""
    for each in (judged.folder / "images" / "a").iterdir():
        each.rename(judged.folder / "images" / "b" / f"moved-{each.name}")
    report = judge(judged, accept=())
    assert report.exit_code in (ExitCode.INCONCLUSIVE, ExitCode.REJECTED)
    assert ("evaluation", "data.evaluation.content") in opened(report)


@pytest.mark.long
@pytest.mark.slow
def test_code_that_judges_is_part_of_the_terms(judged, pairs):
    metric = "def right(outputs, target, meta):\n    return 1.0\n"
    (judged.folder / "metric.py").write_text(f"from inner import VALUE\n\n\n{metric}")
    (judged.folder / "inner.py").write_text("VALUE = 1\n")
    change(judged, ("metric: top1", "metric: python:metric.py:right"))
    commit(judged, "own metric")
    (judged.folder / "inner.py").write_text("VALUE = 2\n")
    report = judge(judged, accept=())
    assert ("code", "metric") in opened(report)
    assert report.outcome != "accept"


@pytest.mark.long
def test_code_on_the_path_that_judges_is_named_where_it_changed(judged, pairs, monkeypatch):
    """Both sides would use today's `src/`: a metric that is made easier would pass as unchanged."""
    metric = "from scoringlib import VALUE\n\n\ndef right(outputs, target, meta):\n    return VALUE\n"
    (judged.folder / "metric.py").write_text(metric)
    library = judged.folder / "src" / "scoringlib" / "__init__.py"
    library.parent.mkdir(parents=True)
    library.write_text("VALUE = 0.5\n")
    change(judged, ("metric: top1", "metric: python:metric.py:right"))
    commit(judged, "own metric")
    monkeypatch.syspath_prepend(str(judged.folder / "src"))
    monkeypatch.setenv("PYTHONPATH", str(judged.folder / "src"))
    assert opened(judge(judged, accept=())) == set()
    library.write_text("VALUE = 1.0\n")
    report = judge(judged, accept=())
    assert ("untracked-model", "metric") in opened(report)
    assert report.outcome != "accept"


@pytest.mark.slow
def test_a_base_recipe_that_is_extended_is_judged_like_the_recipe(judged, pairs):
    text = (judged.folder / "recipe.yaml").read_text()
    (judged.folder / "base.yaml").write_text(text)
    (judged.folder / "recipe.yaml").write_text("version: 1\nname: tiny\nextends: base.yaml\n")
    commit(judged, "split")
    (judged.folder / "base.yaml").write_text(text.replace("max_drop: 0.01", "max_drop: 1.0"))
    assert ("bar", "accuracy.max_drop") in opened(judge(judged, accept=()))


@pytest.mark.slow
def test_a_mark_that_is_moved_keeps_the_old_variant_before_the_gate(judged, pairs):
    text = (judged.folder / "recipe.yaml").read_text()
    text = text.replace(", gate: true", "").replace("plain: []", "plain: {passes: [], gate: true}")
    (judged.folder / "recipe.yaml").write_text(text)
    report = judge(judged, accept=())
    assert set(report.variants) == {"plain", "copied"}
    assert report.variants["copied"].chosen == ("marked-before",)
    assert ("variants", "variants.copied.gate") in opened(report)
    assert report.exit_code == ExitCode.INCONCLUSIVE


@pytest.mark.long
@pytest.mark.slow
def test_other_settings_of_the_runner_are_named(judged, pairs):
    change(judged, ("gate: true}", "gate: true, runner: openvino}"))
    report = judge(judged, accept=())
    assert ("runner", "variants.copied.runner") in opened(report)


@pytest.mark.slow
def test_other_libraries_are_named_unless_the_baseline_has_its_own(judged, pairs):
    (judged.folder / "requirements.txt").write_text("onnxruntime==9\n")
    report = judge(judged, accept=())
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert "requirements.txt changed" in report.sentence
    assert "--baseline-python" in report.sentence


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("way", ["ignored", "beside", "link", "pointer"])
def test_a_model_that_the_commit_does_not_hold_is_not_compared_with_itself(repository, pairs, way):
    """Both sides would use today's file: a model that became slower would pass as unchanged."""
    folder = repository.folder
    if way == "ignored":
        git(folder, "rm", "-q", "--cached", "model.onnx")
        (folder / ".gitignore").write_text("images/\n*.onnx\n")
    else:
        away = folder.parent / "elsewhere" / "model.onnx"
        away.parent.mkdir()
        (folder / "model.onnx").rename(away)
        if way == "link":
            (folder / "model.onnx").symlink_to(away)
        elif way == "beside":
            change(repository, ("onnx:model.onnx", "onnx:../elsewhere/model.onnx"))
        else:
            (folder / "model.onnx").write_text(
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
            )
    commit(repository, way)
    if way == "pointer":
        (folder / "model.onnx").unlink()
        away.rename(folder / "model.onnx")
    else:
        write_model(away if way != "ignored" else folder / "model.onnx", seed=5)
    report = judge(repository, accept=())
    assert report.exit_code == ExitCode.INCONCLUSIVE
    (found,) = [each for each in report.changes if each.kind == "untracked-model"]
    assert found.place == "model"
    assert found.unversioned == {"ignored": "untracked", "pointer": "lfs"}.get(way, "outside")
    assert "optcli baseline save" in report.sentence


@pytest.mark.long
@pytest.mark.slow
def test_data_that_the_commit_does_not_hold_are_named(repository, pairs):
    repository.recipe(COPIED % "old", data=DATA)
    commit(repository, "data")
    report = judge(repository, accept=())
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert {kind for kind, _ in opened(report)} == {"untracked-data"}
    report = judge(repository, accept=UNTRACKED)
    assert report.outcome == "accept", report.sentence


def saved(project):
    project.build()
    place = project.artifacts / "tiny" / "report.json"
    path = baselines.place_of("main", project.artifacts)
    return place, builds.save(path, Report.load(place), place, Store(project.store))


@pytest.mark.slow
def test_a_saved_baseline_holds_what_it_was_judged_by(judged, pairs):
    place, path = saved(judged)
    assert judge(judged, "main", accept=()).outcome == "accept"
    change(judged, ("max_drop: 0.01", "max_drop: 1.0"), ("from: 0.5", "from: 0.8"))
    report = judge(judged, "main", accept=())
    assert {("bar", "accuracy.max_drop"), ("evaluation", "data.evaluation.split")} <= opened(report)
    # One that an older optcli wrote says nothing of it.
    old = Report.load(place).model_copy(update={"judged_by": None})
    builds.save(path, old, place, Store(judged.store))
    report = judge(judged, "main", accept=())
    assert opened(report) == {("terms", "baseline")}
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert "save it again" in report.sentence


@pytest.mark.long
@pytest.mark.slow
def test_an_unmarked_gate_judges_what_the_baseline_recommends_as_well(judged, pairs, monkeypatch):
    from optcli.gate import other_interpreter

    change(judged, (", gate: true", ""))
    commit(judged, "unmarked")
    monkeypatch.setattr(other_interpreter, "suggested", lambda *_: ("copied",))
    monkeypatch.setattr("optcli.gate.running._suggested", lambda *_: ("plain",))
    report = judge(judged, accept=())
    assert report.variants["copied"].chosen == ("recommended-before",)
    assert report.variants["plain"].chosen == ("recommended",)
    change(judged, ("copied:", "other:"))
    report = judge(judged, accept=())
    assert ("variants", "variants.copied") in opened(report)


@pytest.mark.slow
def test_the_command_line_takes_what_is_accepted_and_lists_what_there_is(judged, capsys):
    code = run(
        ["gate", str(judged.folder / "recipe.yaml"), "--baseline", "git:HEAD", "--accept", "everything"]
    )
    assert code == ExitCode.WRONG_RECIPE
    said = capsys.readouterr().err
    assert "'everything'" in said
    assert "evaluation" in said


def weak(project):
    """A model that is right less often, as `weak.onnx`, named by `old.yaml`."""
    write_model(project.folder / "weak.onnx", seed=1)
    text = (project.folder / "recipe.yaml").read_text()
    (project.folder / "old.yaml").write_text(text.replace("model.onnx", "weak.onnx"))


@pytest.mark.long
def test_a_recipe_that_becomes_a_link_is_compared_with_what_had_its_name(judged, pairs):
    """Else any older recipe with a worse model, merged beside it, could take its place."""
    weak(judged)
    commit(judged, "another recipe")
    (judged.folder / "recipe.yaml").unlink()
    (judged.folder / "recipe.yaml").symlink_to("old.yaml")
    assert judge(judged, accept=()).exit_code == ExitCode.REJECTED


@pytest.mark.slow
def test_a_repository_may_be_reached_by_a_link(judged, pairs):
    linked = judged.folder.parent / "linked"
    linked.symlink_to(judged.folder)
    assert judge(replace(judged, folder=linked), accept=()).outcome == "accept"


@pytest.mark.long
@pytest.mark.parametrize("place", ["store", "pack"])
def test_a_store_or_a_pack_that_git_holds_is_no_witness(judged, pairs, place):
    reference = "git:HEAD"
    if place == "store":
        judged.store = judged.folder / "artifacts" / ".store"
        judged.build()
    else:
        judged.build()
        saved(judged)
        pack = judged.folder / "main.optcli.tar"
        shutil.copyfile(baselines.place_of("main", judged.artifacts), pack)
        reference = str(pack)
    report = judge(judged, reference, accept=())
    assert "committed" not in {kind for kind, _ in opened(report)}
    git(judged.folder, "add", "-f", ".")
    git(judged.folder, "commit", "-qm", "and what was built")
    report = judge(judged, reference, accept=())
    assert "committed" in {kind for kind, _ in opened(report)}
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert "so a pull request can bring its own" in report.sentence


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("requirements/base.txt", "requirements.lock", "requirements-dev.lock", "setup.py"),
        *("deps.txt", ".python-version", "Dockerfile", "docker/gpu.dockerfile", "conda.lock"),
    ],
)
def test_other_libraries_are_noticed_wherever_they_are_named(judged, pairs, name):
    file = judged.folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("numpy==1\n")
    if name == "deps.txt":
        (judged.folder / "requirements.txt").write_text("-r deps.txt\n")
    commit(judged, "libraries")
    file.write_text("numpy==2\n")
    report = judge(judged, accept=())
    (change,) = [each for each in report.changes if each.kind == "libraries"]
    assert change.files == (name,)


@pytest.mark.long
@pytest.mark.slow
def test_other_calibration_data_do_not_change_what_is_timed(judged, pairs):
    """Inputs that are nearly 0 make some networks faster, on both sides, and nothing would show it."""
    judge(judged, accept=())
    text = (judged.folder / "recipe.yaml").read_text()
    calibration = next(line for line in text.splitlines() if "calibration:" in line)
    nearly_nothing = "prepare: {scale: 1.0e-9}, allow_difference: true"
    change(judged, (calibration, calibration.replace("prepare: {scale: 0.004}", nearly_nothing)))
    judge(judged, accept=())
    before, after = (np.load(feeds)["image"] for feeds in pairs.feeds)
    assert np.array_equal(before, after)


BROKEN = """
import onnx
from onnx import numpy_helper
from fakes import Copy


class Broken(Copy):
    def run(self, source, job):
        made = super().run(source, job)
        model = onnx.load(job.out / "model.onnx")
        weight = numpy_helper.to_array(model.graph.initializer[0]) * float("nan")
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "weight"))
        onnx.save(model, job.out / "model.onnx")
        return made
"""
BAR = "accuracy: {metric: top1, max_drop: 0.01}\n"


@pytest.mark.long
@pytest.mark.slow
def test_a_new_variant_without_a_bar_is_held_to_its_float_variants_outputs(judged, pairs):
    (judged.folder / "broken.py").write_text(BROKEN)
    change(judged, (BAR, ""))
    commit(judged, "no bar")
    new = '  broken: {passes: ["./broken.py:Broken"], gate: true}\n'
    change(
        judged, ("variants:\n", f"variants:\n  plain: []\n{new}"), ("  plain: []\n  copied", "  copied")
    )
    report = judge(judged, accept=())
    assert report.outcome != "accept"
    found = [each for each in report.variants["broken"].comparisons if each.metric == "outputs"]
    assert any(each.outcome != "accept" and each.blocking for each in found)


@pytest.mark.slow
def test_a_new_variant_without_any_float_variant_beside_it_is_not_passed(judged, pairs, monkeypatch):
    monkeypatch.setattr("optcli.gate.accuracy._floats", lambda gating: [("plain", None, False)])
    change(judged, ("variants:\n", 'variants:\n  new: {passes: ["./fakes.py:Copy"], gate: true}\n'))
    change(judged, ("latency:", "baseline: plain\nlatency:"))
    report = judge(judged, accept=("variants",))
    (found,) = [each for each in report.variants["new"].comparisons if each.metric == "accuracy"]
    assert (found.outcome, found.compared) == ("inconclusive", False)
    assert "the float variant plain was built on neither side" in found.reason
    assert flags.no_float_anchor("plain") in report.variants["copied"].flags


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("place", ["artifacts", "store"])
def test_a_link_that_a_commit_brings_leads_optcli_nowhere(repository, tmp_path, place):
    """A runner checks the pull request out: what it holds may be the folder that results go to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (repository.folder / "link").symlink_to(outside)
    commit(repository, "a link")
    places = {"artifacts": tmp_path / "mine", "store": repository.store}
    places[place] = repository.folder / "link" / "below"
    with pytest.raises(UsageError, match="a link that git holds") as failure:
        gate(repository.folder / "recipe.yaml", "git:HEAD", GateRun(), **places)
    assert failure.value.place == str(repository.folder / "link")
    assert f"--{place}" in failure.value.hint
    assert list(outside.iterdir()) == []
