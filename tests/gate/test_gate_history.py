"""The gate's history: nothing lost, machines kept apart, steps found where there are some."""

import threading

import numpy as np
import pytest

from optcli.errors import InputError, StoreError
from optcli.gate import comparisons, history
from optcli.report import terminal
from optcli.report.trends import document
from optcli.results import RecipeSummary
from optcli.results.gate import GatedVariant, GateReport, HistoryEntry, Trend


def run(p99_ms, model="cpu one", finished="2026-01-01T00:00:00+00:00"):
    found = comparisons.reported("p99", 1, 1.0, p99_ms)
    return GateReport(
        recipe=RecipeSummary(name="r", path="r.yaml", digest="d"),
        baseline="main",
        outcome="accept",
        sentence="",
        exit_code=0,
        variants={"onnx": GatedVariant(runner="onnxruntime", comparisons=(found,))},
        environment={"cpu": {"model": model}, "cores": 2},
        baseline_environment={},
        started=finished,
        finished=finished,
    )


def test_runs_come_back_in_order_and_by_machine(tmp_path):
    path = tmp_path / "new" / "history.jsonl"
    for p99_ms, model in ((2.0, "a"), (3.0, "b"), (2.5, "a")):
        assert history.append(path, run(p99_ms, model), commit="c0ffee") == 1
    one, other = history.trends(history.load(path))
    assert [each.value for each in one.entries] == [2.0, 2.5]
    assert [each.value for each in other.entries] == [3.0]
    assert (one.name, one.entries[0].commit) == ("onnx p99, batch 1", "c0ffee")


def test_many_at_once_lose_nothing(tmp_path):
    path = tmp_path / "history.jsonl"
    threads = [
        threading.Thread(target=lambda: [history.append(path, run(1.0)) for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(history.load(path)) == 80


def test_a_torn_last_line_is_left_out_and_a_foreign_file_refused(tmp_path):
    path = tmp_path / "history.jsonl"
    history.append(path, run(1.0))
    with path.open("a") as stream:
        stream.write('{"at": "20')
    assert len(history.load(path)) == 1
    history.append(path, run(2.0))
    assert [each.value for each in history.load(path)] == [1.0, 2.0]
    path.write_text("not json\n" + path.read_text())
    with pytest.raises(InputError, match="no entry") as failure:
        history.load(path)
    assert failure.value.place.endswith(":1")
    with pytest.raises(InputError, match="no history here yet"):
        history.load(tmp_path / "none.jsonl")


def test_a_disk_that_refuses_says_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        history.append(tmp_path / "file" / "history.jsonl", run(1.0))


def noisy(levels, spread, seed):
    rng = np.random.default_rng(seed)
    return [level * float(np.exp(rng.normal(0, spread))) for level in levels]


@pytest.mark.slow
def test_steps_are_found_where_they_are():
    values = noisy([1.0] * 15 + [1.08] * 15 + [0.9] * 10, 0.01, 3)
    assert history.change_points(values) == [15, 30]
    trend = Trend("r", "v", "p50", 1, "ms", "m", tuple(map(entry, values)), (15, 30))
    assert trend.growth(15) == pytest.approx(0.08, abs=0.01)
    assert trend.growth(30) == pytest.approx(0.9 / 1.08 - 1, abs=0.01)


@pytest.mark.slow
def test_noise_and_single_outliers_are_no_steps():
    false = sum(bool(history.change_points(noisy([1.0] * 30, 0.03, seed))) for seed in range(100))
    assert false <= 5
    assert history.change_points([1.0] * 10 + [1.5] + [1.0] * 10) == []
    assert history.change_points([1.0, 1.0, 2.0]) == []
    assert history.change_points([0.0] * 10) == []


def entry(value):
    return HistoryEntry(
        at="2026-01-01", recipe="r", baseline="main", variant="v", metric="p50", unit="ms",
        value=value, outcome="accept", machine="m",
    )  # fmt: skip


def trend_of(*values):
    (found,) = history.trends(map(entry, values))
    return found


def test_too_few_runs_tell_nothing_and_show_the_change():
    few = trend_of(1.0, 1.44)
    assert (few.enough, few.steps, few.latest) == (False, (), None)
    assert few.change == pytest.approx(0.44)
    assert trend_of(1.0).change is None
    assert trend_of(0.0, 1.0).change is None


def test_a_last_run_that_leaves_its_level_is_not_called_unchanged():
    calm = [1.0, 1.01, 0.99, 1.0, 1.01, 1.0]
    assert trend_of(*calm).latest is None
    assert trend_of(*calm, 1.44).latest == pytest.approx(0.44, abs=0.01)
    assert trend_of(*calm, 1.44, 1.44).steps  # found, if one run too early
    assert trend_of(*calm, 1.44, 1.44, 1.44).steps == (6,)
    left = sum(history.leaving(noisy([1.0] * 30, 0.03, seed), []) is not None for seed in range(200))
    assert left <= 10


def test_a_first_run_off_the_later_ones_is_not_called_unchanged():
    found = trend_of(1.0, 1.44, 1.44, 1.45, 1.44, 1.43)
    assert (found.steps, found.latest) == ((), None)
    assert found.earliest == pytest.approx(-0.31, abs=0.01)
    assert "cannot tell: the first run is -30.6 % off the later ones" in terminal.text(
        document([found])
    )
    assert trend_of(1.0, 1.01, 0.99, 1.0, 1.01, 1.0).earliest is None


def test_two_machines_of_one_processor_have_two_histories():
    here = run(1.0)
    other = here.model_copy(
        update={"environment": {**here.environment, "machine": {"memory_gib": 64, "identity": "b"}}}
    )
    restarted = other.model_copy(
        update={"environment": {**here.environment, "machine": {"memory_gib": 64, "identity": "c"}}}
    )
    machines = [history.entries_of(each)[0].machine for each in (here, other, restarted)]
    assert machines[0] != machines[1] == machines[2]


def test_a_figure_that_is_none_is_no_entry(tmp_path):
    line = history.entries_of(run(1.0))[0].model_dump_json().replace('"value":1.0', '"value":NaN')
    (tmp_path / "h").write_text(f"{line}\n{line}\n")
    with pytest.raises(InputError, match="no entry of a history"):
        history.load(tmp_path / "h")


@pytest.mark.parametrize("line", ["[" * 200_000, "[]", "nothing"])
def test_a_line_that_cannot_be_read_is_named(tmp_path, line):
    path = tmp_path / "h.jsonl"
    history.append(path, run(1.0))
    path.write_text(f"{line}\n{path.read_text()}")
    with pytest.raises(InputError, match="no entry of a history"):
        history.load(path)
