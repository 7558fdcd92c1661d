"""A load test from beginning to end: the target, the client, the loads, the answer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from optcli.errors import InputError, UsageError
from optcli.observer import Observer
from optcli.queueing import Batching, Poisson, Process, Trace
from optcli.queueing.arrivals import parse
from optcli.results.loadtest import (
    Calibration,
    Encoding,
    LimitFound,
    LoadNote,
    LoadPoint,
    LoadTest,
    Percentile,
    Predicted,
)
from optcli.serving.deploy import plans
from optcli.serving.loadtest import (
    calibrating,
    endpoint,
    inputs,
    limit,
    payloads,
    predicting,
    verdicts,
)
from optcli.serving.loadtest.driving import Driver, driver
from optcli.serving.loadtest.endpoint import Endpoint
from optcli.serving.loadtest.judging import Terms
from optcli.serving.loadtest.messages import Setup
from optcli.serving.loadtest.predicting import Model
from optcli.serving.loadtest.records import SETTLE_S, WINDOWS, Spans

_TRACE = "trace:"
_CONFIRM_WINDOWS = 6
# Without a prediction the ramp begins at this share of what one request after the other would give.
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Options:
    """What was asked for. `slo_ms` is milliseconds by percentile; empty: that of the bundle's plan.

    `seconds` is how long all windows of a load last together; None: as long as it takes to accept.
    `cpus` are the processors of a server that the load test starts, `client_cpus` those of the client.
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
    compare_encodings: bool = False
    model: str | None = None
    plan: Path | None = None
    recipe: Path | None = None
    golden: Path | None = None
    images: Path | None = None
    calibration: Path | None = None
    cpus: int | None = None
    client_cpus: tuple[int, ...] = ()


def load_test(target: str, options: Options, observer: Observer) -> LoadTest:
    """Load the server at `target`, a URL or the folder of a bundle, and judge it.

    Raises `UsageError` and `InputError` for a target and options that do not fit each other,
    `MissingError` without the packages that it needs, `StepError` where the client dies.
    """
    payloads.client_library()
    started = _now()
    with tempfile.TemporaryDirectory(prefix="optcli-loadtest-") as scratch_name, ExitStack() as stack:
        scratch = Path(scratch_name)
        server = stack.enter_context(_opened(target, options, observer))
        terms = _terms(server, options)
        setup, source = _setup(server, options, scratch)
        rates = _rates(server, options)
        _require_images(options)
        _require_promise(server, options, terms)
        client = stack.enter_context(
            driver(
                server,
                setup,
                terms,
                scratch,
                observer,
                seed=options.seed,
                timeout_s=options.timeout_s,
            )
        )
        whole = _Whole(server, options, terms, client)
        whole.carry_out(rates)
        return whole.report(
            target, started, f"{source}: {client.payload}" if source else client.payload
        )


@contextmanager
def _opened(target: str, options: Options, observer: Observer) -> Iterator[Endpoint]:
    """The server, ready."""
    if not endpoint.is_url(target):
        raise UsageError(
            "this is no URL",
            place=target,
            hint="name the URL of a server, such as http://127.0.0.1:8000",
        )
    found = endpoint.asked(target, options.model)
    yield _with_plan(found, options.plan) if options.plan else found


def _with_plan(found: Endpoint, path: Path) -> Endpoint:
    """A server that was deployed by a plan: how it batches follows from it. Raises `UsageError`."""
    plan = plans.read(path)
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


def _terms(server: Endpoint, options: Options) -> Terms:
    promised = {} if server.plan is None else server.plan.slo_ms
    budget = options.error_budget
    if budget is None:
        asked = {} if server.plan is None else server.plan.asked.get("slo") or {}
        budget = asked.get("error_budget")
    return Terms(dict(options.slo_ms or promised), 0.001 if budget is None else float(budget))


def _setup(server: Endpoint, options: Options, scratch: Path) -> tuple[Setup, str]:
    """What the client sends, and in words where it is from."""
    setup = Setup(
        url=server.served.url,
        model=server.served.model,
        inputs=server.inputs,
        outputs=server.outputs,
        samples=server.samples,
        expected=server.expected,
        images=payloads.image_files(options.images) if options.images else (),
        tolerance=server.tolerance,
        seed=options.seed,
        cpus=options.client_cpus,
    )
    taken = None
    if options.recipe is not None:
        taken = inputs.of_recipe(options.recipe, scratch)
    elif options.golden is not None:
        taken = inputs.of_golden(options.golden, scratch)
    if taken is None:
        return setup, ""
    return replace(setup, samples=taken.samples, expected=taken.expected), taken.source


