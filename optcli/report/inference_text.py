"""What `optcli infer` did, for the terminal."""

from __future__ import annotations

from optcli.errors import counted, plural
from optcli.observer import rate
from optcli.report.wording import number
from optcli.results.inference import Inference

_LIMITS = {
    "model": "the model is the limit",
    "reading": "reading images from storage is the limit",
    "preparing": "decoding and preparing images is the limit",
    "answers": "making and writing answers is the limit",
}


def lines(result: Inference) -> list[str]:
    """The summary, then throughput by batch size, then what could not be answered."""
    here = result.answered + result.failed
    before = result.answered_before
    images, files = counted(result.images, "image"), plural(result.shards, "file")
    said = [
        f"{result.variant} answered {result.answered} of {images} in {result.shards} {result.form}"
        f" {files} in {result.output} ({result.seconds:.0f} s)."
    ]
    if before:
        said[0] += f" {counted(before, 'image')} {plural(before, 'was', 'were')} done before."
    if not here:
        said.append("Nothing was missing.")
    if result.failed:
        has = plural(result.failed, "has", "have")
        said.append(
            f"{counted(result.failed, 'image')} {has} no answer: the files *.errors.jsonl say why."
        )
        said += [f"  {failure}" for failure in result.failures]
    if result.images_per_s is not None:
        said.append(_speed(result))
    if result.cost_per_1000 is not None:
        said.append(f"1,000 images cost {number(result.cost_per_1000)}.")
    if result.pictures:
        drawn = counted(result.pictures, "picture")
        said.append(f"The folder pictures in {result.output} has {drawn}.")
    if result.rates:
        said += ["", "batch size  images/s of the model alone"]
    for size, images_per_s in sorted(result.rates.items()):
        cost = f"  1,000 cost {number(result.costs[size])}" if size in result.costs else ""
        mark = "  used" if size == result.batch_size else ""
        said.append(f"{size:>10}  {images_per_s:>8.1f}{cost}{mark}")
    said += [f"Note: {note}." for note in result.notes]
    return said


def _speed(result: Inference) -> str:
    assert result.images_per_s is not None
    workers, threads = counted(result.workers, "worker"), counted(result.threads, "thread")
    said = f"{rate(result.images_per_s, 1.0)} with {workers} of {threads}"
    shares = (result.computed_share, result.waited_share, result.prepared_share)
    if result.limit is None or None in shares:
        return f"{said}."
    computed, waited, prepared = (f"{100 * (share or 0):.0f} %" for share in shares)
    return (
        f"{said}: {_LIMITS[result.limit]}. Of the workers' time the model computed for {computed} and"
        f" waited for images for {waited}; decoding and preparing took {prepared} of the time of their"
        " cores."
    )
