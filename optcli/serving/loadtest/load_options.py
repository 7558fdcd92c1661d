"""What a load test was asked for and what it sends: all that is settled before the first request."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from optcli import data
from optcli.artifact import EMBEDDED_STEPS, pixels_name
from optcli.data import DataSettings
from optcli.errors import InputError, UsageError, counted
from optcli.files import regular_files
from optcli.measure.queueing.arrivals import ANY_RATE, Poisson, Process, parse
from optcli.recipe import load
from optcli.results.loadtest import Calibration, Encoding
from optcli.sample import collate
from optcli.serving import bundle
from optcli.serving.deploy import interface, plans
from optcli.serving.loadtest import calibrating, payloads
from optcli.serving.loadtest.endpoint import Endpoint, is_url
from optcli.serving.loadtest.messages import Setup, TensorAbout
from optcli.serving.loadtest.records import SETTLE_S, WINDOWS
from optcli.serving.loadtest.verdicts import LoadTerms
from optcli.settings import TensorSpec, size_bytes
from optcli.workers import Channel, run

REQUEST, RESPONSE = "golden-request.json", "golden-response.json"
# Samples that a load sends over and over, and those on which a canary compares two servers: each server
# is asked for them one by one.
MOST, MOST_COMPARED = 64, 2000
# Which role of a recipe is sent: what the accuracy was found on comes first.
_ROLES = ("evaluation", "calibration", "validation", "training")
_TAKE_S = 600.0
_BURSTS = "bursts:"
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Inputs:
    """Files of inputs and of expected outputs by name, and in words where they are from."""

    samples: Path
    expected: Path | None
    source: str


@dataclass(frozen=True)
class TakeRequest:
    """Prepare samples of a role's data, drawn evenly, and write them as arrays into `out`."""

    data: DataSettings
    folder: Path
    inputs: tuple[TensorSpec, ...]
    out: Path
    most: int


def recipe_samples(
    recipe: Path, taken: Sequence[TensorAbout], scratch: Path, most: int = MOST
) -> Inputs:
    """Prepared samples of a recipe's data for a server of the inputs `taken`, by a worker.

    Raises `UsageError` without data, and for a model that takes photographs of any size.
    """
    read = load(recipe)
    role = next((role for role in _ROLES if role in read.data), None)
    if role is None:
        raise UsageError(
            "the recipe has no data",
            place=str(recipe),
            hint="add data: evaluation, or leave --recipe out",
        )
    out = scratch / "samples.npz"
    settings, specs = _for_server(read.data[role], read.inputs, taken)
    request = TakeRequest(settings, read.folder, specs, out, most)
    count = run(
        "optcli.serving.loadtest.load_options:take_samples",
        request,
        int,
        log=scratch / "samples.log",
        timeout_s=_TAKE_S,
        reads=settings.source,
    )
    return Inputs(out, None, f"{counted(count, 'sample')} of {read.data[role].source}")


def _for_server(
    settings: DataSettings, inputs: Sequence[TensorSpec], taken: Sequence[TensorAbout]
) -> tuple[DataSettings, tuple[TensorSpec, ...]]:
    """Data and inputs for a server, whose model may prepare its images itself: it takes pixels then."""
    options = {each.name: each for each in taken}
    specs = []
    for spec in inputs:
        pixels = options.get(pixels_name(spec.name))
        if pixels is None:
            specs.append(spec)
            continue
        if -1 in pixels.shape[1:]:
            raise UsageError(
                f"the server takes photographs of any size as {pixels.name!r}",
                place="--recipe",
                hint="send image files with --encoding image --images FOLDER, or leave --recipe out",
            )
        resized = math.prod(pixels.shape[1:]) == math.prod(spec.concrete(1))
        settings = settings.for_model({EMBEDDED_STEPS: "values" if resized else "all"})
        shape = ("batch", *pixels.shape[1:])
        specs.append(TensorSpec(name=pixels.name, dtype="uint8", shape=shape))
    return settings, tuple(specs)


