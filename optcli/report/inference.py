"""What `optcli infer` did: the answer, the speed of each batch size, what has no answer."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.errors import counted, plural
from optcli.observer import rate
from optcli.report.wording import number
from optcli.results.document import Document, Items, Section, table_of_texts
from optcli.results.serving import Inference


def document(result: Inference) -> Document:
    """For every kind of reader."""
    heads = ("batch size", "images/s", "cost of 1,000" if result.costs else "", "")
    speeds = [
        (
            str(size),
            f"{images_per_s:.1f}",
            number(result.costs[size]) if size in result.costs else "",
            "used" if size == result.batch_size else "",
        )
        for size, images_per_s in sorted(result.rates.items())
    ]
    images, files = counted(result.images, "image"), plural(result.shards, "file")
    return Document(
        title=f"optcli infer: {result.variant}",
        sections=[
            Section("Speed of the model alone", [table_of_texts(heads, speeds, (3,))]),
            Section("Not answered", [Items(result.failures)], tone="reject"),
            Section("Notes", [Items(result.notes)]),
        ],
        answer=f"{result.variant} answered {result.answered} of {images} in {result.shards}"
        f" {result.form} {files} in {result.output} ({result.seconds:.0f} s).",
        reasons=list(_reasons(result)),
        outcome="inconclusive" if result.failed else "accept",
    )


def _reasons(result: Inference) -> Iterator[str]:
    before = result.answered_before
    if before:
        yield f"{counted(before, 'image')} {plural(before, 'was', 'were')} done before."
    if not result.answered + result.failed:
        yield "Nothing was missing."
    if result.failed:
        has = plural(result.failed, "has", "have")
        yield f"{counted(result.failed, 'image')} {has} no answer: the files *.errors.jsonl say why."
    if result.images_per_s is not None:
        yield _speed(result, result.images_per_s)
    if result.cost_per_1000 is not None:
        yield f"1,000 images cost {number(result.cost_per_1000)}."


def _speed(result: Inference, images_per_s: float) -> str:
    workers, threads = counted(result.workers, "worker"), counted(result.threads, "thread")
    return f"{rate(images_per_s, 1.0)} with {workers} of {threads}."
