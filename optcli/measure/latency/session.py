"""One comparison under way: which processes are open, whose turn it is, what was measured so far."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any

from optcli import runners, workers
from optcli.errors import OptcliError
from optcli.measure.latency import machine_state
from optcli.measure.latency.feeds import choose_batch_sizes
from optcli.measure.latency.messages import (
    TIMEOUT_S,
    Command,
    HeldMemory,
    MeasureRequest,
    Opening,
    Ready,
    WarmUp,
    ask,
)
from optcli.measure.latency.plan import Candidate, LatencyOrder, LaunchPlan, SweepOrder, plan
from optcli.measure.latency.samples import ArtifactRun, Measured, OpenedArtifact
from optcli.observer import Observer
from optcli.workers import Child

STEP = "latency"
# Untimed calls at the start of each turn: they bring the model back into the caches.
LEAD_IN = 2
# Warming up until steady is given up after so long.
_LONGEST_WARM_UP_S = 10.0
# On a busy machine calls take many times their plan: rounds end after so many times the time cap.
_PATIENCE = 3


@dataclass
class Session:
    """Launches of a comparison, one after the other. See `optcli.measure.latency.measure`.

    In gate mode the baseline's first warm-up says how many calls warm up both sides in all launches,
    and how many are timed.
    """

    order: LatencyOrder
    logs: Path
    observer: Observer
    groups: Sequence[Sequence[Candidate]]

    opened: dict[str, OpenedArtifact] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    orders: dict[str, list[list[str]]] = field(default_factory=dict)
    spent_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes, self.skipped = choose_batch_sizes(
            self.order.inputs, self.order.settings.batch_sizes
        )
        self._children: dict[str, Child] = {}
        self._takes: dict[tuple[str, int, int], ArtifactRun] = {}
        self._plans: dict[tuple[str, int], LaunchPlan] = {}
        self._fixed_warm_up: dict[int, int] = {}
        self._launch = 0
        self._began = datetime.now(UTC)
        self._before = machine_state.conditions()
        self._clock = time.monotonic()

    def launch(
        self,
        number: int,
        group: int,
        candidates: Sequence[Candidate],
        at: float,
        share: float,
        sizes: Sequence[int] | None = None,
    ) -> None:
        """Open all, measure all at every batch size, end all; what fails is left out of later launches.

        `at` and `share` are fractions of the whole, for the progress. `sizes` are all unless given.
        """
        self._launch = number
        try:
            with self._counted("opening"):
                self._open([each for each in candidates if each.name not in self.failures], at)
            chosen = self.sizes if sizes is None else sizes
            for index, size in enumerate(chosen):
                step = share / len(chosen)
                self._measure(group, size, at + index * step, step)
        finally:
            with self._counted("opening"):
                self._end()

    def measured(self, *, environment_after: bool = False) -> Measured:
        """All that was measured so far; at the end with the state of the machine before and after."""
        conditions = {}
        if environment_after:
            conditions = {"before": self._before, "after": machine_state.conditions()}
        return Measured(
            baseline=self.order.baseline,
            measured_at=self._began.astimezone().isoformat(timespec="seconds"),
            settings=self.order.settings.model_dump(mode="json"),
            seed=self.order.seed,
            real_inputs=self.order.feeds is not None,
            lead_in=LEAD_IN,
            groups=tuple(tuple(each.name for each in group) for group in self.groups),
            series=tuple(take.series() for take in self._takes.values() if take.rows),
            opened=dict(self.opened),
            failures=dict(self.failures),
            skipped=self.skipped,
            orders={key: list(rounds) for key, rounds in self.orders.items()},
            conditions=conditions,
            seconds={"wall": time.monotonic() - self._clock, **self.spent_s},
        )

    def _open(self, candidates: Sequence[Candidate], at: float) -> None:
        """Start all processes, then open one after the other: opening is measured, too.

        In quick mode only the first launch says what opening takes; in later ones all open at once.
        """
        for candidate in candidates:
            self.observer.progress(STEP, at, f"{self._launch_prefix}starting {candidate.name}")
            with self._failing(candidate.name):
                self._children[candidate.name] = started(
                    replace(candidate, options=self._options(candidate)),
                    self.order,
                    self.sizes,
                    self.logs / f"{candidate.name}.log",
                )
        for name in list(self._children):
            with self._failing(name):
                ask(self._children[name], Command("ready"), Ready, TIMEOUT_S)
        together = self.order.settings.mode == "quick" and self._launch > 0
        for name in list(self._children) if together else ():
            with self._failing(name):
                self._children[name].send(Command("open"))
        for candidate in candidates:
            if candidate.name in self._children:
                self.observer.progress(STEP, at, f"{self._launch_prefix}opening {candidate.name}")
                with self._failing(candidate.name):
                    child = self._children[candidate.name]
                    if not together:
                        child.send(Command("open"))
                    opening = child.receive(Opening, TIMEOUT_S)
                    self._keep_opened(candidate, opening, timed=not together)

    def _options(self, candidate: Candidate) -> dict[str, Any]:
        options = {**candidate.options}
        if self.order.settings.threads is not None:
            options.setdefault("threads", self.order.settings.threads)
        return options

    def _keep_opened(self, candidate: Candidate, opening: Opening, *, timed: bool) -> None:
        opened = self.opened.get(candidate.name)
        import_ms, load_ms = (opening.import_ms,), (opening.load_ms,)
        if opened is not None:
            if timed:
                self.opened[candidate.name] = replace(
                    opened, import_ms=opened.import_ms + import_ms, load_ms=opened.load_ms + load_ms
                )
            return
        options = self._options(candidate)
        self.opened[candidate.name] = OpenedArtifact(
            import_ms=import_ms,
            load_ms=load_ms,
            threads=opening.threads,
            effective=opening.effective,
            wanted_threads=options.get("threads"),
            environment=runners.find(candidate.runner).model_validate(options).environment(),
        )

    def _measure(self, group: int, size: int, at: float, share: float) -> None:
        """Warm all up, let them take turns; whoever fails is out, what it gave is kept."""
        warm: dict[str, WarmUp] = {}
        for name in list(self._children):
            progress = f"{self._launch_prefix}batch {size}: warming up {name}"
            self.observer.progress(STEP, at, progress)
            with self._failing(name, size), self._counted("warm_up"):
                warm[name] = self._warm_up(name, size)
        takes = {name: self._take(name, size, group, warm_up) for name, warm_up in warm.items()}
        rounds = max((take.plan.rounds for take in takes.values()), default=0)
        order = random.Random(f"{self.order.seed}/{group}/{self._launch}/{size}")  # noqa: S311 - no secret
        cap_s = _PATIENCE * self.order.settings.max_seconds / self.order.settings.launches
        for number in range(rounds):
            progress = f"{self._launch_prefix}batch {size}: round {number + 1} of {rounds}"
            self.observer.progress(STEP, at + share * number / rounds, progress)
            turns = [n for n in takes if n in self._children and takes[n].wants_more(number, cap_s)]
            order.shuffle(turns)
            self.orders.setdefault(f"{group}/{self._launch}/{size}", []).append(turns)
            for name in turns:
                with self._failing(name, size), self._counted("timed"):
                    takes[name].take_turn(self._children[name], LEAD_IN)
        for name, take in takes.items():
            held = HeldMemory()
            if name in self._children:
                with self._failing(name, size):
                    held = ask(self._children[name], Command("memory"), HeldMemory, TIMEOUT_S)
                    opened = self.opened[name]
                    effective = {**opened.effective, **held.observed}
                    self.opened[name] = replace(opened, effective=effective)
            take.end_launch(warm[name], held)

    def _warm_up(self, name: str, size: int) -> WarmUp:
        settings = self.order.settings
        command = Command("warm", size, settings.warmup, settings.max_seconds / 4)
        fixed = self._fixed_warm_up.get(size)
        if fixed is not None:
            command = replace(command, calls=fixed, seconds=TIMEOUT_S / 2)
        elif settings.mode != "quick":
            command = replace(command, seconds=_LONGEST_WARM_UP_S, steady=True)
        warm_up = ask(self._children[name], command, WarmUp, TIMEOUT_S)
        if settings.mode == "gate" and name == self.order.baseline:
            self._fixed_warm_up.setdefault(size, warm_up.calls)
        return warm_up

    def _take(self, name: str, size: int, group: int, warm: WarmUp) -> ArtifactRun:
        """What this artifact has given so far in this group; its plan holds for all launches."""
        planned = (
            self._plans.get((self.order.baseline, size)) if self.order.settings.mode == "gate" else None
        )
        planned = planned or self._plans.get((name, size))
        if planned is None:
            planned = plan(warm.usual_ns, self.order.settings, self.order.wants_p99)
        self._plans[name, size] = planned
        new = ArtifactRun(name, size, group, planned)
        take = self._takes.setdefault((name, size, group), new)
        take.begin_launch(self._launch, warm.usual_ns)
        return take

    @property
    def _launch_prefix(self) -> str:
        """Which launch it is, where there are several."""
        return f"{self._named_launch}, " if self.order.settings.launches > 1 else ""

    @property
    def _named_launch(self) -> str:
        number, of = self._launch + 1, self.order.settings.launches
        return f"launch {number} of {of}" if number <= of else f"launch {number}"

    @contextmanager
    def _failing(self, name: str, size: int | None = None) -> Iterator[None]:
        """An artifact's fault is its own: it is out, and why is kept."""
        try:
            yield
        except (OptcliError, ValueError) as error:
            reason = error.message if isinstance(error, OptcliError) else str(error)
            where = "" if size is None else f" at batch size {size}"
            when = f" in {self._named_launch}" if self.order.settings.launches > 1 else ""
            self.failures[name] = f"measuring failed{where}{when}: {reason}"
            self.observer.warned(STEP, f"{name}: {self.failures[name]}")
            child = self._children.pop(name, None)
            if child is not None:
                child.kill()

    @contextmanager
    def _counted(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.spent_s[what] = self.spent_s.get(what, 0.0) + time.monotonic() - began

    def _end(self) -> None:
        """Let the processes end by themselves, all at once; who does not is killed."""
        for child in self._children.values():
            with suppress(OptcliError):
                child.send(Command("end"))
        for child in self._children.values():
            with suppress(OptcliError), child:
                child.result(NoneType, 5.0)
        self._children.clear()


def started(
    candidate: Candidate, order: LatencyOrder | SweepOrder, sizes: Sequence[int], log: Path
) -> Child:
    """A fresh process that can run an artifact at these batch sizes, on the inputs of the order."""
    options = dict(candidate.options)
    request = MeasureRequest(
        candidate.artifact,
        tuple(order.inputs),
        candidate.runner,
        options,
        order.feeds,
        tuple(sizes),
        order.seed,
        candidate.names,
    )
    return workers.spawn(
        candidate.serve,
        request,
        log=log,
        environment=runners.find(candidate.runner).model_validate(options).environment(),
        interpreter=candidate.interpreter or sys.executable,
        confined=() if candidate.artifact.foreign else None,
    )
