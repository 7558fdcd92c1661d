"""Flags as reports of schema 1 have them: sentences, read back into kinds and figures."""

from __future__ import annotations

import re
from typing import Any

# A group is a figure by its name, behind `percent_` a share, written behind `names_` with "and".
_TEXTS = {
    "too-few-calls": r"p(?P<percentile>\d+) n/a \(n=(?P<calls>\d+), needs (?P<needed>\d+)\)",
    "fluctuating": r"fluctuating \(IQR/median (?P<percent_spread>\d+) %\)",
    "environment-not-fit": (
        r"environment not fit \((?:in too many launches|(?:IQR/median (?P<percent_spread>\d+) %)?"
        r"(?:, )?(?:waiting for a processor (?P<percent_waited>\d+) %)?"
        r"(?:, )?(?:launches (?P<apart>\d+(?:\.\d+)?(?:e\+\d\d)?) times apart)?)\)"
    ),
    "rounds-not-counted": (
        r"not counted: (?P<left_out>\d+) of (?P<rounds>\d+) rounds, the machine was not quiet"
    ),
    "noisy": (
        r"noisy: (?P<percent_lost>\d+) % of the time lost \("
        r"(?:(?P<switches>\d+) involuntary context switches)?"
        r"(?:, )?(?:(?P<steal_s>\d+\.\d+) s stolen by the hypervisor)?"
        r"(?:, )?(?:(?P<waited_s>\d+\.\d+) s waiting for a processor)?\)"
    ),
    "unsteady": (
        r"unsteady: (?P<launches>\d+)(?: of (?P<total>\d+))? launch(?:es)? not steady after warming up"
    ),
    "fewer-launches": r"fewer launches: (?P<launches>\d+) of (?P<planned>\d+)",
    "time-cap": (
        r"time cap: (?P<rounds>\d+) of (?P<planned>\d+) rounds"
        r"(?: in (?P<launches>\d+) of (?P<total>\d+) launches)?"
    ),
    "other-thread-count": r"ran with (?P<threads>\d+) threads, wanted (?P<wanted>\d+)",
    "restless": (
        r"restless: it computed (?P<percent_share>\d+) % of the time in which others were timed"
    ),
    "threads-over-cores": (
        r"(?P<threads>\d+) threads on (?P<cores>\d+) cores wait for each other:"
        r" what other work cost is not known"
    ),
    "no-speedup-on-device": (
        r"no speed-up on the device: nothing of the baseline (?P<baseline>.+) ran there"
    ),
    "batch-size-not-measured": r"batch size (?P<batch_size>\d+) not measured: (?P<reason>.+)",
    "no-instructions": (
        r"autocast (?P<precision>\w+): this CPU has no \w+ instructions; it computes in \w+, but slowly"
    ),
    "saved-level": r"optimized to the level (?P<level>.+) when it was saved, whatever is asked",
    "operators-on-cpu": (
        r"(?P<operators>\d+) of (?P<total>\d+) operators run on the CPU, with copies in between"
    ),
    "built-on-other-gpu": (
        r"the engine was built on (?P<built_on>.+) and runs on (?P<gpu>.+): it may be slower there"
    ),
    "no-gpu": "no-gpu",
    "no-runtime": "no-runtime",
    "over-the-peak": (
        r"(?P<share>\d+\.\d+) of the peak cannot be: operations are miscounted, or the peak was"
        r" measured too low \(optcli roofline --remeasure\)"
    ),
    "disturbed": "other work disturbed the times: on a quiet machine it comes nearer to the limit",
}
_NO_SPEEDUP = {
    "baseline-not-beside": r"the baseline (?P<baseline>.+) could not be measured beside it",
    "baseline-failed": r"the baseline (?P<baseline>.+) failed",
    "not-fit": r"the machine was not fit for (?P<names_unfit>.+) in (?P<launches>\d+) launches",
    "not-fit-together": r"the machine was not quiet for both at once in (?P<launches>\d+) launches",
    "launches-disagree": r"launches disagree in (?P<launches>\d+) launches",
}
# What a text leaves out where there was one launch.
_ONE_LAUNCH = {"launches": 1, "total": 1}
# Longer texts are none of ours, and some patterns take the square of the length.
_LONGEST = 1000


def read(text: str) -> tuple[str, dict[str, Any]]:
    """Kind and figures of a flag of schema 1; `other` with what it `said` where it is none of ours."""
    if len(text) > _LONGEST:
        return "other", {"said": text}
    for why, pattern in _NO_SPEEDUP.items():
        if match := re.fullmatch(f"no speed-up: {pattern}", text, re.ASCII | re.DOTALL):
            return "no-speedup", {"why": why, **_figures(match)}
    for kind, pattern in _TEXTS.items():
        if match := re.fullmatch(pattern, text, re.ASCII | re.DOTALL):
            left_out = _ONE_LAUNCH if kind in ("unsteady", "time-cap") else {}
            return kind, {**left_out, **_figures(match)}
    return "other", {"said": text}


def _figures(match: re.Match[str]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, value in match.groupdict().items():
        if value is None:
            continue
        if name.startswith("percent_"):
            figures[name.removeprefix("percent_")] = int(value) / 100
        elif name.startswith("names_"):
            figures[name.removeprefix("names_")] = value.split(" and ")
        else:
            figures[name] = value
    return figures
