"""`optcli plan`: from a promise to a serving configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optcli.cli import options, reports, show
from optcli.cli.progress import Progress
from optcli.errors import ExitCode, UsageError, shown_path
from optcli.files import registry

if TYPE_CHECKING:
    from optcli.results.plan import Plan
    from optcli.serving.planning.files import PlanSettings

_CODES = {
    "kept": ExitCode.DONE,
    "not-kept": ExitCode.REJECTED,
    "inconclusive": ExitCode.INCONCLUSIVE,
}


@click.command(
    "plan",
    epilog=options.examples(
        "optcli plan recipe.yaml --variant onnx-int8 --rate 600 --slo p95=120ms",
        'optcli plan --curve "6ms+4ms*b" --rate 200 --slo p95=120ms --html plan.html',
    ),
)
@click.argument(
    "where", required=False, type=click.Path(path_type=Path), metavar="[RECIPE|REPORT|PLAN]"
)
@click.option(
    "--variant", help="The variant of the report to plan for.  [default: the recommended one]"
)
@click.option(
    "--curve", help='Time of a batch by its size: "1:25ms,2:27ms,8:48ms", "6ms+4ms*b", "12ms".'
)
@click.option(
    "--calibration",
    type=options.FILE,
    metavar="FILE",
    help="Curve and overhead that `optcli loadtest --calibrate` found through a running server.",
)
@click.option("--rate", help="Requests a second, such as 600.")
@click.option(
    "--slo", multiple=True, metavar="P=TIME", help="The promise for p50, p95 or p99, such as p95=120ms."
)
@click.option("--error-budget", help="Share of the requests that may be dropped.  [default: 0.1%]")
@click.option(
    "--arrivals",
    help="How requests come: poisson, constant, gamma:CV2, bursts:BURST_PER_S,BASE,BURST."
    " gamma:4 is burstier than poisson, which is gamma:1.  [default: poisson]",
)
@click.option("--overhead", help="Time before and after the model, such as 10ms or 6ms+4ms.")
@click.option(
    "--headroom",
    help="Share of the rate that may come on top and is still carried.  [default: 20%]",
)
@click.option(
    "--utilisation",
    help="Largest load: the rate over what all instances do with full batches.  [default: 0.7]",
)
@click.option(
    "--target",
    type=click.Choice(registry.names("optcli.serving.targets")),
    help="The server to plan for: it decides how requests are batched.  [default: triton]",
)
@click.option("--concurrency", type=click.IntRange(1), help="Calls in parallel inside an instance.")
@click.option("--batch", type=click.IntRange(1), help="Plan with this largest batch.")
@click.option(
    "--wait", help="Plan with this longest wait for a batch, such as 10ms; 0,5ms,25ms compares several."
)
@click.option("--instances", type=click.IntRange(1), help="Plan with this number of instances.")
@click.option(
    "--instances-per-machine",
    type=click.IntRange(1),
    help="Instances on one machine.  [default: 1]",
)
@click.option("--price", help="Price of a machine for an hour, in any currency.")
@click.option(
    "--freshness",
    help="How long it may take until results are needed, such as 8h. With --slo this is for a part.",
)
@click.option("--cache-hit-rate", help="Share of the requests that a prediction cache answers.")
@click.option("--priority", multiple=True, metavar="NAME=SHARE",
              help="For ray: share of the traffic by priority, the most urgent first.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), help="Seed of the simulation.  [default: 0]")
@click.option(
    "--html",
    type=options.OUT_FILE,
    help="Write the plan as a page with its curves to this file.",
)
@options.artifacts
@options.output
def command(
    where: Path | None, html: Path | None, artifacts: Path | None, as_json: bool, **given: Any
) -> int:
    """Turn a promise into a serving configuration: batch size, wait, instances, queue, machines.

    The curve t(B), the time of a batch of B, is what the build of a RECIPE measured (`latency.sweep:
    true`), or --curve. A PLAN is a file with the same settings. Formulas rule out what cannot keep the
    promise. A queueing simulation with several seeds chooses among the rest and predicts p50, p95 and
    p99. With --batch, --wait and --instances it checks the configuration that you name. Without a rate
    it says the largest batch within the promise, and whether to compute in batches or in real time.

    The exit code is 0 if the configuration keeps the promise, 1 if none does, 5 if the curve was
    measured on a busy machine.
    """
    from optcli.serving import planning
    from optcli.serving.planning import files

    build_report = None
    file = where if where is not None and _is_plan(where) else None
    if where is not None and file is None:
        build_report = reports.find(where, artifacts)
    # A calibration has a curve, too: what is wrong with that is said of its option.
    places = _PLACES if given["calibration"] is None else {**_PLACES, "curve": "--calibration"}
    settings: PlanSettings = files.load(file, _keys(given), places)
    if build_report is None and settings.curve is None and settings.report is None:
        build_report = _newest(artifacts, settings)
    with Progress() as progress:
        plan = planning.from_settings(
            settings,
            report=build_report.report if build_report else None,
            file=build_report.path if build_report else None,
            places=places,
            observer=progress,
        )
    _give(plan, html, as_json)
    return _CODES[plan.outcome]


# Options that are keys of a plan file as they stand, and that have another name there.
_AS_GIVEN = (
    *("variant", "curve", "arrivals", "target", "concurrency", "batch", "instances"),
    *("instances_per_machine", "seed"),
)
_RENAMED = {
    "rate_per_s": "--rate",
    "wait_ms": "--wait",
    "price_per_hour": "--price",
    "freshness_s": "--freshness",
    "priorities": "--priority",
}
_SAME = (*_AS_GIVEN, "slo", "overhead", "headroom", "utilisation", "cache_hit_rate")
# What each key of a plan file is called here.
_PLACES = {**{name: f"--{name.replace('_', '-')}" for name in _SAME}, **_RENAMED}


def _keys(given: dict[str, Any]) -> dict[str, Any]:
    """Keys of a plan file that the options say. Raises `UsageError` for text that is no quantity."""
    from optcli.serving import quantities as q

    readers: dict[str, tuple[str, Any]] = {
        "rate": ("rate_per_s", q.number),
        "headroom": ("headroom", q.share),
        "utilisation": ("utilisation", q.share),
        "wait": ("wait_ms", q.waits),
        "price": ("price_per_hour", q.number),
        "freshness": ("freshness_s", q.seconds),
        "cache_hit_rate": ("cache_hit_rate", q.share),
        "overhead": ("overhead", q.overhead),
    }
    keys: dict[str, Any] = {name: given[name] for name in _AS_GIVEN if given[name] is not None}
    for name, (key, read) in readers.items():
        if given[name] is not None:
            keys[key] = read(given[name], f"--{name.replace('_', '-')}")
    if given["slo"]:
        keys["slo"] = q.promise(given["slo"], "--slo")
    if given["error_budget"] is not None:
        budget = q.share(given["error_budget"], "--error-budget")
        keys["slo"] = {**keys.get("slo", {}), "error_budget": budget}
    if given["calibration"] is not None:
        keys |= _calibrated(given["calibration"], keys)
    if given["priority"]:
        keys["priorities"] = q.priorities(given["priority"], "--priority")
    return keys


def _calibrated(path: Path, keys: dict[str, Any]) -> dict[str, Any]:
    """Keys of a plan file for a server that was calibrated. Raises `UsageError` and `InputError`."""
    from optcli.serving.loadtest import calibrating, predicting

    for key in ("curve", "overhead"):
        if key in keys:
            raise UsageError(
                f"found --{key} beside --calibration, which says the same of the running server",
                place=f"--{key}",
                hint="leave one of them out",
            )
    known = calibrating.read(path)
    if known is None:
        raise UsageError(
            "there is no such file",
            place=str(path),
            hint="optcli loadtest FOLDER --calibrate writes calibration.json into the bundle",
        )
    return predicting.plan_keys(known)


def _is_plan(where: Path) -> bool:
    from optcli.serving.planning import files

    return where.suffix in reports.RECIPES and where.is_file() and not files.is_recipe(where)


def _newest(artifacts: Path | None, settings: PlanSettings) -> reports.FoundReport | None:
    """The newest report here; without one, the error says what else a plan can start from.

    None where nothing asks for a curve: how long results may wait decides without one.
    """
    try:
        return reports.find(None, artifacts)
    except UsageError as error:
        if settings.freshness_s is not None and not settings.names_rate:
            return None
        raise UsageError(
            "the plan has no curve, and there is no report of a build here",
            place="--curve",
            hint='say how long batches take, such as --curve "1:25ms,8:48ms" or "6ms+4ms*b", or build'
            " a recipe with latency.sweep: true first",
        ) from error


def _give(plan: Plan, html: Path | None, as_json: bool) -> None:
    from optcli.report import html as pages
    from optcli.report.plan import document

    if html is not None:
        options.write(html, pages.html(document(plan)))
    show(plan, document(plan), as_json=as_json)
    if html is not None:
        click.echo(f"wrote {shown_path(html)}", err=True)
