"""A load test from beginning to end: the target, the client, the loads, the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

from optcli.errors import InputError, UsageError
from optcli.files import folders
from optcli.measure.queueing.arrivals import Process
from optcli.measure.queueing.batching import Batching
from optcli.observer import Observer
from optcli.results.loadtest import (
    Calibration,
    LimitFound,
    LoadNote,
    LoadPoint,
    LoadTest,
    Percentile,
    Predicted,
)
from optcli.serving.loadtest import calibrating, payloads, predicting, verdicts
from optcli.serving.loadtest.driving import Driver, driver
from optcli.serving.loadtest.endpoint import Endpoint
from optcli.serving.loadtest.load_options import (
    Options,
    first_rate,
    process_of,
    rates_of,
    require_options,
    require_promise,
    setup_of,
    stored_calibration,
    terms_of,
)
from optcli.serving.loadtest.opening import opened
from optcli.serving.loadtest.predicting import PredictionModel
from optcli.serving.loadtest.records import WINDOW_S, Spans
from optcli.serving.loadtest.verdicts import LoadTerms

Try = Callable[[float, Literal["ramp", "bisect", "confirm"]], LoadPoint]

# Where the ramp begins, as a share of the predicted limit, and by how much it grows.
START_SHARE, STEP = 0.5, 1.25
# How far apart the highest rate that keeps the promise and the lowest that breaks it may be.
PRECISION = 0.05
# From where on down the ramp is given up when its first rate breaks the promise.
_LOWEST_SHARE = 0.1
_MOST_STEPS = 20
# How many minutes are tried: one that cannot tell is repeated once, else the rate is lowered.
_CONFIRMATIONS = 4
# How often a rate is tried where the client sends late: other work on the machine passes.
_ATTEMPTS = 3
_CONFIRM_WINDOWS = 6


def highest_rate(start_per_s: float, attempt: Try) -> tuple[LimitFound, list[LoadPoint]]:
    """The limit and every rate that was tried, in order.

    `attempt` loads the server at a rate. A wrong answer ends the search, and so does a client that is
    saturated time after time at one rate: no higher rate would tell more.
    """
    points: list[LoadPoint] = []

    def keeps(rate: float, purpose: Literal["ramp", "bisect", "confirm"]) -> bool:
        for _ in range(_ATTEMPTS):
            points.append(attempt(rate, purpose))
            if points[-1].breach or not points[-1].client.saturated:
                break
        return not points[-1].breach

    def ended() -> bool:
        last = points[-1]
        return last.wrong > 0 or (last.client.saturated and not last.breach)

    rate = start_per_s
    best: float | None = None
    broken: float | None = None
    for _ in range(_MOST_STEPS):
        if keeps(rate, "ramp"):
            best = rate
            rate *= STEP
        else:
            broken = rate
            rate /= STEP
        if ended() or (best and broken) or rate < _LOWEST_SHARE * start_per_s:
            break
    while best and broken and broken - best > PRECISION * best and not ended():
        middle = (best + broken) / 2
        if keeps(middle, "bisect"):
            best = middle
        else:
            broken = middle
    confirmed = repeated = False
    for _ in range(_CONFIRMATIONS):
        if best is None or broken is None or ended():
            break
        held = keeps(best, "confirm")
        confirmed = points[-1].outcome == "accept"
        if confirmed or (held and points[-1].short):  # a short run never accepts
            break
        if held and not repeated:
            repeated = True
            continue
        if not held:
            broken = best
        best, repeated = best * (1 - PRECISION), False
    if not confirmed:
        best = max((each.rate_per_s for each in points if _keeps(each, broken)), default=None)
    return LimitFound(rate_per_s=best, broken_per_s=broken, confirmed=confirmed), points


def _keeps(point: LoadPoint, broken: float | None) -> bool:
    """Whether the promise was not broken at a rate, nor at a lower one."""
    lower = broken is None or point.rate_per_s < broken
    return lower and point.outcome != "reject" and not point.client.saturated


def load_test(target: str, options: Options, observer: Observer) -> LoadTest:
    """Load the server at `target`, a URL or the folder of a bundle, and judge it.

    Raises `UsageError` and `InputError` for a target and options that do not fit each other,
    `MissingError` without the packages that it needs, `StepError` where the client dies.
    """
    payloads.client_library()
    require_options(options, target)
    started = verdicts.now()
    with folders.temporary("loadtest") as scratch_name, ExitStack() as stack:
        scratch = Path(scratch_name)
        server, options = stack.enter_context(opened(target, options, scratch, observer))
        terms = terms_of(server, options)
        setup, source = setup_of(server, options, scratch)
        rates = rates_of(server, options)
        require_promise(server, options, terms)
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


class _Whole:
    """All loads of one test, and what they rest on."""

    def __init__(self, server: Endpoint, options: Options, terms: LoadTerms, client: Driver) -> None:
        self.server, self.options, self.terms, self.client = server, options, terms, client
        self.points: list[LoadPoint] = []
        self.notes: list[LoadNote] = []
        self.limit: LimitFound | None = None
        self.calibration: Calibration | None = stored_calibration(options)
        client.predict = self._predicted

    def carry_out(self, rates: Sequence[float]) -> None:
        """Calibrate first, so that what follows is predicted both ways."""
        if self.options.calibrate:
            self.calibration = calibrating.calibrated(self.client)
            assert self.options.calibration is not None
            _write(self.options.calibration, self.calibration)
        for rate in rates:
            self.notes += self._unstable(rate)
            self.points.append(self._point(rate, "rate"))
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
        sentence = verdicts.sentence(decided) if decided else "calibration stored; no load was judged"
        return LoadTest(
            name=self.server.served.model,
            started=started,
            finished=verdicts.now(),
            outcome=outcome,
            sentence=f"{outcome}: {sentence}" if decided else sentence,
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
            notes=(*self._of_machines(), *self.notes, *verdicts.notes_of(self.points)),
        )

    def _search(self) -> None:
        batching = self._batching()
        predicted = {
            model.by: predicting.highest(model, batching, self._process(100.0), self.terms)
            for model in self._models()
            if batching is not None and _reaches(model, batching)
        }
        known = predicted.get("calibration") or predicted.get("plan")
        if self.options.rates_per_s:
            start = self.options.rates_per_s[0]
        elif known:
            start = START_SHARE * known
        else:
            raise UsageError(
                "by the prediction, no rate keeps the promise",
                place="--find-limit",
                hint="name a low --rate to begin at",
            )

        def attempt(rate: float, purpose: Literal["ramp", "bisect", "confirm"]) -> LoadPoint:
            return self._point(rate, purpose)

        highest, points = highest_rate(start, attempt)
        self.points += points
        self.limit = highest.model_copy(update={"predicted_per_s": predicted})
        self.notes += self._unstable(highest.rate_per_s or start)

    def _point(
        self,
        rate: float,
        purpose: Literal["rate", "ramp", "bisect", "confirm"],
    ) -> LoadPoint:
        windows = self.options.windows
        if purpose == "confirm":
            windows = max(windows, _CONFIRM_WINDOWS)
        spans = Spans.usual(rate, windows)
        if self.options.seconds is not None:
            length = self.options.seconds / self.options.windows
            spans = replace(spans, window_s=length)
        elif purpose == "ramp":
            spans = replace(spans, window_s=WINDOW_S)
        spans = replace(spans, settle_s=self.options.settle_s)
        return self.client.point(
            self._process(rate), spans, encoding=self.options.encoding, purpose=purpose
        )

    def _process(self, rate: float) -> Process:
        return process_of(self.options, rate, first_rate(self.server, self.options))

    def _models(self) -> list[PredictionModel]:
        # A server that was started here is on one machine, whatever the plan has.
        processes = 1 if self.server.served.own else predicting.ingresses_of(self.server.plan)
        models = []
        if self.server.plan is not None:
            models.append(predicting.of_plan(self.server.plan, processes))
        if self.calibration is not None:
            models.append(predicting.of_calibration(self.calibration, processes))
        return models

    def _batching(self) -> Batching | None:
        return predicting.batching_of(self.server.served, self.server.concurrency)

    def _predicted(self, process: Process) -> list[Predicted]:
        batching = self._batching()
        if batching is None:
            return []
        return [
            predicting.predicted(model, batching, process)
            for model in self._models()
            if _reaches(model, batching)
        ]

    def _of_machines(self) -> list[LoadNote]:
        """Says where the plan has more machines than the one that the server was started on."""
        planned = predicting.ingresses_of(self.server.plan)
        if not self.server.served.own or planned == 1:
            return []
        text = f"the plan has an ingress on each of {planned} machines, and the server here has one"
        return [LoadNote(kind="one-machine", figures={"planned": planned}, text=text)]

    def _unstable(self, rate: float) -> list[LoadNote]:
        batching = self._batching()
        models = self._models() if batching is not None else ()
        reasons = (
            predicting.unstable(model, batching, rate) for model in models if batching is not None
        )
        return [note for note in reasons if note is not None]

    def _curves(self, name: Percentile) -> dict[str, tuple[tuple[float, float | None], ...]]:
        if not self.points or self._batching() is None:
            return {}
        top = max(each.rate_per_s for each in self.points)
        lines: dict[str, list[tuple[float, float | None]]] = {}
        for share in predicting.DRAWN_AT:
            for one in self._predicted(self._process(share * top)):
                lines.setdefault(one.by, []).append((share * top, getattr(one, f"{name}_ms")))
        return {by: tuple(line) for by, line in lines.items()}


def _reaches(model: PredictionModel, batching: Batching) -> bool:
    """Whether a curve says something of the largest batch: a single point does not."""
    try:
        model.curve.time_ms(batching.batch)
    except InputError:
        return False
    return True


def _write(path: Path, calibration: Calibration) -> None:
    try:
        path.write_text(calibration.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror or error}",
            place=str(path),
            hint="name another file with --calibration",
        ) from error
