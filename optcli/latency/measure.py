"""The protocol: artifacts open at once in processes of their own, one running at a time.

Machines drift while they are measured. What is compared is therefore measured side by side: in
every short round each artifact has its turn, in random order, so that a disturbance that lasts
longer than a round meets all alike.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optcli import runners, workers
from optcli.errors import OptcliError
from optcli.latency import memory
from optcli.latency.feeds import choose_batch_sizes
from optcli.latency.plan import Candidate, Plan, groups, plan
from optcli.latency.samples import Measured, Opened, Series
from optcli.observer import Observer
from optcli.settings import LatencySettings, TensorSpec
from optcli.workers import Child

STEP = "latency"
# Untimed calls at the start of each turn: they bring the model back into the caches.
LEAD_IN = 2
_MEMORY_SHARE = 0.7
# On a busy machine calls take many times their plan: rounds end after so many times the time cap,
# and a turn is given up only when it looks like a hang.
_PATIENCE = 3
_SHORTEST_WAIT_S = 120.0
_SPAWNED = "optcli.latency.process:serve"


def measure(
    candidates: Sequence[Candidate],
    baseline: str,
    inputs: Sequence[TensorSpec],
    feeds: Path | None,
    settings: LatencySettings,
    logs: Path,
    seed: int,
    observer: Observer,
    *,
    wants_p99: bool = False,
    timeout_s: float = 300.0,
    budget_bytes: int | None = None,
) -> Measured:
    """Measure all candidates at all batch sizes; one that fails costs only itself.

    `feeds` is an .npz with arrays `[n, ...]` of prepared samples by input name; without it inputs are
    random. Each process writes its log to `logs/<name>.log`. `timeout_s` bounds opening and warming
    up; a turn that takes 20 times its plan, and two minutes, is given up. `budget_bytes` is what all
    processes of a group may hold; default: 70 % of what is free. No candidate's fault is raised.
    """
    budget = budget_bytes if budget_bytes is not None else int(memory.available_bytes() * _MEMORY_SHARE)
    together = groups(candidates, baseline, budget)
    sizes, skipped = choose_batch_sizes(inputs, settings.batch_sizes)
    shared = {
        "inputs": [spec.model_dump(mode="json") for spec in inputs],
        "feeds": str(feeds) if feeds else None,
        "batch_sizes": list(sizes),
        "seed": seed,
    }
    session = _Session(shared, settings, logs, seed, observer, wants_p99, timeout_s)
    start = datetime.now(UTC)
    observer.started(STEP)
    for index, group in enumerate(together):
        session.run(index, group, index / len(together), 1 / len(together))
    observer.finished(STEP, (datetime.now(UTC) - start).total_seconds())
    return Measured(
        baseline=baseline,
        measured_at=start.astimezone().isoformat(timespec="seconds"),
        settings=settings.model_dump(mode="json"),
        seed=seed,
        real_inputs=feeds is not None,
        lead_in=LEAD_IN,
        groups=tuple(tuple(each.name for each in group) for group in together),
        series=tuple(session.series),
        opened=session.opened,
        failures=session.failures,
        skipped=skipped,
        orders=session.orders,
    )


@dataclass
class _Take:
    """One artifact's part at one batch size: its warm-up, its plan and its rounds so far."""

    warm: dict[str, Any]
    plan: Plan
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def wants_more(self, cap_s: float) -> bool:
        """Whether there is a round to come; two there are, whatever they take."""
        spent_s = sum(sum(each["ns"]) for each in self.rounds) / 1e9
        done = len(self.rounds)
        return done < self.plan.rounds and (done < 2 or spent_s < _PATIENCE * cap_s)


