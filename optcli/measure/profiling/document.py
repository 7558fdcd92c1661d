"""A profile to be read: where the time goes by stage, by type and by operator, and what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from optcli.measure.profiling.record import Profile
from optcli.results.document import Document, Items, Section, table_of_texts

_TYPES = 8
_TYPE_HEADS = ("type", "precision", "calls", "ms", "share")
_INFLATED = 1.05


def document(profile: Profile, top: int) -> Document:
    """Stages, types, the `top` slowest operators, findings and notes."""
    runner = profile.runner
    shown = profile.operators[:top]
    slowest = [(_short(one.name), one.type, f"{one.time_ms:.3f}", _share(one.share)) for one in shown]
    findings = [f"{each.message}. {each.action}" for each in profile.findings]
    doubts = [flag.text for flag in profile.flags]
    return Document(
        title=(
            f"{profile.recipe}, {profile.variant}: {runner.get('name')}, {runner.get('precision')},"
            f" {runner.get('threads')} threads, batch size {profile.batch_size}, {profile.inputs}"
        ),
        sections=[
            Section("Stages", [table_of_texts(("stage", "ms", "share"), _stages(profile))]),
            Section(
                "Compute by type",
                [table_of_texts(_TYPE_HEADS, _types(profile), (0, 1))],
            ),
            Section(
                f"Slowest {len(shown)} of {len(profile.operators)} operators",
                [table_of_texts(("operator", "type", "ms", "share"), slowest, (0, 1))],
            ),
            Section("Findings", [Items(findings)]),
            Section("Notes", [Items(profile.notes)]),
            Section("Doubts", [Items(doubts)], tone="inconclusive"),
        ],
        footer=list(_footer(profile)),
    )


def _stages(profile: Profile) -> list[tuple[str, str, str]]:
    total = sum(stage.time_ms for stage in profile.stages)
    return [
        (stage.name, f"{stage.time_ms:.4f}", _share(stage.time_ms / total)) for stage in profile.stages
    ]


def _types(profile: Profile) -> Iterator[tuple[str, ...]]:
    if profile.operators_ms is None or profile.outside_ms is None:
        return
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for operator in profile.operators:
        row = sums[operator.type, operator.precision or ""]
        row[0] += operator.calls
        row[1] += operator.time_ms
        row[2] += operator.share
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    rest = ordered[_TYPES:]
    rows = ordered[:_TYPES]
    if rest:
        others = [sum(row[place] for _, row in rest) for place in range(3)]
        rows.append(((f"{len(rest)} others", ""), others))
    for (kind, precision), (calls, time_ms, share) in rows:
        yield kind, precision, f"{calls:.0f}", f"{time_ms:.3f}", _share(share)
    for label, rest_ms in _rest(profile):
        of = "" if rest_ms < 0 else _share(rest_ms / profile.whole_ms)
        yield label, "", "", f"{rest_ms:.3f}", of


def _rest(profile: Profile) -> Iterator[tuple[str, float]]:
    """What is not in operators, and the sum: compute as it is timed without a profiler."""
    yield "outside of operators", profile.outside_ms or 0.0
    if profile.unexplained_ms is not None:
        slower = profile.unexplained_ms < 0
        yield "added by the profiler" if slower else "unexplained", profile.unexplained_ms
        yield "compute", profile.wall_ms


def _footer(profile: Profile) -> Iterator[str]:
    if not any(stage.name == "read" for stage in profile.stages):
        yield "The build has no data: reading and preparing were not measured."
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
    if profile.trace:
        yield f"Trace for chrome://tracing or ui.perfetto.dev: {profile.trace}"


def _share(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _short(name: str) -> str:
    return name if len(name) <= 48 else f"{name[:22]}...{name[-23:]}"
