"""The gate from end to end, on a tiny project in git; only the timed pairs are scripted."""

import json
import shutil
import subprocess
import sys

import pytest
from gated_project import COPIED, PLAIN, WILD, git, judge, of
from tiny_project import DATA, write_images, write_model

from optcli.cli import run
from optcli.errors import ExitCode, InputError, MissingError, OptcliError, UsageError
from optcli.gate import baselines, history
from optcli.gate import explain as explaining
from optcli.gate import saving as builds
from optcli.gate import variant as gating_variant
from optcli.results import Report
from optcli.store import Store

EXPLAIN = explaining.explain


@pytest.mark.long
@pytest.mark.slow
def test_the_same_passes_and_leaves_its_report(repository, pairs, tmp_path):
    shutil.rmtree(repository.store)
    report = judge(repository, history=tmp_path / "h.jsonl")
    assert (report.outcome, report.exit_code) == ("accept", ExitCode.DONE)
    assert report.baseline.startswith("git:HEAD (")
    assert set(report.variants) == {"copied"}
    assert (of(report, "size").change.value, report.variants["copied"].causes) == (0.0, ())
    folder = repository.artifacts / "tiny" / "gate"
    assert json.loads((folder / "report.json").read_bytes())["outcome"] == "accept"
    assert report.variants["copied"].samples == ("copied.samples.npz",)
    assert (folder / "copied.samples.npz").exists()
    p50 = of(report, "p50")
    assert len(p50.pair_changes) == p50.pairs > 0
    assert {each.metric for each in history.load(tmp_path / "h.jsonl")} == {"p50", "size"}
    (before, now, settings, _), = pairs.seen  # fmt: skip
    assert before.artifact.digest == now.artifact.digest
    assert before.options["threads"] == now.options["threads"] >= 1
    assert settings.looks == (8, 16, 24)


@pytest.mark.slow
def test_slower_is_rejected_and_the_one_change_is_named(repository, pairs):
    repository.recipe(COPIED % "new")
    pairs.growth = [0.10]
    report = judge(repository)
    assert (report.outcome, report.exit_code) == ("reject", ExitCode.REJECTED)
    assert report.variants["copied"].causes == ("./fakes.py:Copy: note old, now new",)
    assert "What changed: ./fakes.py:Copy: note old, now new" in report.sentence
    assert report.sentence.startswith("Do not merge: copied p50: ")


@pytest.mark.slow
def test_another_model_file_is_the_cause_and_its_graph_the_consequence(repository, pairs):
    write_model(repository.folder / "model.onnx", seed=1)
    pairs.growth = [0.10]
    assert judge(repository).variants["copied"].causes == ("the model's file",)


@pytest.mark.long
def test_another_calibration_set_is_the_cause(repository, pairs):
    repository.recipe(PLAIN + '  copied: {passes: ["./fakes.py:Calibrated"], gate: true}\n', data=DATA)
    git(repository.folder, "commit", "-qam", "calibrated")
    git(repository.folder, "tag", "calibrated")
    before = judge(repository, "git:calibrated")
    assert before.outcome == "accept"
    assert of(before, "accuracy").change.value == 0
    text = (repository.folder / "recipe.yaml").read_text()
    (repository.folder / "recipe.yaml").write_text(text.replace("to: 0.5", "to: 0.4"))
    pairs.growth = [0.10]
    found = judge(repository, "git:calibrated").variants["copied"].causes
    (cause,) = found
    assert cause.startswith("data.calibration.split.")
    assert cause.endswith("0.5, now 0.4")


@pytest.mark.long
def test_larger_files_and_worse_accuracy_are_rejected_without_being_slower(repository, pairs):
    repository.recipe(COPIED % "old", data=DATA.replace("max_drop: 0.5", "max_drop: 0.0"))
    git(repository.folder, "commit", "-qam", "data")
    for seed in range(1, 9):
        write_model(repository.folder / "model.onnx", seed=seed)
        report = judge(repository)
        accuracy = of(report, "accuracy")
        assert (accuracy.outcome == "reject") == (accuracy.change.value > 0)
        if accuracy.outcome == "reject":
            assert report.outcome == "reject"
            return
    raise AssertionError("no other classifier was worse")


