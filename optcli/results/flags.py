"""Flags: what is to be known of a figure beside its value. Code looks at the kind and the figures.

Every kind is one function here: its parameters are the flag's figures, it returns the sentence made of
them, and calling it gives the flag. Shares are fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from inspect import Parameter, signature
from typing import Any, Literal, ParamSpec, get_args

from pydantic import BaseModel, Field, computed_field, create_model, model_validator

from optcli.results.outcomes import Result

FlagKind = Literal[
    "too-few-calls",
    "fluctuating",
    "environment-not-fit",
    "rounds-not-counted",
    "noisy",
    "throttled",
    "unsteady",
    "fewer-launches",
    "time-cap",
    "other-thread-count",
    "restless",
    "threads-over-cores",
    "no-speedup",
    "no-speedup-on-device",
    "batch-size-not-measured",
    "stopped",
    "no-instructions",
    "saved-level",
    "operators-on-cpu",
    "built-on-other-gpu",
    "no-gpu",
    "no-runtime",
    "over-the-peak",
    "disturbed",
    "waited-for-processors",
    "few-samples",
    "no-float-anchor",
    "confirmed",
    "operators-not-compared",
    "other",
]
# Why a row has no speed-up over the baseline.
NoSpeedup = Literal[
    "baseline-not-beside", "baseline-failed", "not-fit", "not-fit-together", "launches-disagree"
]

_P = ParamSpec("_P")


class Flag(Result):
    """A remark about a figure: its kind, the numbers in it, and a sentence.

    `figures` are the numbers that belong to the `kind`; `text` is made of them. Raises `ValueError`
    for figures of another kind. A kind that only a newer optcli knows is read as `other` with its text.
    """

    kind: FlagKind
    figures: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _with_figures_of_its_kind(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if value.get("kind") not in get_args(FlagKind) and isinstance(value.get("text"), str):
            value = {"kind": "other", "figures": {"said": value["text"]}}
        if value.get("kind") not in get_args(FlagKind):
            return value
        checked = _figures_of(value["kind"]).model_validate(value.get("figures", {}))
        return {"kind": value["kind"], "figures": checked.model_dump(exclude_none=True)}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """The flag in words."""
        return _KINDS[self.kind].sentence(**self.figures)

    @property
    def summary(self) -> str:
        """What several flags of the kind have in common, in words; a kind without one: its text."""
        summary = _KINDS[self.kind].summary
        return self.text if summary is None else summary.format(**self.figures)


@dataclass(frozen=True)
class _Kind:
    sentence: Callable[..., str]
    summary: str | None


_KINDS: dict[FlagKind, _Kind] = {}


def _kind(
    name: FlagKind, summary: str | None = None
) -> Callable[[Callable[_P, str]], Callable[_P, Flag]]:
    """Make a sentence the kind `name`; `summary` may name figures in braces."""

    def made(sentence: Callable[_P, str]) -> Callable[_P, Flag]:
        _KINDS[name] = _Kind(sentence, summary)

        @wraps(sentence)
        def flag(*args: _P.args, **figures: _P.kwargs) -> Flag:
            return Flag(kind=name, figures=signature(sentence).bind(*args, **figures).arguments)

        return flag

    return made


@cache
def _figures_of(kind: FlagKind) -> type[BaseModel]:
    parameters = signature(_KINDS[kind].sentence, eval_str=True).parameters.values()
    fields: dict[str, Any] = {
        each.name: (each.annotation, ... if each.default is Parameter.empty else each.default)
        for each in parameters
    }
    return create_model("Figures", **fields)


@_kind("too-few-calls", "p{percentile} n/a")
def too_few_calls(percentile: int, calls: int, needed: int) -> str:
    """A percentile is not known: so many calls are `needed` for it, and `calls` count."""
    return f"p{percentile} n/a (n={calls}, needs {needed})"


@_kind("fluctuating", "fluctuating (the middle half of the calls spreads over 20 % of the median)")
def fluctuating(spread: float) -> str:
    """Calls differ: `spread` is their interquartile range over the median."""
    return f"fluctuating (IQR/median {_percent(spread)})"


@_kind(
    "environment-not-fit",
    "environment not fit (too few launches in which the machine was quiet)",
)
def environment_not_fit(
    spread: float | None = None, waited: float | None = None, apart: float | None = None
) -> str:
    """The machine was too busy for these times to decide anything.

    Only figures beyond their bar are there: `spread` as above, `waited` the share of the time in which
    a thread that was ready had no processor, `apart` how many times the best launch's median the
    slowest launch's is.
    """
    causes = [] if spread is None else [f"IQR/median {_percent(spread)}"]
    causes += [] if waited is None else [f"waiting for a processor {_percent(waited)}"]
    causes += [] if apart is None else [f"launches {apart:.2g} times apart"]
    return f"environment not fit ({', '.join(causes or ['in too many launches'])})"


@_kind("rounds-not-counted", "rounds not counted (the machine was not quiet in them)")
def rounds_not_counted(left_out: int, rounds: int) -> str:
    """Of all `rounds`, so many do not count."""
    return f"not counted: {left_out} of {rounds} rounds, the machine was not quiet"


@_kind("noisy", "noisy (other work took over 8 % of the time)")
def noisy(lost: float, switches: int = 0, steal_s: float = 0.0, waited_s: float = 0.0) -> str:
    """Other work took the share `lost` of the timed calls.

    By involuntary context `switches`, seconds stolen by the hypervisor, seconds of waiting.
    """
    causes = [f"{switches} involuntary context switches"] if switches else []
    causes += [f"{steal_s:.2f} s stolen by the hypervisor"] if steal_s else []
    causes += [f"{waited_s:.2f} s waiting for a processor"] if waited_s >= 0.005 else []
    return f"noisy: {_percent(lost)} of the time lost ({', '.join(causes)})"


@_kind("throttled", "throttled (the CPU quota of its control group stopped it)")
def throttled(seconds: float, quota: float | None = None) -> str:
    """The CPU quota, in cores, stopped what was measured here for so many seconds in all."""
    size = "" if quota is None else f" of {quota:.3g} cores"
    return f"throttled: a CPU quota{size} stopped the processes for {seconds:.1f} s in all"


@_kind("unsteady", "unsteady (calls were still getting faster or slower after warming up)")
def unsteady(launches: int, total: int) -> str:
    """In so many launches of the `total` calls were not steady after the warm-up."""
    return f"unsteady: {_launches(launches, total)} not steady after warming up"


@_kind("fewer-launches", "fewer launches than planned")
def fewer_launches(launches: int, planned: int) -> str:
    """Fewer launches were measured than planned."""
    return f"fewer launches: {launches} of {planned}"


@_kind("time-cap", "time cap (fewer rounds than planned)")
def time_cap(rounds: int, planned: int, launches: int, total: int) -> str:
    """Time ran out in so many launches of the `total`: the shortest has `rounds` of those `planned`."""
    where = f" in {_launches(launches, total)}" if total > 1 else ""
    return f"time cap: {rounds} of {planned} rounds{where}"


@_kind("other-thread-count")
def other_thread_count(threads: int, wanted: int) -> str:
    """The runtime used another number of threads than it was told to."""
    return f"ran with {threads} threads, wanted {wanted}"


@_kind("restless", "restless (it computed while others were timed)")
def restless(share: float) -> str:
    """Its process computed between its turns: processor time over the others' timed calls."""
    return f"restless: it computed {_percent(share)} of the time in which others were timed"


