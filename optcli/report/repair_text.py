"""A repair as plain text: every trial with its metric and its speed, the best one, the patch."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report import wording
from optcli.report.terminal import aligned
from optcli.results.repair import Repair, Trial


def repair_text(repair: Repair) -> str:
    """A table of the trials, then what was found in words, then the patch."""
    parts = [_table(repair), *_answer(repair)]
    return "\n".join(parts) + "\n" + (f"\n{repair.patch}" if repair.patch else "")


def _table(repair: Repair) -> str:
    over_float = ("in float", "speed-up over float")
    head = ("trial", repair.metric, "lost", "bar", *over_float, "seconds", "tried")
    rows = [head, *(_row(each) for each in repair.trials)]
    title = (
        f"{repair.variant} ({repair.quantizing_pass}, {repair.runner}), batch size {repair.batch_size}"
    )
    return "\n".join([title, *(line.rstrip() for line in aligned(rows, left=(len(head) - 1,)))])


def _row(trial: Trial) -> tuple[str, ...]:
    label = trial.label if trial.reason is None else f"{trial.label}: {trial.reason}"
    return (
        str(trial.number),
        "" if trial.value is None else wording.percent(trial.value),
        "" if trial.drop is None else wording.points(trial.drop.value),
        "failed" if trial.value is None else "inside" if trial.inside else "outside",
        "" if trial.float_operators is None else str(trial.float_operators),
        "" if trial.speedup is None else wording.with_interval(trial.speedup, "x"),
        f"{trial.seconds:.0f}",
        label,
    )


def _answer(repair: Repair) -> Iterator[str]:
    yield f"\nStopped because {repair.stopped_because}."
    best = repair.best
    if best is None:
        yield f"No trial brought {repair.variant} inside its accuracy bar."
        yield "Try training (finetune), a larger network, or the quantizer of another runtime."
        return
    speed = "its speed could not be measured"
    if best.speedup is not None:
        speed = f"{wording.with_interval(best.speedup, 'x')} as fast as in float"
        start = repair.trials[0]
        if start.speedup is not None:
            speed += f"; before the change it was {wording.with_interval(start.speedup, 'x')}"
    sentence = f"Trial {best.number} ({best.label}) is inside the bar: {speed}."
    if repair.outcome == "accurate":
        sentence += " Whether it is faster cannot be told: serve the float model, which is as accurate."
    yield sentence
    if repair.patch_problem is not None:
        yield f"No patch: {repair.patch_problem}"
    elif repair.patch:
        yield (
            "The recipe was changed:"
            if repair.written
            else "The patch of the recipe (--write applies it):"
        )
