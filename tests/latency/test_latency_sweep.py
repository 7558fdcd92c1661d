"""The batch sweep: its batch sizes, what ends it, and where its time goes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from optcli import workers
from optcli.errors import OptcliError, StepError
from optcli.measure.latency import SweepOrder
from optcli.measure.latency.messages import HeldMemory, Opening, Round, WarmUp
from optcli.measure.latency.sweep import allot, budget, cost_s, sweep, swept_sizes
from optcli.observer import Silent
from optcli.report.sweep import sentences
from optcli.results import Estimate, SweepPoint, flags
from optcli.settings import TensorSpec
from optcli.settings.latency import LatencySettings, SweepSettings

MB = 10**6


def image(**batch):
    return (TensorSpec(name="image", shape=("batch", 3), batch=batch or {"max": 64}),)


class Sized:
    """A measuring process whose calls take as long as `times(batch size)` says, in milliseconds."""

    def __init__(self, model, request):
        self.model, self.request, self.answer, self.killed = model, request, None, False

    def send(self, command):
        size = command.batch_size or None
        self.model.said.append((command.do, size))
        dead = size is not None and size >= self.model.dies_at
        if dead or command.do == self.model.fails:
            self.answer = StepError("it was killed, most likely because memory ran out (SIGKILL)")
        else:
            self.answer = getattr(self, f"do_{command.do}")(size, command)

    def receive(self, kind, timeout_s=None):
        if isinstance(self.answer, Exception):
            raise self.answer
        assert isinstance(self.answer, kind)
        return self.answer

    def kill(self):
        self.killed = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.killed = True

    def do_open(self, size, command):
        return Opening(1.0, 1.0, {}, threads=2)

    def do_warm(self, size, command):
        self.last = size
        return WarmUp(1.0, 1, self.model.times(size) * 1e6, 1, None, 1.0)

    def do_round(self, size, command):
        self.model.timed[size] = self.model.timed.get(size, 0) + command.calls
        slow = 1 + 0.001 * len(self.model.children)
        ns = (int(self.model.times(size) * slow * 1e6),) * command.calls
        waited_ns = int(self.model.waits(size, len(self.model.children) - 2) * sum(ns))
        quiet = {"cpu_ns": 0, "switches": 0, "steal_s": 0.0}
        return Round(ns=ns, device_ns=None, waited_ns=waited_ns, first_feed=0, feeds=1, **quiet)

    def do_memory(self, size, command):
        padded = {str(size): to for size, to in self.model.padded.items() if size <= self.last}
        return HeldMemory(
            observed={"padded_batch_sizes": padded} if padded else {},
            peak_memory_bytes=50 * MB + self.model.image_bytes * self.last,
        )


@pytest.fixture
def run(monkeypatch, plain_runner, candidate, tmp_path):
    def run(
        times, *, dies_at=10**6, image_bytes=MB, fails=None, inputs=None, p99_ms=None, foreign=False,
        waits=lambda size, launch: 0.0, padded=(), **settings,
    ):  # fmt: skip
        model = SimpleNamespace(
            times=times, dies_at=dies_at, image_bytes=image_bytes, fails=fails, children=[], said=[],
            timed={}, waits=waits, confined=[], padded=dict(padded),
        )  # fmt: skip
        run.model = model

        def spawn(function, request, *, log, environment, interpreter, confined):
            model.confined.append(confined)
            assert function == "optcli.measure.latency.process:serve"
            assert not any(not child.killed for child in model.children), "one resident at a time"
            model.children.append(Sized(model, request))
            return model.children[-1]

        monkeypatch.setattr(workers, "spawn", spawn)
        chosen = candidate("onnx", threads=2)
        return sweep(
            SweepOrder(
                replace(chosen, artifact=replace(chosen.artifact, foreign=foreign)),
                inputs or image(),
                None,
                SweepSettings(**settings),
                0,
                p99_ms=p99_ms,
            ),
            tmp_path / "log",
            Silent(),
            available_bytes=1000 * MB,
        )

    return run


def sizes(found):
    return [point.batch_size for point in found.points]


def line(size):
    return 4 + size


def test_a_point_says_to_which_compiled_size_its_batches_were_padded(run):
    found = run(line, padded={2: 8, 4: 8}, max=16)
    assert {point.batch_size: point.padded_to for point in found.points} == {
        1: None, 2: 8, 4: 8, 8: None, 16: None,
    }  # fmt: skip
    said = " ".join(sentences(found))
    assert "the runner padded batches of sizes 2 and 4 to 8, the next compiled size" in said


def test_all_sizes_of_a_line_are_found_in_fresh_processes(run):
    found = run(line)
    assert sizes(found) == [1, 2, 4, 8, 16, 32, 64]
    assert found.stopped_because == "64 is the largest wanted"
    assert (found.launches, found.threads) == (5, 2)
    assert found.fit.linear
    assert found.fit.fixed_ms.value == pytest.approx(4, rel=0.01)
    assert found.fit.per_image_ms.value == pytest.approx(1, rel=0.01)
    assert found.fit.fixed_ms.low < found.fit.fixed_ms.value < found.fit.fixed_ms.high
    assert found.points[4].throughput_per_s == pytest.approx(800, rel=0.01)
    for point in found.points:
        assert len(point.quantiles_ms) == 201
        assert list(point.quantiles_ms) == sorted(point.quantiles_ms)
        assert point.quantiles_ms[100] == pytest.approx(point.p50_ms.value, rel=0.05)
    assert found.points[4].peak_memory_bytes == 66 * MB
    assert len(run.model.children) == 6  # one looks how far to go
    assert all(child.request.options == {"threads": 2} for child in run.model.children)
    assert {point.batch_size: point.samples for point in found.points} == run.model.timed


def test_sizes_take_turns_in_another_order_in_every_launch(run):
    run(line, max=8, launches=4)
    turns = [size for do, size in run.model.said if do == "round"]
    rounds = [tuple(turns[start : start + 4]) for start in range(0, len(turns), 4)]
    assert len(rounds) == 8
    assert all(sorted(each) == [1, 2, 4, 8] for each in rounds)
    assert len(set(rounds)) > 2


@pytest.mark.parametrize(
    ("batch", "most", "expected"),
    [
        ({"min": 1, "max": 64}, 64, (1, 2, 4, 8, 16, 32, 64)),
        ({"min": 1, "max": 24}, 64, (1, 2, 4, 8, 16, 24)),
        ({"min": 1, "max": 64}, 6, (1, 2, 4, 6)),
        ({"min": 3, "max": 12}, 64, (3, 6, 12)),
        ({"min": 8, "max": 64}, 4, (8,)),
    ],
)
def test_the_ladder_stays_within_what_the_model_takes(batch, most, expected):
    assert swept_sizes(image(**batch), most) == expected


def test_a_model_with_a_fixed_batch_has_one_point_and_no_fit(run):
    found = run(line, inputs=(TensorSpec(name="image", shape=(8, 3)),))
    assert (sizes(found), found.fit) == ([8], None)
    assert found.stopped_because == "8 is the largest the model takes"


def test_it_stops_where_throughput_grows_no_more(run):
    found = run(lambda size: size if size <= 4 else 1.1 * size)
    assert found.stopped_because == "throughput stopped growing"
    assert sizes(found) == [1, 2, 4]
    assert not found.fit.linear


def test_with_a_limit_it_goes_on_until_that_is_passed(run):
    found = run(lambda size: float(size), p99_ms=20)
    assert sizes(found) == [1, 2, 4, 8, 16, 32]
    assert (found.budget.batch_size, found.budget.p99_ms) == (16, 20)
    assert found.budget.sentence.startswith("within 20 ms at p99: batch 16, 99")


def test_it_stops_before_the_memory_is_gone(run):
    found = run(line, image_bytes=60 * MB)
    assert found.stopped_because == "memory: batch size 32 would take 960 MB more"
    assert sizes(found) == [1, 2, 4, 8, 16]


def test_a_process_that_dies_ends_the_sweep_and_the_rest_is_measured(run):
    found = run(line, dies_at=16)
    assert found.stopped_because.startswith("batch size 16 failed: it was killed")
    assert sizes(found) == [1, 2, 4, 8]
    assert found.launches == 5


def test_what_cannot_run_at_all_is_an_error_and_leaves_no_process(run):
    with pytest.raises(OptcliError, match="killed"):
        run(line, fails="open")
    assert all(child.killed for child in run.model.children)


def test_the_time_cap_ends_it_and_is_kept(run):
    found = run(lambda size: 40.0 * size, max_seconds=20, p99_ms=None, max=64)
    assert found.stopped_because == "time cap: batch size 8 does not fit into 20 s"
    assert sizes(found) == [1, 2, 4]
    assert sum(count * 40 * size for size, count in run.model.timed.items()) < 20e3


def test_time_goes_first_to_what_decides_the_budget():
    usual = {size: 8e6 * size for size in (1, 2, 4, 8)}
    settings = SweepSettings(max_seconds=30)
    calls = allot(usual, settings, 40e6)
    assert calls[4] * 10 >= 368
    assert calls[8] < calls[4] > calls[1]
    assert cost_s(usual, calls, settings) <= 30
    free = allot(usual, settings, None)
    assert free[1] * 10 >= 368 > free[4] * 10


def test_too_few_calls_for_p99_are_said(run):
    found = run(lambda size: 100.0 * size, max_seconds=20, max=4, p99_ms=150)
    assert found.points[0].p99_ms is None
    assert found.points[0].flags[0].kind == "too-few-calls"
    assert found.points[0].flags[0].figures["percentile"] == 99
    assert "not decided" in found.budget.sentence


def test_the_line_goes_without_points_that_other_work_disturbed(run, monkeypatch):
    monkeypatch.setattr("optcli.measure.latency.launches.NOT_FIT", 0.25)
    calls = {}

    def disturbed(size):
        calls[size] = calls.get(size, 0) + 1
        return line(size) * (3 if size == 8 and calls[size] % 2 else 1)

    found = run(disturbed, max=16)
    assert [point.batch_size for point in found.points if not point.fit] == [8]
    assert found.fit.linear
    assert found.fit.per_image_ms.value == pytest.approx(1, rel=0.02)


def test_one_slow_launch_of_five_does_not_count(run):
    found = run(line, max=4, waits=lambda size, launch: 0.5 * (launch == 2))
    assert all(point.fit for point in found.points)
    for point in found.points:
        assert point.samples * 5 == run.model.timed[point.batch_size] * 4
        assert flags.rounds_not_counted(left_out=2, rounds=10) in point.flags
    assert found.points[0].p99_ms is not None, "there are calls to spare"


def test_other_work_in_three_launches_leaves_nothing_to_decide(run):
    found = run(line, max=4, p99_ms=7, waits=lambda size, launch: 0.6 * (launch < 3 and size == 2))
    assert [point.fit for point in found.points] == [True, False, True]
    assert found.points[1].flags[-2].text == "environment not fit (waiting for a processor 36 %)"
    assert found.budget.batch_size == 1
    assert "batch 2 is not decided: other work disturbed it" in found.budget.sentence


def test_a_tail_that_other_work_may_have_made_is_not_over_the_budget(run):
    noisy = run(line, max=2, p99_ms=5.5, waits=lambda size, launch: 0.02)
    assert noisy.budget.batch_size == 1
    found = budget([point(5.4, 6.0, waited) for waited in (0.005, 0.02)], 5.5, "")
    assert "batch 2 is not decided: other work may have caused its p99" in found.sentence
    found = budget([point(5.4, 6.0, 0.005)], 5.5, "")
    assert "not decided" not in found.sentence


def point(p50, p99, waited):
    def about(value):
        return Estimate(value=value, low=value - 0.05, high=value + 0.05)

    return SweepPoint(
        batch_size=2, p50_ms=about(p50), p99_ms=about(p99), throughput_per_s=1, samples=400,
        waited=waited,
    )  # fmt: skip


@pytest.mark.parametrize("foreign", [True, False])
def test_a_foreign_model_is_held_to_reading(run, foreign):
    run(line, max=2, foreign=foreign)
    assert set(run.model.confined) == {() if foreign else None}


def test_how_it_is_written_in_a_recipe():
    assert LatencySettings().sweeping is None
    assert LatencySettings(sweep=True).sweeping == SweepSettings()
    assert LatencySettings(sweep={"max": 16}).sweeping.max == 16
