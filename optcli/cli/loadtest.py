"""`optcli loadtest`: a running server under traffic, held to its promise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from optcli.cli import options
from optcli.cli.progress import Progress
from optcli.errors import ExitCode, UsageError
from optcli.paths import shown

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    help="Share of the samples on which SECOND must say the same.  [default: 90%]",
)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    help="Requests a second; may be repeated; where --find-limit begins.  [default: the plan's]",
)
@click.option(
    "--slo",
    multiple=True,
    metavar="P=TIME",
    help="The promise: p50, p95, p99, as p95=120ms.  [default: the plan's]",
)
@click.option("--error-budget", help="Share of the requests that may fail.  [default: 0.1%]")
@click.option("--find-limit", is_flag=True, help="Raise the rate until the promise breaks.")
@click.option(
    "--calibrate",
    is_flag=True,
    help="First find t(B) and the overhead through the running server, and keep them.",
)
@click.option(
    "--arrivals",
    default="poisson",
    show_default=True,
    help="poisson, constant, gamma:CV2, bursts:BURST_PER_S,BASE,BURST, trace:FILE.",
)
@click.option(
    "--priority",
    multiple=True,
    metavar="NAME=SHARE",
    help="Share of the requests by priority, the most urgent first.  [default: the bundle's]",
)
@click.option(
    "--seconds", help="Length of all windows of a load together.  [default: long enough to accept]"
)
@click.option(
    "--windows", type=click.IntRange(1), default=3, show_default=True, help="Windows of a load."
)
@click.option(
    "--settle", default="5s", show_default=True, help="Time of each load that does not count."
)
@click.option(
    "--timeout",
    default="10s",
    show_default=True,
    help="A request without an answer by then has failed.",
)
@click.option(
    "--encoding",
    type=click.Choice(["binary", "json", "image"]),
    default="binary",
    show_default=True,
    help="How inputs are sent: tensors, or the bytes of image files.",
)
@click.option("--compare-encodings", is_flag=True, help="Show what JSON tensors and images cost.")
@click.option("--images", type=options.FOLDER, metavar="FOLDER", help="JPEG and PNG files to send.")
@click.option("--recipe", type=options.FILE, metavar="FILE", help="Send samples of this recipe's data.")
@click.option(
    "--golden",
    type=options.FOLDER,
    metavar="FOLDER",
    help="Send the golden request that `optcli deploy` wrote there, and hold answers to its response.",
)
@click.option(
    "--model", metavar="NAME", help="The model on the server, where the URL does not name it."
)
@click.option(
    "--plan",
    type=options.FILE,
    metavar="FILE",
    help="The plan that a server at a URL was deployed with: it predicts and promises.",
)
@click.option(
    "--calibration",
    type=options.FILE,
    metavar="FILE",
    help="Where the calibration lies.  [default: calibration.json in the bundle]",
)
@click.option("--cpus", type=click.IntRange(1), help="Processors for the server of a FOLDER.")
@click.option("--client-cpus", metavar="LIST", help="Processors for the client, as 1 or 2,3.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the arrivals.")
@click.option(
    "--out",
    type=options.FOLDER,
    metavar="FOLDER",
    help="Write report.json, report.html, report.md and junit.xml there.",
)
@options.as_json
@options.verbose
def command(
    target: str,
    second: str | None,
    shadow: str | None,
    agreement: str | None,
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
    compare_encodings: bool,
    images: Path | None,
    recipe: Path | None,
    golden: Path | None,
    model: str | None,
    plan: Path | None,
    calibration: Path | None,
    cpus: int | None,
    client_cpus: str | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> int:
    """Send traffic to a server and say whether it keeps its promise.

    The server is a bundle of `optcli deploy --target ray`, which is started for the test, or one at a
    URL that speaks the Open Inference Protocol v2. Requests are sent at their planned times, whatever
    becomes of those before, and latency counts from there. Answers are checked under load. What the
    plan predicts stands beside what is measured.

    With a SECOND server, both get the same traffic, SECOND a share of it, and the answer is to promote,
    hold or reject it: by the agreement of its outputs, its errors and its latency.

    The exit code is 0 where the promise is kept, 1 where it is broken or an answer is wrong, 5 where
    the load cannot tell. Needs `pip install 'optcli[serve]'`.
    """
    from optcli.serving import quantities as q
    from optcli.serving.loadtest import Options, Shadow, canary_test, load_test

    if plan is not None and "://" not in target:
        raise UsageError("a bundle has its own plan", place="--plan", hint="leave it out")
    asked = Options(
        rates_per_s=tuple(_positive(q.number(each, "--rate"), "--rate") for each in rates),
        slo_ms={name.removesuffix("_ms"): ms for name, ms in q.promise(slo, "--slo").items()},
        error_budget=None if error_budget is None else q.share(error_budget, "--error-budget"),
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
        compare_encodings=compare_encodings,
        model=model,
        plan=plan,
        recipe=recipe,
        golden=golden,
        images=images,
        calibration=calibration,
        cpus=cpus,
        client_cpus=_processors(client_cpus),
    )
    from optcli.report import loadtest as forms
    from optcli.report.html.canary import canary_page
    from optcli.report.html.loadtest import loadtest_page
    from optcli.report.loadtest import canary as canary_forms

    if second is None:
        for option, value in (("--shadow", shadow), ("--agreement", agreement)):
            if value is not None:
                raise UsageError("there is no second server", place=option, hint="name two servers")
        with Progress() as progress:
            test = load_test(target, asked, progress)
        written = {
            "report.json": test.to_json() + "\n",
            "report.html": loadtest_page(test),
            "report.md": forms.markdown(test),
            "junit.xml": forms.junit(test),
        }
        _give(written, forms.text(test), out, as_json)
        return ExitCode.of(test.outcome)
    for option, is_given in (
        ("--find-limit", find_limit),
        ("--calibrate", calibrate),
        ("--compare-encodings", compare_encodings),
        ("--priority", bool(priority)),
    ):
        if is_given:
            raise UsageError("it is for one server", place=option, hint="name one server alone")
    split = Shadow(
        share=_positive(q.share(shadow or "10%", "--shadow"), "--shadow"),
        agreement=q.share(agreement or "90%", "--agreement"),
    )
    with Progress() as progress:
        found = canary_test(target, second, split, asked, progress)
    written = {
        "report.json": found.to_json() + "\n",
        "report.html": canary_page(found),
        "report.md": canary_forms.markdown(found),
        "junit.xml": canary_forms.junit(found),
    }
    _give(written, canary_forms.text(found), out, as_json)
    return ExitCode.of(found.outcome)


def _positive(value: float, place: str) -> float:
    if value <= 0:
        raise UsageError(f"found {value:g}, wanted more than 0", place=place, hint="give a larger one")
    return value


def _processors(text: str | None) -> tuple[int, ...]:
    """`1` or `2,3`: processors that this process may run on."""
    import os

    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    chosen = tuple(int(part) for part in parts if part.isdecimal())
    if len(chosen) < len(parts) or not set(chosen) <= set(usable):
        raise UsageError(
            f"found {text!r}, wanted processors of this machine",
            place="--client-cpus",
            hint=f"there are {', '.join(map(str, usable)) or 'none that can be chosen'}",
        )
    return chosen


def _give(written: Mapping[str, str], text: str, out: Path | None, as_json: bool) -> None:
    """Write the files into `out`, and print the text, or the JSON."""
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot be made: {error.strerror}", place=str(out), hint="name another folder"
            ) from error
        for name, content in written.items():
            options.write(out / name, content)
    click.echo(written["report.json"] if as_json else text, nl=False)
    if out is not None:
        click.echo(f"wrote {shown(out)}", err=True)
