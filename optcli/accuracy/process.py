"""What an evaluating process does: its part of the evaluation set through one artifact, by batches."""

from __future__ import annotations

import functools
import time

from optcli import runners
from optcli.accuracy import decoding, merging, saturation, shards, stability
from optcli.accuracy.messages import EvaluationRequest, Progress
from optcli.accuracy.work import Work
from optcli.formats import exporter_metadata
from optcli.kept_samples import Keeping
from optcli.workers import Channel, memory

_NEWS_EVERY_S = 0.5


def evaluate(request: EvaluationRequest, channel: Channel) -> None:
    """Write what `Evaluation.load` reads."""
    shard(request, channel)
    finish(request, channel)


def shard(request: EvaluationRequest, channel: Channel) -> None:
    """Run one part of the set and keep its records below `out`; `job` of `jobs` is the part."""
    memory.keep_freed()
    work = Work(request)
    samples, job = work.samples, request.job
    span = work.span(request, len(samples))
    part = shards.Part(request.out / f"part-{job}", span, len(samples), work.output, work.kept_bytes)
    news = 0.0
    runner = runners.find(request.runner).model_validate(request.options)
    with runner.open(request.artifact, request.feeds) as model:
        whole = work.whole(model)
        for batch, rows in work.batches(span):
            outputs = work.run(model, batch)
            if not part.count:
                part.begin(len(batch.ids), outputs, whole)
            seen = work.seen(batch, rows, outputs, whole)
            if not part.count and job == 0:
                work.check_labels(seen)
            here = range(span.start + part.count, span.start + part.count + rows)
            part.add(seen, work.records(seen, part.count), work.contents(here, batch))
            if time.monotonic() - news > _NEWS_EVERY_S:
                news = time.monotonic()
                channel.send(Progress(part.count, len(samples)))
        look = functools.partial(stability.look, functools.partial(work.run, model), samples)
        noted = work.decode.noted if isinstance(work.decode, decoding.Detector) else {}
        part.write(model.effective(), look(work.size, work.fewest) if job == 0 else None, noted)
    if isinstance(samples, Keeping):
        samples.finish()


def finish(request: EvaluationRequest, channel: Channel) -> None:
    """Join the parts, work out the metric, and write what `Evaluation.load` reads."""
    work = Work(request)
    name = request.settings.metric if request.settings else None
    facts = {
        "runner": request.runner,
        "remarks": work.remarks(),
        "decoding": [
            each.model_dump() for each in decoding.notes(shards.noted(request.out, request.jobs))
        ],
        "guessed": request.guessed,
        "full_range": saturation.full_range(request.artifact),
        "metadata": exporter_metadata.of_facts(request.artifact.facts),
    }
    merging.merge(request.out, request.jobs, name, work.metric, facts)