@_kind("threads-over-cores")
def threads_over_cores(threads: int, cores: int) -> str:
    """More threads than cores: its own threads wait for each other."""
    return f"{threads} threads on {cores} cores wait for each other: what other work cost is not known"


@_kind("no-speedup", "no speed-up")
def no_speedup(
    why: NoSpeedup,
    baseline: str | None = None,
    unfit: tuple[str, ...] | None = None,
    launches: int | None = None,
) -> str:
    """A row has no ratio to the `baseline`. `unfit` names those for which the machine was not fit.

    `launches` counts those that both sides have.
    """
    reasons: dict[NoSpeedup, str] = {
        "baseline-not-beside": f"the baseline {baseline} could not be measured beside it",
        "baseline-failed": f"the baseline {baseline} failed",
        "not-fit": f"the machine was not fit for {' and '.join(unfit or ())} in {launches} launches",
        "not-fit-together": f"the machine was not quiet for both at once in {launches} launches",
        "launches-disagree": f"launches disagree in {launches} launches",
    }
    return f"no speed-up: {reasons[why]}"


@_kind("no-speedup-on-device", "no speed-up on the device")
def no_speedup_on_device(baseline: str) -> str:
    """The `baseline` computed nothing on the device."""
    return f"no speed-up on the device: nothing of the baseline {baseline} ran there"


