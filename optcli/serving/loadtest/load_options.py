"""What a load test was asked for, and what follows of it before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from optcli.errors import UsageError
from optcli.measure.queueing import Poisson, Process
from optcli.measure.queueing.arrivals import parse
from optcli.results.loadtest import Calibration, Encoding
from optcli.serving import bundle
from optcli.serving.deploy import golden_images, plans
from optcli.serving.loadtest import calibrating, inputs, payloads
from optcli.serving.loadtest.endpoint import Endpoint, is_url
from optcli.serving.loadtest.judging import Terms
from optcli.serving.loadtest.messages import Setup
from optcli.serving.loadtest.records import SETTLE_S, WINDOWS

_BURSTS = "bursts:"
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Options:
    """What was asked for. `slo_ms` is milliseconds by percentile; empty: that of the bundle's plan.

    `seconds` is how long all windows of a load last together; None: as long as it takes to accept.
    Of a server that the load test starts, `with_cache` leaves the cache of answers switched on, `cpus`
    is the number of processors that it may share out among replicas, and `model_cpus` are those that
    the replicas run on alone; `client_cpus` are those of the client.
    """

    rates_per_s: tuple[float, ...] = ()
    slo_ms: Mapping[str, float] = field(default_factory=dict)
    error_budget: float | None = None
    arrivals: str = "poisson"
    seed: int = 0
    seconds: float | None = None
    windows: int = WINDOWS
    settle_s: float = SETTLE_S
    timeout_s: float = _TIMEOUT_S
    find_limit: bool = False
    calibrate: bool = False
    encoding: Encoding = "binary"
    model: str | None = None
    plan: Path | None = None
    recipe: Path | None = None
    golden: Path | None = None
    images: Path | None = None
    calibration: Path | None = None
    with_cache: bool = False
    cpus: int | None = None
    model_cpus: tuple[int, ...] = ()
    client_cpus: tuple[int, ...] = ()


def with_plan(found: Endpoint, path: Path) -> Endpoint:
    """A server that was deployed by a plan: how it batches follows from it. Raises `UsageError`.

    Of a plan with priorities, the path of the URL names the one that is meant; without a path it is the
    last.
    """
    plan = plans.read(path)
    if plan.priorities:
        route = urlsplit(found.served.url).path.strip("/")
        plan = plan.of_priority(route or plan.priorities[-1].name)
    one = plan.recommended
    if one is None:
        raise UsageError(
            f"the plan has no configuration: {plan.sentence}",
            place=str(path),
            hint="name the plan that the server was deployed with",
        )
    how = {
        "batch": one.batch,
        "wait_ms": one.wait_ms,
        "instances": one.instances,
        "semantics": one.semantics,
    }
    return replace(
        found,
        served=found.served.model_copy(update=how),
        plan=plan,
        concurrency=one.concurrency,
    )


def terms_of(server: Endpoint, options: Options) -> Terms:
    """The promise: what was asked for, else the plan's."""
    promised = {} if server.plan is None else server.plan.slo_ms
    budget = options.error_budget
    if budget is None:
        asked = {} if server.plan is None else server.plan.asked.get("slo") or {}
        budget = asked.get("error_budget")
    return Terms(dict(options.slo_ms or promised), 0.001 if budget is None else float(budget))


def setup_of(
    server: Endpoint, options: Options, scratch: Path, most: int = inputs.MOST
) -> tuple[Setup, str]:
    """What the client sends, at most so many samples of a recipe, and in words where it is from."""
    images = payloads.image_files(options.images) if options.images else ()
    golden = server.golden if options.golden is None else golden_images.found(options.golden)
    golden = golden if images or options.encoding == "image" else None
    if golden is not None:
        images = (golden[0], *images)
    setup = Setup(
        url=server.served.url,
        model=server.served.model,
        inputs=server.inputs,
        outputs=server.outputs,
        samples=server.samples,
        expected=server.expected,
        images=images,
        golden_answer=None if golden is None else golden[1],
        tolerance=server.tolerance,
        seed=options.seed,
        cpus=options.client_cpus,
    )
    taken = None
    if options.recipe is not None:
        taken = inputs.of_recipe(options.recipe, server.inputs, scratch, most)
    elif options.golden is not None:
        taken = inputs.of_golden(options.golden, scratch)
    if taken is None:
        return setup, ""
    return replace(setup, samples=taken.samples, expected=taken.expected), taken.source


