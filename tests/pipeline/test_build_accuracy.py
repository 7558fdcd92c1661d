"""Who is judged against whom, and what stops it: without running a model."""

import dataclasses
import json
import threading

import numpy as np
import pytest
from tiny_project import DATA, Heard

from optcli import accuracy, environment
from optcli.accuracy import Evaluation, UnderWay
from optcli.artifact import Artifact, Format
from optcli.errors import RunnerError
from optcli.pipeline import accuracy as judging
from optcli.pipeline.accuracy import EvaluationContext, Subject, compare_all
from optcli.recipe import load
from optcli.runners import find
from optcli.settings.accuracy import AccuracySettings
from optcli.store import Store


def subject(name, folder):
    runner = find("onnxruntime")(threads=1)
    artifact = Artifact("k", Format.ONNX, folder, "fp32", 1, name)
    return Subject(name, artifact, "onnxruntime", runner, {"threads": 1})


@pytest.fixture
def judged(project, tmp_store, tmp_path, monkeypatch):
    """Judges made-up evaluations: name to whether each sample is right, or to an error."""
    project.recipe("  plain: []\n", data=DATA)
    heard = Heard()

    def run(answers, baseline="base", settings=None, jobs=1, before=None, copies=(), **about):
        def evaluate(request, *_, under_way, **__):
            artifact, out = request.artifact, request.out
            if before is not None:
                before(artifact.digest, under_way)
            answer = answers[artifact.digest]
            if isinstance(answer, Exception):
                raise answer
            out.mkdir()
            right = np.array(answer, bool)
            np.savez(out / "samples.npz", ids=np.arange(len(right)).astype(str), correct=right)
            known = {"samples": len(right), "stored": 0, "metric": "top1", "value": right.mean()}
            record = {**known, "finite": True, "outputs": [], "effective": {}, "stability": None}
            record |= {"doubts": [], **about.get(artifact.digest, {})}
            (out / "evaluation.json").write_text(json.dumps(record))
            return Evaluation.load(out)

        monkeypatch.setattr(accuracy, "evaluate", evaluate)
        recipe = load(project.folder / "recipe.yaml")
        if settings is not None:
            recipe = recipe.model_copy(update={"accuracy": settings})
        around = EvaluationContext(recipe, "samples", tmp_store, tmp_path, heard, 60.0, jobs)
        subjects = [subject(name, tmp_path) for name in answers]
        subjects += [dataclasses.replace(subjects[-1], name=name) for name in copies]
        found, failures = compare_all(subjects, baseline, around)
        return found, failures, heard

    return run


def test_all_are_compared_with_the_baseline_wherever_it_stands(judged):
    found, failures, _ = judged({"one": [1, 0, 1, 1], "base": [1, 1, 1, 0]})
    assert not failures
    assert (found["one"].regressed, found["one"].improved) == (1, 1)
    assert (found["base"].regressed, found["base"].improved) == (0, 0)


def test_a_failure_costs_one_and_that_of_the_baseline_all(judged):
    found, failures, _ = judged({"base": [1, 1], "bad": RunnerError("no"), "good": [1, 0]})
    assert (set(found), set(failures)) == ({"base", "good"}, {"bad"})
    assert failures["bad"].place == "bad › accuracy"


def test_without_a_baseline_nothing_is_compared(judged):
    found, failures, _ = judged({"base": RunnerError("no"), "good": [1, 0]})
    assert (found, set(failures)) == ({}, {"base"})


def test_classes_in_another_order_are_an_error_of_the_data(judged):
    why = {"class_order": "right for 9.0 % of the samples, but for 88 % if ..."}
    found, failures, _ = judged({"base": [1, 0], "other": [1, 0]}, base=why)
    assert found == {}
    assert failures["base"].exit_code == 2
    assert "classes of the data and of the model seem to be in another order" in str(failures["base"])
    assert "88 %" in str(failures["base"])


def test_only_the_baseline_is_asked_for_its_order(judged):
    found, failures, _ = judged({"base": [1, 0], "other": [1, 0]}, other={"class_order": "odd"})
    assert set(found) == {"base", "other"}
    assert not failures


