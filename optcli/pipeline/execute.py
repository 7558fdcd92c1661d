"""Carry out the steps of a plan: from the store where they are done, in worker processes otherwise."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optcli import environment
from optcli.artifact import Artifact
from optcli.errors import OptcliError, StepError, WorkerEndError
from optcli.observer import Observer
from optcli.pipeline import ray_session
from optcli.pipeline.admission import ArtifactAdmission, ProbeAdmission, RecordAdmission
from optcli.pipeline.decoding import decoding_of, described, require_outputs
from optcli.pipeline.local_maker import LocalMaker, StepWorkers, log_of
from optcli.pipeline.messages import (
    GROUND,
    Call,
    DataRequest,
    Maker,
    Order,
    PassRequest,
    SampleCounts,
    SourceFindings,
    SourceRequest,
    StepNews,
    WrittenArtifact,
)
from optcli.pipeline.places import Nodes
from optcli.pipeline.plan import BuildPlan, Step, prepared_role
from optcli.pipeline.trusting import doubts_of, is_confined, is_fetched, opened_as, require_trust
from optcli.runners import DEFAULTS
from optcli.runners import find as find_runner
from optcli.settings.outputs import OutputPart
from optcli.store import Admission, Entry, Store
from optcli.workers import memory

# How long what is being written may take to an end once the build is interrupted.
_LAST_WORDS_S = 10.0

_diagnosis = logging.getLogger(__name__)
# Memory for two steps of a large network side by side.
_ROOM_BYTES = 8 << 30
_JOBS_ON_RAY = 16


@dataclass(frozen=True)
class BuildSettings:
    """How a build is carried out; nothing here changes what is made.

    So many `jobs` run at a time, and each step may take `timeout_s`. With `keep_going` other steps
    still run after one has failed. `trust` says that the person knows who made the model. `ray` is the
    cluster whose nodes run the passes: `auto`, an address or `local`; None: this machine, without Ray.
    `at_home`: variants are measured on this machine alone, whatever devices the recipe names.
    """

    jobs: int = 1
    keep_going: bool = True
    timeout_s: float = 3600.0
    trust: bool = False
    ray: str | None = None
    at_home: bool = False


@dataclass(frozen=True)
class StepResult:
    """The result of a step. `error` is set where it failed, or a step that it needs did.

    `seconds` is what it took now, None where nothing was to do; `made_in_s` what making it took once.
    """

    status: Literal["built", "cached", "failed"]
    entry: Entry | None = None
    seconds: float | None = None
    error: OptcliError | None = None

    @property
    def made_in_s(self) -> float | None:
        """None where it failed."""
        return None if self.entry is None else self.entry.record.get("seconds")

    def artifact(self) -> Artifact:
        """The artifact that the step made. Only for a step that did not fail."""
        assert self.entry is not None
        return self.entry.artifact()


def require_ray(ray: str | None, store: Store) -> None:
    """Raise `MissingError` and `UsageError` where `--ray` could not work at all."""
    if ray is not None:
        from optcli.pipeline.on_ray.maker import require

        require(ray, store)


@contextmanager
def evaluating_nodes(ray: str | None, store: Store, observer: Observer) -> Iterator[Nodes | None]:
    """The nodes of a cluster that evaluate; None without one: `local` has the cores of this machine."""
    if ray is None or ray == ray_session.LOCAL:
        yield None
        return
    from optcli.pipeline.on_ray.parts import RayNodes

    nodes = RayNodes(ray, store, observer)
    try:
        yield nodes
    finally:
        nodes.close()


class Execution:
    """Carries out the steps of one plan. Use as a context manager: leaving it ends the fork server."""

    def __init__(
        self, plan: BuildPlan, store: Store, observer: Observer, settings: BuildSettings
    ) -> None:
        self._plan = plan
        self._store = store
        self._observer = observer
        self._settings = settings
        workers = StepWorkers(plan.threads, settings.timeout_s, self._packages_to_import, self._heard)
        self._maker: Maker = LocalMaker(store, workers)
        if settings.ray is not None:
            from optcli.pipeline.on_ray.maker import RayMaker

            self._maker = RayMaker(
                settings.ray, plan, store, workers, observer, settings.timeout_s, usual_jobs()
            )
        self._probe: Path | None = None
        self._interrupted = False
        self._done: dict[str, StepResult] = {}

    def __enter__(self) -> Execution:
        self._maker.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._maker.close()

    def prepare_data(self) -> Entry | None:
        """Check the recipe's data and keep a few samples. Raises `InputError` where they are wrong."""
        plan = self._plan
        if plan.data_key is None:
            return None
        request = DataRequest(
            inputs=plan.recipe.inputs,
            folder=plan.recipe.folder,
            data=dict(plan.recipe.data),
            metric=plan.data_ingredients["metric"],
        )
        call = Call("optcli.pipeline.step:prepare_data", request, SampleCounts)
        admission = ProbeAdmission(SampleCounts, plan.recipe.inputs)
        order = Order("data", plan.data_key, "data", call, plan.data_ingredients, forked_after=GROUND)
        entry, _ = self._obtain(order, admission)
        # Which files each role is made of, so that `cache why` can name the one that changed.
        for key, ingredients in plan.data_roles.items():
            if self._store.get("samples", key) is None:
                with self._store.lock("samples", key), self._store.work("samples", key) as work:
                    self._store.put("samples", key, work, {}, ingredients)
        self._probe = entry.path / "probe.npz"
        return entry

    def run(self) -> dict[str, StepResult]:
        """Carry out every step that can be done here; gives what became of each, by key."""
        steps = self._plan.steps()
        pool = ThreadPoolExecutor(self._settings.jobs)
        futures: dict[Future[StepResult], Step] = {}
        stopped = False
        try:
            while len(self._done) < len(steps):
                busy = {step.key for step in futures.values()}
                for step in steps.values():
                    if step.key in self._done or step.key in busy or stopped:
                        continue
                    if len(futures) >= self._settings.jobs:
                        break
                    if futures and any(map(self._takes_all, (step, *futures.values()))):
                        continue
                    if step.parent is None or step.parent.key in self._done:
                        futures[pool.submit(self._do, step)] = step
                if not futures:
                    break
                finished, _ = wait(futures, return_when=FIRST_COMPLETED)
                for future in finished:
                    step = futures.pop(future)
                    done = self._done[step.key] = future.result()
                    stopped = stopped or (done.status == "failed" and not self._settings.keep_going)
        except BaseException:
            self._interrupted = True
            self._maker.stop()
            # A thread may wait for a disk that does not answer; nobody should wait for the thread.
            pool.shutdown(wait=False, cancel_futures=True)
            wait(futures, timeout=_LAST_WORDS_S)
            raise
        pool.shutdown()
        self._look_again()
        return self._done

    def _look_again(self) -> None:
        """Remove artifacts whose files changed since they were made: a step wrote into the store."""
        for key, done in self._done.items():
            if done.entry is None or self._store.sound(done.entry.kind, key) is not None:
                continue
            self._store.discard(done.entry.kind, key)
            label = self._label(self._plan.steps()[key])
            error = StepError(
                "its files in the store were changed while the build ran, and are removed",
                place=label,
                hint="build again; a pass of this recipe writes into the store, look at your own first",
            )
            self._observer.failed(label, error.message)
            self._done[key] = StepResult("failed", error=error)

    def _do(self, step: Step) -> StepResult:
        label = self._label(step)
        if step.parent is not None:
            before = self._done[step.parent.key]
            if before.error is not None:
                return StepResult("failed", error=before.error)
        try:
            order = self._order(step, label)
            admission: Admission = RecordAdmission(SourceFindings)
            if not step.only_checks:
                admission = ArtifactAdmission.of(step, self._plan, trust=self._settings.trust)
            entry, seconds = self._obtain(order, admission)
            require_trust(doubts_of(entry), label, trust=self._settings.trust)
            if step.parent is None:
                require_outputs(self._plan.recipe, entry.artifact())
        except OptcliError as caught:
            error = caught
            source = self._plan.recipe.model.source
            if step.parent is None and isinstance(caught, WorkerEndError):
                error = caught.said_of(source)
            error.place = error.place or (label if step.parent else source)
            if not self._interrupted:  # else it was ourselves who killed it
                self._observer.failed(label, error.message)
            return StepResult("failed", error=error)
        return StepResult("cached" if seconds is None else "built", entry, seconds)

    def _takes_all(self, step: Step) -> bool:
        """Whether a step keeps all cores of this machine busy for long: it trains. Ray counts cores."""
        trains = step.traits is not None and "training" in step.traits.uses
        return trains and self._settings.ray is None

    def _label(self, step: Step) -> str:
        if step.parent is None:
            return step.name
        return f"{self._plan.variants_of(step.key)[0]} › {step.name}"

    def _order(self, step: Step, label: str) -> Order:
        plan = self._plan
        confined = is_confined(step, plan, fetched=self._is_fetched(step.parent))
        fresh = step.needs.gpu or bool(step.traits and step.traits.reference)
        entries: dict[str, Entry] = {}
        samples: dict[str, str] = {}
        if step.parent is not None and step.traits is not None:
            named = {"parent": step.parent.key, "origin": step.lineage()[0].key}
            made = {name: self._done[key].entry for name, key in named.items()}
            entries = {name: entry for name, entry in made.items() if entry is not None}
            # A user's own pass or a confined one leaves no samples to others.
            if step.traits.reference is None and not confined:
                samples = {role: plan.role_keys[role] for role in step.traits.uses}
        return Order(
            kind="check" if step.only_checks else "artifact",
            key=step.key,
            label=label,
            call=self._call(step, label),
            ingredients=step.ingredients,
            entries=entries,
            samples=samples,
            forked_after=None if fresh else _packages(step),
            confined=confined,
            format=None if step.only_checks else step.format,
        )

    def _call(self, step: Step, label: str) -> Call:
        recipe, threads = self._plan.recipe, self._plan.threads
        if step.parent is None or step.traits is None:
            source = SourceRequest(
                kind=self._plan.source.kind,
                source={
                    **self._plan.source.model_dump(mode="json"),
                    "trust": self._settings.trust,
                },
                inputs=recipe.inputs,
                probe=self._probe,
                threads=threads,
            )
            return Call("optcli.pipeline.step:make_source", source, WrittenArtifact)
        role = prepared_role(recipe) if step.traits.reads_preparation else None
        parent, decoding = self._opened(step.parent), None
        parts: dict[str, tuple[OutputPart, ...]] = {}
        if step.traits.reads_postprocess:
            decoding = decoding_of(recipe, parent).known
        if step.traits.reads_outputs:
            decoding, parts = described(recipe, parent)
        request = PassRequest(
            step=label,
            inputs=recipe.inputs,
            folder=recipe.folder,
            probe=self._probe,
            threads=threads,
            seed=recipe.seed,
            batch_sizes=tuple(sorted(set(recipe.latency.batch_sizes))),
            traits=step.traits,
            parent=parent,
            origin=self._opened(step.lineage()[0]),
            data={role: recipe.data[role] for role in step.traits.uses},
            prepare=recipe.data[role].prepare if role is not None else None,
            postprocess=decoding,
            parts=parts,
        )
        if step.only_checks:
            return Call("optcli.pipeline.step:check_source", request, SourceFindings)
        return Call("optcli.pipeline.step:make_artifact", request, WrittenArtifact)

    def _opened(self, step: Step) -> Artifact:
        """What a step made, as the steps after it open it."""
        artifact = self._done[step.key].artifact()
        from_file = self._plan.source.foreign or self._is_fetched(step)
        return opened_as(artifact, from_file=from_file, trust=self._settings.trust)

    def _is_fetched(self, step: Step | None) -> bool:
        """Whether a step, or one before it, came from a remote store."""
        lineage = step.lineage() if step is not None else ()
        return is_fetched(self._done[each.key].entry for each in lineage)

    def _obtain(self, order: Order, admission: Admission) -> tuple[Entry, float | None]:
        """What was ordered and the seconds it took to make, None where it was there."""
        kind, key, label = order.kind, order.key, order.label
        entry = self._store.get(kind, key, admission=admission)
        if entry is not None:
            self._observer.cached(label)
            return entry, None
        waiting = "another build is making this; waiting for it"
        with self._store.lock(kind, key, waiting=lambda: self._observer.warned(label, waiting)):
            entry = self._store.get(kind, key, admission=admission)
            if entry is not None:
                self._observer.cached(label)
                return entry, None
            if self._store.peek(kind, key) is not None:
                self._observer.warned(label, "a file of it in the store was changed; making it again")
            _diagnosis.info("%s: key %s, log %s", label, key, log_of(self._store, key))
            self._observer.started(label)
            began = time.monotonic()
            with self._store.work(kind, key) as work:
                record = self._maker.make(order, work)
                order.require_format(record)
                record["seconds"] = round(time.monotonic() - began, 3)
                entry = self._store.put(kind, key, work, record, order.ingredients)
            seconds = time.monotonic() - began
            self._observer.finished(label, seconds)
            return entry, seconds

    def _heard(self, label: str, news: StepNews) -> None:
        if news.progress is not None:
            self._observer.progress(label, *news.progress)
        if news.warned is not None:
            self._observer.warned(label, news.warned)

    def _packages_to_import(self) -> tuple[str, ...]:
        """What the fork server imports: whatever the steps that are not in the store need."""
        steps = self._plan.steps().values()
        to_do = [step for step in steps if self._store.peek("artifact", step.key) is None]
        return (*GROUND, *(name for step in to_do for name in _packages(step)))


def _packages(step: Step) -> tuple[str, ...]:
    """What a step imports, the check against its parent included, with the runners of that."""
    formats = [step.format] + ([step.parent.format] if step.parent else [])
    checks = [find_runner(DEFAULTS[each]) for each in formats]
    # There is no check where it takes a GPU.
    of_check = (
        name
        for runner in checks
        if not runner.needs.gpu
        for name in (*runner.needs.packages, runner.__module__)
    )
    ahead = step.traits.imports_ahead if step.traits is not None else ()
    return (*GROUND, *step.needs.packages, *of_check, *ahead)


def usual_jobs(ray: str | None = None) -> int:
    """How many steps a build does side by side where nobody says: one, or two where there is room.

    Most of a step is Python on one core. With `ray` many: it keeps those waiting that find no room.
    """
    if ray is not None:
        return _JOBS_ON_RAY
    room = memory.available_bytes() >= _ROOM_BYTES
    return 2 if room and environment.usable_cores() >= 2 else 1
