"""What an evaluating process does: its part of the evaluation set through one artifact, by batches."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

from optcli import runners
from optcli.accuracy import merging, metrics, saturation, shards, stability
from optcli.accuracy.work import Work
from optcli.artifact import Artifact
from optcli.kept_samples import Keeping
from optcli.settings.accuracy import AccuracySettings
from optcli.workers import Channel, memory

_NEWS_EVERY_S = 0.5


def evaluate(payload: dict[str, Any], channel: Channel) -> None:
    """Write what `Evaluation.load` reads. `payload`: see `optcli.accuracy.evaluate`."""
    shard(payload, channel)
    finish(payload, channel)


def shard(payload: dict[str, Any], channel: Channel) -> None:
    """Run one part of the set and keep its records below `out`; `job` of `jobs` is the part."""
    memory.keep_freed()
    work = Work(payload)
    samples, job, span = work.samples, int(payload["job"]), work.span
    part = shards.Part(work.out / f"part-{job}", span, len(samples), work.output, work.kept_bytes)
    news = 0.0
    runner = runners.find(payload["runner"]).model_validate(payload["options"])
    with runner.open(Artifact.from_record(payload["artifact"]), work.feeds) as model:
        for batch, rows in work.batches(span):
            outputs = work.run(model, batch)
            if not part.count:
                part.begin(len(batch.ids), outputs)
            seen = work.seen(batch, rows, outputs)
            if not part.count and job == 0:
                work.check_labels(seen)
            here = range(span.start + part.count, span.start + part.count + rows)
            part.add(seen, work.records(seen, part.count), work.contents(here, batch))
            if time.monotonic() - news > _NEWS_EVERY_S:
                news = time.monotonic()
                channel.send({"done": part.count, "of": len(samples)})
        look = functools.partial(stability.look, functools.partial(work.run, model), samples)
        part.write(model.effective(), look(work.size, work.fewest) if job == 0 else None)
    if isinstance(samples, Keeping):
        samples.finish()


def finish(payload: dict[str, Any], channel: Channel) -> None:
    """Join the parts, work out the metric, and write what `Evaluation.load` reads."""
    settings = payload["settings"] and AccuracySettings.model_validate(payload["settings"])
    metric = metrics.make(settings, Path(payload["folder"])) if settings else None
    name = settings.metric if settings else None
    known = {
        "runner": payload["runner"],
        "remarks": Work(payload).remarks(),
        "full_range": saturation.full_range(Artifact.from_record(payload["artifact"])),
    }
    merging.merge(Path(payload["out"]), payload["jobs"], name, metric, known)