@dataclass
class _Session:
    """One run of `measure`: what was found so far, and which processes are open."""

    shared: dict[str, Any]
    settings: LatencySettings
    logs: Path
    seed: int
    observer: Observer
    wants_p99: bool
    timeout_s: float
    series: list[Series] = field(default_factory=list)
    opened: dict[str, Opened] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    orders: dict[str, list[list[str]]] = field(default_factory=dict)
    children: dict[str, Child] = field(default_factory=dict)

    def run(self, group: int, candidates: Sequence[Candidate], begin: float, share: float) -> None:
        """Measure one group; `begin` and `share` are fractions of the whole, for the progress."""
        try:
            for candidate in candidates:
                if candidate.name not in self.failures:  # the baseline may have failed in another group
                    self.observer.progress(STEP, begin, f"opening {candidate.name}")
                    self._open(candidate)
            sizes = self.shared["batch_sizes"]
            for number, size in enumerate(sizes):
                at = begin + share * number / len(sizes)
                self._measure(group, size, at, share / len(sizes))
        finally:
            for child in self.children.values():
                _end(child)
            self.children.clear()

    def _open(self, candidate: Candidate) -> None:
        name = candidate.name
        options = {**candidate.options}
        if self.settings.threads is not None:
            options.setdefault("threads", self.settings.threads)
        payload = {
            **self.shared,
            "artifact": candidate.artifact.to_record(),
            "runner": candidate.runner,
            "options": options,
        }
        try:
            environment = runners.find(candidate.runner).model_validate(options).environment()
            log = self.logs / f"{name}.log"
            self.children[name] = workers.spawn(_SPAWNED, payload, log=log, environment=environment)
            opened = self._ask(name, {"do": "open"}, self.timeout_s)
            self.opened.setdefault(name, Opened(**opened, wanted_threads=options.get("threads")))
        except (OptcliError, ValueError) as error:
            self._drop(name, error)

    def _measure(self, group: int, size: int, at: float, share: float) -> None:
        """Warm all up, let them take turns, keep what they gave; whoever fails is out."""
        takes: dict[str, _Take] = {}
        for name in list(self.children):
            self.observer.progress(STEP, at, f"batch {size}: warming up {name}")
            command = {"do": "warm", "batch_size": size, "calls": self.settings.warmup}
            command["seconds"] = self.settings.max_seconds / 4
            try:
                warm = self._ask(name, command, self.timeout_s)
            except OptcliError as error:
                self._drop(name, error, size)
            else:
                takes[name] = _Take(warm, plan(warm["usual_ns"], self.settings, self.wants_p99))
        rounds = max((take.plan.rounds for take in takes.values()), default=0)
        order = random.Random(f"{self.seed}/{group}/{size}")  # noqa: S311 - turns, not secrets
        for number in range(rounds):
            fraction = at + share * number / rounds
            self.observer.progress(STEP, fraction, f"batch {size}: round {number + 1} of {rounds}")
            turns = [name for name in takes if name in self.children]
            turns = [name for name in turns if takes[name].wants_more(self.settings.max_seconds)]
            order.shuffle(turns)
            self.orders.setdefault(f"{group}/{size}", []).append(turns)
            for name in turns:
                self._turn(name, size, takes[name])
        for name, take in takes.items():
            if name in self.children:
                self._keep(group, size, name, take)

    def _turn(self, name: str, size: int, take: _Take) -> None:
        calls = take.plan.calls
        command = {"do": "round", "batch_size": size, "calls": calls, "lead_in": LEAD_IN}
        expected_s = (calls + LEAD_IN) * take.warm["usual_ns"] / 1e9
        try:
            take.rounds.append(self._ask(name, command, max(_SHORTEST_WAIT_S, 20 * expected_s)))
        except OptcliError as error:
            self._drop(name, error, size)

    def _keep(self, group: int, size: int, name: str, take: _Take) -> None:
        import numpy as np

        try:
            held = self._ask(name, {"do": "memory"}, self.timeout_s)
        except OptcliError as error:
            self._drop(name, error, size)
            return
        self.series.append(
            Series(
                name=name,
                batch_size=size,
                group=group,
                ns=np.array([each["ns"] for each in take.rounds], dtype=np.int64),
                cpu_ns=tuple(each["cpu_ns"] for each in take.rounds),
                switches=tuple(each["switches"] for each in take.rounds),
                steal_s=tuple(each["steal_s"] for each in take.rounds),
                first_ms=take.warm["first_ms"],
                warm_calls=take.warm["calls"],
                peak_memory_bytes=held["peak_memory_bytes"],
            )
        )

    def _ask(self, name: str, command: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        child = self.children[name]
        child.send(command)
        return child.receive(timeout_s)

    def _drop(self, name: str, error: Exception, size: int | None = None) -> None:
        reason = error.message if isinstance(error, OptcliError) else str(error)
        where = "" if size is None else f" at batch size {size}"
        self.failures[name] = f"measuring failed{where}: {reason}"
        self.observer.warned(STEP, f"{name}: {self.failures[name]}")
        child = self.children.pop(name, None)
        if child is not None:
            child.kill()


def _end(child: Child) -> None:
    """Let a process end by itself; it is killed if it does not."""
    with suppress(OptcliError), child:
        child.send({"do": "end"})
        child.receive(5.0)