@pytest.mark.long
def test_doubt_has_its_own_exit_code_unless_told(repository, pairs):
    pairs.growth = [WILD]
    assert judge(repository).exit_code == ExitCode.INCONCLUSIVE
    assert judge(repository, on_inconclusive="pass").exit_code == ExitCode.DONE
    failed = judge(repository, on_inconclusive="fail")
    assert (failed.exit_code, failed.outcome) == (ExitCode.REJECTED, "inconclusive")


@pytest.mark.slow
@pytest.mark.parametrize(("second", "outcome"), [(0.0, "accept"), (0.1, "reject")])
def test_a_failure_is_confirmed_where_asked(repository, pairs, second, outcome):
    pairs.growth = [0.10, second]
    report = judge(repository, confirm=True)
    assert report.outcome == outcome
    assert report.variants["copied"].samples == ("copied.samples.npz", "copied.again.samples.npz")
    assert [seed for *_, seed in pairs.seen] == [0, 1]


@pytest.mark.slow
def test_a_new_variant_has_nothing_to_be_compared_with(repository, pairs):
    repository.recipe(COPIED % "old" + '  more: {passes: ["./fakes.py:Copy"], gate: true}\n')
    report = judge(repository)
    assert (report.outcome, "new" in of(report, "p50", "more").reason) == ("accept", True)
    assert "more is new and was not compared" in report.sentence


@pytest.mark.long
@pytest.mark.slow
def test_a_renamed_variant_does_not_slip_through(repository, pairs):
    repository.recipe(PLAIN + '  renamed: {passes: ["./fakes.py:Copy"], gate: true}\n')
    report = judge(repository)
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert "variants.copied is gone" in report.sentence
    declared = judge(repository, accept=["variants"])
    assert declared.exit_code == ExitCode.INCONCLUSIVE  # there is still nothing to compare with
    assert "renamed is not in git:HEAD" in declared.sentence
    report = judge(repository, on_inconclusive="pass")  # that is for noise alone
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert [each.place for each in report.changes if each.open] == ["variants.copied"]


@pytest.mark.slow
def test_what_could_not_be_built_at_the_commit_is_not_new(repository, pairs):
    repository.recipe(
        PLAIN + '  copied: {passes: [{"./fakes.py:Misbehave": {way: raise}}], gate: true}\n'
    )
    git(repository.folder, "commit", "-qam", "broken")
    repository.recipe(COPIED % "old")
    report = judge(repository)
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert "could not be built as it was at git:HEAD" in of(report, "p50").reason


@pytest.mark.slow
def test_a_saved_baseline_without_the_variant_is_no_pass(repository, pairs):
    saved(repository)
    repository.recipe(COPIED % "old" + '  more: {passes: ["./fakes.py:Copy"], gate: true}\n')
    report = judge(repository, "main")
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert "does not hold this variant, only" in of(report, "p50", "more").reason


@pytest.mark.slow
def test_without_a_mark_the_recommended_variant_is_judged(repository, pairs):
    repository.recipe(PLAIN + '  copied: ["./fakes.py:Copy"]\n')
    git(repository.folder, "commit", "-qam", "unmarked")
    report = judge(repository)
    built = Report.load(repository.artifacts / "tiny" / "report.json")
    assert (built.recommended or built.baseline) in report.variants
    for variant in report.variants.values():
        assert set(variant.chosen) <= {"recommended", "recommended-before"}


def saved(project, name="main", **changes):
    """A saved baseline; `changes` are made in its environment."""
    project.build()
    place = project.artifacts / "tiny" / "report.json"
    report = Report.load(place)
    report = report.model_copy(update={"environment": {**report.environment, **changes}})
    path = baselines.place_of(name, project.artifacts)
    return builds.save(path, report, place, Store(project.store))


@pytest.mark.slow
def test_a_report_with_odd_values_is_not_saved(repository):
    repository.build()
    path = repository.artifacts / "tiny" / "report.json"
    written = path.read_text()
    name = next(iter(json.loads(written)["variants"]))
    for place, value in (
        (("variants", name, "runner"), {}),
        (("variants", name, "runner", "requested"), True),
        (("variants", name, "runner", "requested", "threads"), [None]),
        (("variants", name, "runner", "name"), ""),
        (("environment", "versions"), 0),
    ):
        record = inner = json.loads(written)
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        path.write_text(json.dumps(record))
        with pytest.raises(UsageError) as caught:
            builds.save(repository.folder / "x.tar", Report.load(path), path, Store(repository.store))
        assert "optcli build RECIPE" in caught.value.hint, place


