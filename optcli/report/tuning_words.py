"""A search in words: the answer, what paid and what did not, and its trials as a table."""

from __future__ import annotations

from collections.abc import Sequence

from optcli.errors.paths import shown
from optcli.report import wording
from optcli.report.terminal import aligned
from optcli.results import Estimate
from optcli.results.tuning import COUNTED_IN_BYTES, Finalist, Tuning, TuningTrial

_RESULTS = {"timed": "speed alone", "inside": "inside", "outside": "outside", "slower": "slower"}
# What a multiple is one of, where the objective is not the usual call.
_BETTER = {
    "p99": "as fast by p99",
    "cost": "as cheap",
    "size": "as small",
    "memory": "as small in memory",
}
_TAKES = {"size": ("its files take", "those"), "memory": ("its process takes", "that")}


def tuning_text(tuning: Tuning) -> str:
    """The answer, the finalists, the findings and the table of trials, as plain text."""
    parts = [f"{tuning.answer}\n"]
    if tuning.finalists:
        rows = [finalist_row(each, tuning.objective) for each in tuning.finalists]
        parts.append(_table(finalist_heads(tuning.objective), rows) + "\n")
    parts += [f"- {sentence}" for sentence in (*tuning.findings, *tuning.left_out)]
    if tuning.trials:
        trials = [trial_row(each, tuning.objective) for each in tuning.trials]
        parts.append("\n" + _table(trial_heads(tuning.objective), trials))
    if tuning.path:
        parts.append(f"\nThe finalists are the variants of {shown(tuning.path)}.")
    return "\n".join(parts) + "\n"


def better(objective: str) -> str:
    """What a score says: so many times `as fast`, or what else the objective is about."""
    return _BETTER.get(objective, "as fast")


def trial_heads(objective: str) -> tuple[str, ...]:
    """The heads of the table of trials."""
    counted = (objective,) if objective in COUNTED_IN_BYTES else ()
    times = f"times {better(objective)}"
    return ("trial", times, *counted, "p50 ms", "lost", "result", "seconds", "tried")


def trial_row(trial: TuningTrial, objective: str) -> tuple[str, ...]:
    """A trial as a row of the table under `trial_heads`."""
    counted = {"size": trial.size_bytes, "memory": trial.memory_bytes}
    return (
        str(trial.number),
        "" if trial.score is None else f"{wording.number(trial.score.value)}x",
        *((_bytes(counted[objective]),) if objective in counted else ()),
        " / ".join(wording.number(value) for value in trial.p50_ms.values()),
        "" if trial.loss is None else points(trial.loss.value),
        _RESULTS.get(trial.stage, "failed"),
        f"{trial.seconds:.0f}",
        f"{trial.label}: {trial.reason}" if trial.stage == "failed" else _tried(trial),
    )


def _tried(trial: TuningTrial) -> str:
    return trial.label + (" (the training ended early)" if trial.ended_early else "")


def finalist_heads(objective: str) -> tuple[str, ...]:
    """The heads of the table of finalists."""
    times = f"times {better(objective)}" if objective in ("p99", "cost") else "times the baseline"
    counted = (objective,) if objective in COUNTED_IN_BYTES else ()
    return ("finalist", *counted, times, "lost, validation", "lost, evaluation", "result")


def finalist_row(finalist: Finalist, objective: str) -> tuple[str, ...]:
    """A finalist as a row of the table under `finalist_heads`."""
    sure = ", surely inside" if finalist.certain else ""
    gains = _gains(finalist, objective).values()
    return (
        finalist.variant,
        *((_bytes(finalist.needed_bytes),) if objective in COUNTED_IN_BYTES else ()),
        " / ".join(wording.times(each) for each in gains) or wording.NONE,
        wording.NONE if finalist.validation_loss is None else points(finalist.validation_loss),
        wording.NONE if finalist.loss is None else points(finalist.loss),
        f"{finalist.outcome}{sure if finalist.outcome == 'accept' else ''}",
    )


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
    told = f"Serve {winner.variant}{_promise(winner, tuning)}"
    if winner.loss is not None:
        told += (
            f", {points(winner.loss)} points lost on the evaluation samples"
            if tuning.confidence is not None
            else f", another largest output on {points(winner.loss)} % of the evaluation samples"
        )
    told += "."
    if tuning.outcome == "accurate":
        smaller = dict.fromkeys(COUNTED_IN_BYTES, "smaller")
        word = {"cost": "cheaper", **smaller}.get(tuning.objective, "faster")
        told += f" It is not known to be {word} than the baseline."
        if winner.score is None and tuning.objective == "p99" and winner.speedup:
            told += " The time was too short for the calls that p99 needs."
        elif winner.score is None:
            told += " Other work disturbed the machine while the finalists were timed."
    if not winner.certain:
        told += " It is inside the bar on these samples, which are too few to claim the same of others."
        if tuning.confidence is not None:
            told += (
                " Set accuracy.policy: non-inferiority to accept only variants whose upper bound of the"
                " loss is inside the bar."
            )
    return told


def _promise(winner: Finalist, tuning: Tuning) -> str:
    """What the winner gains, by the objective; empty where that was not measured."""
    if tuning.objective in COUNTED_IN_BYTES:
        if winner.needed_bytes is None:
            return ""
        takes, those = _TAKES[tuning.objective]
        told = f": {takes} {wording.megabytes(winner.needed_bytes)}"
        if tuning.baseline_bytes is not None:
            told += f", {those} of {tuning.baseline} {wording.megabytes(tuning.baseline_bytes)}"
        return told
    over = {
        "cost": f" as many images for the same money as {tuning.baseline}",
        "p99": f" as fast as {tuning.baseline} by p99",
    }.get(tuning.objective, f" as fast as {tuning.baseline}")
    said = []
    for size, each in _gains(winner, tuning.objective).items():
        times = f"{wording.times(each)}{over} {wording.interval(each)}".rstrip()
        price = winner.cost_per_1000.get(size)
        paid = "" if price is None else f" ({wording.number(price)} for 1,000)"
        said.append(f"{times} at batch size {size}{paid}")
        over = ""  # said once
    return f": {wording.listed(said)}" if said else ""


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
    return f"{100 * fraction:.2f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = aligned([tuple(heads), *map(tuple, rows)], left=(0, len(heads) - 1))
    return "\n".join(line.rstrip() for line in lines)
