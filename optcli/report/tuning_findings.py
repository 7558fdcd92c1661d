"""What a search found: which choices made the network faster, and what each cost in accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from optcli import environment
from optcli.errors import counted
from optcli.report import wording
from optcli.report.tuning import points
from optcli.results.tuning import COUNTED_IN_BYTES, Tuning, TuningTrial, score_of

# A gain in speed below this is none, and a difference in loss (a fraction) above this is one.
_GAIN = 1.03
_DIFFERENCE = 0.001
_SAME_LOSS = 0.00005
# Less of the processors' time costs a search little.
_OTHERS_SHARE = 0.1
# Few operators, and a short call: what integers save there is little.
_FEW_OPERATORS, _SHORT_MS = 4, 0.5


def findings(tuning: Tuning) -> Iterator[str]:
    """What made the network faster and what did not, with what each cost; then what is left to try."""
    trials = [trial for trial in tuning.trials if trial.score is not None]
    if not trials:
        return
    yield from _bought_most(trials, tuning)
    yield from _comparisons(trials, tuning)
    yield from _chosen_by(tuning)
    failed = [trial for trial in tuning.trials if trial.stage == "failed"]
    if failed:
        reasons = wording.listed([f"{each.label} ({each.reason})" for each in failed[:3]])
        tried = counted(len(tuning.trials), "trial")
        yield f"{len(failed)} of {tried} could not be built or run: {reasons}."
    spent = sum(trial.seconds for trial in tuning.trials)
    yield f"The search ended after {spent / 60:.1f} minutes of trials: {tuning.stopped_because}."
    yield from _gain_of_later_half(tuning, spent)
    if tuning.others_share is not None and tuning.others_share >= _OTHERS_SHARE:
        yield (
            f"Other programs, or other guests of its host, had {100 * tuning.others_share:.0f} % of"
            " this machine's processor time during the trials. On an idle machine the search tries"
            " more, trains longer and measures with more certainty: search again."
        )
    if tuning.next_idea is not None:
        yield f"With twice the time the next trial would be: {tuning.next_idea}."


def _gain_of_later_half(tuning: Tuning, spent_s: float) -> Iterator[str]:
    """What the later half of the trials' time brought: whether more time is likely to bring more."""
    halves, past_s = ([0.0], [0.0]), 0.0
    for trial in tuning.trials:
        past_s += trial.seconds
        if trial.stage == "inside":
            halves[past_s > spent_s / 2].append(_score_of(trial))
    early, best = max(halves[0]), max(map(max, halves))
    if not best:
        return
    times = f"times {wording.better(tuning.objective)} as the reference"
    begun = "After half of that time, the best network inside the bar was"
    if not early:
        begun = "After half of that time, no network was inside the bar"
        yield f"{begun}; at its end, one was, {best:.2f} {times}. More time is likely to bring more."
    elif best < _GAIN * early:
        begun = f"{begun} {early:.2f} {times}, and none was better at its end"
        yield f"{begun}. More time is unlikely to help."
    else:
        yield f"{begun} {early:.2f} {times}; at its end, {best:.2f} times. More time is likely to help."


def _int8_that_does_not_pay(trials: Sequence[TuningTrial]) -> TuningTrial | None:
    """The best whole network in INT8, where it is not faster than the best one in float."""
    whole = [trial for trial in trials if trial.score is not None and not _is_cut(trial)]
    int8, in_float = _best(whole, _is("int8")), _best(whole, _is_float)
    if int8 is None or in_float is None or score_of(int8) >= _GAIN * score_of(in_float):
        return None
    return int8


def _why_int8_does_not_pay(trials: Sequence[TuningTrial], tuning: Tuning) -> Iterator[str]:
    """The likely cause, from the CPU, the file and the calls: the first that speaks."""
    int8, isa = _int8_that_does_not_pay(trials), tuning.isa
    in_float = _best(trials, _is_float)
    if int8 is None or in_float is None or tuning.objective in COUNTED_IN_BYTES:
        return
    shortest_ms = min(int8.p50_ms.values(), default=1.0)
    if isa is not None and environment.sums_saturate(isa):
        cause = f"this CPU ({isa}) has no instructions that multiply and add 8-bit integers at once"
    elif int8.operators is not None and int8.operators < _FEW_OPERATORS:
        operators = counted(int8.operators, "operator computes", "operators compute")
        cause = f"only {operators} on integers"
    elif shortest_ms < _SHORT_MS:
        cause = (
            f"a call takes {wording.number(shortest_ms)} ms: starting operators and converting between"
            " integers and floats takes as long as computing"
        )
    else:
        cause = "`optcli profile` shows which operators stay in float or convert between the two"
    precision = in_float.parameters.get("precision")
    yield f"INT8 does not pay over {precision} here: {cause}."


def _bought_most(trials: Sequence[TuningTrial], tuning: Tuning) -> Iterator[str]:
    """Which step from the reference to the best network inside the bar gained most."""
    inside = [trial for trial in trials if trial.stage == "inside"]
    best = max(inside, key=score_of, default=None)
    if best is None or score_of(best) < _GAIN:
        return
    chosen = best.parameters
    whole = [trial for trial in trials if not _is_cut(trial)]
    in_runtime = [trial for trial in whole if _runs(str(chosen.get("runtime")))(trial)]
    floats = _score_of(_best(in_runtime, _is("fp32"))) or 1.0
    same = _score_of(_best(in_runtime, _is(str(chosen.get("precision"))))) or floats
    gains = {
        f"the runtime ({chosen.get('runtime')})": floats,
        f"the precision ({chosen.get('precision')})": same / floats,
        "pruning and training the network": score_of(best) / same if _is_cut(best) else 1.0,
    }
    name, gain = max(gains.items(), key=lambda each: each[1])
    if gain >= _GAIN:
        yield f"The largest gain came from {name}: {gain:.2f} times {wording.better(tuning.objective)}."


