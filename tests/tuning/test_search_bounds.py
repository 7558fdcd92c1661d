"""What a search refuses before its first trial, and which trials it does not keep."""

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_project import DATA, HEAD, PLAIN, write_recipe

from optcli.artifact import Format
from optcli.errors import OptcliError, UsageError
from optcli.observer import Silent
from optcli.recipe import load
from optcli.results import Estimate
from optcli.results.tuning import TuningTrial
from optcli.tuning import finalists, rules, search, starting, tune
from optcli.tuning.display import Display
from optcli.tuning.space import Space
from optcli.tuning.starting import Study
from optcli.tuning.strategy import Strategy


def project(folder: Path, rest: str = PLAIN, data: str = DATA, head: str = HEAD) -> Path:
    return write_recipe(folder, rest, data, head)


def refusal(path: Path, **options: Any) -> OptcliError:
    """What `tune` says; it must have tried nothing."""
    folder = path.parent
    with pytest.raises(OptcliError) as caught:
        tune(path, store=folder / "store", artifacts=folder / "artifacts", **options)
    assert not list(folder.rglob("trials.jsonl"))
    return caught.value


def test_the_recipe_itself_is_not_overwritten(tmp_path: Path) -> None:
    path = project(tmp_path)
    before = path.read_text()
    error = refusal(path, out=path)
    assert "a file that optcli tune did not write" in str(error)
    assert error.place == str(path)
    assert path.read_text() == before


def test_somebody_s_own_file_is_not_overwritten(tmp_path: Path) -> None:
    path = project(tmp_path)
    other = tmp_path / "recipe.tuned.yaml"
    other.write_text("version: 1\n")
    assert "--out" in refusal(path).hint
    assert other.read_text() == "version: 1\n"


def test_a_recipe_that_tune_wrote_is_replaced_but_not_the_one_it_starts_from(tmp_path: Path) -> None:
    path = project(tmp_path)
    ours = tmp_path / "recipe.tuned.yaml"
    ours.write_text("# Written by `optcli tune recipe.yaml`.\nextends: recipe.yaml\n")
    finalists.require_place(ours, load(path))
    with pytest.raises(UsageError, match="did not write"):
        finalists.require_place(ours, load(ours))


@pytest.mark.parametrize(
    ("out", "says"),
    [("none/tuned.yaml", "the folder of the tuned recipe is not there"), ("tuned.json", ".yaml")],
)
def test_a_place_where_no_recipe_can_go(tmp_path: Path, out: str, says: str) -> None:
    assert says in str(refusal(project(tmp_path), out=tmp_path / out))


def test_a_batch_size_that_the_inputs_do_not_take(tmp_path: Path) -> None:
    error = refusal(project(tmp_path), batch_size=16)
    assert "the inputs take batch sizes 1 to 4, found 16" in str(error)


@pytest.mark.slow
def test_a_position_in_a_list_cannot_be_kept(tmp_path: Path) -> None:
    error = refusal(project(tmp_path), overrides=["inputs.0.batch.max=2"])
    assert "a position in a list" in str(error)
    assert error.place == "--set"


def test_a_precision_that_the_runtime_does_not_have(tmp_path: Path) -> None:
    tried = ["tune.runtimes=[onnxruntime]", "tune.precisions=[bf16]"]
    said = str(refusal(project(tmp_path), overrides=tried))
    assert "there is nothing to try: bf16 was not tried in onnxruntime: no pass makes it." in said


@pytest.mark.parametrize("precision", ["int8-dynamic", "int8"])
def test_a_runtime_that_has_none_of_the_precisions_is_not_searched(
    tmp_path: Path, precision: str
) -> None:
    """OpenVINO has no dynamic INT8: no trial may ask it for a precision."""
    space = Space.of(load(project(tmp_path), [f"tune.precisions=[{precision}]"]))
    own = {"int8": {"openvino", "onnxruntime"}, "int8-dynamic": {"onnxruntime"}}[precision]
    assert set(space.runtimes) == set(space.precisions) == own
    assert rules.reference(space).parameters["precision"] == precision
    around = rules.variations(space, rules.reference(space).parameters, ())
    assert {rule.parameters["precision"] for rule in around} == {precision}
    said = "int8-dynamic was not tried in openvino: no pass makes it."
    assert (said in space.left_out) is (precision == "int8-dynamic")


@pytest.mark.parametrize("runtime", ["litert", "executorch"])
def test_runtimes_of_phones_are_searched_where_the_recipe_names_them(
    tmp_path: Path, runtime: str
) -> None:
    assert runtime not in Space.of(load(project(tmp_path))).runtimes
    told = load(project(tmp_path), [f"tune.runtimes=[{runtime}]"])
    space = Space.of(told)
    assert space.runtimes == ()
    assert space.left_out[0] == f"{runtime} was not tried: no passes lead from onnx to it."
    space = dataclasses.replace(space, source=Format.TORCH)
    float_only = space.candidate({"runtime": runtime, "precision": "fp32"})
    assert float_only.passes == ((f"to_{runtime}", {}),)
    assert float_only.runner == {"name": runtime}
    int8 = space.candidate({"runtime": runtime, "precision": "int8"}).passes
    assert (
        int8
        == {
            "litert": (("to_litert", {}), ("quantize_litert", {})),
            "executorch": (("quantize_pt2e", {"quantizer": "xnnpack"}), ("to_executorch", {})),
        }[runtime]
    )
    assert not dataclasses.replace(space, aware=True).trains_quantized(runtime)


