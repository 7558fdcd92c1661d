"""`optcli loadtest`: a running server under traffic, held to its promise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from optcli.cli import options
from optcli.cli.progress import Progress
from optcli.errors import ExitCode, UsageError
from optcli.errors.paths import shown

if TYPE_CHECKING:
    from optcli.results.document import Document

# What goes with --drift, which sends nothing.
_OF_DRIFT = ("target", "drift", "model", "out", "as_json", "verbose")


@click.command(
    "loadtest",
    epilog=options.examples(
        "optcli loadtest deployed/ --rate 200 --slo p95=120ms",
        "optcli loadtest released/ candidate/ --shadow 10%",
    ),
)
@click.argument("target", metavar="FOLDER|URL")
@click.argument("second", required=False, metavar="[SECOND]")
@click.option(
    "--shadow",
    metavar="SHARE",
    help="Share of the requests that SECOND gets as well.  [default: 10%]",
)
@click.option(
    "--agreement",
    metavar="SHARE",
    help="Share of the samples on which SECOND must give the same answer.  [default: 90%]",
)
@click.option(
    "--drift",
    is_flag=True,
    help="Send nothing: compare the inputs that the server has seen with the calibration data.",
)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    help="Requests a second; may be repeated. --find-limit begins there.  [default: the plan's]",
)
@click.option(
    "--slo",
    multiple=True,
    metavar="P=TIME",
    help="The promise to test: p95=120ms, or one for p50 or p99.  [default: the plan's]",
)
@click.option("--error-budget", help="Share of the requests that may fail.  [default: 0.1%]")
@click.option("--find-limit", is_flag=True, help="Raise the rate until the promise breaks.")
@click.option(
    "--calibrate",
    is_flag=True,
    help="First measure call times by batch size and the time beside the model, and store both.",
)
@click.option(
    "--arrivals",
    default="poisson",
    show_default=True,
    help="How requests come: poisson, constant, gamma:CV2, bursts:BURST_PER_S,BASE,BURST, trace:FILE."
    " gamma:4 is burstier than poisson, which is gamma:1.",
)
@click.option(
    "--priority",
    multiple=True,
    metavar="NAME=SHARE",
    help="Share of the requests by priority, the most urgent first.  [default: the bundle's]",
)
@click.option(
    "--seconds",
    help="Length of each load: all its windows together.  [default: long enough to accept]",
)
@click.option(
    "--windows",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How many windows each load has, each with percentiles of its own.",
)
@click.option(
    "--settle",
    default="5s",
    show_default=True,
    help="How long each load runs before its windows begin.",
)
@click.option(
    "--timeout",
    default="10s",
    show_default=True,
    help="A request that has no answer after this time has failed.",
)
@click.option(
    "--encoding",
    type=click.Choice(["binary", "json", "image"]),
    default="binary",
    show_default=True,
    help="How inputs are sent: tensors, or the bytes of image files.",
)
@click.option(
    "--images",
    type=options.FOLDER,
    metavar="FOLDER",
    help="JPEG and PNG files to send, beside a bundle's golden image.",
)
@click.option(
    "--recipe",
    type=options.FILE,
    metavar="FILE",
    help="Send samples of this recipe's data. With SECOND they are compared, and its metric says which"
    " output holds scores of classes.  [default with SECOND: the first bundle's]",
)
@click.option(
    "--golden",
    type=options.FOLDER,
    metavar="FOLDER",
    help="Send the golden request that `optcli deploy` wrote there; answers must match its response.",
)
@click.option(
    "--model", metavar="NAME", help="The model on the server, where the URL does not name it."
)
@click.option(
    "--plan",
    type=options.FILE,
    metavar="FILE",
    help="For a server at a URL: its plan, which has the promise, the rate and the prediction.",
)
@click.option(
    "--calibration",
    type=options.OUT_FILE,
    metavar="FILE",
    help="The file of the calibration.  [default: calibration.json in the bundle]",
)
@click.option(
    "--with-cache",
    is_flag=True,
    help="Leave the cache of answers of a FOLDER switched on: it answers repeated samples.",
)
@click.option(
    "--cpus", type=click.IntRange(1), help="How many processors the replicas of a FOLDER may take."
)
@click.option(
    "--model-cpus",
    metavar="LIST",
    help="Processors for the model's replicas of a FOLDER alone, by number: 0, or 0,1.",
)
@click.option("--client-cpus", metavar="LIST", help="Processors of the client by number: 1, or 2,3.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the arrivals."
)
@click.option(
    "--out",
    type=options.OUT_FOLDER,
    metavar="FOLDER",
    help="Write report.json, report.html, report.md and junit.xml there.",
)
@options.trust
@options.store
@options.as_json
@options.verbose
def command(
    target: str,
    second: str | None,
    shadow: str | None,
    agreement: str | None,
    drift: bool,
    rates: tuple[str, ...],
    slo: tuple[str, ...],
    error_budget: str | None,
    find_limit: bool,
    calibrate: bool,
    arrivals: str,
    priority: tuple[str, ...],
    seconds: str | None,
    windows: int,
    settle: str,
    timeout: str,
    encoding: Literal["binary", "json", "image"],
    images: Path | None,
    recipe: Path | None,
    golden: Path | None,
    model: str | None,
    plan: Path | None,
    calibration: Path | None,
    with_cache: bool,
    cpus: int | None,
    model_cpus: str | None,
    client_cpus: str | None,
    seed: int,
    out: Path | None,
    trust: bool,
    store: Path | None,
    as_json: bool,
) -> int:
    """Send traffic to a server and say whether it keeps its promise.

    The server is a bundle of `optcli deploy --target ray`, which optcli starts for the test, or one at
    a URL that speaks the Open Inference Protocol v2. optcli sends each request at its planned time,
    whether or not earlier ones were answered, and measures latency from that time. It checks the
    answers under load. The report shows what the plan predicts beside what was measured.

    With a SECOND server, the first gets all requests and SECOND a share of the same ones. The answer is
    to promote, hold or reject SECOND: by the agreement of its outputs, its errors and its latency.

    With --drift optcli sends no traffic. It compares the inputs that a server has seen with the data
    that its model was calibrated with. Deploy the bundle with --sample-inputs for that.

    The exit code is 0 if the promise is kept, 1 if it is broken, an answer is wrong or an input
    drifted, 5 if the load or the inputs cannot tell. It needs the extra `serve`.
    """
    if drift:
        _require_no_traffic()
        return _drift(target, model, out, as_json)
    from optcli.serving import own_bundles
    from optcli.serving import quantities as q
    from optcli.serving.loadtest import Options, Shadow, canary_test, load_test

    if plan is not None and "://" not in target:
        raise UsageError("a bundle has its own plan", place="--plan", hint="leave it out")
    if with_cache and "://" in target:
        raise UsageError(
            "a server at a URL keeps its cache as it is", place="--with-cache", hint="leave it out"
        )
    asked = Options(
        rates_per_s=tuple(_positive(q.number(each, "--rate"), "--rate") for each in rates),
        slo_ms={
            name.removesuffix("_ms"): _positive(ms, "--slo")
            for name, ms in q.promise(slo, "--slo").items()
        },
        error_budget=None if error_budget is None else _share(error_budget, "--error-budget"),
        arrivals=arrivals,
        priorities=q.priorities(priority, "--priority"),
        seed=seed,
        seconds=None if seconds is None else _positive(q.seconds(seconds, "--seconds"), "--seconds"),
        windows=windows,
        settle_s=q.seconds(settle, "--settle"),
        timeout_s=_positive(q.seconds(timeout, "--timeout"), "--timeout"),
        find_limit=find_limit,
        calibrate=calibrate,
        encoding=encoding,
        model=model,
        plan=plan,
        recipe=recipe,
        golden=golden,
        images=images,
        calibration=calibration,
        with_cache=with_cache,
        cpus=cpus,
        model_cpus=_model_processors(model_cpus, target),
        client_cpus=_processors(client_cpus, "--client-cpus"),
    )
    from optcli.report import loadtest as forms
    from optcli.report.loadtest import canary as canary_forms
    from optcli.store import Store

    for folder in (each for each in (target, second) if each is not None and "://" not in each):
        own_bundles.require_own(Path(folder), Store(Store.default_root(store)), trust=trust)
    if second is None:
        for option, value in (("--shadow", shadow), ("--agreement", agreement)):
            if value is not None:
                raise UsageError("there is no second server", place=option, hint="name two servers")
        with Progress() as progress:
            test = load_test(target, asked, progress)
        _give(test.to_json(), forms.document(test), forms.junit(test), out, as_json)
        return ExitCode.of(test.outcome)
    for option, is_given in (
        ("--find-limit", find_limit),
        ("--calibrate", calibrate),
        ("--priority", bool(priority)),
    ):
        if is_given:
            raise UsageError("it is for one server", place=option, hint="name one server alone")
    split = Shadow(
        share=_positive(_share(shadow or "10%", "--shadow"), "--shadow"),
        agreement=_share(agreement or "90%", "--agreement"),
    )
    with Progress() as progress:
        canary = canary_test(target, second, split, asked, progress)
    document, junit = canary_forms.document(canary), canary_forms.junit(canary)
    _give(canary.to_json(), document, junit, out, as_json)
    return ExitCode.of(canary.outcome)


def _require_no_traffic() -> None:
    """Raise `UsageError` for an option that says how to send traffic."""
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") == ParameterSource.COMMANDLINE
        if given and option.name not in _OF_DRIFT:
            place = option.opts[0] if option.opts[0].startswith("-") else option.make_metavar(context)
            raise UsageError("--drift sends no traffic", place=place, hint="leave it out")


def _drift(target: str, model: str | None, out: Path | None, as_json: bool) -> int:
    from optcli.report.loadtest import drift as forms
    from optcli.serving.drift.comparing import drift_of

    comparison = drift_of(target, model)
    document, junit = forms.document(comparison), forms.junit(comparison)
    _give(comparison.to_json(), document, junit, out, as_json)
    return ExitCode.of(comparison.outcome)


def _positive(value: float, place: str) -> float:
    if value <= 0:
        raise UsageError(f"found {value:g}, wanted more than 0", place=place, hint="give a larger one")
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


def _share(text: str, place: str) -> float:
    from optcli.serving import quantities

    value = quantities.share(text, place)
    if value > 1:
        raise UsageError(f"found {text!r}, wanted at most 100%", place=place, hint="such as 10% or 0.1")
    return value


def _usable() -> set[int]:
    import os

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


def _give(json: str, document: Document, junit: str, out: Path | None, as_json: bool) -> None:
    """Write every form into `out`, and print the text, or the JSON."""
    from optcli.report import html, markdown_text, terminal

    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot be made: {error.strerror}", place=str(out), hint="name another folder"
            ) from error
        options.write(out / "report.json", json + "\n")
        options.write(out / "report.html", html.html(document))
        options.write(out / "report.md", markdown_text.markdown(document))
        options.write(out / "junit.xml", junit)
    click.echo(json + "\n" if as_json else terminal.text(document), nl=False)
    if out is not None:
        click.echo(f"wrote {shown(out)}", err=True)
