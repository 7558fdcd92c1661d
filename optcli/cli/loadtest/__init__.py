"""`optcli loadtest`: a running server under traffic, two servers side by side, or drift of inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from optcli.cli import options
from optcli.cli.loadtest import load
from optcli.cli.progress import Progress
from optcli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from optcli.serving.loadtest import Options


@dataclass(frozen=True)
class _ShadowOptions:
    """How the second server is compared; None: as by default."""

    shadow: str | None = options.option(
        "--shadow",
        metavar="SHARE",
        help="Share of the requests that SECOND gets as well.  [default: 10%]",
    )
    agreement: str | None = options.option(
        "--agreement",
        metavar="SHARE",
        help="Share of the samples on which SECOND must give the same answer.  [default: 90%]",
    )


def _require_no_shadow(shadow: _ShadowOptions) -> None:
    """Raise `UsageError` for what needs a second server."""
    for option, value in (("--shadow", shadow.shadow), ("--agreement", shadow.agreement)):
        if value is not None:
            raise UsageError("there is no second server", place=option, hint="name two servers")


def compared(target: str, second: str, shadow: _ShadowOptions, given: Options) -> load.LoadtestAnswer:
    """Send traffic to both servers and compare them."""
    from optcli.report.loadtest import canary_document, canary_junit
    from optcli.serving.loadtest import Shadow, canary_test

    split = Shadow(
        share=load.positive(load.share(shadow.shadow or "10%", "--shadow"), "--shadow"),
        agreement=load.share(shadow.agreement or "90%", "--agreement"),
    )
    with Progress() as progress:
        canary = canary_test(target, second, split, given, progress)
    document, junit = canary_document(canary), canary_junit(canary)
    return load.LoadtestAnswer(canary.to_json(), document, junit, canary.outcome)


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
@options.group("promise", load.PromiseOptions)
@options.group("traffic", load.TrafficOptions)
@options.group("search", load.SearchOptions)
@options.group("shadow", _ShadowOptions)
@click.option(
    "--drift",
    is_flag=True,
    help="Send nothing: compare the inputs that the server has seen with the calibration data.",
)
@options.group("server", load.TestedServerOptions)
@options.trust
@options.store
@click.option(
    "--out",
    type=options.OUT_FOLDER,
    metavar="FOLDER",
    help="Write report.json, report.html, report.md and junit.xml there.",
)
@options.output
def command(
    target: str,
    second: str | None,
    promise: load.PromiseOptions,
    traffic: load.TrafficOptions,
    search: load.SearchOptions,
    shadow: _ShadowOptions,
    drift: bool,
    server: load.TestedServerOptions,
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
        answer = _drift(target, server.model)
    else:
        given = load.options_of(target, promise, traffic, search, server)
        load.require_own([target, second or target], store, trust=trust)
        if second is None:
            _require_no_shadow(shadow)
            answer = load.tested(target, given)
        else:
            load.require_no_search(search)
            answer = compared(target, second, shadow, given)
    load.give(answer, out, as_json=as_json)
    return ExitCode.of(answer.outcome)


def _require_no_traffic() -> None:
    """Raise `UsageError` for an option that says how to send traffic."""
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") == ParameterSource.COMMANDLINE
        if given and option.name not in _OF_DRIFT:
            place = option.opts[0] if option.opts[0].startswith("-") else option.make_metavar(context)
            raise UsageError("--drift sends no traffic", place=place, hint="leave it out")


def _drift(target: str, model: str | None) -> load.LoadtestAnswer:
    from optcli.report import drift as forms
    from optcli.serving.drift.comparing import drift_of

    drift = drift_of(target, model)
    return load.LoadtestAnswer(
        drift.to_json(), forms.document(drift), forms.junit(drift), drift.outcome
    )