def _require_images(options: Options) -> None:
    if options.encoding == "image" and options.images is None:
        raise UsageError(
            "there are no images to send",
            place="--encoding image",
            hint="name a folder of JPEG or PNG files with --images",
        )


def _require_promise(server: Endpoint, options: Options, terms: Terms) -> None:
    """What a search and a calibration need, before anything is sent."""
    if options.find_limit and not terms.limits_ms:
        raise UsageError(
            "there is no promise whose limit could be found",
            place="--find-limit",
            hint="say what is promised, such as --slo p95=120ms",
        )
    predicts = server.plan is not None or options.calibrate or options.calibration is not None
    if options.find_limit and not options.rates_per_s and not predicts:
        raise UsageError(
            "there is no prediction from which the search could begin",
            place="--find-limit",
            hint="name the --plan of the server, or a low --rate to begin at",
        )
    if options.calibrate and options.calibration is None:
        raise UsageError(
            "there is no place for the calibration of a server at a URL",
            place="--calibrate",
            hint="name a file with --calibration FILE",
        )


def _rates(server: Endpoint, options: Options) -> tuple[float, ...]:
    """The rates to load with: as asked, else the plan's. Raises `UsageError` where there is none."""
    if options.rates_per_s or options.find_limit:
        return options.rates_per_s
    if options.arrivals.startswith(_TRACE):
        return (Trace.read(Path(options.arrivals.removeprefix(_TRACE))).rate_per_s,)
    if options.calibrate and not options.compare_encodings:
        return ()
    if server.plan is not None:
        return (server.plan.planned_rate_per_s,)
    raise UsageError(
        "there is no rate",
        place="--rate",
        hint="say how many requests come a second, such as --rate 200, or search with --find-limit",
    )


