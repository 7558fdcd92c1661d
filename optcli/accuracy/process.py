"""What an evaluating process does: its part of the evaluation set through one artifact, by batches."""

from __future__ import annotations

import functools
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import runners
from optcli.accuracy import answers, bounds, decoding, detections, labels, objects, saturation, shards
from optcli.accuracy.evaluation import (
    ABOUT,
    SAMPLES,
    AnswersFile,
    EvaluationProgress,
    EvaluationRequest,
)
from optcli.accuracy.metrics import Metric
from optcli.accuracy.metrics.miou import PIXELS
from optcli.accuracy.work import EvaluationWork
from optcli.errors import InputError, counted
from optcli.files.sample_cache import CachingSampleSet
from optcli.models.formats import exporter_metadata
from optcli.results.outcomes import Stability
from optcli.sample import Batch, SampleSet, collate, cycled
from optcli.workers import Channel, memory

if TYPE_CHECKING:
    import numpy as np

    Run = Callable[[Batch], Mapping[str, np.ndarray]]

_SAMPLES = 8


_NEWS_EVERY_S = 0.5


def evaluate(request: EvaluationRequest, channel: Channel) -> None:
    """Write what `Evaluation.load` reads."""
    shard(request, channel)
    finish(request, channel)


def shard(request: EvaluationRequest, channel: Channel) -> None:
    """Run one part of the set and keep its records below `out`; `job` of `jobs` is the part."""
    memory.keep_freed()
    work = EvaluationWork(request)
    samples, job = work.samples, request.job
    span = work.span(len(samples))
    part = shards.SpanCollector(
        request.out / f"part-{job}", span, len(samples), work.output, work.kept_bytes
    )
    if request.answers is not None:
        _answered(request.answers, work, part, channel)
    else:
        _run(request, work, part, span, channel)
    if isinstance(samples, CachingSampleSet):
        samples.finish()


def _run(
    request: EvaluationRequest,
    work: EvaluationWork,
    part: shards.SpanCollector,
    span: range,
    channel: Channel,
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
                channel.send(EvaluationProgress(done - span.start, len(samples)))
        if counted is not None and not part.count:
            counted.require_known()
        looking = functools.partial(look, functools.partial(work.run, model), samples)
        noted = work.decode.noted if isinstance(work.decode, decoding.Detector) else {}
        part.write(model.effective(), looking(work.size, work.fewest) if job == 0 else None, noted)


def _answered(
    file: AnswersFile, work: EvaluationWork, part: shards.SpanCollector, channel: Channel
) -> None:
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
            channel.send(EvaluationProgress(done, total))
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
    work = EvaluationWork(request)
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
    merge(request.out, request.jobs, name, work.metric, facts)


def _unanswered(request: EvaluationRequest) -> Iterator[str]:
    """What to say of samples that a file of answers does not name."""
    assert request.answers is not None
    count = shards.effective(request.out, 0).get("unanswered", 0)
    if count and not request.answers.partial:
        images = counted(count, "image")
        yield f"the file has no detection in {images}: nothing was found there"


def look(run: Run, samples: SampleSet, largest: int, fewest: int) -> Stability:
    """Run a few samples twice as one batch, and one by one where the model takes one.

    `largest` and `fewest` are batch sizes that it takes. Padding and batching bugs show here, and
    runtimes that are not deterministic.
    """
    count = max(fewest, min(_SAMPLES, largest, len(samples)))
    batch = cycled(samples, count)
    first = {name: array.copy() for name, array in run(batch).items()}
    repeat = max((_difference(array, first[name]) for name, array in run(batch).items()), default=0.0)
    alone = None
    if fewest == 1 and count > 1:
        alone = 0.0
        for index in range(count):
            for name, array in run(collate([samples[index]])).items():
                if array.ndim and len(array) == 1 and len(first[name]) == count:
                    alone = max(alone, _difference(array[0], first[name][index], first[name]))
    return Stability(repeat_error=repeat, batch_error=alone, samples=count)


def _difference(candidate: np.ndarray, reference: np.ndarray, whole: np.ndarray | None = None) -> float:
    """Largest difference over the largest value of `whole` (or `reference`); 1 for other shapes."""
    import numpy as np

    if candidate.shape != reference.shape:
        return 1.0
    if candidate.dtype.kind != "f":
        return float(not np.array_equal(candidate, reference))
    a, b = candidate.astype(np.float64), reference.astype(np.float64)
    largest = np.abs(reference if whole is None else whole).max(initial=0.0)
    # NaN on both sides is the same; what is not finite is a verdict of its own.
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.where(same, 0.0, a - b)).max(initial=0.0)
    if not np.isfinite(apart):
        return 1.0
    return float(apart / largest) if largest > 0 and np.isfinite(largest) else float(apart > 0)