def test_weights_alone_and_ranges_at_run_time_are_modes_of_litert(tmp_path: Path) -> None:
    space = dataclasses.replace(Space.of(load(project(tmp_path))), source=Format.TORCH)
    for precision, mode in (("int8-dynamic", "dynamic"), ("int8-weights", "weights")):
        made = space.candidate({"runtime": "litert", "precision": precision}).passes
        assert made[-1] == ("quantize_litert", {"mode": mode})
    wide = {"runtime": "litert", "precision": "int8", "activation_bits": 16}
    assert space.candidate(wide).passes[-1] == ("quantize_litert", {"activation_bits": 16})
    assert "activation_bits 16" in space.candidate(wide).label


@pytest.mark.slow
def test_samples_in_two_roles_are_found_before_the_first_trial(tmp_path: Path) -> None:
    own = '  validation: {source: "imagefolder:images", prepare: {scale: 0.004}}\n'
    path = project(tmp_path, data=DATA.replace("accuracy:", f"{own}accuracy:"))
    said = str(refusal(path))
    assert "validation" in said
    assert "evaluation" in said


@pytest.mark.slow
def test_a_model_that_cannot_be_read_is_found_before_the_first_trial(tmp_path: Path) -> None:
    path = project(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"no model")
    refusal(path)


def test_a_matrix_adds_nothing_to_a_trial(tmp_path: Path) -> None:
    rest = """\
matrix:
  t${threads}:
    over: {threads: [1, 2]}
    variant: {passes: [], runner: {name: onnxruntime, threads: "${threads}"}}
"""
    path = project(tmp_path, f"{PLAIN}{rest}")
    assert sorted(load(path).variants) == ["plain", "t1", "t2"]
    start = starting.started(path, ())
    assert list(starting.bare(start).variants) == ["source"]


PASS = """\
import shutil
from typing import ClassVar

from optcli.artifact import Format
from optcli.passes import Pass


class Copy(Pass):
    \"\"\"Copies the file.\"\"\"

    accepts: ClassVar = frozenset({Format.ONNX})

    def produces(self, source):
        return source

    def run(self, source, job):
        shutil.copytree(source.path, job.out, dirs_exist_ok=True)
        return {}
"""


@pytest.fixture
def strategy(tmp_path: Path) -> Strategy:
    return Strategy(Space.of(load(project(tmp_path))), 0.01, 600.0)


class Attempts:
    """Stands for the trials: each ends as `stages` says; the time is over after the last."""

    def __init__(self, stages: list[str]) -> None:
        self.stages = stages
        self.trial_runner = SimpleNamespace(settings=SimpleNamespace(timeout_s=60.0))
        self.on_last: Any = None

    def attempt(self, number: int, candidate: Any, *_: Any, **__: Any) -> TuningTrial:
        stage = self.stages[number]
        if number == len(self.stages) - 1 and self.on_last is not None:
            self.on_last()
        scored = {} if stage == "failed" else {"score": Estimate(value=1.0, low=0.9, high=1.1)}
        return TuningTrial(
            number=number,
            label=candidate.label,
            why="",
            parameters=candidate.parameters,
            passes=candidate.passes,
            runner=candidate.runner,
            stage=stage,
            reason="it broke" if stage == "failed" else None,
            seconds=1.0,
            **scored,
        )


def searched(strategy: Strategy, attempts: Attempts, study: Study, until: float) -> str:
    display = Display(Silent(), until)
    return search._searched(strategy, study, attempts, display, until)


def test_a_reference_that_failed_is_not_kept(strategy: Strategy, tmp_path: Path) -> None:
    study = Study(tmp_path / "trials.jsonl")
    with pytest.raises(UsageError, match="cannot be tried as it is: it broke"):
        searched(strategy, Attempts(["failed"]), study, time.monotonic() + 600)
    assert not study.trials
    assert not (tmp_path / "trials.jsonl").exists()


def test_what_failed_by_itself_is_kept_and_what_the_time_ended_is_not(
    strategy: Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: now[0]))
    attempts = Attempts(["inside", "failed", "failed"])
    attempts.on_last = lambda: now.__setitem__(0, 1000.0)
    study = Study(tmp_path / "trials.jsonl")
    assert searched(strategy, attempts, study, 900.0) == "the time is used up"
    assert [each.stage for each in study.trials] == ["inside", "failed"]


def test_a_search_ends_by_its_time_where_no_further_trial_would_fit(
    strategy: Strategy, tmp_path: Path
) -> None:
    study = Study(tmp_path / "trials.jsonl")
    short = dataclasses.replace(strategy, budget_s=3.45)  # three trials of a second, and less than half
    why = searched(short, Attempts(["inside"] * 9), study, time.monotonic() + 600)
    assert (len(study.trials), why) == (3, "the time is used up")


@pytest.mark.slow
def test_a_baseline_with_a_pass_of_the_user_has_a_key(tmp_path: Path) -> None:
    from optcli.store import Store

    (tmp_path / "own.py").write_text(PASS)
    own = "plugins: {copy: own.py:Copy}\nvariants:\n  plain: [copy]\n"
    start = starting.started(project(tmp_path, own), ())
    store = Store(tmp_path / "store")
    before = starting.key_of(start, store)
    (tmp_path / "own.py").write_text(PASS.replace("Copies", "Really copies"))
    assert starting.key_of(start, store) != before, "the user's code is part of the key"
