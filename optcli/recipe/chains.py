"""Whether the passes of a variant fit together: formats from the source to the runner, and data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from optcli import passes, runners
from optcli.artifact import Format
from optcli.files import registry
from optcli.passes import Pass, Traits
from optcli.recipe.models import PassUse, RunnerUse, Variant
from optcli.recipe.nodes import Place, Problems

_NO_TRAITS: Mapping[str, Traits] = {}


def chain_problems(
    source: Format | None,
    variant: Variant,
    roles: Collection[str],
    place: Place,
    problems: Problems,
    traits: Mapping[str, Traits] = _NO_TRAITS,
) -> None:
    """Note where a variant's formats or data do not fit.

    `source` is the format the model comes in, None where that is unknown; `traits` holds what is
    known of passes that are not optcli's own, by `PassUse.place`; the format after one that is not
    known yet is unknown, and what follows is checked from where it is known again.
    """
    current: Format | None = source
    before, done = "the model", False
    for use in variant.passes:
        known = use.configured or traits.get(use.place)
        at = Place.parse(use.place)
        if done:
            problems.add(at, f"{use.name} cannot follow {before}", f"put {before} last")
        if known is None:
            current, before, done = None, use.name, False
            continue
        for role in known.roles() if isinstance(known, Pass) else known.uses:
            if role not in roles:
                message = f"{use.name} needs data: {role}, which the recipe does not give"
                problems.add(at, message, f"add data: {{{role}: {{source: ...}}}}", kind=role)
        if current is not None and current not in known.accepts:
            reads = " or ".join(known.accepts)
            verb = f"{before} (before it) makes" if before != "the model" else "the model comes as"
            message = f"{use.name} reads {reads}, but {verb} {current.value}"
            problems.add(at, message, _between(current, known.accepts, use.name))
            current = None
        current, before, done = _produced(known, current), use.name, known.last
    if current is not None:
        _runner(current, variant.runner, variant.passes, place, problems)


def _produced(known: Pass | Traits, source: Format | None) -> Format | None:
    """The format made; from an unknown source only where every accepted one gives the same."""
    formats = {
        known.produces[one] if isinstance(known, Traits) else known.produces(one)
        for one in ([source] if source is not None else known.accepts)
    }
    return formats.pop() if len(formats) == 1 else None


def _runner(
    final: Format, use: RunnerUse | None, chain: Sequence[PassUse], place: Place, problems: Problems
) -> None:
    if use is None:
        if final not in runners.DEFAULTS:
            at = Place.parse(chain[-1].place) if chain else place
            problems.add(at, f"no runner runs {final.value} by itself", "name one under runner:")
        return
    runs = use.configured.runs
    if final in runs:
        return
    able = [name for name in runners.names() if final in runners.find(name).runs]
    readable = " or ".join(runs)
    path = " and ".join(passes_between(final, runs) or ())
    hint = f"add {path} to the passes" if path else ""
    if able:
        hint = f"{hint}, or write runner: {able[0]}" if hint else f"write runner: {able[0]}"
    message = f"the runner {use.name} runs {readable}, but the passes make {final.value}"
    problems.add(Place.parse(use.place), message, hint or "choose another runner")


def _between(source: Format, targets: Sequence[Format], name: str) -> str:
    """Which of optcli's own passes lead from one format to another."""
    path = passes_between(source, targets)
    if path:
        return f"put {' and '.join(path)} before {name}"
    able = [n for n in registry.names(passes.__name__) if source in passes.find(n).accepts]
    return f"{source.value} is read by {', '.join(able)}" if able else f"no pass reads {source.value}"


def passes_between(source: Format, targets: Sequence[Format]) -> tuple[str, ...] | None:
    """The shortest chain of passes, with their default options, that ends in a wanted format."""
    waiting: list[tuple[Format, tuple[str, ...]]] = [(source, ())]
    seen = {source}
    while waiting:
        current, path = waiting.pop(0)
        if current in targets:
            return path
        for name, target in _steps(current):
            if target not in seen:
                seen.add(target)
                waiting.append((target, (*path, name)))
    return None


def _steps(source: Format) -> Iterator[tuple[str, Format]]:
    for name in registry.names(passes.__name__):
        kind = passes.find(name)
        if source not in kind.accepts or any(f.is_required() for f in kind.model_fields.values()):
            continue
        yield name, kind().produces(source)
