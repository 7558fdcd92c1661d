"""A canary: one server has the traffic, a second one gets a share of the same requests."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from optcli.errors import UsageError
from optcli.files import folders
from optcli.measure.queueing.arrivals import kept_at_random
from optcli.observer import Observer
from optcli.results import Estimate
from optcli.results.loadtest import Agreement, Canary, CanarySide
from optcli.results.outcomes import Outcome, Verdict
from optcli.results.statistics import t_interval
from optcli.serving import bundle
from optcli.serving.loadtest import endpoint, load_options, payloads, verdicts
from optcli.serving.loadtest.agreement import agreed, verdict
from optcli.serving.loadtest.driving import Driver, drawn, driver
from optcli.serving.loadtest.load_options import (
    Options,
    process_of,
    rates_of,
    require_arrivals,
    setup_of,
    terms_of,
)
from optcli.serving.loadtest.messages import Sent
from optcli.serving.loadtest.opening import opened
from optcli.serving.loadtest.records import (
    Records,
    Spans,
    failed_share_low,
    over_windows,
    share_interval,
    windows_of,
)
from optcli.serving.loadtest.verdicts import LoadTerms, described
from optcli.serving.prediction import of_recipe

# The second server may be so many times as slow at p95, where no promise was asked for.
_SLOWER = 1.10
_WORDS = {"accept": "promote", "reject": "reject", "inconclusive": "hold"}


@dataclass(frozen=True)
class Shadow:
    """The share of the requests that the second server gets, and how many answers must agree."""

    share: float = 0.1
    agreement: float = 0.9


def canary_test(
    first: str, second: str, shadow: Shadow, options: Options, observer: Observer
) -> Canary:
    """Send traffic to the first server and a share of the same requests to the second, and compare.

    Raises as `load_test`, and `UsageError` where the two models do not take the same inputs or have no
    output in common.
    """
    payloads.client_library()
    require_arrivals(options.arrivals)
    if options.encoding == "image":
        raise UsageError(
            "a canary compares tensors", place="--encoding image", hint="send binary or json"
        )
    started = verdicts.now()
    with folders.temporary("canary") as name, ExitStack() as stack:
        drivers: list[Driver] = []
        terms: LoadTerms | None = None
        source: tuple[Path | None, str] = (None, "")
        for index, target in enumerate((first, second)):
            scratch = Path(name) / str(index)
            scratch.mkdir()
            server, known = stack.enter_context(opened(target, options, scratch, observer))
            terms = terms or terms_of(server, known)
            if index == 0:
                known = _with_recipe(target, known)
                setup, note = setup_of(server, known, scratch, load_options.MOST_COMPARED)
                source, rates = (setup.samples, note), rates_of(server, known)
                # An output that the file of expected outputs lacks would not be compared.
                setup = setup if payloads.expects_all(setup) else replace(setup, expected=None)
            else:
                _require_alike(drivers[0], server.inputs, server.outputs, second)
                # Both get the same samples; what one of them expects of its own does not fit others.
                setup, _ = setup_of(server, replace(known, recipe=None, golden=None), scratch)
                setup = replace(setup, samples=source[0], expected=None)
            made = driver(
                server, setup, terms, scratch, observer,
                seed=options.seed, timeout_s=options.timeout_s,
            )  # fmt: skip
            drivers.append(stack.enter_context(made))
        assert terms is not None
        if len(rates) != 1:
            raise UsageError(
                f"a canary has one rate, found {len(rates)}", place="--rate", hint="name one rate"
            )
        return _compared(drivers, rates[0], shadow, options, terms, (first, second), source[1], started)


def _with_recipe(target: str, options: Options) -> Options:
    """The options with the recipe that a bundle was deployed from, where it is still in its place.

    A bundle has only some of its samples, too few to tell two good models apart.
    """
    if endpoint.is_url(target) or options.recipe is not None or options.golden is not None:
        return options
    path = Path(bundle.read(Path(target)).recipe.path)
    return replace(options, recipe=path) if path.is_file() else options


def _compared(
    drivers: Sequence[Driver],
    rate: float,
    shadow: Shadow,
    options: Options,
    terms: LoadTerms,
    targets: tuple[str, str],
    source: str,
    started: str,
) -> Canary:
    process = process_of(options, rate, rate)
    spans = Spans.usual(shadow.share * rate, options.windows)
    if options.seconds is not None:
        spans = replace(spans, window_s=options.seconds / options.windows)
    spans = replace(spans, settle_s=options.settle_s)
    times = drawn(process, spans, options.seed)
    # Every request of the second server is one of the first's, with the same sample at the same time.
    chosen = kept_at_random(times.size, shadow.share, options.seed).nonzero()[0]
    if not chosen.size:
        raise UsageError(
            "the second server gets no request",
            place="--shadow",
            hint="give it a larger share, or more seconds",
        )
    requests = [(times, None), (times[chosen], chosen)]
    names = ("first server", "second server")

    def ask(index: int) -> Mapping[str, np.ndarray]:
        return drivers[index].answers(options.encoding, f"{names[index]}, sample by sample")

    def send(index: int) -> tuple[Records, Sent]:
        planned, samples = requests[index]
        records, sent, _ = drivers[index].send(
            planned, spans, options.encoding, names[index], samples=samples
        )
        return records, sent

    with ThreadPoolExecutor(2) as both:
        # Both loads begin at the same time: neither server is still asked for samples.
        out_first, out_second = both.map(ask, (0, 1))
        (of_first, sent_first), (of_second, sent_second) = both.map(send, (0, 1))
    agreement = agreed(out_first, out_second, _class_scores(drivers, options))
    sides = (
        _side(targets[0], of_first, sent_first, spans),
        _side(targets[1], of_second, sent_second, spans),
    )
    ratio = slower(windows_of(of_first.only(chosen), spans), windows_of(of_second, spans))
    late = max(each.lateness_p99_ms for each in (of_first, of_second))
    short = spans.is_short(shadow.share * rate)
    judges_latency = bool(options.slo_ms)
    decided = list(
        judged(
            sides,
            agreement,
            ratio,
            terms,
            shadow,
            promise_asked=judges_latency,
            late_ms=late,
            short=short,
        )
    )
    outcome = verdicts.overall(decided)
    return Canary(
        started=started,
        finished=verdicts.now(),
        decision=_WORDS[outcome],
        outcome=outcome,
        sentence=f"{_WORDS[outcome]}: {verdicts.sentence(decided)}",
        first=sides[0],
        second=sides[1],
        share=shadow.share,
        rate_per_s=rate,
        agreement=agreement,
        slower=ratio,
        slo_ms=dict(terms.limits_ms),
        payload=f"{source}: {drivers[0].payload}" if source else drivers[0].payload,
        verdicts=tuple(decided),
    )


def judged(
    sides: tuple[CanarySide, CanarySide],
    agreement: Agreement,
    ratio: Estimate | None,
    terms: LoadTerms,
    shadow: Shadow,
    *,
    promise_asked: bool,
    late_ms: float,
    short: bool,
) -> Iterator[Verdict]:
    """Answers, agreement, errors and latency of the second server; all must accept to promote it.

    `promise_asked`: the limits of the terms are those that were asked for, not the first server's own.
    """
    first, second = sides
    sentences = [
        f"{each.wrong} of {each.checked} answers of the {name} server differ from those without load"
        for name, each in (("first", first), ("second", second))
    ]
    yield Verdict(
        name="answers",
        outcome="reject" if second.wrong else "inconclusive" if first.wrong else "accept",
        blocking=True,
        actual=second.wrong,
        limit=0,
        reason=", ".join(sentences),
    )
    yield verdict(agreement, shadow.agreement)
    failed, requests = second.failed, second.requests
    surely = failed_share_low(failed, requests) > terms.error_budget
    over = failed > terms.error_budget * requests
    least, most = share_interval(failed, requests)
    yield Verdict(
        name="errors",
        outcome="reject" if surely else "inconclusive" if over else "accept",
        blocking=True,
        limit=terms.error_budget,
        actual=failed / requests if requests else None,
        interval=(least, most),
        reason=f"{failed} of {requests} requests were not answered by the second server"
        f" [{least:.2%}, {most:.2%}], {first.failed} of {first.requests} by the first",
    )
    yield _latency(second, ratio, terms, promise_asked=promise_asked, late_ms=late_ms, short=short)


def _latency(
    second: CanarySide,
    ratio: Estimate | None,
    terms: LoadTerms,
    *,
    promise_asked: bool,
    late_ms: float,
    short: bool,
) -> Verdict:
    """By the promise, and beside the first server: only a promise that was asked for stands alone."""
    known = {name: getattr(second, f"{name}_ms") for name in terms.limits_ms}
    outcomes = {_held(known[name], limit) for name, limit in terms.limits_ms.items()}
    sentences = [described(known, terms)] if known else []
    if not promise_asked:
        outcomes.add(_held(ratio, _SLOWER))
        sentences.append(
            "there were too few requests to compare p95 with the first's"
            if ratio is None
            else f"p95 {ratio.value:.3g} times the first's [{ratio.low:.3g}, {ratio.high:.3g}], at most"
            f" {_SLOWER:g} times is allowed"
        )
    order: tuple[Outcome, ...] = ("reject", "inconclusive")
    outcome = next((each for each in order if each in outcomes), "accept")
    if late_ms > terms.late_ms:
        outcome = "inconclusive"
        sentences.append(f"the client sent {late_ms:.1f} ms late (p99)")
    elif short and outcome == "accept":
        outcome = "inconclusive"
        sentences.append("the run is too short to accept it")
    return Verdict(
        name="latency",
        outcome=outcome,
        blocking=True,
        actual=None if ratio is None else ratio.value,
        reason="; ".join(sentences),
    )


def _held(estimate: Estimate | None, limit: float) -> Outcome:
    """Whether an estimate is surely within a limit, or surely over it."""
    if estimate is None:
        return "inconclusive"
    if (estimate.high or estimate.value) <= limit:
        return "accept"
    return "reject" if (estimate.low or 0.0) > limit else "inconclusive"


def _class_scores(drivers: Sequence[Driver], options: Options) -> Collection[str]:
    """The outputs that hold scores of classes: by the recipe that is named, else by both bundles.

    Of a server at a URL nothing is known, so that the other one's bundle suffices.
    """
    if options.recipe is not None:
        name = of_recipe.class_scores_in(options.recipe, drivers[0].endpoint.outputs)
        return () if name is None else (name,)
    declared = [
        each.endpoint.class_scores for each in drivers if each.endpoint.class_scores is not None
    ]
    return set(declared[0]).intersection(*declared[1:]) if declared else ()


def slower(first: Sequence[Records], second: Sequence[Records]) -> Estimate | None:
    """How many times the p95 of the first the second's is, on the same requests, over windows."""
    from optcli.results.statistics import percentile

    pairs = [
        (percentile(b.latencies_ms, 0.95), percentile(a.latencies_ms, 0.95))
        for a, b in zip(first, second, strict=True)
        if a.latencies_ms.size and b.latencies_ms.size
    ]
    ratios = [candidate_ms / current_ms for candidate_ms, current_ms in pairs if current_ms > 0]
    if len(ratios) < 2:
        return None
    value, low, high = t_interval(ratios)
    return Estimate(value=value, low=max(0.0, low), high=high)