@pytest.mark.slow
def test_a_saved_baseline_is_compared_by_name_and_by_file(repository, pairs):
    path = saved(repository)
    for reference in ("main", str(path)):
        report = judge(repository, reference)
        assert (report.outcome, report.baseline) == ("accept", reference)


@pytest.mark.slow
def test_another_runtime_cannot_be_compared_without_its_interpreter(repository, pairs):
    saved(repository, versions={"onnxruntime": "1.0.0"})
    report = judge(repository, "main")
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert "onnxruntime 1.0.0 then" in of(report, "p50").reason
    assert "--baseline-python" in of(report, "p50").reason
    assert pairs.seen == []


def interpreter(folder, code='exec "{real}" "$@"'):
    """A virtual environment's Python that notes every start in `starts`."""
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    code = code.format(real=sys.executable)
    python.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/starts"\n{code}\n')
    python.chmod(0o755)
    return python


@pytest.mark.slow
def test_a_runtime_bump_is_judged_with_the_baselines_interpreter(repository, pairs, tmp_path):
    saved(repository, versions={"onnxruntime": "1.0.0"})
    python = interpreter(tmp_path)
    pairs.growth = [0.10]
    report = judge(repository, "main", baseline_python=tmp_path / "venv")
    (before, now, *_), = pairs.seen  # fmt: skip
    assert (before.interpreter, now.interpreter) == (str(python), None)
    assert report.baseline_environment["versions"] == report.environment["versions"]
    assert report.variants["copied"].comparisons[0].outcome == "reject"
    with pytest.raises(InputError, match="no Python interpreter"):
        judge(repository, "main", baseline_python=tmp_path)


@pytest.mark.long
@pytest.mark.slow
def test_the_baseline_of_a_commit_is_built_and_evaluated_by_its_interpreter(
    repository, pairs, tmp_path, monkeypatch
):
    repository.recipe(COPIED % "old", data=DATA)
    git(repository.folder, "commit", "-qam", "with data")
    python, profiled = interpreter(tmp_path), []

    def operators(baseline, candidate, inputs, logs, interpreter):
        profiled.append(interpreter)
        return []

    monkeypatch.setattr(gating_variant, "explain", EXPLAIN)
    monkeypatch.setattr(explaining, "_operators", operators)
    pairs.growth = [0.10]
    report = judge(repository, "git:HEAD", baseline_python=tmp_path / "venv")
    assert (pairs.seen[0][0].interpreter, profiled) == (str(python), [str(python)])
    assert of(report, "accuracy").outcome == "accept"
    starts = (tmp_path / "starts").read_text().splitlines()
    assert ["optcli.workers.child" in line.split() for line in starts] == [True] * 2


def test_operators_of_the_baseline_are_timed_by_its_interpreter(monkeypatch, tmp_path):
    used = []
    monkeypatch.setattr(explaining, "_times", lambda *given: used.append(given[3:]) or {})
    assert explaining._operators(None, None, (), tmp_path, "python-of-old") == []
    assert used == [("baseline", "python-of-old"), ("candidate",)]


@pytest.mark.slow
def test_an_interpreter_without_the_libraries_is_named(repository, pairs, tmp_path):
    python = interpreter(tmp_path, 'exec "{real}" -S "$@"')  # -S: no installed package
    with pytest.raises(MissingError, match="cannot build the recipe: ModuleNotFoundError") as failure:
        judge(repository, "git:HEAD", baseline_python=tmp_path / "venv")
    assert failure.value.place == str(python)
    assert pairs.seen == []


@pytest.mark.slow
def test_what_is_bound_to_another_cpu_is_never_compared(repository, pairs):
    repository.recipe(PLAIN + '  copied: {passes: ["./fakes.py:Tuned"], gate: true}\n')
    saved(repository, cpu={"model": "x", "machine": "x86_64", "flags": ["avx9000"]})
    report = judge(repository, "main")
    assert report.exit_code == ExitCode.INCONCLUSIVE
    assert "lacks avx9000" in of(report, "p50").reason