def take_samples(request: TakeRequest, channel: Channel) -> int:
    """Write the samples as arrays by input name, the first axis is the sample; gives their number."""
    dataset = data.open(request.data, request.folder, request.inputs)
    fitting = max(1, payloads.MOST_BYTES // max(1, size_bytes(request.inputs, 1)))
    count = min(request.most, len(dataset), fitting)
    if not count:
        raise InputError(
            "the data are empty", place=request.data.source, hint="check its `split` and `samples`"
        )
    rows = (index * len(dataset) // count for index in range(count))
    batch = collate([dataset.prepared(dataset.read(row)) for row in rows])
    np.savez(request.out, **batch.inputs)  # type: ignore[arg-type]
    return count


def golden_samples(folder: Path, scratch: Path) -> Inputs:
    """The golden request and response of a deployment as samples with expected outputs.

    Raises `UsageError` where the folder has none, `InputError` for files that are none.
    """
    request, response = (_tensors(folder / name, part) for name, part in _PARTS)
    if {len(array) for array in (*request.values(), *response.values())} - {_count(request)}:
        raise InputError(
            "the golden request and response have different numbers of rows",
            place=str(folder),
            hint="deploy the variant again",
        )
    samples, expected = scratch / "golden-samples.npz", scratch / "golden-expected.npz"
    np.savez(samples, **request)  # type: ignore[arg-type]
    np.savez(expected, **response)  # type: ignore[arg-type]
    return Inputs(samples, expected, f"the golden request of {folder}")


_PARTS = ((REQUEST, "inputs"), (RESPONSE, "outputs"))


def has_golden(folder: Path) -> bool:
    """Whether a folder has a golden request with its response."""
    return all((folder / name).is_file() for name, _ in _PARTS)


def _tensors(path: Path, part: str) -> Mapping[str, np.ndarray]:
    from tritonclient.utils import triton_to_np_dtype

    again = "name the folder that `optcli deploy` wrote with --golden"
    try:
        content: Any = regular_files.json_of(path)
        tensors: Sequence[Any] = content[part]
        return {
            str(each["name"]): np.array(each["data"], triton_to_np_dtype(each["datatype"])).reshape(
                each["shape"]
            )
            for each in tensors
        }
    except FileNotFoundError as error:
        raise UsageError("there is no such file", place=str(path), hint=again) from error
    except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"this holds no tensors: {error}", place=str(path), hint=again) from error


def _count(arrays: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(arrays.values())))


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


def with_plan(endpoint: Endpoint, path: Path) -> Endpoint:
    """A server that was deployed by a plan: how it batches follows from it. Raises `UsageError`.

    Of a plan with priorities, the path of the URL names the one that is meant; without a path it is the
    last.
    """
    plan = plans.read(path)
    if plan.priorities:
        route = urlsplit(endpoint.served.url).path.strip("/")
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
        endpoint,
        served=endpoint.served.model_copy(update=how),
        plan=plan,
        concurrency=one.concurrency,
    )


def terms_of(server: Endpoint, options: Options) -> LoadTerms:
    """The promise: what was asked for, else the plan's."""
    promised = {} if server.plan is None else server.plan.slo_ms
    budget = options.error_budget
    if budget is None:
        planned = {} if server.plan is None else server.plan.asked.get("slo") or {}
        budget = planned.get("error_budget")
    return LoadTerms(dict(options.slo_ms or promised), 0.001 if budget is None else float(budget))


def setup_of(server: Endpoint, options: Options, scratch: Path, most: int = MOST) -> tuple[Setup, str]:
    """What the client sends, at most so many samples of a recipe, and in words where it is from."""
    images = payloads.image_files(options.images) if options.images else ()
    golden = server.golden if options.golden is None else interface.golden_image_in(options.golden)
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
        taken = recipe_samples(options.recipe, server.inputs, scratch, most)
    elif options.golden is not None:
        taken = golden_samples(options.golden, scratch)
    if taken is None:
        return setup, ""
    return replace(setup, samples=taken.samples, expected=taken.expected), taken.source


def require_options(options: Options, target: str) -> None:
    """Raise `UsageError` for what no server can do, before one is started.

    Images shall be sent, and the bundle takes none, or neither they nor a golden image are there; or a
    calibration shall measure a model behind its cache; or arrivals that nobody knows. Raises as
    `bundle.read` for images and a folder that is no bundle.
    """
    require_arrivals(options.arrivals)
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
    if options.images is None and interface.golden_image_in(folder) is None:
        raise UsageError(
            "there are no images to send",
            place="--encoding image",
            hint="name a folder of JPEG or PNG files with --images",
        )


def require_arrivals(text: str) -> None:
    """Raise `UsageError` for arrivals of no known form."""
    try:
        parse(text, ANY_RATE)
    except InputError as error:
        raise UsageError(error.message, place="--arrivals", hint=error.hint) from error


def require_promise(server: Endpoint, options: Options, terms: LoadTerms) -> None:
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
