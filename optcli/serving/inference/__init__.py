"""Batch inference: a variant of a build answers images that are stored somewhere."""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli import environment, runners
from optcli.artifact import Artifact
from optcli.errors import UsageError
from optcli.measure.latency.feeds import choose_batch_sizes, make
from optcli.measure.latency.machine_state import high_water_bytes
from optcli.observer import Observer, Silent, left, rate
from optcli.pipeline import ray_session
from optcli.pipeline.model_files.built_variant import BuiltVariant, open_built
from optcli.results import Report
from optcli.results.serving import Inference
from optcli.scaffold.inspection.findings import Tensor
from optcli.serving.inference import local_workers, shard_worker
from optcli.serving.inference.listing import Listing, listing
from optcli.serving.inference.output import Form, Output, is_finished
from optcli.serving.inference.shard_worker import ShardResult, ShardWork, versions_of
from optcli.serving.prediction import of_recipe, storage
from optcli.serving.prediction.storage import BOXES, CLASSES
from optcli.settings import TensorSpec
from optcli.store import Store
from optcli.workers import Channel, run
from optcli.workers.memory import available_bytes

_WARM_UP, _SECONDS, _MOST_CALLS = 3, 0.6, 200

PER_SHARD = 500
_SIZES = (1, 8, 16, 32, 64)
# A larger batch than the fastest is not worth its memory for less than this share.
_WORTH = 0.03
_TIMEOUT_S = 600.0
_NOTE_EVERY_S = 5.0
_LOCAL_READERS, _REMOTE_READERS = 4, 16
_MOST_FAILURES = 5
# Where a run takes so long, and has so many shards for each copy of the model, each core has a copy of
# its own, if these fit into half of the free memory. Threads of one copy wait for each other whenever
# another process has one of their cores: beside Ray and decoding, a copy of two threads lost 14 % of
# ResNet-50's rate, and two copies of one thread 2 %.
_LONG_S, _SHARDS_EACH, _MOST_MEMORY = 30.0, 4, 0.5


@dataclass(frozen=True)
class ProbeRequest:
    """An artifact with its runner, and the batch sizes to try, ascending; `timed`: for their speed."""

    artifact: Artifact
    runner: str
    options: dict[str, Any]
    inputs: tuple[TensorSpec, ...]
    batch_sizes: tuple[int, ...]
    seed: int
    timed: bool


@dataclass(frozen=True)
class Probed:
    """Outputs of the smallest batch with their sizes, images a second by batch size, and the memory."""

    outputs: tuple[Tensor, ...]
    images_per_s: dict[int, float]
    memory_bytes: int


def probe(request: ProbeRequest, channel: Channel) -> Probed:
    """Run random batches of each size for about a second. Raises as runners do."""
    kind = runners.find(request.runner)
    rates: dict[int, float] = {}
    outputs: tuple[Tensor, ...] = ()
    with kind.model_validate(request.options).open(request.artifact, request.inputs) as runner:
        for size in request.batch_sizes:
            feed = make(request.inputs, None, [size], request.seed)[size][0]
            results = runner.run(feed)
            outputs = outputs or tuple(
                Tensor(name=name, dtype=str(array.dtype), shape=array.shape)
                for name, array in results.items()
            )
            if not request.timed:
                continue
            for _ in range(_WARM_UP):
                runner.run(feed)
            calls, began = 0, time.perf_counter()
            while calls < _MOST_CALLS and time.perf_counter() - began < _SECONDS:
                runner.run(feed)
                calls += 1
            rates[size] = calls * size / (time.perf_counter() - began)
    return Probed(outputs, rates, high_water_bytes())


@dataclass(frozen=True)
class InferenceSettings:
    """How images are answered.

    `batch_size` None: the fastest that was measured here. `workers` None: as many as this machine has
    cores for. `cost_per_hour` is that of this machine, or of one worker of a cluster. With `raw` the
    answers are the outputs themselves. A shard has at most `per_shard` images. `restart` removes the
    answers that are there.
    """

    batch_size: int | None = None
    per_shard: int = PER_SHARD
    form: Form = "parquet"
    raw: bool = False
    workers: int | None = None
    address: str = ray_session.LOCAL
    cost_per_hour: float | None = None
    restart: bool = False