@pytest.mark.long
def test_what_cannot_be_built_or_found_is_an_error_and_no_pass(repository, pairs, tmp_path):
    shutil.rmtree(repository.store)

    def code(*arguments):
        return run(
            ["gate", str(repository.folder / "recipe.yaml"), "--store", str(repository.store),
             "--artifacts", str(repository.artifacts), "--baseline", *arguments]
        )  # fmt: skip

    for reference in ("nothing", "git:nothing"):  # found before anything is built
        assert code(reference) == ExitCode.WRONG_RECIPE
        assert Store(repository.store).keys("artifact") == []
    assert code("git:HEAD", "--variant", "nothing") == ExitCode.WRONG_RECIPE
    pack = saved(repository)
    pack.write_bytes(pack.read_bytes().replace(b"MatMul", b"MatMux"))
    assert code("main") == ExitCode.WRONG_RECIPE
    repository.recipe(PLAIN + '  copied: {passes: ["./fakes.py:Unobtainable"], gate: true}\n')
    assert code("git:HEAD") == ExitCode.MISSING
    fails = '[{"./fakes.py:Misbehave": {way: raise}}]'
    repository.recipe(PLAIN + f"  copied: {{passes: {fails}, gate: true}}\n")
    assert code("git:HEAD") == ExitCode.FAILED
    assert pairs.seen == []


@pytest.mark.slow
def test_measuring_that_fails_is_an_error(repository, monkeypatch):
    from optcli.errors import RunnerError

    def dies(*_):
        raise RunnerError("measuring failed: it crashed", place="copied › gate")

    monkeypatch.setattr(gating_variant, "compare", dies)
    with pytest.raises(OptcliError) as failure:
        judge(repository)
    assert failure.value.exit_code == ExitCode.FAILED


@pytest.mark.slow
def test_a_pack_is_read_by_another_store_and_saved_only_from_its_own(repository, pairs):
    pack = saved(repository)
    shutil.rmtree(repository.store)
    repository.store = repository.folder.parent / "stranger"
    assert judge(repository, str(pack)).outcome == "accept"  # ONNX files are data
    place = repository.artifacts / "tiny" / "report.json"
    with pytest.raises(UsageError, match="no longer has"):
        builds.save(pack, Report.load(place), place, Store(repository.folder / "empty"))


@pytest.mark.slow
def test_every_form_is_written_and_github_is_told(repository, pairs, tmp_path, monkeypatch, capfd):
    pairs.growth = [0.10]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    forms = ("markdown", "junit", "gitlab-metrics", "benchmark-json")
    files = {name: tmp_path / name for name in forms}
    wanted = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    code = run(
        ["gate", str(repository.folder / "recipe.yaml"), "--baseline", "git:HEAD", "--json", *wanted,
         "--store", str(repository.store), "--artifacts", str(repository.artifacts)]
    )  # fmt: skip
    assert code == ExitCode.REJECTED
    said = capfd.readouterr()
    assert json.loads(said.out)["outcome"] == "reject"
    assert "::error file=" in said.err
    assert all(path.stat().st_size > 20 for path in files.values())
    assert "optcli gate FAILED" in (tmp_path / "summary.md").read_text()


@pytest.mark.slow
def test_images_of_the_project_are_not_in_git(repository):
    write_images(repository.folder / "images", count=2, seed=3)
    done = subprocess.run(
        ["git", "-C", str(repository.folder), "status", "--porcelain"], capture_output=True, check=True
    )
    assert done.stdout == b""


@pytest.mark.slow
def test_operators_of_both_are_timed_by_the_runtimes_own_profiler(tmp_path):
    from optcli.artifact import Artifact, Format
    from optcli.gate import explain
    from optcli.gate.baselines import BaselineVariant
    from optcli.settings import TensorSpec

    inputs = [TensorSpec(name="image", shape=("batch", 3, 4, 4))]
    artifact = Artifact("k", Format.ONNX, tmp_path, "fp32", 1, "d", {"outputs": ["logits"]})
    write_model(tmp_path / "model.onnx")
    kept = BaselineVariant(artifact, "onnxruntime", {"threads": 1})
    times = explain._times(kept, inputs, tmp_path, "baseline")
    assert {"MatMul", "Gemm"}.intersection(times)
    assert all(value >= 0 for value in times.values())
    assert explain._counts(kept)["MatMul"] == 1
