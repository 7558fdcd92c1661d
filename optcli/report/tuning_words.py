"""A search in words: the answer, what paid and what did not, and its trials as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from optcli import environment
from optcli.paths import shown
from optcli.report import wording
from optcli.report.plain_text import aligned
from optcli.results.tuning import Finalist, Tuning, TuningTrial

HEADS = ("trial", "times", "p50 ms", "lost", "result", "seconds", "tried")
FINALIST_HEADS = ("finalist", "times the baseline", "lost, validation", "lost, evaluation", "result")

_RESULTS = {"timed": "speed alone", "inside": "inside", "outside": "outside", "slower": "slower"}
# A gain in speed below this is none, and a difference in loss (a fraction) above this is one.
_GAIN = 1.03
_DIFFERENCE = 0.001
_SAME_LOSS = 0.00005
# Few operators, and a short call: what integers save there is little.
_FEW_OPERATORS, _SHORT_MS = 4, 0.5


def tuning_text(tuning: Tuning) -> str:
    """The answer, the finalists, the findings and the table of trials, as plain text."""
    parts = [f"{tuning.answer}\n"]
    if tuning.finalists:
        parts.append(_table(FINALIST_HEADS, [finalist_row(each) for each in tuning.finalists]) + "\n")
    parts += [f"- {sentence}" for sentence in (*tuning.findings, *tuning.left_out)]
    if tuning.trials:
        parts.append("\n" + _table(HEADS, [trial_row(each) for each in tuning.trials]))
    if tuning.path:
        parts.append(f"\nThe finalists are the variants of {shown(tuning.path)}.")
    return "\n".join(parts) + "\n"


def trial_row(trial: TuningTrial) -> tuple[str, ...]:
    """A trial as a row of the table under `HEADS`."""
    return (
        str(trial.number),
        "" if trial.score is None else f"{wording.number(trial.score.value)}x",
        " / ".join(wording.number(value) for value in trial.p50_ms.values()),
        "" if trial.loss is None else _points(trial.loss.value),
        _RESULTS.get(trial.stage, "failed"),
        f"{trial.seconds:.0f}",
        f"{trial.label}: {trial.reason}" if trial.stage == "failed" else trial.label,
    )


def finalist_row(finalist: Finalist) -> tuple[str, ...]:
    """A finalist as a row of the table under `FINALIST_HEADS`."""
    sure = ", surely inside" if finalist.certain else ""
    return (
        finalist.variant,
        " / ".join(f"{wording.times(each)}" for each in finalist.speedup.values()) or wording.NONE,
        wording.NONE if finalist.validation_loss is None else _points(finalist.validation_loss),
        wording.NONE if finalist.loss is None else _points(finalist.loss),
        f"{finalist.outcome}{sure if finalist.outcome == 'accept' else ''}",
    )


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
    speeds = [
        f"{wording.times(each)} {wording.interval(each)} at batch size {size}"
        for size, each in winner.speedup.items()
    ]
    speed = wording.listed([each.strip() for each in speeds])
    told = f"Serve {winner.variant}"
    if tuning.objective in ("size", "memory"):
        told += f": the smallest {tuning.objective} inside the bar"
    elif tuning.objective == "cost" and winner.cheaper:
        told += f": {_cheaper(winner)} as many images for the same money as {tuning.baseline}"
    elif speed:
        told += f": as fast as {tuning.baseline} {speed}"
    if winner.loss is not None:
        told += f", {_points(winner.loss)} points lost on the evaluation samples"
    told += "."
    if tuning.outcome == "accurate":
        smaller = dict.fromkeys(("size", "memory"), "smaller")
        better = {"cost": "cheaper", **smaller}.get(tuning.objective, "faster")
        told += f" It is not known to be {better} than the baseline."
        if winner.score is None:
            told += " Other work disturbed the machine while the finalists were timed."
    if not winner.certain:
        told += " It is inside the bar on these samples, which are too few for a claim about others."
        if tuning.confidence is not None:
            told += " With accuracy.policy: non-inferiority the search wants one that is surely inside."
    return told


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


def _cheaper(winner: Finalist) -> str:
    """How many times as many images, and what they cost."""
    said = []
    for size, ratio in winner.cheaper.items():
        price = winner.cost_per_1000.get(size)
        paid = "" if price is None else f" ({wording.number(price)} for 1,000)"
        gain = f"{wording.times(ratio)} {wording.interval(ratio)}".strip()
        said.append(f"{gain} at batch size {size}{paid}")
    return wording.listed(said)


def findings(tuning: Tuning) -> Iterator[str]:
    """What bought most and what bought nothing, each with its price; then what is left to try."""
    trials = [trial for trial in tuning.trials if trial.score is not None]
    if not trials:
        return
    yield from _bought_most(trials)
    yield from _comparisons(trials, tuning)
    yield from _optimism(tuning)
    failed = [trial for trial in tuning.trials if trial.stage == "failed"]
    if failed:
        said = wording.listed([f"{each.label} ({each.reason})" for each in failed[:3]])
        yield f"{len(failed)} of {len(tuning.trials)} trials could not be built or run: {said}."
    spent = sum(trial.seconds for trial in tuning.trials)
    yield f"The search ended after {spent / 60:.1f} minutes of trials: {tuning.stopped_because}."
    if tuning.next_idea is not None:
        yield f"With twice the time the next trial would be: {tuning.next_idea}."


def int8_that_does_not_pay(trials: Sequence[TuningTrial]) -> TuningTrial | None:
    """The best whole network in INT8, where it is not faster than the best one in FP32."""
    whole = [trial for trial in trials if trial.score is not None and not _is_cut(trial)]
    int8, floats = _best(whole, _is("int8")), _best(whole, _is("fp32"))
    if int8 is None or floats is None or _score(int8) >= _GAIN * _score(floats):
        return None
    return int8


def _why_int8_does_not_pay(
    trials: Sequence[TuningTrial], isa: str | None, profiled: str | None
) -> Iterator[str]:
    """The likely cause, from the CPU, a profile, the file and the calls: the first that speaks."""
    int8 = int8_that_does_not_pay(trials)
    if int8 is None:
        return
    shortest_ms = min(int8.p50_ms.values(), default=1.0)
    if isa is not None and environment.sums_saturate(isa):
        cause = f"this CPU ({isa}) has no instructions that multiply and add 8-bit integers at once"
    elif profiled is not None:
        cause = profiled
    elif int8.operators is not None and int8.operators < _FEW_OPERATORS:
        cause = f"only {int8.operators} operators compute on integers"
    elif shortest_ms < _SHORT_MS:
        cause = (
            f"a call takes {wording.number(shortest_ms)} ms: starting operators and converting between"
            " integers and floats takes as long as computing"
        )
    else:
        cause = "`optcli profile` shows which operators stay in float or convert between the two"
    yield f"INT8 does not pay here: {cause}."


def _bought_most(trials: Sequence[TuningTrial]) -> Iterator[str]:
    """Which step from the reference to the best network inside the bar gained most."""
    inside = [trial for trial in trials if trial.stage == "inside"]
    best = max(inside, key=_score, default=None)
    if best is None or _score(best) < _GAIN:
        return
    chosen = best.parameters
    whole = [trial for trial in trials if not _is_cut(trial)]
    in_runtime = [trial for trial in whole if _runs(str(chosen.get("runtime")))(trial)]
    floats = _score_of(_best(in_runtime, _is("fp32"))) or 1.0
    same = _score_of(_best(in_runtime, _is(str(chosen.get("precision"))))) or floats
    gains = {
        f"the runtime ({chosen.get('runtime')})": floats,
        f"the precision ({chosen.get('precision')})": same / floats,
        "cutting and training the network": _score(best) / same if _is_cut(best) else 1.0,
    }
    name, gain = max(gains.items(), key=lambda each: each[1])
    if gain >= _GAIN:
        yield f"Most was gained by {name}: {gain:.2f} times."


def _comparisons(trials: Sequence[TuningTrial], tuning: Tuning) -> Iterator[str]:
    uncut = [trial for trial in trials if not _is_cut(trial)]
    yield from _compared(uncut, "INT8", _is("int8"), "fp32", _is("fp32"))
    yield from _why_int8_does_not_pay(uncut, tuning.isa, tuning.int8_cause)
    yield from _compared(uncut, "INT8", _is("int8"), "bf16", _is("bf16"))
    runtimes = sorted(
        ("openvino", "onnxruntime"), key=lambda name: -_score_of(_best(uncut, _runs(name)))
    )
    first, second = runtimes
    yield from _compared(uncut, first, _runs(first), second, _runs(second))
    trained = [trial for trial in trials if _is_cut(trial) and trial.loss is not None]
    yield from _compared(
        [*uncut, *trained],
        "Pruning and training the network",
        _is_cut,
        "leaving it unpruned",
        _is_whole,
    )
    aware = [trial for trial in trials if trial.parameters.get("aware_s")]
    if aware:
        yield from _compared(
            [trial for trial in trials if _cut(trial) == _cut(aware[-1])],
            "Quantization-aware training",
            lambda trial: bool(trial.parameters.get("aware_s")),
            "quantizing after training",
            lambda trial: _is("int8")(trial) and not trial.parameters.get("aware_s"),
        )


def _compared(
    trials: Sequence[TuningTrial],
    name: str,
    of: Callable[[TuningTrial], bool],
    other_name: str,
    other_of: Callable[[TuningTrial], bool],
) -> Iterator[str]:
    """The best of one kind over the best of another: speed, loss, and whether it was worth it."""
    one, other = _best(trials, of), _best(trials, other_of)
    if one is None or other is None or one.score is None or other.score is None:
        return
    gain = one.score.value / other.score.value
    said = f"{name} over {other_name}: {gain:.2f} times"
    if one.loss is not None and other.loss is not None:
        lost = one.loss.value - other.loss.value
        if abs(lost) < _SAME_LOSS:
            said += ", as much lost"
        else:
            said += f", {_points(abs(lost))} points {'more' if lost > 0 else 'fewer'} lost"
        costs = lost > _DIFFERENCE
    else:
        costs = False
    if one.trains and not other.trains:
        seconds = sum(t.seconds for t in trials if t.trains and of(t))
        said += f", for {seconds / 60:.1f} minutes of training"
    if gain < _GAIN:
        said += ": not worth it" if costs or one.trains else ": no gain"
    elif one.stage == "outside":
        said += ": outside the bar"
    yield f"{said}."


def _optimism(tuning: Tuning) -> Iterator[str]:
    known = [each for each in tuning.finalists if each.optimism is not None]
    if not known:
        return
    mean = sum(each.optimism or 0.0 for each in known) / len(known)
    way = "too small" if mean > 0 else "too large"
    yield (
        f"The search chose by {tuning.validation}. There the loss was {_points(abs(mean))} points"
        f" {way}, on average over the finalists ({len(known)}), against the evaluation samples."
    )
    if tuning.confidence is not None and len(tuning.finalists) > 1:
        yield (
            f"Bounds of the loss hold with {100 * tuning.confidence:.2f} % confidence each, so that all"
            f" {len(tuning.finalists)} finalists' hold together with the recipe's."
        )


def _best(trials: Sequence[TuningTrial], of: Callable[[TuningTrial], bool]) -> TuningTrial | None:
    """The fastest inside the bar, else of those that were judged, else of all."""
    kind = [trial for trial in trials if of(trial)]
    inside = [trial for trial in kind if trial.stage == "inside"]
    judged = [trial for trial in kind if trial.loss is not None]
    return max(inside or judged or kind, key=_score, default=None)


def _score_of(trial: TuningTrial | None) -> float:
    return _score(trial) if trial is not None else 0.0


def _score(trial: TuningTrial) -> float:
    return trial.score.value if trial.score is not None else 0.0


def _is(precision: str) -> Callable[[TuningTrial], bool]:
    return lambda trial: trial.parameters.get("precision") == precision


def _runs(runtime: str) -> Callable[[TuningTrial], bool]:
    return lambda trial: trial.parameters.get("runtime") == runtime


def _cut(trial: TuningTrial) -> tuple[float, float]:
    return trial.parameters.get("blocks", 0.0), trial.parameters.get("width", 0.0)


def _is_cut(trial: TuningTrial) -> bool:
    return any(_cut(trial))


def _is_whole(trial: TuningTrial) -> bool:
    return not _is_cut(trial)


def _points(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = aligned([tuple(heads), *map(tuple, rows)], left=(0, len(heads) - 1))
    return "\n".join(line.rstrip() for line in lines)