def infer(
    variant: str,
    report: Report,
    path: Path,
    source: str,
    target: str,
    *,
    settings: InferenceSettings | None = None,
    recipe: Path | None = None,
    trust: bool = False,
    store: Store | None = None,
    observer: Observer | None = None,
) -> Inference:
    """Answer all images below the URI `source` with a variant of the build whose report is at `path`.

    Images are prepared, and outputs turned into classes or boxes, as the recipe says. Answers go below
    the URI `target`, a file for each shard. Shards that are there
    already are not answered again. `recipe` and `trust` are those of `open_built`.

    Raises `UsageError` for an input without images, an output that holds something else, and a recipe
    that does not say how an image becomes an input; `MissingError` without
    pyarrow for Parquet or Ray for a cluster.
    """
    began = time.monotonic()
    observer = observer or Silent()
    settings = settings or InferenceSettings()
    is_local = settings.address == ray_session.LOCAL
    if not is_local:
        ray_session.require(settings.address, "optcli infer", shard_worker.PACKAGES)
    if settings.form == "parquet":
        storage.require_parquet("--format parquet", "add `--format jsonl`, or ")
    named = source, target
    # Workers have another current folder.
    source, target = (each if "://" in each else os.path.abspath(each) for each in (source, target))
    built = open_built(variant, report, path, recipe=recipe, trust=trust, store=store)
    listed = listing(source, settings.per_shard)
    recorded = {} if settings.restart else storage.recorded(target)
    size = settings.batch_size or _recorded(recorded, "batch_size")
    # Where every shard has its answers, no speed is of interest.
    timed = size is None or settings.restart or not is_finished(target, settings.form, listed)
    probed = _probed(built, path, size, timed=timed)
    chosen = size or _fastest(probed.images_per_s)
    image_serving = storage.taking_stored(
        of_recipe.image_serving(built, probed.outputs, raw=settings.raw)
    )
    images_per_s = probed.images_per_s.get(chosen, math.inf)
    threads = _threads(
        built, listed, recorded, settings.workers, settings.address, probed.memory_bytes, images_per_s
    )
    columns = (image_serving.postprocess["kind"],) if image_serving.postprocess else ()
    output = Output(
        target,
        settings.form,
        _identity(built, listed, chosen, settings.form, image_serving) | {"threads": threads},
        tuple(each.name for each in probed.outputs) if settings.raw else _columns(columns),
        _further_outputs(image_serving.postprocess),
    )
    finished = output.begin(listed, restart=settings.restart)
    cores = environment.usable_cores()
    count = settings.workers or max(1, cores // threads)
    options = _options(built, count, threads)
    package = built.runner.requires().packages
    work = ShardWork(
        built.artifact,
        built.runner_name,
        options,
        built.inputs,
        image_serving.images,
        image_serving.postprocess or None,
        source,
        output,
        chosen,
        _REMOTE_READERS if "://" in source else _LOCAL_READERS,
        threads,
        _fills(built, settings.address, count * threads, cores),
        versions_of((*package, "numpy", "pillow")),
        uuid.uuid4().hex,
    )
    priced = 1 if is_local else count
    cost_per_s = None if settings.cost_per_hour is None else settings.cost_per_hour * priced / 3600
    run_of = _InferenceRun(listed, output, set(finished), observer, cost_per_s)
    missing_shards = [shard for shard in listed.shards if shard.name not in finished]
    if missing_shards:
        variables = type(built.runner).model_validate(options).environment()
        if is_local:
            run_of.carry_out(
                local_workers.answered(
                    missing_shards,
                    work,
                    workers=count,
                    variables=variables,
                    log=path.parent / "logs" / f"{built.name}.infer.log",
                )
            )
        else:
            with ray_session.started(settings.address, max(cores, count * threads)):
                run_of.carry_out(
                    shard_worker.answered(
                        missing_shards, work, workers=count, cores=threads, variables=variables
                    )
                )
    output.tidy()
    costs = {size: _cost(settings.cost_per_hour, 1, each) for size, each in probed.images_per_s.items()}
    before = sum(len(shard.images) for shard in listed.shards if shard.name in finished)
    return Inference(
        variant=variant,
        input=named[0],
        output=named[1],
        form=settings.form,
        images=listed.images,
        shards=len(listed.shards),
        shards_before=len(finished),
        answered_before=before,
        batch_size=chosen,
        rates=probed.images_per_s,
        costs={size: cost for size, cost in costs.items() if cost is not None},
        workers=count,
        threads=threads,
        seconds=round(time.monotonic() - began, 2),
        cost_per_1000=_cost(settings.cost_per_hour, priced, run_of.images_per_s),
        notes=(*image_serving.notes, *built.samples.notes),
        **run_of.figures(),
    )


def _probed(built: BuiltVariant, path: Path, size: int | None, *, timed: bool) -> Probed:
    """Rates by batch size and outputs, by a worker of its own; none without `timed`."""
    sizes, skipped = choose_batch_sizes(built.inputs, _SIZES if size is None else (size,))
    if size is not None and skipped:
        raise UsageError(
            f"batch size {size}: {next(iter(skipped.values()))}",
            place="--batch-size",
            hint="name one of these, or leave it out",
        )
    kind = runners.find(built.runner_name)
    return run(
        "optcli.serving.inference:probe",
        ProbeRequest(
            built.artifact,
            built.runner_name,
            built.options,
            built.inputs,
            sizes,
            built.samples.seed,
            timed,
        ),
        Probed,
        log=path.parent / "logs" / f"{built.name}.infer.log",
        environment=kind.model_validate(built.options).environment(),
        timeout_s=_TIMEOUT_S,
        confined=() if built.artifact.foreign else None,
        reads=built.name,
    )


def _threads(
    built: BuiltVariant,
    listed: Listing,
    recorded: Mapping[str, Any],
    workers: int | None,
    address: str,
    memory_bytes: int,
    images_per_s: float,
) -> int:
    """Threads of each copy of the model: as recorded, else as few as all cores have a use for."""
    cores, threads = environment.usable_cores(), built.runner.thread_count()
    if recorded:
        return _recorded(recorded, "threads") or threads
    if address != ray_session.LOCAL or built.runner.requires().gpu:
        return threads
    if workers is not None:
        return max(1, min(threads, cores // workers))
    is_long = listed.images / images_per_s >= _LONG_S and cores * _SHARDS_EACH <= len(listed.shards)
    fits = cores * memory_bytes <= _MOST_MEMORY * available_bytes()
    return 1 if is_long and fits else threads


def _options(built: BuiltVariant, count: int, threads: int) -> dict[str, object]:
    """The runner's options for one of the copies, which must not keep to the same cores."""
    options = dict(built.options)
    if threads != built.runner.thread_count():
        options["threads"] = threads
    if count > 1:
        options |= built.runner.beside_others()
    return options


def _recorded(recorded: Mapping[str, Any], key: str) -> int | None:
    number = recorded.get(key)
    return number if isinstance(number, int) and number > 0 else None


def _fastest(rates: Mapping[int, float]) -> int:
    """The smallest batch size that is nearly as fast as the fastest."""
    best = max(rates.values())
    return min(size for size, images_per_s in rates.items() if images_per_s >= (1 - _WORTH) * best)


def _identity(
    built: BuiltVariant,
    listing: Listing,
    chosen: int,
    form: Form,
    image_serving: of_recipe.ImageServing,
) -> dict[str, Any]:
    """What decides the answers, for the manifest."""
    return {
        "variant": built.name,
        **storage.deciding(built, image_serving),
        "input": listing.digest,
        "batch_size": chosen,
        "format": form,
    }


def _columns(kinds: Sequence[str]) -> tuple[str, ...]:
    return (CLASSES,) if kinds == (CLASSES,) else (BOXES,)


def _further_outputs(postprocess: Mapping[str, Any]) -> tuple[str, ...]:
    """What boxes have more than their place."""
    from optcli.outputs import instances

    return instances.further_outputs(postprocess[postprocess["kind"]]) if postprocess else ()


def _cost(per_hour: float | None, workers: int, images_per_s: float | None) -> float | None:
    if per_hour is None or not images_per_s:
        return None
    return 1000 * per_hour * workers / 3600 / images_per_s


def _fills(built: BuiltVariant, address: str, threads: int, cores: int) -> bool:
    """Whether the models' threads take all cores: on a cluster, a worker has those of its model."""
    return not built.runner.requires().gpu and (address != ray_session.LOCAL or threads >= cores)


@dataclass
class _InferenceRun:
    """Follows the shards of one run: progress, manifest, figures. `cost_per_s`: of all workers."""

    listing: Listing
    output: Output
    finished: set[str]
    observer: Observer
    cost_per_s: float | None = None

    def __post_init__(self) -> None:
        self.results: list[ShardResult] = []
        self._sizes = {shard.name: len(shard.images) for shard in self.listing.shards}

    def carry_out(self, results: Iterator[ShardResult]) -> None:
        """Take note of every shard as it ends; the manifest is right also after an interrupt."""
        begun = noted = time.monotonic()
        try:
            for result in results:
                self.results.append(result)
                self.finished.add(result.name)
                self._show(begun)
                if time.monotonic() - noted > _NOTE_EVERY_S:
                    self.output.note(self.listing, self.finished)
                    noted = time.monotonic()
        finally:
            self.output.note(self.listing, self.finished)

    def _show(self, begun: float) -> None:
        done = sum(result.answered + result.failed for result in self.results)
        ready = sum(self._sizes[name] for name in self.finished)
        images_per_s = self.images_per_s or done / max(1e-9, time.monotonic() - begun)
        left_s = (self.listing.images - ready) / max(1e-9, images_per_s)
        message = f"{ready} of {self.listing.images}, {rate(images_per_s, 1.0)}, {left(left_s)}"
        if self.cost_per_s is not None:
            spent_s = time.monotonic() - begun
            spent, whole = (self.cost_per_s * each for each in (spent_s, spent_s + left_s))
            message += f", cost {spent:.3g} of about {whole:.3g}"
        self.observer.progress("infer", ready / self.listing.images, message)

    @property
    def images_per_s(self) -> float | None:
        """From the end of the first shard to that of the last one: the start is left out."""
        if len(self.results) < 2:
            return None
        ends = sorted((result.ended, result.answered + result.failed) for result in self.results)
        seconds = ends[-1][0] - ends[0][0]
        return sum(count for _, count in ends[1:]) / seconds if seconds > 0 else None

    def figures(self) -> dict[str, Any]:
        """The part of the result that the shards have told."""
        answered = sum(result.answered for result in self.results)
        failed = sum(result.failed for result in self.results)
        reasons = [result.first_failure for result in self.results if result.first_failure]
        return {
            "answered": answered,
            "failed": failed,
            "failures": tuple(reasons[:_MOST_FAILURES]),
            "images_per_s": self.images_per_s,
        }
