"""How a search ends: by Ctrl-C, without a finalist, or begun anew."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_project import write_recipe

from optcli.observer import Observer
from optcli.results import Estimate, Report
from optcli.results.tuning import Tuning, TuningTrial
from optcli.store import Store
from optcli.tuning import judgement, search, starting, tune
from optcli.tuning.trial_runner import TrialRunner
from optcli.tuning.trials import Trials

RUNTIME = "tune: {runtimes: [onnxruntime], precisions: [fp32]}\n"


class Said(Observer):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def warned(self, step: str, message: str) -> None:
        self.notes.append(message)


class Searching:
    """A search of the tiny network with trials that end as `stages` says; the last is interrupted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *stages: str) -> None:
        self.folder, self.stages = folder, stages
        self.path = write_recipe(folder, RUNTIME)
        self.said = Said()
        self.spare_s: list[float] = []
        self.attempted = 0
        network = SimpleNamespace(sample_counts={"evaluation": 6})
        monkeypatch.setattr(TrialRunner, "make", lambda *_: network)
        monkeypatch.setattr(Trials, "attempt", self._attempt)
        monkeypatch.setattr(starting, "key_of", lambda *_: "key")
        monkeypatch.setattr(judgement, "build", self._build)
        monkeypatch.setattr(judgement, "with_finalists", lambda tuning, *_: tuning)
        monkeypatch.setattr(search.report_files, "write", self._written)

    def _attempt(self, number: int, candidate: Any, why: str, *_: Any, **__: Any) -> TuningTrial:
        if number == len(self.stages):
            raise KeyboardInterrupt
        self.attempted += 1
        return TuningTrial(
            number=number,
            label=candidate.label,
            why=why,
            parameters=dict(candidate.parameters),
            passes=candidate.passes,
            runner=candidate.runner,
            stage=self.stages[number],
            score=Estimate(value=1.0 + number),
            loss=Estimate(value=0.001 * (1 + number)),
            judging_s=4.0,
            samples=3,
            seconds=1.0,
        )

    def _build(self, *given: Any) -> Any:
        self.spare_s.append(given[6])
        return SimpleNamespace(model_copy=lambda **_: None)

    def _written(self, folder: Path, report: Any, curves: Any) -> None:
        self.report = report

    def run(self, **options: Any) -> Tuning:
        places = {"store": self.folder / "store", "artifacts": self.folder / "artifacts"}
        return tune(self.path, minutes=15, observer=self.said, **places, **options)


def test_after_an_interrupt_the_finalists_are_judged_quickly_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching = Searching(tmp_path, monkeypatch, "inside", "inside")
    monkeypatch.setattr(search.report_files, "curves_of", lambda *_: None)
    fitting, fastest = search.SearchBudget.finalists, []

    def finalists(self: Any, *given: Any) -> int:
        fastest.append(given[-1])
        return fitting(self, *given)

    monkeypatch.setattr(search.SearchBudget, "finalists", finalists)
    found = searching.run()
    assert fastest == [found.trials[1]], "how many fit goes by the speed of the best trial"
    assert found.stopped_because == "it was interrupted"
    assert len(found.trials) == 2
    assert searching.spare_s == [3 * 8.0], "of nearly 15 minutes: the baseline and two finalists"
    (said,) = [note for note in searching.said.notes if note.startswith("interrupted")]
    assert "interrupted: judging 2 finalists takes about" in said
    assert "another Ctrl-C ends the search without an answer" in said


def test_where_the_samples_come_from_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching = Searching(tmp_path, monkeypatch, "outside")
    searching.run()
    assert searching.said.notes[0].startswith("the search chooses by 20 % of data.calibration")


def test_a_pass_whose_turn_never_came_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searching = Searching(tmp_path, monkeypatch, "outside")
    told = ["tune.passes={optimize_onnx: {}, prune: {ratio: [0.3]}}"]
    left = searching.run(overrides=told).left_out
    assert "optimize_onnx was not tried: the search ended before its turn came." in left
    assert "prune was not tried: it reads torch, and the search has onnx." in left


@pytest.mark.slow
def test_a_restart_waits_for_the_search_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one would write the trials again that were removed before it ended."""
    searching = Searching(tmp_path, monkeypatch, "outside", "outside")
    searching.run()
    (place,) = (tmp_path / "store").rglob("trials.jsonl")
    inside = Store.lock
    there: list[bool] = []

    @contextlib.contextmanager
    def lock(self: Store, *given: Any, **more: Any) -> Iterator[None]:
        there.append(place.exists())
        with inside(self, *given, **more):
            yield

    monkeypatch.setattr(Store, "lock", lock)
    searching.run(restart=True)
    assert there[0], "nothing is removed before the lock is held"
    assert searching.attempted == 4, "and then all trials begin anew"


def test_without_a_finalist_there_is_a_report_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who finds nothing inside the bar needs the trials most."""
    from report_forms import markdown, page

    searching = Searching(tmp_path, monkeypatch, "outside", "outside")
    found = searching.run()
    assert not searching.spare_s
    report: Report = searching.report
    assert report.tuning == found
    assert report.exit_code == 1
    assert report.recommended is None
    assert found.answer in markdown(report)
    shown = page(report)
    assert "What the search tried" in shown
    assert shown.count("<circle") == 2 * 2, (
        "two trials; one picture for wide pages, one for narrow ones"
    )
    assert Report.model_validate_json(report.to_json()) == report