def _comparisons(trials: Sequence[TuningTrial], tuning: Tuning) -> Iterator[str]:
    times = f"times {wording.better(tuning.objective)}"
    uncut = [trial for trial in trials if not _is_cut(trial)]
    yield from _compared(uncut, times, "INT8", _is("int8"), "fp32", _is("fp32"))
    yield from _compared(uncut, times, "INT8", _is("int8"), "bf16", _is("bf16"))
    yield from _why_int8_does_not_pay(uncut, tuning)
    runtimes = sorted(
        ("openvino", "onnxruntime"), key=lambda name: -_score_of(_best(uncut, _runs(name)))
    )
    first, second = runtimes
    yield from _compared(uncut, times, first, _runs(first), second, _runs(second))
    trained = [trial for trial in trials if _is_cut(trial) and trial.loss is not None]
    yield from _compared(
        [*uncut, *trained],
        times,
        "Pruning and training the network",
        _is_cut,
        "leaving it unpruned",
        _is_whole,
    )
    aware = [trial for trial in trials if trial.parameters.get("aware_s")]
    if aware:
        yield from _compared(
            [trial for trial in trials if _cut(trial) == _cut(aware[-1])],
            times,
            "Quantization-aware training",
            lambda trial: bool(trial.parameters.get("aware_s")),
            "quantizing after training",
            lambda trial: _is("int8")(trial) and not trial.parameters.get("aware_s"),
        )


def _compared(
    trials: Sequence[TuningTrial],
    times: str,
    name: str,
    of: Callable[[TuningTrial], bool],
    other_name: str,
    other_of: Callable[[TuningTrial], bool],
) -> Iterator[str]:
    """The best of one kind over the best of another: gain, loss, and whether it was worth it."""
    one, other = _best(trials, of), _best(trials, other_of)
    if one is None or other is None or one.score is None or other.score is None:
        return
    gain = one.score.value / other.score.value
    sentence = f"{name} over {other_name}: {gain:.2f} {times}"
    lost = 0.0
    if one.loss is not None and other.loss is not None:
        lost = one.loss.value - other.loss.value
        same = abs(lost) < _SAME_LOSS
        more = f"{points(abs(lost))} points {'more' if lost > 0 else 'fewer'} lost"
        sentence += ", the same loss" if same else f", {more}"
    if one.trains and not other.trains:
        seconds = sum(t.seconds for t in trials if t.trains and of(t))
        sentence += f", for {seconds / 60:.1f} minutes of training"
    if (one.stage, other.stage) == ("inside", "outside"):
        sentence += f": inside the bar, unlike {other_name}"
    elif gain < _GAIN and lost >= -_DIFFERENCE:  # else it has saved accuracy, at whatever price
        sentence += ": not worth it" if lost > _DIFFERENCE or one.trains else ": no gain"
    elif one.stage == "outside":
        sentence += ": outside the bar"
    yield f"{sentence}."


def _chosen_by(tuning: Tuning) -> Iterator[str]:
    """By which samples the search chose, and how optimistic they were."""
    known = [each.optimism for each in tuning.finalists if each.optimism is not None]
    sentence = f"The search chose by {tuning.validation}."
    if known:
        mean = sum(known) / len(known)
        several = f"On average the {len(known)} finalists lose"
        they = several if len(known) > 1 else "The finalist loses"
        more = f"{points(abs(mean))} points {'more' if mean > 0 else 'fewer'}"
        same = abs(mean) < _SAME_LOSS
        sentence += f" {they} {'as much' if same else more} on the evaluation samples"
        sentence += " as there." if same else " than there."
    yield sentence
    count = len(tuning.finalists)
    if tuning.confidence is not None and count > 1:
        whole = 1.0 - count * (1.0 - tuning.confidence)
        yield (
            f"Each bound of a loss holds with {100 * tuning.confidence:.2f} % confidence, so all"
            f" {count} hold together with the recipe's {100 * whole:.4g} %."
        )


def _best(trials: Sequence[TuningTrial], of: Callable[[TuningTrial], bool]) -> TuningTrial | None:
    """The fastest inside the bar, else of those that were judged, else of all."""
    kind = [trial for trial in trials if of(trial)]
    inside = [trial for trial in kind if trial.stage == "inside"]
    judged = [trial for trial in kind if trial.loss is not None]
    return max(inside or judged or kind, key=score_of, default=None)


def _score_of(trial: TuningTrial | None) -> float:
    return score_of(trial) if trial is not None else 0.0


def _is(precision: str) -> Callable[[TuningTrial], bool]:
    return lambda trial: trial.parameters.get("precision") == precision


def _is_float(trial: TuningTrial) -> bool:
    return trial.parameters.get("precision") in ("fp32", "bf16", "fp16")


def _runs(runtime: str) -> Callable[[TuningTrial], bool]:
    return lambda trial: trial.parameters.get("runtime") == runtime


def _cut(trial: TuningTrial) -> tuple[float, float]:
    return trial.parameters.get("blocks", 0.0), trial.parameters.get("width", 0.0)


def _is_cut(trial: TuningTrial) -> bool:
    return any(_cut(trial))


def _is_whole(trial: TuningTrial) -> bool:
    return not _is_cut(trial)