def require_options(options: Options, target: str) -> None:
    """Raise `UsageError` for what no server can do, before one is started.

    Images shall be sent, and the bundle takes none, or neither they nor a golden image are there; or a
    calibration shall measure a model behind its cache. Raises as `bundle.read` for images and a folder
    that is no bundle.
    """
    if options.calibrate and options.with_cache:
        raise UsageError(
            "a calibration measures the model, and a cache would answer for it",
            place="--with-cache",
            hint="calibrate without it",
        )
    if options.encoding != "image":
        return
    # No image helps a bundle that takes none.
    if not is_url(target) and not bundle.read(Path(target)).images:
        raise UsageError(
            "the bundle takes no images",
            place="--encoding image",
            hint="deploy the variant again with --images",
        )
    folder = options.golden or Path(target)
    if options.images is None and golden_images.found(folder) is None:
        raise UsageError(
            "there are no images to send",
            place="--encoding image",
            hint="name a folder of JPEG or PNG files with --images",
        )


def require_promise(server: Endpoint, options: Options, terms: Terms) -> None:
    """Raise `UsageError` where a search or a calibration lacks what it needs."""
    if options.find_limit and not terms.limits_ms:
        raise UsageError(
            "there is no promise, so there is no limit to find",
            place="--find-limit",
            hint="say what is promised, such as --slo p95=120ms",
        )
    predicts = server.plan is not None or options.calibrate or stored_calibration(options) is not None
    if options.find_limit and not options.rates_per_s and not predicts:
        raise UsageError(
            "the search has no rate to begin at: there is no prediction",
            place="--find-limit",
            hint="name the --plan of the server, or a low --rate to begin at",
        )
    if options.arrivals.startswith(_BURSTS) and options.find_limit and not first_rate(server, options):
        raise UsageError(
            "bursts are given for a rate, and there is none",
            place="--arrivals",
            hint="add the --rate that they are given for; the search begins there",
        )
    if options.calibrate and options.calibration is None:
        raise UsageError(
            "a server at a URL has no folder here to keep the calibration in",
            place="--calibrate",
            hint="name a file with --calibration FILE",
        )


def rates_of(server: Endpoint, options: Options) -> tuple[float, ...]:
    """The rates to load with: as asked, else the plan's. Raises `UsageError` where there is none."""
    if options.find_limit:  # a rate is where the search begins
        return ()
    if options.rates_per_s:
        return options.rates_per_s
    if options.calibrate:
        return ()
    planned = None if server.plan is None else server.plan.planned_rate_per_s
    if planned is not None:
        return (planned,)
    raise UsageError(
        "there is no rate",
        place="--rate",
        hint="say how many requests come a second, such as --rate 200, or search with --find-limit",
    )


def first_rate(server: Endpoint, options: Options) -> float | None:
    """The rate that bursts are given for: the first that was asked for, else the plan's."""
    planned = None if server.plan is None else server.plan.planned_rate_per_s
    return next(iter(options.rates_per_s), planned)


def process_of(options: Options, rate: float, first: float | None) -> Process:
    """The arrivals at a rate; bursts are given for the `first` rate and keep their form at others."""
    arrivals = options.arrivals
    if arrivals == "poisson":
        return Poisson(rate)
    if arrivals.startswith(_BURSTS):
        return parse(arrivals, first or rate).scaled(rate / (first or rate))
    return parse(arrivals, rate)


def stored_calibration(options: Options) -> Calibration | None:
    """A calibration of earlier; None where there is none, and where one is asked for now."""
    if options.calibration is None or options.calibrate:
        return None
    return calibrating.read(options.calibration)
