"""The report as Markdown: for a pull request, a wiki, a README."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optcli.report.notes import notes
from optcli.report.rows import Row, accuracy_label, batch_sizes, fastest_fp32, rows
from optcli.report.sweep_text import sweep_markdown
from optcli.results import Report


def markdown(report: Report) -> str:
    """A GitHub-flavoured Markdown document: one table per batch size, then the notes."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"## {escaped(report.recipe.name)}"
    label = accuracy_label(report)
    for size in batch_sizes(report):
        found = rows(report, size)
        if not found:
            continue
        yield ""
        if size is not None:
            yield f"### Batch size {size}"
            yield ""
        yield from _table(found, label, fp32=bool(fastest_fp32(report)))
    yield from sweep_markdown(report)
    told = notes(report)
    if told.recommendation:
        yield from ("", f"**{escaped(told.recommendation)}**")
    for title, lines in (
        ("Failed or skipped", told.missing),
        ("Verdicts", told.reasons),
        ("Engines", told.engines),
        ("Found since the build", told.later),
        ("Doubts about the measurement", told.doubts),
    ):
        if lines:
            yield from ("", f"{title}:", "")
            yield from (f"- {escaped(line)}" for line in lines)
    for line in told.footer:
        yield from ("", f"_{escaped(line)}_")
    if told.ending:
        yield from ("", escaped(told.ending))


def _table(found: Sequence[Row], accuracy: str | None, *, fp32: bool) -> Iterator[str]:
    columns = ["variant", "runtime", "precision", "size", "p50 ms", "p95 ms", "p99 ms", "images/s"]
    limits = any(row.operations for row in found)
    device = any(row.device for row in found)
    columns += ["speed-up", *(["vs fp32"] if fp32 else [])]
    columns += [*(["device ms"] if device else []), *(["GOP", "of peak"] if limits else [])]
    columns += [accuracy] if accuracy else []
    columns += ["change"] if accuracy and accuracy != "SQNR" else []
    columns += ["verdict"]
    left = ("variant", "runtime", "precision", "verdict")
    yield row_of(columns)
    yield row_of(["---" if name in left else "---:" for name in columns])
    for row in found:
        cells = [row.variant, row.runtime, row.precision, row.size]
        cells += [f"{row.p50} {row.p50_interval}".strip(), row.short["p95"], row.short["p99"], row.rate]
        cells += [f"{row.speedup} {row.speedup_interval}".strip()]
        cells += [f"{row.fp32} {row.fp32_interval}".strip()] if fp32 else []
        cells += [row.device] if device else []
        shares = [row.operations, f"{row.share} {row.share_interval}".strip()]
        cells += shares if limits else []
        cells += [row.accuracy] if accuracy else []
        cells += [row.change] if "change" in columns else []
        yield row_of([escaped(cell) for cell in [*cells, row.verdict]])


def row_of(cells: Sequence[str]) -> str:
    """One line of a table, its cells escaped already."""
    return f"| {' | '.join(cells)} |"


def escaped(line: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    for sign in "\\|*_`<":
        line = line.replace(sign, f"\\{sign}")
    return " ".join(line.split())
