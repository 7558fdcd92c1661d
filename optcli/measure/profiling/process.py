"""The profiling process: it times one artifact with and without its profiler, in turns."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from optcli import data, environment, runners
from optcli.accuracy import decoding
from optcli.accuracy.metrics import Predictions
from optcli.data import DataSettings
from optcli.errors import InputError, raised_as
from optcli.measure.latency.feeds import make
from optcli.measure.latency.machine_state import Noise
from optcli.measure.profiling.profiler import ProfiledEvents, Profiler, Times, of_runner, times
from optcli.measure.profiling.record import Profile, ProfileRequest, StageTime
from optcli.results import Flag, flags
from optcli.sample import Batch, collate
from optcli.settings import TensorSpec
from optcli.workers import Channel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optcli.measure.profiling.profiler import Feed
    from optcli.runners import Runner
    from optcli.sample import Sample

_BATCHES = 8


_MOST_SAMPLES = 64


_MOST_S = 5.0


@dataclass(frozen=True)
class ProfiledFeeds:
    """Batches to go through in turn, and the stages that made them; random ones have none.

    `samples` are the same batches with ids, targets and what preparing did to each sample.
    """

    batches: Sequence[Feed]
    samples: Sequence[Batch] = ()
    stages: tuple[StageTime, ...] = ()
    notes: tuple[str, ...] = ()


ROUNDS = 4


_WARM_CALLS = 5


_WARM_S = 5.0


_BUDGET_S = 4.0


_MOST_CALLS = 25


# From here on the machine, not the artifact, is what was measured; as `optcli.measure.latency` has it.
_UNSTEADY = 0.25


_WAITED = 0.10


def profile(request: ProfileRequest, channel: Channel) -> Profile:
    """Measure one artifact, and write the Chrome trace of its profiler where it has one."""
    if request.data is None:
        fed = random(request.inputs, request.batch_size, request.seed)
    else:
        fed = real(request.data, request.folder, request.inputs, request.batch_size)
    kind = runners.find(request.runner)

    def opened(profile: Path | None = None) -> Runner:
        runner: Runner = kind.model_validate(request.options)
        return runner.open(request.artifact, request.inputs, profile=profile)

    with tempfile.TemporaryDirectory() as scratch, opened() as plain:
        profiler_kind = of_runner(request.runner)
        profiler = profiler_kind(plain, opened, Path(scratch)) if profiler_kind else None
        try:
            timed = _Timed(plain, profiler, fed.batches)
            timed.run()
            reading = profiler.read() if profiler else None
            after = _post_process(request, plain, fed)
        finally:
            if profiler is not None:
                profiler.close()
        effective = plain.effective()
    timing = _timing(timed, reading)
    if reading is not None and reading.trace:
        _write_trace(reading.trace, request)
        timing["trace"] = str(request.trace)
    return Profile.model_validate(
        {
            **timing,
            "variant": request.variant,
            "recipe": request.recipe,
            "artifact": request.summary,
            "runner": {"name": request.runner, "requested": request.options, **effective},
            "batch_size": request.batch_size,
            "inputs": "real samples" if request.data else "random",
            "stages": (*fed.stages, *timed.stages(), *after),
            "notes": (*fed.notes, *timing["notes"]),
        }
    )


def _post_process(request: ProfileRequest, plain: Runner, fed: ProfiledFeeds) -> tuple[StageTime, ...]:
    """The stage of post-processing, timed batch by batch; none where the recipe has no such step."""
    if request.postprocess is None:
        return ()
    step = decoding.make(request.postprocess, request.folder, refuse=False)
    times_ms = []
    for batch in fed.samples:
        outputs = plain.run(dict(batch.inputs))
        shape = next((array.shape for array in batch.inputs.values() if array.ndim == 4), (0, 0))
        start = time.perf_counter_ns()
        if step is not None:
            seen = Predictions(batch.ids, batch.targets, batch.meta, outputs)
            decoding.decode(step, seen, (shape[-2], shape[-1]))
        times_ms.append((time.perf_counter_ns() - start) / 1e6)
    if not times_ms:
        return ()
    return (StageTime(name="post-process", time_ms=median(times_ms), samples=len(times_ms)),)


class _Timed:
    """Calls in turns: a round without the profiler, a round with it, and again."""

    def __init__(self, plain: Runner, profiler: Profiler | None, batches: Sequence[Feed]) -> None:
        self._plain, self._profiler = plain, profiler
        self._batches: Iterator[Feed] = (batches[turn % len(batches)] for turn in count())
        self.steps_ms: list[tuple[float, float, float]] = []
        self.profiled_ms: list[float] = []
        self.waited_ms = 0.0

    def run(self) -> None:
        calls = self._warm_up()
        for _ in range(ROUNDS):
            noise = Noise()
            self.steps_ms += [self._call() for _ in range(calls)]
            self.waited_ms += noise.since().waited_ns / 1e6
            if self._profiler is not None:
                with self._profiler.round():
                    self.profiled_ms += [self._profiler.call(next(self._batches)) for _ in range(calls)]

    @property
    def plain_ms(self) -> list[float]:
        """The compute step of every call without a profiler."""
        return [step[1] for step in self.steps_ms]

    def stages(self) -> tuple[StageTime, ...]:
        names = ("copy in", "compute", "copy out")
        return tuple(
            StageTime(name=name, time_ms=median(values), samples=len(values))
            for name, values in zip(names, zip(*self.steps_ms, strict=True), strict=True)
        )

    def _warm_up(self) -> int:
        """Call both until they are warm; gives the calls per round that four seconds allow."""
        deadline = time.perf_counter() + _WARM_S
        warm: list[float] = []
        while len(warm) < _WARM_CALLS and (len(warm) < 2 or time.perf_counter() < deadline):
            warm.append(sum(self._call()))
        if self._profiler is not None:
            with self._profiler.round():
                for _ in range(min(3, len(warm))):
                    self._profiler.call(next(self._batches))
            self._profiler.begin()
        usual_s = median(warm[1:]) / 1e3
        return max(2, min(_MOST_CALLS, int(_BUDGET_S / (2 * ROUNDS * usual_s))))

    def _call(self) -> tuple[float, float, float]:
        """Milliseconds of the three steps of one call."""
        feed = next(self._batches)
        marks = [time.perf_counter_ns()]
        self._plain.bind(feed)
        marks.append(time.perf_counter_ns())
        self._plain.execute()
        marks.append(time.perf_counter_ns())
        self._plain.fetch()
        marks.append(time.perf_counter_ns())
        first, second, third = ((stop - start) / 1e6 for start, stop in pairwise(marks))
        return first, second, third


def _timing(timed: _Timed, reading: ProfiledEvents | None) -> dict[str, Any]:
    plain_ms = timed.plain_ms
    timing: dict[str, Any] = {
        "profiler": None,
        "calls": len(plain_ms),
        "wall_ms": median(plain_ms),
        "measured_at": environment.now(),
        "flags": [
            flag.model_dump()
            for flag in _doubts(plain_ms, timed.waited_ms / sum(sum(step) for step in timed.steps_ms))
        ],
        "notes": [],
    }
    if reading is None:
        return {**timing, "notes": ["optcli has no profiler for this runner: only stages are measured"]}
    by_operator: Times = times(reading, plain_ms, timed.profiled_ms)
    wall_ms, profiled_ms = timing["wall_ms"], median(timed.profiled_ms)
    timing |= {
        "profiler": reading.profiler,
        "statistic": reading.statistic,
        "profiled_ms": profiled_ms,
        "profiler_adds": profiled_ms / wall_ms - 1 if profiled_ms > wall_ms else None,
        "notes": [*reading.notes, *by_operator.notes],
    }
    if by_operator.operators:
        timing |= {name: each for name, each in vars(by_operator).items() if name != "notes"}
    return timing


def _doubts(plain_ms: Sequence[float], waited: float) -> list[Flag]:
    """What to doubt: a wide middle half of the calls, threads that wait while others compute."""
    ordered = sorted(plain_ms)
    quarter = len(ordered) // 4
    share = (ordered[-1 - quarter] - ordered[quarter]) / median(ordered)
    doubts = [flags.environment_not_fit(spread=share)] if share > _UNSTEADY else []
    return [*doubts, flags.waited_for_processors(waited)] if waited > _WAITED else doubts


def _write_trace(events: list[dict[str, Any]], request: ProfileRequest) -> None:
    runner, size = request.runner, request.batch_size
    pid = next((event["pid"] for event in events if event.get("ph") == "X"), 0)
    label = {"ph": "M", "name": "process_name", "pid": pid, "tid": 0}
    label["args"] = {"name": f"{runner}, batch size {size}"}
    about = {"runner": runner, "options": request.options, "batch_size": size}
    record = {"traceEvents": [*events, label], "displayTimeUnit": "ms", "otherData": about}
    request.trace.write_text(json.dumps(record))


def random(inputs: Sequence[TensorSpec], batch_size: int, seed: int) -> ProfiledFeeds:
    """Batches of random values, as latency is measured with."""
    return ProfiledFeeds(make(inputs, None, [batch_size], seed)[batch_size])


def real(
    settings: DataSettings, folder: Path, inputs: Sequence[TensorSpec], batch_size: int
) -> ProfiledFeeds:
    """Batches of real samples, spread over a role of the recipe's data, each sample timed.

    Up to 64 samples, or as many as five seconds allow. Raises `InputError`.
    """
    dataset = data.open(settings, folder, inputs)
    if not len(dataset):
        raise InputError(
            "the data are empty", place=settings.source, hint="check its `split` and `samples`"
        )
    count = min(len(dataset), max(batch_size, min(_MOST_SAMPLES, _BATCHES * batch_size), _BATCHES))
    samples: list[Sample] = []
    read_ms: list[float] = []
    prepare_ms: list[float] = []
    began = time.perf_counter()
    for index in range(count):
        start = time.perf_counter_ns()
        item = dataset.read(index * len(dataset) // count)
        decoded = time.perf_counter_ns()
        samples.append(dataset.prepared(item))
        stop = time.perf_counter_ns()
        read_ms.append((decoded - start) / 1e6)
        prepare_ms.append((stop - decoded) / 1e6)
        if time.perf_counter() - began > _MOST_S:
            break
    batches, stack_ms = _stacked(samples, batch_size, settings.source)
    stages = (
        StageTime(name="read", time_ms=median(read_ms) * batch_size, samples=len(samples)),
        StageTime(
            name="prepare",
            time_ms=median(prepare_ms) * batch_size + median(stack_ms),
            samples=len(samples),
        ),
    )
    return ProfiledFeeds([dict(batch.inputs) for batch in batches], batches, stages)


def _stacked(samples: Sequence[Sample], batch_size: int, place: str) -> tuple[list[Batch], list[float]]:
    """Batches, beginning again at the end where samples are few, and the milliseconds of each."""
    batches: list[Batch] = []
    times_ms = []
    for turn in range(max(1, min(_BATCHES, len(samples) // batch_size))):
        chosen = [samples[(turn * batch_size + row) % len(samples)] for row in range(batch_size)]
        start = time.perf_counter_ns()
        message = "samples of different sizes do not make a batch"
        hint = "resize or crop them under `prepare:`, or profile at --batch-size 1"
        with raised_as(InputError, message, of=ValueError, reason=str, place=place, hint=hint):
            batches.append(collate(chosen))
        times_ms.append((time.perf_counter_ns() - start) / 1e6)
    return batches, times_ms
