"""The document of a search: the answer, the finalists, what it found, the trials and their chart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from optcli.errors import counted, shown_path
from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.marks import Area, name_labels, spanning
from optcli.report.html.tags import Markup, tag
from optcli.results import Estimate
from optcli.results.document import Chart, Document, Items, Section, Table, table_of_texts
from optcli.results.tuning import COUNTED_IN_BYTES, Finalist, Tuning, TuningTrial, score_of

_OUTCOMES = {"faster": "accept", "accurate": "inconclusive"}
_RESULTS = {"timed": "speed alone", "inside": "inside", "outside": "outside", "slower": "slower"}
_TAKES = {"size": ("its files take", "those"), "memory": ("its process takes", "that")}
_LEAD = (
    "Up and right is better. A dot is a trial on validation samples, its area the size of the files."
    " Finalists are named. A trial below the dashed line loses too much."
)
_HEIGHT = 360
_SMALLEST, _LARGEST = 3.5, 14.0


def document(tuning: Tuning) -> Document:
    """For every kind of reader."""
    where = f"The finalists are the variants of {shown_path(tuning.path)}." if tuning.path else ""
    return Document(
        title=f"optcli tune: {tuning.recipe}",
        sections=list(sections(tuning)),
        answer=tuning.answer,
        outcome=_OUTCOMES.get(tuning.outcome, "reject"),
        footer=[where] if where else [],
    )


def sections(tuning: Tuning, *, on_pages: bool = False) -> Iterator[Section]:
    """The trials, what they say, and the finalists; `on_pages`: of a report, whose page has them."""
    trials = Section(f"All {counted(len(tuning.trials), 'trial')}", [_trials(tuning)], folded=True)
    parts = [Items([*tuning.findings, *tuning.left_out])]
    yield Section(
        "What the search tried",
        [Chart(lambda: search(tuning)), trials],
        _LEAD,
        on_pages=on_pages,
    )
    yield Section("What the search found", parts, on_pages=on_pages)
    yield Section("Finalists", [_finalists(tuning)], on_pages=on_pages)


def _trials(tuning: Tuning) -> Table[Sequence[str]]:
    in_bytes = [tuning.objective] if tuning.objective in COUNTED_IN_BYTES else []
    heads = [
        "trial",
        f"times {wording.better(tuning.objective)}",
        *in_bytes,
        "p50 ms",
        "lost",
        "result",
    ]
    heads += ["seconds", "tried"]
    rows = [trial_row(each, tuning.objective) for each in tuning.trials]
    return table_of_texts(heads, rows, (len(heads) - 1,))


def trial_row(trial: TuningTrial, objective: str) -> tuple[str, ...]:
    """A trial as a row of the table of trials."""
    in_bytes = {"size": trial.size_bytes, "memory": trial.memory_bytes}
    tried = trial.label + (" (the training ended early)" if trial.ended_early else "")
    return (
        str(trial.number),
        "" if trial.score is None else f"{wording.number(trial.score.value)}x",
        *((_bytes(in_bytes[objective]),) if objective in in_bytes else ()),
        " / ".join(wording.number(value) for value in trial.p50_ms.values()),
        "" if trial.loss is None else points(trial.loss.value),
        _RESULTS.get(trial.stage, "failed"),
        f"{trial.seconds:.0f}",
        f"{trial.label}: {trial.reason}" if trial.stage == "failed" else tried,
    )


def _finalists(tuning: Tuning) -> Table[Sequence[str]]:
    objective = tuning.objective
    times = (
        f"times {wording.better(objective)}" if objective in ("p99", "cost") else "times the baseline"
    )
    in_bytes = [objective] if objective in COUNTED_IN_BYTES else []
    heads = ["finalist", *in_bytes, times, "lost, validation", "lost, evaluation", "result"]
    rows = [
        (
            each.variant,
            *((_bytes(each.needed_bytes),) if in_bytes else ()),
            " / ".join(map(wording.times, _gains(each, objective).values())) or wording.NONE,
            wording.NONE if each.validation_loss is None else points(each.validation_loss),
            wording.NONE if each.loss is None else points(each.loss),
            each.outcome + (", surely inside" if each.certain and each.outcome == "accept" else ""),
        )
        for each in tuning.finalists
    ]
    return table_of_texts(heads, rows, (0, len(heads) - 1))


def _gains(finalist: Finalist, objective: str) -> dict[int, Estimate]:
    """What it gains over the baseline, by batch size: in speed where the objective counts bytes."""
    return {"cost": finalist.cheaper, "p99": finalist.p99_speedup}.get(objective, finalist.speedup)


def answer(tuning: Tuning, *, certain: bool = False) -> str:
    """What to serve, in one or two sentences. `certain`: the recipe wants to be sure of the loss."""
    if tuning.winner is None:
        if not tuning.finalists:
            return (
                f"No trial of {len(tuning.trials)} was inside the bar on validation samples"
                f" ({tuning.stopped_because})."
            )
        return (
            f"No finalist is accepted on the evaluation samples.{_too_few(tuning) if certain else ''}"
        )
    winner = next(each for each in tuning.finalists if each.variant == tuning.winner)
    sentence = f"Serve {winner.variant}{_promise(winner, tuning)}"
    if winner.loss is not None:
        sentence += (
            f", {points(winner.loss)} points lost on the evaluation samples"
            if tuning.confidence is not None
            else f", another largest output on {points(winner.loss)} % of the evaluation samples"
        )
    sentence += "."
    if tuning.outcome == "accurate":
        smaller = dict.fromkeys(COUNTED_IN_BYTES, "smaller")
        word = {"cost": "cheaper", **smaller}.get(tuning.objective, "faster")
        sentence += f" It is not known to be {word} than the baseline."
        if winner.score is None and tuning.objective == "p99" and winner.speedup:
            sentence += " The time was too short for the calls that p99 needs."
        elif winner.score is None:
            sentence += " Other work disturbed the machine while the finalists were timed."
    if not winner.certain:
        sentence += (
            " It is inside the bar on these samples, which are too few to claim the same of others."
        )
        if tuning.confidence is not None:
            sentence += (
                " Set accuracy.policy: non-inferiority to accept only variants whose upper bound of the"
                " loss is inside the bar."
            )
    return sentence


def _promise(winner: Finalist, tuning: Tuning) -> str:
    """What the winner gains, by the objective; empty where that was not measured."""
    if tuning.objective in COUNTED_IN_BYTES:
        if winner.needed_bytes is None:
            return ""
        takes, those = _TAKES[tuning.objective]
        sentence = f": {takes} {wording.megabytes(winner.needed_bytes)}"
        if tuning.baseline_bytes is not None:
            sentence += f", {those} of {tuning.baseline} {wording.megabytes(tuning.baseline_bytes)}"
        return sentence
    over = {
        "cost": f" as many images for the same money as {tuning.baseline}",
        "p99": f" as fast as {tuning.baseline} by p99",
    }.get(tuning.objective, f" as fast as {tuning.baseline}")
    gains = []
    for size, each in _gains(winner, tuning.objective).items():
        times = f"{wording.times(each)}{over} {wording.interval(each)}".rstrip()
        price = winner.cost_per_1000.get(size)
        paid = "" if price is None else f" ({wording.number(price)} for 1,000)"
        gains.append(f"{times} at batch size {size}{paid}")
        over = ""  # said once
    return f": {wording.listed(gains)}" if gains else ""


def _too_few(tuning: Tuning) -> str:
    """Which finalists more samples might bring inside the bar, as a sentence; empty where none."""
    bar = tuning.bar or 0.0
    open_ones = [
        each.variant
        for each in tuning.finalists
        if each.outcome == "inconclusive" and each.loss is not None and each.loss <= bar
    ]
    if not open_ones:
        return ""
    lost = "loses" if len(open_ones) == 1 else "lose"
    return (
        f" On these samples {wording.listed(open_ones)} {lost} no more than is allowed. The samples are"
        " too few to say the same of others: give data.evaluation more."
    )


def _bytes(count: int | None) -> str:
    return "" if count is None else wording.megabytes(count)


def points(fraction: float) -> str:
    """A loss in points of percent."""
    return f"{100 * fraction:z.2f}"


def search(tuning: Tuning) -> Markup:
    """Trials by speed and change of accuracy; empty where fewer than two were judged."""
    judged = [each for each in tuning.trials if each.score is not None and each.loss is not None]
    if len(judged) < 2:
        return Markup()
    gain = tuning.objective if tuning.objective in ("size", "memory", "cost") else "speed"
    name = f"Trials: change of accuracy against {gain}"
    return marks.figure(name, lambda width: _draw(width, judged, tuning))


def _draw(width: int, judged: Sequence[TuningTrial], tuning: Tuning) -> Markup:
    area = Area(52, width - 16, 32, _HEIGHT - 42)
    x = spanning([score_of(each) for each in judged], area.left + 14, area.right - 14)
    changes = [-100 * _loss(each) for each in judged]
    bar = None if tuning.bar is None else -100 * tuning.bar
    # A trial that lost everything shall not flatten the others.
    lowest = max(min(changes), 4 * bar) if bar else min(changes)
    shown = [max(each, lowest) for each in (*changes, bar or 0.0)]
    y = spanning(shown, area.bottom - 6, area.top, log=False)
    speed = f"times {wording.better(tuning.objective)} as the reference"
    shapes = marks.axes(area, x, y, speed, "change, points")
    if bar is not None:
        shapes.append(marks.line(area.left, y(bar), area.right, y(bar), "budget"))
    largest = max(each.size_bytes or 1 for each in judged)
    names = {each.trial: each.variant for each in tuning.finalists}
    places, labels = [], []
    for trial, change in zip(judged, changes, strict=True):
        share = math.sqrt((trial.size_bytes or 1) / largest)
        radius = max(_SMALLEST, _LARGEST * share)
        at, height = x(score_of(trial)), y(max(change, lowest))
        words = (
            f"trial {trial.number}: {trial.label}, {wording.number(score_of(trial))}x, {change:+.2f}"
        )
        kind = "solid" if trial.number in names else "faint"
        dot = tag("circle", tag("title", words), cx=at, cy=height, r=radius, class_=kind)
        shapes.append(marks.series(0 if trial.number in names else 7, dot))
        if trial.number in names:
            places.append((at, height))
            labels.append(names[trial.number])
    shapes += name_labels(places, labels, area, [])
    return marks.picture(width, _HEIGHT, "Trials of the search", *shapes)


def _loss(trial: TuningTrial) -> float:
    return trial.loss.value if trial.loss is not None else 0.0
