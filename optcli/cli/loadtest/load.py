"""What `optcli loadtest` asks of one server: the promise, the traffic, its limit, its call times."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from optcli.cli import options
from optcli.cli.progress import Progress
from optcli.errors import UsageError, raised_as, shown_path, strerror

if TYPE_CHECKING:
    from optcli.results.document import Document
    from optcli.results.outcomes import Outcome
    from optcli.serving.loadtest import Options


@dataclass(frozen=True)
class LoadtestAnswer:
    """What a test gives, whichever it is: as JSON, as a document and as JUnit XML."""

    json: str
    document: Document
    junit: str
    outcome: Outcome


@dataclass(frozen=True)
class PromiseOptions:
    """What the server is held to."""

    slo: tuple[str, ...] = options.option(
        "--slo",
        multiple=True,
        metavar="P=TIME",
        help="The promise to test: p95=120ms, or one for p50 or p99.  [default: the plan's]",
    )
    error_budget: str | None = options.option(
        "--error-budget", help="Share of the requests that may fail.  [default: 0.1%]"
    )
    plan: Path | None = options.option(
        "--plan",
        type=options.FILE,
        metavar="FILE",
        help="For a server at a URL: its plan, which has the promise, the rate and the prediction.",
    )


@dataclass(frozen=True)
class TrafficOptions:
    """How many requests are sent, when, and what they hold."""

    rates: tuple[str, ...] = options.option(
        "--rate",
        multiple=True,
        help="Requests a second; may be repeated. --find-limit begins there.  [default: the plan's]",
    )
    arrivals: str = options.option(
        "--arrivals",
        default="poisson",
        show_default=True,
        help="How requests come: poisson, constant, gamma:CV2, bursts:BURST_PER_S,BASE,BURST."
        " gamma:4 is burstier than poisson, which is gamma:1.",
    )
    seconds: str | None = options.option(
        "--seconds",
        help="Length of each load: all its windows together.  [default: long enough to accept]",
    )
    windows: int = options.option(
        "--windows",
        type=click.IntRange(1),
        default=3,
        show_default=True,
        help="How many windows each load has, each with percentiles of its own.",
    )
    settle: str = options.option(
        "--settle",
        default="5s",
        show_default=True,
        help="How long each load runs before its windows begin.",
    )
    timeout: str = options.option(
        "--timeout",
        default="10s",
        show_default=True,
        help="A request that has no answer after this time has failed.",
    )
    seed: int = options.option(
        "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the arrivals."
    )
    encoding: Literal["binary", "json", "image"] = options.option(
        "--encoding",
        type=click.Choice(["binary", "json", "image"]),
        default="binary",
        show_default=True,
        help="How inputs are sent: tensors, or the bytes of image files.",
    )
    images: Path | None = options.option(
        "--images",
        type=options.FOLDER,
        metavar="FOLDER",
        help="JPEG and PNG files to send, beside a bundle's golden image.",
    )
    recipe: Path | None = options.option(
        "--recipe",
        type=options.FILE,
        metavar="FILE",
        help="Send samples of this recipe's data. With SECOND they are compared, and its metric says"
        " which output holds scores of classes.  [default with SECOND: the first bundle's]",
    )
    golden: Path | None = options.option(
        "--golden",
        type=options.FOLDER,
        metavar="FOLDER",
        help="Send the golden request that `optcli deploy` wrote there; answers must match its"
        " response.",
    )


@dataclass(frozen=True)
class TestedServerOptions:
    """What is said of the server; all but `model` is for one that optcli starts for the test."""

    model: str | None = options.option(
        "--model", metavar="NAME", help="The model on the server, where the URL does not name it."
    )
    with_cache: bool = options.option(
        "--with-cache",
        is_flag=True,
        help="Leave the cache of answers of a FOLDER switched on: it answers repeated samples.",
    )
    cpus: int | None = options.option(
        "--cpus",
        type=click.IntRange(1),
        help="How many processors the replicas of a FOLDER may take.",
    )
    model_cpus: str | None = options.option(
        "--model-cpus",
        metavar="LIST",
        help="Processors for the model's replicas of a FOLDER alone, by number: 0, or 0,1.",
    )
    client_cpus: str | None = options.option(
        "--client-cpus", metavar="LIST", help="Processors of the client by number: 1, or 2,3."
    )


def options_of(
    target: str,
    promise: PromiseOptions,
    traffic: TrafficOptions,
    search: SearchOptions,
    server: TestedServerOptions,
) -> Options:
    """What the load test is asked for. Raises `UsageError` for what cannot be read, or does not fit."""
    from optcli.serving import quantities as q
    from optcli.serving.loadtest import Options

    if promise.plan is not None and "://" not in target:
        raise UsageError("a bundle has its own plan", place="--plan", hint="leave it out")
    if server.with_cache and "://" in target:
        raise UsageError(
            "a server at a URL keeps its cache as it is", place="--with-cache", hint="leave it out"
        )
    budget, length = promise.error_budget, traffic.seconds
    return options.settings_of(
        Options,
        *(promise, traffic, search, server),
        rates_per_s=tuple(positive(q.number(each, "--rate"), "--rate") for each in traffic.rates),
        slo_ms={
            name.removesuffix("_ms"): positive(ms, "--slo")
            for name, ms in q.promise(promise.slo, "--slo").items()
        },
        error_budget=None if budget is None else share(budget, "--error-budget"),
        seconds=None if length is None else positive(q.seconds(length, "--seconds"), "--seconds"),
        settle_s=q.seconds(traffic.settle, "--settle"),
        timeout_s=positive(q.seconds(traffic.timeout, "--timeout"), "--timeout"),
        model_cpus=_model_processors(server.model_cpus, target),
        client_cpus=_processors(server.client_cpus, "--client-cpus"),
    )


def require_own(targets: Sequence[str], store: Path | None, *, trust: bool) -> None:
    """Raise `TrustError` for a bundle from elsewhere, which starting it would run."""
    from optcli.serving import bundle
    from optcli.store import Store

    for folder in (each for each in targets if "://" not in each):
        bundle.require_own(Path(folder), Store(Store.default_root(store)), trust=trust)


def tested(target: str, given: Options) -> LoadtestAnswer:
    """Send traffic to one server."""
    from optcli.report import loadtest as forms
    from optcli.serving.loadtest import load_test

    with Progress() as progress:
        test = load_test(target, given, progress)
    return LoadtestAnswer(test.to_json(), forms.document(test), forms.junit(test), test.outcome)


def give(answer: LoadtestAnswer, out: Path | None, *, as_json: bool) -> None:
    """Write every form into `out`, and print the text, or the JSON."""
    from optcli.report import html, markdown_text, terminal

    json = answer.json + "\n"
    if out is not None:
        message, hint = "cannot be made", "name another folder"
        with raised_as(UsageError, message, of=OSError, reason=strerror, place=str(out), hint=hint):
            out.mkdir(parents=True, exist_ok=True)
        options.write(out / "report.json", json)
        options.write(out / "report.html", html.html(answer.document))
        options.write(out / "report.md", markdown_text.markdown(answer.document))
        options.write(out / "junit.xml", answer.junit)
    click.echo(json if as_json else terminal.text(answer.document), nl=False)
    if out is not None:
        click.echo(f"wrote {shown_path(out)}", err=True)


def positive(value: float, place: str) -> float:
    """The value. Raises `UsageError` for one that is not above zero."""
    if value <= 0:
        raise UsageError(f"found {value:g}, wanted more than 0", place=place, hint="give a larger one")
    return value


def share(text: str, place: str) -> float:
    """`10%` or `0.1` as a fraction. Raises `UsageError` for more than all."""
    from optcli.serving import quantities

    value = quantities.share(text, place)
    if value > 1:
        raise UsageError(f"found {text!r}, wanted at most 100%", place=place, hint="such as 10% or 0.1")
    return value


def _model_processors(text: str | None, target: str) -> tuple[int, ...]:
    """Processors for the replicas of a server that the load test starts; one is left for the others."""
    place = "--model-cpus"
    chosen = _processors(text, place)
    if chosen and "://" in target:
        raise UsageError(
            "a server at a URL is not started here", place=place, hint="name the bundle's folder"
        )
    if chosen and not _usable() - set(chosen):
        raise UsageError(
            f"found {text!r}, which leaves no processor for the ingress and the client",
            place=place,
            hint="leave at least one",
        )
    return chosen


def _usable() -> set[int]:
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def _processors(text: str | None, place: str) -> tuple[int, ...]:
    """`1` or `2,3`: processors that this process may run on."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    usable = sorted(_usable())
    chosen = tuple(int(part) for part in parts if part.isdecimal())
    if len(chosen) < len(parts) or not set(chosen) <= set(usable):
        raise UsageError(
            f"found {text!r}, wanted processors of this machine",
            place=place,
            hint=f"there are {', '.join(map(str, usable)) or 'none that can be chosen'}",
        )
    return chosen


@dataclass(frozen=True)
class SearchOptions:
    """What is looked for, beside whether the promise is kept."""

    find_limit: bool = options.option(
        "--find-limit", is_flag=True, help="Raise the rate until the promise breaks."
    )
    calibrate: bool = options.option(
        "--calibrate",
        is_flag=True,
        help="First measure call times by batch size and the time beside the model, and store both.",
    )
    calibration: Path | None = options.option(
        "--calibration",
        type=options.OUT_FILE,
        metavar="FILE",
        help="The file of the calibration.  [default: calibration.json in the bundle]",
    )


def require_no_search(search: SearchOptions) -> None:
    """Raise `UsageError` for what only one server can be asked for."""
    for option, given in (("--find-limit", search.find_limit), ("--calibrate", search.calibrate)):
        if given:
            raise UsageError("it is for one server", place=option, hint="name one server alone")