def merge(out: Path, jobs: int, name: str | None, metric: Metric | None, facts: dict[str, Any]) -> None:
    """Write `evaluation.json`, `samples.npz` and the outputs' rows; take the parts away.

    `facts` are further fields of the first.
    """
    import numpy as np

    folders = [out / f"part-{job}" for job in range(jobs)]
    abouts = [json.loads((folder / shards.ABOUT).read_bytes()) for folder in folders]
    busy = [i for i, about in enumerate(abouts) if about["samples"]]
    folders, abouts = [folders[i] for i in busy], [abouts[i] for i in busy]
    records = _records(folders)
    ids = records.pop("ids")
    clusters = np.unique(records.pop("content"), return_inverse=True)[1].astype(np.int32)
    infinite = records.pop("infinite")
    if metric is not None:
        records = metric.over_all(records)
    pairs = (*detections.PAIRS, *objects.NAMES, *PIXELS)
    stored = ("predicted", "label", "confidence", "embedding", *detections.NAMES, *pairs)
    arrays: dict[str, np.ndarray] = {
        "ids": ids,
        "cluster": clusters,
        **{name: records[name] for name in stored if name in records},
        **({"infinite": infinite} if infinite.any() else {}),
    }
    about: dict[str, Any] = {
        "samples": len(ids),
        "stored": abouts[0]["stored"],
        "metric": None,
        "value": None,
        "finite": all(each["finite"] for each in abouts),
        "outputs": _outputs(out, folders, abouts),
        "effective": abouts[0]["effective"],
        "stability": abouts[0]["stability"],
        "class_order": None,
        "doubts": [],
        **facts,
    }
    finite = about["finite"] and not infinite.any()
    value = None if metric is None else _value(metric, str(name), records, ids, finite)
    if metric is not None and value is not None:
        right = metric.right(records)
        if right is not None:
            arrays["correct"] = right
        else:
            arrays["resampled"] = bounds.resampled(metric, records, clusters)
            arrays["left_out"] = bounds.left_out(metric, records, clusters)
        classes = metric.by_class(records)
        if classes is not None:
            arrays |= {f"class_{part}": array for part, array in vars(classes).items()}
        figures = metric.figures(records).items()
        about |= {
            "metric": name,
            "value": value,
            "better": metric.better(),
            "largest_change": metric.largest_change(records),
            "figures": {label: figure for label, figure in figures if math.isfinite(figure)},
            "doubts": labels.doubts(str(name), metric, records, clusters, arrays.get("resampled")),
            "class_order": labels.other_order(records),
        }
    np.savez_compressed(out / SAMPLES, **arrays)  # type: ignore[arg-type]
    (out / ABOUT).write_text(json.dumps(about, indent=1))
    for folder in out.glob("part-*"):
        shutil.rmtree(folder)


def _value(
    metric: Metric, name: str, records: dict[str, np.ndarray], ids: np.ndarray, finite: bool
) -> float | None:
    """The metric; None where it is no number because the outputs are none. Raises `InputError`."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        value = metric.value(records)
    if math.isfinite(value):
        return value
    if not finite:  # which is a verdict of its own
        return None
    odd = metric.not_numbers(records)
    first = f", {len(odd)} of them no numbers, the first {ids[odd[0]]}" if len(odd) else ""
    raise InputError(
        f"the metric is {value:g} over {len(ids)} samples{first}",
        place=f"accuracy.metric {name}",
        hint="let it give a finite number for these labels and outputs",
    )


def _records(folders: list[Path]) -> dict[str, np.ndarray]:
    import numpy as np

    parts, count = [], 0
    for folder in folders:
        with np.load(folder / shards.RECORDS, allow_pickle=False) as archive:
            part = shards.moved({name: archive[name] for name in archive.files}, count)
        parts.append(part)
        count += len(part["ids"])
    return shards.joined_records(parts)


def _outputs(out: Path, folders: list[Path], abouts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is known of each output over all parts; its rows become one file."""
    import numpy as np

    firsts = []
    for folder in folders:
        with np.load(folder / shards.FIRSTS, allow_pickle=False) as archive:
            firsts.append({name: archive[name] for name in archive.files})
    outputs = []
    for index, output in enumerate(abouts[0]["outputs"]):
        parts = [about["outputs"][index] for about in abouts]
        shapes = [part["shape"] for part in parts]
        shape = shapes[0] if all(each == shapes[0] for each in shapes) else None
        file = output["file"] if shape is not None and all(part["file"] for part in parts) else None
        same = all(
            np.array_equal(first[f"output_{index}"], firsts[0][f"output_{index}"]) for first in firsts
        )
        constant = same and all(part["constant"] for part in parts)
        several = sum(part["seen"] for part in parts) > 1
        if file is not None:
            _join([folder / file for folder in folders], out / file)
        outputs.append(
            {
                "name": output["name"],
                "file": file,
                "constant": constant and several,
                "dtype": output["dtype"],
                "shape": shape,
            }
        )
    return outputs


def _join(parts: list[Path], whole: Path) -> None:
    import numpy as np
    from numpy.lib.format import open_memmap

    parts = [part for part in parts if part.exists()]
    if len(parts) == 1:
        parts[0].rename(whole)
        return
    rows = [np.load(part, mmap_mode="r", allow_pickle=False) for part in parts]
    count = sum(len(each) for each in rows)
    joined = open_memmap(whole, mode="w+", dtype=rows[0].dtype, shape=(count, *rows[0].shape[1:]))
    start = 0
    for each in rows:
        joined[start : start + len(each)] = each
        start += len(each)
    joined.flush()