@_kind("batch-size-not-measured", "batch size {batch_size} not measured")
def batch_size_not_measured(batch_size: int, reason: str) -> str:
    """A batch size that was asked for has no row."""
    return f"batch size {batch_size} not measured: {reason}"


@_kind("stopped")
def stopped(error: str) -> str:
    """It failed on the way: rows are of what was measured before."""
    return error


@_kind("no-instructions")
def no_instructions(precision: str) -> str:
    """The CPU has no instructions for the precision of autocast."""
    return (
        f"autocast {precision}: this CPU has no {precision} instructions; it computes in {precision},"
        " but slowly"
    )


@_kind("saved-level")
def saved_level(level: str) -> str:
    """ONNX Runtime's optimization level is that of the saved file, not the one asked for."""
    return f"optimized to the level {level} when it was saved, whatever is asked"


@_kind("operators-on-cpu")
def operators_on_cpu(operators: int, total: int) -> str:
    """So many of the `total` operators are left to the CPU."""
    return f"{operators} of {total} operators run on the CPU, with copies in between"


@_kind("built-on-other-gpu")
def built_on_other_gpu(built_on: str, gpu: str) -> str:
    """An engine runs on another model of GPU than the one that its tactics were timed on."""
    return f"the engine was built on {built_on} and runs on {gpu}: it may be slower there"


@_kind("no-gpu")
def no_gpu() -> str:
    """An artifact was built and not run: this machine has no GPU."""
    return "no GPU"


@_kind("no-runtime")
def no_runtime() -> str:
    """An artifact was built and not run: its runtime is not installed here."""
    return "no runtime"


@_kind("over-the-peak")
def over_the_peak(share: float) -> str:
    """More than the machine's peak was reached: `share` of it."""
    return (
        f"{share:.2f} of the peak cannot be: operations are miscounted, or the peak was measured too"
        " low (optcli roofline --remeasure)"
    )


@_kind("disturbed")
def disturbed() -> str:
    """A share of the peak comes from times of a machine that was not fit."""
    return "other work disturbed the times: on a quiet machine it comes nearer to the limit"


@_kind("waited-for-processors")
def waited_for_processors(waited: float) -> str:
    """Threads of a profile were ready and had no processor, seconds of all for each of its calls'."""
    return (
        "environment not fit: other work had the processors, its threads together waited for them"
        f" {waited:.1f} s for each second of its calls"
    )


@_kind("few-samples")
def few_samples(samples: int, margin: float, needed: int, more: bool = False) -> str:
    """An evaluation set is too small for its `margin`, a fraction.

    About so many are `needed`, in three digits; where `more` is true, more than that.
    """
    return (
        f"{samples} samples are few for a margin of {100 * margin:.2f} points: to tell it for others"
        f" than these takes about {'more than ' if more else ''}{needed:,}"
    )


@_kind("no-float-anchor")
def no_float_anchor(variant: str) -> str:
    """Accuracy was compared with no float `variant`."""
    return (
        "no anchor against small losses that add up: the float variant"
        f" {variant} was built on neither side"
    )


@_kind("confirmed")
def confirmed() -> str:
    """What failed in the gate was measured twice."""
    return "a failure was measured again, independently"


@_kind("operators-not-compared")
def operators_not_compared(error: str) -> str:
    """The gate could not profile the two sides."""
    return f"operators are not compared: {error}"


@_kind("other")
def other(said: str) -> str:
    """What another optcli said in words alone."""
    return said


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _launches(count: int, total: int) -> str:
    return f"{count} of {total} launches" if total > 1 else f"{count} launch"
