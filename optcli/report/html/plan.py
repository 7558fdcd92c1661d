"""The page of a plan: the answer, the operating curves with the promise drawn in, the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optcli.report import plan_text, wording
from optcli.report.html import tables
from optcli.report.html.document import document, folded, section
from optcli.report.html.plan_charts import by_batch, by_rate, stages
from optcli.report.html.tags import Markup, join, tag
from optcli.results.plan import Configuration, Plan

_OUTCOMES = {
    "kept": ("keeps the promise", "accept"),
    "not-kept": ("nothing keeps the promise", "reject"),
    "inconclusive": ("measured on a busy machine", "inconclusive"),
}
_GLOSSARY = (
    ("t(B)", "the time of one call with a batch of B"),
    ("utilisation", "the rate over the rate of full batches on all instances (rho)"),
    ("headroom", "the share of traffic above the planned rate that is kept free"),
    ("[low, high]", "the 95 % interval over simulations with different seeds"),
    (
        "wait, queue",
        "time until a batch is sent although a worker is free; time until a worker is free",
    ),
    ("grows", "the queue grows from beginning to end: more requests arrive than are answered"),
)


def plan_page(plan: Plan) -> str:
    """The plan as one HTML file."""
    label, outcome = _OUTCOMES[plan.outcome]
    title = tag("div", tag("h1", plan.name), tables.chip(label, outcome), class_="title")
    header = tag("header", title, tag("p", plan_text.asked(plan), class_="hint"))
    return document(f"{plan.name}: optcli plan", header, tag("main", *_sections(plan)))


def _sections(plan: Plan) -> Iterator[Markup]:
    yield _answer(plan)
    if plan.by_batch:
        lead = "What a larger batch costs in latency and brings in throughput, all else as chosen."
        yield section("Batch size", lead, by_batch(plan), id_="batch")
    if plan.by_rate:
        lead = "The recommended configuration at other rates; the chosen point is filled."
        yield section(f"{plan.drawn} against the rate", lead, by_rate(plan), id_="rate")
    if plan.recommended is not None:
        if plan.recommended.stages is not None:
            lead = "The mean latency of a request by what it waits for."
            yield section("Where the time goes", lead, stages(plan.recommended.stages), id_="time")
        yield section(
            "Configuration", None, _configuration(plan, plan.recommended), id_="configuration"
        )
    for title, lines in plan_text.tables(plan):
        yield section(title, None, _table(title, lines))
    parts = list(plan_text.parts(plan))
    if any(parts):
        yield section("More", None, *_paragraphs(parts), id_="more")
    for title, items in (
        ("What would keep the promise", plan.would),
        ("Notes", plan.notes),
    ):
        if items:
            yield section(title, None, tag("ul", *(tag("li", each.text) for each in items)))
    glossary = tag("dl", *(join([tag("dt", word), tag("dd", what)]) for word, what in _GLOSSARY))
    yield section(
        "How it was planned",
        None,
        tag("p", f"{plan_text.curve(plan.curve)}. {plan_text.padded(plan.curve)} Seed {plan.seed}."),
        tag("p", f"Mode: {plan.mode.mode}, {plan.mode.reason}."),
        folded("What the words mean", glossary),
    )


def _answer(plan: Plan) -> Markup:
    kind = "answer" if plan.is_kept else "answer none"
    figures = _figures(plan, plan.recommended) if plan.recommended else None
    return tag(
        "section",
        tag("p", plan.sentence),
        tag("p", plan.reason, class_="hint"),
        figures,
        class_=kind,
        id="answer",
    )


def _figures(plan: Plan, one: Configuration) -> Markup:
    name, limit = next(iter(plan.slo_ms.items()))
    figures = [
        (str(one.batch), f"largest batch, wait {one.wait_ms:g} ms"),
        (str(one.instances), f"instance{'' if one.instances == 1 else 's'}"),
        (f"{getattr(one, f'{name}_ms'):.3g} ms", f"{name} of {limit:g} ms"),
        (f"{wording.number(one.max_rate_per_s)}/s", "highest rate inside the promise"),
    ]
    if one.cost_per_1000 is not None:
        figures.append((wording.number(one.cost_per_1000), "cost of 1,000 inferences"))
    items = (tag("li", tag("b", figure), tag("span", caption)) for figure, caption in figures)
    return tag("ul", *items, class_="figures")


def _configuration(plan: Plan, one: Configuration) -> Markup:
    rows = plan_text.rows(plan, one)
    return tag("dl", *(join([tag("dt", name), tag("dd", value)]) for name, value in rows))


def _table(title: str, lines: Sequence[Sequence[str]]) -> Markup:
    """A table of the terminal: its first line has the names of the columns."""
    heads = [(name, False) for name in lines[0]]
    body = [
        tag("tr", tag("th", line[0], scope="row"), *(tag("td", cell) for cell in line[1:]))
        for line in lines[1:]
    ]
    return tables.table(heads, body, title)


def _paragraphs(lines: list[str]) -> Iterator[Markup]:
    for before, line in zip(["", *lines], lines, strict=False):
        if line:
            yield tag("p", line.strip()) if before else tag("h3", line)