def _side(target: str, records: Records, sent: Sent, spans: Spans) -> CanarySide:
    windows = windows_of(records, spans)
    inside = records.planned_within(1000 * spans.settle_s, 1000 * spans.seconds)
    return CanarySide(
        target=target,
        requests=inside.count,
        failed=inside.count - int(inside.answered.sum()),
        failures=inside.failures,
        checked=sent.checked,
        wrong=sent.wrong,
        p50_ms=over_windows(windows, "p50"),
        p95_ms=over_windows(windows, "p95"),
        p99_ms=over_windows(windows, "p99"),
        lateness_p99_ms=inside.lateness_p99_ms,
    )


def _require_alike(first: Driver, inputs: Sequence[object], outputs: Sequence[str], place: str) -> None:
    """Raise `UsageError` where the second server takes other inputs or gives no common output."""
    if tuple(inputs) != first.endpoint.inputs:
        raise UsageError(
            f"the second server takes {inputs}, the first {first.endpoint.inputs}",
            place=place,
            hint="compare two servers of the same network",
        )
    if not set(outputs) & set(first.endpoint.outputs):
        raise UsageError(
            f"the second server gives {', '.join(outputs)}, the first"
            f" {', '.join(first.endpoint.outputs)}",
            place=place,
            hint="compare two servers of the same network",
        )