class _Whole:
    """All loads of one test, and what they rest on."""

    def __init__(self, server: Endpoint, options: Options, terms: Terms, client: Driver) -> None:
        self.server, self.options, self.terms, self.client = server, options, terms, client
        self.points: list[LoadPoint] = []
        self.notes: list[LoadNote] = []
        self.limit: LimitFound | None = None
        self.calibration: Calibration | None = _stored(options)
        self.batching = predicting.batching_of(server.served, server.concurrency)
        client.predict = self._predicted

    def carry_out(self, rates: Sequence[float]) -> None:
        """Calibrate first, so that what follows is predicted both ways."""
        if self.options.calibrate:
            self.calibration = calibrating.calibrated(self.client)
            assert self.options.calibration is not None
            _write(self.options.calibration, self.calibration)
        for rate in () if self.options.compare_encodings else rates:
            self.notes += self._unstable(rate)
            self.points.append(self._point(rate, self.options.encoding, "rate"))
        if self.options.compare_encodings:
            self._compare(rates[0] if rates else None)
        if self.options.find_limit:
            self._search()

    def report(self, target: str, started: str, payload: str) -> LoadTest:
        """The whole answer."""
        decided = list(verdicts.of_points(self.points, self.terms)) if self.points else []
        promised = None if self.server.plan is None else self.server.plan.planned_rate_per_s
        if self.limit is not None:
            tried = [each for each in self.points if each.purpose in ("ramp", "bisect", "confirm")]
            decided += verdicts.of_limit(self.limit, tried, promised)
        drawn: Percentile = "p95"
        percentiles: tuple[Percentile, ...] = ("p95", "p99", "p50")
        drawn = next((name for name in percentiles if name in self.terms.limits_ms), drawn)
        outcome = verdicts.overall(decided)
        said = verdicts.sentence(decided) if decided else "calibrated; nothing was judged"
        return LoadTest(
            name=self.server.served.model,
            started=started,
            finished=_now(),
            outcome=outcome,
            sentence=f"{outcome}: {said}" if decided else said,
            verdicts=tuple(decided),
            served=self.server.served,
            slo_ms=dict(self.terms.limits_ms),
            error_budget=self.terms.error_budget,
            promised_per_s=promised,
            arrivals=self.options.arrivals,
            seed=self.options.seed,
            payload=payload,
            points=tuple(self.points),
            limit=self.limit,
            calibration=self.calibration,
            drawn=drawn,
            curve_ms=self._curves(drawn),
            notes=(*self.notes, *verdicts.notes_of(self.points)),
        )

    def _search(self) -> None:
        predicted = {
            model.by: predicting.highest(
                model, self.batching, self._process(100.0), self.terms, self.options.seed
            )
            for model in self._models()
            if self.batching is not None and _reaches(model, self.batching)
        }
        known = predicted.get("calibration") or predicted.get("plan")
        if known:
            start = limit.START_SHARE * known
        elif self.options.rates_per_s:
            start = self.options.rates_per_s[0]
        else:
            raise UsageError(
                "no rate keeps the promise by the prediction",
                place="--find-limit",
                hint="name a low --rate to begin at",
            )

        def attempt(rate: float, purpose: Literal["ramp", "bisect", "confirm"]) -> LoadPoint:
            return self._point(rate, self.options.encoding, purpose)

        found, points = limit.found(start, attempt)
        self.points += points
        self.limit = found.model_copy(update={"predicted_per_s": predicted})
        self.notes += self._unstable(found.rate_per_s or start)

    def _compare(self, rate: float | None) -> None:
        if rate is None:
            raise UsageError(
                "there is no rate at which the encodings could be compared",
                place="--compare-encodings",
                hint="add --rate",
            )
        named: tuple[Encoding, ...] = ("binary", "json")
        if self.options.images:
            named = (*named, "image")
        compared = {each: self._point(rate, each, "encoding") for each in named}
        self.points += compared.values()
        self.notes += verdicts.of_encodings(compared)

    def _point(
        self,
        rate: float,
        encoding: Encoding,
        purpose: Literal["rate", "ramp", "bisect", "confirm", "encoding"],
    ) -> LoadPoint:
        windows = self.options.windows
        if purpose == "confirm":
            windows = max(windows, _CONFIRM_WINDOWS)
        spans = Spans.usual(rate, windows)
        if self.options.seconds is not None:
            length = self.options.seconds / self.options.windows
            spans = replace(spans, window_s=length)
        spans = replace(spans, settle_s=self.options.settle_s)
        return self.client.point(self._process(rate), spans, encoding=encoding, purpose=purpose)

    def _process(self, rate: float) -> Process:
        arrivals = self.options.arrivals
        if arrivals.startswith(_TRACE):
            trace = Trace.read(Path(arrivals.removeprefix(_TRACE)))
            return trace.scaled(rate / trace.rate_per_s)
        if arrivals == "poisson":
            return Poisson(rate)
        return _scaled(arrivals, rate, self.options.rates_per_s)

    def _models(self) -> list[Model]:
        models = []
        if self.server.plan is not None:
            models.append(predicting.of_plan(self.server.plan))
        if self.calibration is not None:
            models.append(predicting.of_calibration(self.calibration))
        return models

    def _predicted(self, process: Process) -> list[Predicted]:
        if self.batching is None:
            return []
        return [
            predicting.predicted(model, self.batching, process, self.options.seed)
            for model in self._models()
            if _reaches(model, self.batching)
        ]

    def _unstable(self, rate: float) -> list[LoadNote]:
        if self.batching is None:
            return []
        found = (predicting.unstable(model, self.batching, rate) for model in self._models())
        return [each for each in found if each is not None]

    def _curves(self, name: Percentile) -> dict[str, tuple[tuple[float, float | None], ...]]:
        rates = [each.rate_per_s for each in self.points]
        if self.batching is None or not rates:
            return {}
        process, seed = self._process(max(rates)), self.options.seed
        return {
            model.by: predicting.operating_curve(model, self.batching, process, rates, name, seed)
            for model in self._models()
            if _reaches(model, self.batching)
        }


def _reaches(model: Model, batching: Batching) -> bool:
    """Whether a curve says something of the largest batch: a single point does not."""
    try:
        model.curve.time_ms(batching.batch)
    except InputError:
        return False
    return True


def _scaled(arrivals: str, rate: float, asked: Sequence[float]) -> Process:
    """Bursts are given for the rate that was asked for, and keep their form at others."""
    if asked and arrivals.startswith("bursts"):
        whole = parse(arrivals, asked[0])
        return whole.scaled(rate / whole.rate_per_s)
    return parse(arrivals, rate)


def _stored(options: Options) -> Calibration | None:
    if options.calibration is None or options.calibrate:
        return None
    return calibrating.read(options.calibration)


def _write(path: Path, calibration: Calibration) -> None:
    try:
        path.write_text(calibration.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror or error}",
            place=str(path),
            hint="name another file with --calibration",
        ) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
