"""A profile as lines to read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from optcli.profiling.record import Profile

_TYPES = 8
_INFLATED = 1.05


def lines(profile: Profile, top: int) -> list[str]:
    """What `optcli profile` prints: stages, types, the `top` slowest operators, findings, notes."""
    return [
        *_stages(profile),
        *_types(profile),
        *_operators(profile, top),
        *_conclusions(profile),
    ]


def _stages(profile: Profile) -> Iterator[str]:
    runner, total = profile.runner, sum(stage.time_ms for stage in profile.stages)
    yield (
        f"{profile.recipe}, {profile.variant}: {runner.get('name')}, {runner.get('precision')},"
        f" {runner.get('threads')} threads, batch size {profile.batch_size}, {profile.inputs}"
    )
    yield ""
    yield "  stage              ms   share"
    for stage in profile.stages:
        yield f"  {stage.name:<12}{stage.time_ms:>9.4f}  {_share(stage.time_ms / total)}"
    if not any(stage.name == "read" for stage in profile.stages):
        yield "  (no data: reading and preparing are not measured)"


def _types(profile: Profile) -> Iterator[str]:
    if profile.operators_ms is None or profile.outside_ms is None:
        return
    rows: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for operator in profile.operators:
        row = rows[operator.type, operator.precision or ""]
        row[0] += operator.calls
        row[1] += operator.time_ms
        row[2] += operator.share
    ordered = sorted(rows.items(), key=lambda item: -item[1][1])
    width = max(21, *(len(kind) for (kind, _), _ in ordered[:_TYPES]))
    yield ""
    yield f"  {'compute by type':<{width}}  {'precision':<9}  {'calls':>5}  {'ms':>9}   share"
    for (kind, precision), (calls, time_ms, share) in ordered[:_TYPES]:
        yield f"  {kind:<{width}}  {precision:<9}  {calls:>5.0f}  {time_ms:>9.3f}  {_share(share)}"
    rest = ordered[_TYPES:]
    if rest:
        calls, time_ms, share = (sum(row[place] for _, row in rest) for place in range(3))
        label = f"{len(rest)} others"
        yield f"  {label:<{width}}  {'':<9}  {calls:>5.0f}  {time_ms:>9.3f}  {_share(share)}"
    for label, rest_ms in _rest(profile):
        of = "" if rest_ms < 0 else _share(rest_ms / profile.whole_ms)
        yield f"  {label:<{width}}  {'':<9}  {'':>5}  {rest_ms:>9.3f}  {of}".rstrip()


def _rest(profile: Profile) -> Iterator[tuple[str, float]]:
    """What is not in operators, and the sum: compute as it is timed without a profiler."""
    yield "outside of operators", profile.outside_ms or 0.0
    if profile.unexplained_ms is not None:
        slower = profile.unexplained_ms < 0
        yield "added by the profiler" if slower else "unexplained", profile.unexplained_ms
        yield "compute", profile.wall_ms


def _operators(profile: Profile, top: int) -> Iterator[str]:
    shown = profile.operators[:top]
    if not shown:
        return
    width = max(20, *(len(_short(operator.name)) for operator in shown))
    kinds = max(len(operator.type) for operator in shown)
    yield ""
    label = f"slowest {len(shown)} of {len(profile.operators)}"
    yield f"  {label:<{width}}  {'type':<{kinds}}  {'ms':>9}   share"
    for operator in shown:
        yield (
            f"  {_short(operator.name):<{width}}  {operator.type:<{kinds}}  {operator.time_ms:>9.3f}"
            f"  {_share(operator.share)}"
        )


def _conclusions(profile: Profile) -> Iterator[str]:
    yield ""
    for number, finding in enumerate(profile.findings, start=1):
        yield f"{number}. {finding.message}"
        yield f"   -> {finding.action}"
    if profile.findings:
        yield ""
    if profile.profiler and profile.operators_ms is not None:
        adds = profile.profiler_adds
        cost = "adds less than the noise" if adds is None else f"adds {100 * adds:.0f} % to a call"
        inflated = ""
        if profile.operators_ms > _INFLATED * profile.wall_ms:
            inflated = " It makes operators slower than the whole call: read shares, not milliseconds."
        yield (
            f"Operators by {profile.profiler}, {profile.statistic} of {profile.calls} calls:"
            f" {profile.operators_ms:.3f} ms in all; compute takes {profile.wall_ms:.3f} ms without the"
            f" profiler, which {cost}.{inflated}"
        )
    yield from (f"Note: {note}" for note in profile.notes)
    yield from (f"Doubt: {flag.text}" for flag in profile.flags)
    if profile.trace:
        yield f"Trace for chrome://tracing or ui.perfetto.dev: {profile.trace}"


def _share(fraction: float) -> str:
    return f"{100 * fraction:>4.1f} %"


def _short(name: str) -> str:
    return name if len(name) <= 48 else f"{name[:22]}...{name[-23:]}"
