"""A repair: every trial with its metric and its speed, the best one, the patch of the recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optcli.report import wording
from optcli.results.document import Code, Document, Section, Table, table_of_texts
from optcli.results.tuning import Repair, Trial

_OUTCOMES = {"repaired": "accept", "accurate": "inconclusive"}


def document(repair: Repair) -> Document:
    """For every kind of reader."""
    how = "The recipe was changed" if repair.written else "The patch of the recipe (--write applies it)"
    return Document(
        title=f"optcli tune: repair of {repair.variant}",
        hint=f"{repair.quantizing_pass}, {repair.runner}, batch size {repair.batch_size}",
        sections=[Section("Trials", [_trials(repair)]), Section(how, [Code(repair.patch)])],
        answer=_answer(repair),
        reasons=list(_reasons(repair)),
        outcome=_OUTCOMES.get(repair.outcome, "reject"),
        footer=[f"Stopped because {repair.stopped_because}."],
    )


def _trials(repair: Repair) -> Table[Sequence[str]]:
    over_float = ("in float", "speed-up over float")
    heads = ("trial", repair.metric, "lost", "bar", *over_float, "seconds", "tried")
    return table_of_texts(heads, map(_row, repair.trials), (len(heads) - 1,))


def _row(trial: Trial) -> tuple[str, ...]:
    return (
        str(trial.number),
        "" if trial.value is None else wording.percent(trial.value),
        "" if trial.drop is None else wording.points(trial.drop.value),
        "failed" if trial.value is None else "inside" if trial.inside else "outside",
        "" if trial.float_operators is None else str(trial.float_operators),
        "" if trial.speedup is None else wording.with_interval(trial.speedup, "x"),
        f"{trial.seconds:.0f}",
        trial.label if trial.reason is None else f"{trial.label}: {trial.reason}",
    )


def _answer(repair: Repair) -> str:
    best = repair.best
    if best is None:
        return f"No trial brought {repair.variant} inside its accuracy bar."
    speed = "its speed could not be measured"
    if best.speedup is not None:
        speed = f"{wording.with_interval(best.speedup, 'x')} as fast as in float"
        start = repair.trials[0]
        if start.speedup is not None:
            speed += f"; before the change it was {wording.with_interval(start.speedup, 'x')}"
    return f"Trial {best.number} ({best.label}) is inside the bar: {speed}."


def _reasons(repair: Repair) -> Iterator[str]:
    if repair.best is None:
        yield "Try training (finetune), a larger network, or the quantizer of another runtime."
    elif repair.outcome == "accurate":
        yield "Whether it is faster cannot be told: serve the float model, which is as accurate."
    if repair.patch_problem is not None:
        yield f"No patch: {repair.patch_problem}"
