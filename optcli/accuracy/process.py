"""What an evaluating process does: its part of the evaluation set through one artifact, by batches."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

from optcli import runners
from optcli.accuracy import answers, decoding, merging, saturation, shards, stability
from optcli.accuracy.messages import AnswersFile, EvaluationRequest, Progress
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
    if request.answers is not None:
        _answered(request.answers, work, part, channel)
    else:
        _run(request, work, part, span, channel)
    if isinstance(samples, Keeping):
        samples.finish()


def _run(
    request: EvaluationRequest, work: Work, part: shards.Part, span: range, channel: Channel
) -> None:
    """Run the artifact over a span of the set."""
    samples, job, done, news = work.samples, request.job, span.start, 0.0
    counted = answers.read(request.answered, (), work) if request.answered is not None else None
    runner = runners.find(request.runner).model_validate(request.options)
    with runner.open(request.artifact, request.feeds) as model:
        whole = work.whole(model)
        for batch, rows in work.batches(span):
            outputs = work.run(model, batch)
            first = done == span.start
            if first:
                part.begin(len(batch.ids), outputs, whole)
            seen = work.seen(batch, rows, outputs, whole)
            if first and job == 0:
                work.check_labels(seen)
            contents = work.contents(range(done, done + rows), batch)
            done += rows
            if counted is not None:
                pairs = zip(seen.ids, seen.meta, strict=True)
                chosen = [row for row, each in enumerate(pairs) if counted.place_of(*each) is not None]
                seen, contents = seen.only(chosen), contents[chosen]
            if len(seen.ids):
                part.add(seen, work.records(seen, part.count), contents)
            if time.monotonic() - news > _NEWS_EVERY_S:
                news = time.monotonic()
                channel.send(Progress(done - span.start, len(samples)))
        if counted is not None and not part.count:
            counted.require_known()
        look = functools.partial(stability.look, functools.partial(work.run, model), samples)
        noted = work.decode.noted if isinstance(work.decode, decoding.Detector) else {}
        part.write(model.effective(), look(work.size, work.fewest) if job == 0 else None, noted)


def _answered(file: AnswersFile, work: Work, part: shards.Part, channel: Channel) -> None:
    """Take the answers of a file for what a model gave for the samples of the set."""
    read = answers.read(file.path, file.outputs, work)
    missing: list[str] = []
    total, news, done = len(work.samples), 0.0, 0
    for batch, rows in work.batches(range(total)):
        places = [
            read.place_of(*each) for each in zip(batch.ids[:rows], batch.meta[:rows], strict=True)
        ]
        missing += [name for name, place in zip(batch.ids, places, strict=False) if place is None]
        empty = read.can_be_empty and not file.partial
        chosen = [row for row, place in enumerate(places) if empty or place is not None]
        contents = work.contents(range(done, done + rows), batch)
        done += rows
        if chosen:
            seen, records = read.seen(
                work, answers.part_of(batch, chosen), [places[row] for row in chosen]
            )
            if read.are_outputs and not part.count:
                part.begin(len(chosen), seen.outputs)
            part.add(seen, records, contents[chosen])
        if time.monotonic() - news > _NEWS_EVERY_S:
            news = time.monotonic()
            channel.send(Progress(done, total))
    read.require_known()
    if missing and not file.partial and not read.can_be_empty:
        raise read.wrong(
            f"{len(missing)} of {total} samples have no answer: {answers.listed(missing)}",
            "answer all of them, or judge those that are there alone: --partial",
        )
    noted = work.decode.noted if isinstance(work.decode, decoding.Detector) else {}
    part.write({"unanswered": len(missing)}, None, noted)


def finish(request: EvaluationRequest, channel: Channel) -> None:
    """Join the parts, work out the metric, and write what `Evaluation.load` reads."""
    work = Work(request)
    name = request.settings.metric if request.settings else None
    own = request.answers is None
    facts = {
        "runner": request.runner,
        "remarks": work.remarks() if own else list(_unanswered(request)),
        "decoding": [
            each.model_dump() for each in decoding.notes(shards.noted(request.out, request.jobs))
        ],
        "guessed": request.guessed,
        "full_range": saturation.full_range(request.artifact) if own else None,
        "metadata": exporter_metadata.of_facts(request.artifact.facts),
    }
    merging.merge(request.out, request.jobs, name, work.metric, facts)


def _unanswered(request: EvaluationRequest) -> Iterator[str]:
    """What to say of samples that a file of answers does not name."""
    assert request.answers is not None
    count = shards.effective(request.out, 0).get("unanswered", 0)
    if count and not request.answers.partial:
        images = f"{count} image{'' if count == 1 else 's'}"
        yield f"the file has no detection in {images}: nothing was found there"