@pytest.fixture
def one_core(monkeypatch):
    """Each evaluation has all cores, as where the threads are as many as these."""
    monkeypatch.setattr(environment, "usable_cores", lambda: 1)


@pytest.mark.slow
def test_short_evaluations_are_side_by_side(judged, one_core):
    together = threading.Barrier(2)  # broken where one waits for the other to end

    def before(name, _):
        if name != "base":
            together.wait(60)

    found, failures, _ = judged(
        {"base": [1, 1], "one": [1, 0], "bad": [0, 1], "two": [0, 0], "last": [1, 1]},
        jobs=2,
        before=before,
    )
    assert not failures
    assert list(found) == ["base", "one", "bad", "two", "last"]
    assert [each.regressed for each in found.values()] == [0, 1, 1, 2, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("short_s", "cores", "jobs"),
    [(-1.0, 1, 2), (10.0, 1, 1), (10.0, 2, 2)],
    ids=["long", "one job", "already in two processes"],
)
def test_other_evaluations_are_one_after_the_other(judged, monkeypatch, short_s, cores, jobs):
    monkeypatch.setattr(judging, "_SHORT_S", short_s)
    monkeypatch.setattr(environment, "usable_cores", lambda: cores)
    threads = set()
    judged(
        {"base": [1], "one": [1], "two": [1]},
        jobs=jobs,
        before=lambda *_: threads.add(threading.get_ident()),
    )
    assert threads == {threading.get_ident()}


def test_what_is_the_same_is_evaluated_once_side_by_side(judged, one_core):
    names = []
    found, _, _ = judged(
        {"base": [1, 1], "one": [1, 0]},
        jobs=3,
        before=lambda name, _: names.append(name),
        copies=("two", "three"),
    )
    assert names == ["base", "one"]
    assert [found[name].regressed for name in ("one", "two", "three")] == [1, 1, 1]


def test_a_failure_side_by_side_costs_one(judged, one_core):
    found, failures, _ = judged(
        {"base": [1, 1], "bad": RunnerError("no"), "good": [1, 0]}, jobs=2, copies=("same",)
    )
    assert (set(found), set(failures)) == ({"base", "good", "same"}, {"bad"})


def test_an_interrupt_ends_those_side_by_side(judged, one_core, monkeypatch):
    ended, waits = threading.Event(), threading.Event()
    monkeypatch.setattr(UnderWay, "end", lambda self: ended.set())

    def before(name, _):
        if name == "one":
            waits.wait(60)
            raise KeyboardInterrupt
        if name == "two":
            waits.set()
            assert ended.wait(60), "nobody ended it"

    with pytest.raises(KeyboardInterrupt):
        judged({"base": [1], "one": [1], "two": [1]}, jobs=2, before=before)
    assert ended.is_set()


@pytest.mark.slow
def test_too_few_samples_are_warned_of_once(judged):
    settings = AccuracySettings(max_drop=0.001)
    _, _, heard = judged({"base": [1, 0], "one": [1, 0], "two": [0, 0]}, settings=settings)
    assert len(heard.notes) == 1
    assert "2 samples are few for a margin of 0.10 points" in heard.notes[0]


def test_the_bar_decides_nothing_that_is_kept_and_the_metric_does(judged, tmp_path):
    recipe_keys = set(judging._DECIDES)
    assert {"max_drop", "policy", "margin"} <= recipe_keys
    assert not {"metric", "output", "options", "batch_size"} & recipe_keys


