"""Trials of NNCF's accuracy control: its steps as they come, then its choice built and judged anew."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from optcli import runners, workers
from optcli.accuracy.messages import ScoringRequest
from optcli.accuracy.policies import margin_of
from optcli.artifact import Format
from optcli.errors import OptcliError, UsageError
from optcli.pipeline.decoding import decoding_of
from optcli.results import Accuracy, Estimate
from optcli.results.repair import Trial
from optcli.tuning.control_process import Choice, ControlRequest, News, Step
from optcli.tuning.trying import Trying

__all__ = ["controlled", "require_control"]

STEP = "repair › accuracy control"
_QUANTIZING = "quantize_nncf"


def require_control(quantizing_pass: str) -> None:
    """Raise `UsageError` for a pass that NNCF's accuracy control cannot stand in for."""
    if quantizing_pass != _QUANTIZING:
        raise UsageError(
            f"NNCF's accuracy control repairs what {_QUANTIZING} makes, and the variant is quantized by"
            f" {quantizing_pass}",
            place="--engine",
            hint=f"--engine layers, or {_QUANTIZING} in the variant",
        )


def controlled(
    trying: Trying, first: Trial, judged: Accuracy, trials: int, until: float
) -> tuple[list[Trial], str]:
    """Every trial, `first` included, and why there was no further one; `until` is a monotonic time.

    NNCF's steps are judged as it goes, on the evaluation samples and in the variant's own runner, and
    never inside the bar: it ends with the first that is. That one is built by the recipe's own pass
    with these operators left out, judged and timed as any other trial. Raises `UsageError` for formats
    that NNCF's accuracy control does not read.
    """
    done = [first]
    source, planned = trying.floats()
    if source.format not in (Format.ONNX, Format.OPENVINO):
        raise UsageError(
            f"NNCF's accuracy control works on ONNX and OpenVINO models, and {_QUANTIZING} reads"
            f" {source.format} here",
            place="--engine",
            hint=f"--engine layers, or put export_onnx before {_QUANTIZING}",
        )
    runs = runners.find(trying.runner_name).runs
    own = source.format in runs
    name = trying.runner_name if own else str(runners.DEFAULTS[source.format])
    options = planned.runner_options(trying.threads) if own else {"threads": trying.threads}

    def heard(news: News) -> None:
        if news.step and news.step.floats:
            done.append(_step(trying, len(done), news.step, first, judged))
            trying.observer.finished(f"{STEP} › {done[-1].label}", done[-1].seconds)
        elif news.progress:
            count = f"{news.progress.done} of {news.progress.of} samples"
            trying.observer.progress(STEP, None, f"step {len(done)}: {count}")

    trying.observer.started(STEP)
    recipe = trying.recipe
    request = ControlRequest(
        source=source,
        options=trying.options,
        required=_required(judged, trying),
        trials=trials,
        seconds=until - time.monotonic(),
        runner=name,
        runner_options=options,
        scoring=ScoringRequest(
            inputs=recipe.inputs,
            feeds=recipe.inputs,
            data=recipe.data["evaluation"],
            folder=recipe.folder,
            settings=recipe.accuracy,
            postprocess=decoding_of(recipe, source).known,
        ),
        calibration=recipe.data["calibration"],
        threads=trying.threads,
        seed=recipe.seed,
    )
    try:
        choice = workers.run(
            "optcli.tuning.control_process:control",
            request,
            Choice,
            log=trying.folder / "logs" / f"{trying.variant}.accuracy-control.log",
            environment=runners.find(name).model_validate(options).environment(),
            timeout_s=trying.settings.timeout_s,
            listener=workers.Listener(News, heard),
            confined=() if source.foreign else None,
        )
    except OptcliError as error:
        return done, f"NNCF's accuracy control failed: {error.message}"
    if not choice.floats:
        return done, choice.why
    done = _built(trying, done, choice.floats, first)
    again = "NNCF's choice is outside the bar once the recipe's own pass has built it"
    return done, choice.why if done[-1].inside else again


def _built(trying: Trying, done: list[Trial], floats: Sequence[str], first: Trial) -> list[Trial]:
    """The trials with the last one built anew, by the recipe's own pass."""
    last = done.pop()
    seen = "" if last.value is None else f" ({100 * last.value:.2f} % as NNCF measured it)"
    label = f"NNCF's choice, {_counted(floats)} in float{seen}"
    trying.observer.progress(STEP, None, f"building {label}")
    trial = trying.attempt(last.number, label, _changed(trying, floats), first)
    return [*done, trial]


def _step(trying: Trying, number: int, step: Step, first: Trial, judged: Accuracy) -> Trial:
    sign = -1 if judged.better == "lower" else 1
    lost = None if judged.baseline is None else Estimate(value=sign * (judged.baseline - step.value))
    fewer = None if first.operators is None else max(0, first.operators - step.operators)
    return Trial(
        number=number,
        label=f"step of NNCF's accuracy control, {_counted(step.floats)} in float",
        options=_changed(trying, step.floats),
        value=step.value,
        drop=lost,
        operators=step.operators,
        float_operators=fewer,
        seconds=round(step.seconds, 1),
    )


def _counted(floats: Sequence[str]) -> str:
    return "1 operator" if len(floats) == 1 else f"{len(floats)} operators"


def _changed(trying: Trying, floats: Sequence[str]) -> dict[str, Any]:
    already = list(trying.options.get("ignored_names") or ())
    return {"ignored_names": [*already, *(name for name in floats if name not in already)]}


def _required(judged: Accuracy, trying: Trying) -> float:
    """The metric that the policy accepts, its sign turned where less is better.

    Non-inferiority judges a bound: as much more is asked as the bound now lies beyond the loss.
    """
    settings = trying.recipe.accuracy
    assert settings is not None
    assert judged.baseline is not None
    lower = judged.better == "lower"
    allowed = settings.bar(judged.baseline, lower_is_better=lower)
    if settings.policy == "non-inferiority":
        allowed = margin_of(judged, settings)
        if judged.bounds is not None and judged.bounds.high is not None:
            allowed -= judged.bounds.high - judged.bounds.value
    return (-judged.baseline if lower else judged.baseline) - allowed