@pytest.mark.slow
def test_where_the_baseline_cannot_be_evaluated_nobody_is_accepted(project, monkeypatch):
    """The worker that judges the baseline dies: the others were built, and nothing is known of them."""
    project.recipe('  plain: []\n  copied: ["./fakes.py:Copy"]\n', data=DATA)
    evaluate = accuracy.evaluate

    def dies_of_the_first(request, observer, **more):
        if more["step"].startswith("plain"):
            raise RunnerError("the process was killed by signal 9")
        return evaluate(request, observer, **more)

    monkeypatch.setattr(accuracy, "evaluate", dies_of_the_first)
    report = project.build()
    assert report.variants["plain"].status == "failed"
    verdicts = {each.name: each for each in report.variants["copied"].verdicts}
    assert (verdicts["accuracy"].outcome, verdicts["accuracy"].blocking) == ("inconclusive", True)
    assert verdicts["accuracy"].reason == (
        "not compared: the baseline plain could not be evaluated: the process was killed by signal 9"
    )
    assert report.recommended is None
    assert report.exit_code == 4


COPIES = """\
data:
  evaluation: {source: "imagefolder:images", prepare: {scale: 0.004}}
accuracy: {metric: top1, max_drop: 0.5}
"""


@pytest.mark.slow
def test_copies_of_images_are_counted_once(project):
    """As a loop of links shows them: 12 images under 48 names."""
    for image in sorted((project.folder / "images").rglob("*.png")):
        for number in range(3):
            (image.parent / f"copy-{number}-{image.name}").write_bytes(image.read_bytes())
    project.recipe('  plain: []\n  copied: ["./fakes.py:Copy"]\n', data=COPIES)
    report = project.build()
    found = report.variants["copied"].accuracy
    assert (found.samples, found.distinct) == (48, 12)
    # That of 12 samples, of which none changed: 1 - 0.05^(1/12).
    assert found.bounds.high == pytest.approx(1 - 0.05 ** (1 / 12))
    advice = {each.name: each for each in report.variants["plain"].verdicts}["samples"]
    assert "only 12 of 48 samples differ by content" in advice.reason


@pytest.mark.parametrize(
    ("jobs", "threads", "processes"), [(1, 1, 1), (4, 1, 4), (8, 1, 4), (4, 2, 2), (4, 4, 1), (2, 8, 1)]
)
def test_an_evaluation_takes_no_more_threads_than_there_are_cores(
    tmp_path, monkeypatch, jobs, threads, processes
):
    monkeypatch.setattr(judging.environment, "usable_cores", lambda: 4)
    one = dataclasses.replace(subject("one", tmp_path), options={"threads": threads})
    assert judging._jobs(one, jobs) == processes


SLOW_DATA = """\
data:
  calibration: {source: "python:slow.py:samples", arguments: {first: 20}}
  evaluation: {source: "python:slow.py:samples", arguments: {first: 0}}
accuracy: {metric: top1, max_drop: 0.9}
"""
SLOW = '''\
"""Twelve samples that each take a while to prepare, and leave a mark when they are."""

import os
import time
from pathlib import Path

import numpy as np


class samples:
    def __init__(self, first):
        self.first = first

    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(0.06)
        with Path(os.environ["MARKS"]).open("a") as stream:
            stream.write(f"{self.first + index}\\n")
        noise = np.random.default_rng(self.first + index).random((3, 4, 4), np.float32)
        return {"image": noise}, index % 2
'''


@pytest.mark.long
def test_samples_are_prepared_for_the_first_variant_only(project, tmp_path, monkeypatch):
    """By another verb and another build as well: they lie in the store."""
    marks = tmp_path / "marks"
    monkeypatch.setenv("MARKS", str(marks))
    (project.folder / "slow.py").write_text(SLOW)
    project.recipe("  plain: []\n  other: {passes: [], runner: openvino}\n", data=SLOW_DATA)
    judged = project.build()
    store = Store(project.store)
    assert len(store.keys("prepared")) == 1
    assert judged.variants["other"].accuracy.samples == 12
    for entry in store.entries("evaluation"):
        store.discard("evaluation", entry.key)
    for entry in store.entries("comparison"):
        store.discard("comparison", entry.key)
    marks.write_text("")
    again = project.build()
    assert len(project.judged) == 2, "both were judged anew"
    assert marks.read_text() == "", "and nothing was prepared"
    for name in ("plain", "other"):
        assert again.variants[name].accuracy.value == judged.variants[name].accuracy.value
    assert store.verify() == []
