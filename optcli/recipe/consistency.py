"""Whether the parts of a recipe fit together: sections, devices, and the passes of a variant."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from optcli import passes, runners
from optcli.artifact import Format
from optcli.data import ONE_PREPARATION, DataSettings, two_preparations
from optcli.errors import did_you_mean
from optcli.files import registry
from optcli.passes import Pass, Traits
from optcli.recipe.models import PassUse, RunnerUse, Variant
from optcli.recipe.names import name_problem
from optcli.recipe.nodes import Node, Position, Problems
from optcli.recipe.sections import roles_of
from optcli.recipe.validation import shown_value
from optcli.settings import SymbolRange, TensorSpec, batch_range, fed, image_size
from optcli.settings.devices import HERE, DeviceSettings
from optcli.settings.latency import LatencySettings

_NO_TRAITS: Mapping[str, Traits] = {}


def check_together(
    recipe: Node, sections: Mapping[str, Any], variants: Collection[str], problems: Problems
) -> None:
    """Note what does not fit together between the sections that are each sound, by name."""
    if "inputs" in sections:
        specs, inputs = sections["inputs"], recipe.value["inputs"].elements()
        _input_names(specs, inputs, problems)
        _ranges(specs, inputs, problems)
        _batch_symbols(specs, inputs, problems)
        if "latency" in sections:
            _batch_sizes(recipe, specs, sections["latency"], problems)
        _data_inputs(recipe, specs, sections.get("data", {}), problems)
        _values(specs, inputs, sections.get("data", {}), problems)
    _preparations(recipe, sections.get("data", {}), problems)
    if sections.get("accuracy") is not None and "evaluation" not in roles_of(recipe):
        message = "accuracy is measured on data: evaluation, which the recipe does not give"
        hint = "add data: {evaluation: {source: ...}}, or remove accuracy"
        problems.add(recipe.value["accuracy"].start, message, hint)
    baseline = recipe.get("baseline")
    if baseline is not None and isinstance(baseline.value, str) and baseline.value not in variants:
        message = f"baseline: there is no variant {baseline.value!r}"
        problems.add(baseline.place, message, did_you_mean(baseline.value, list(variants)))


def _input_names(specs: tuple[TensorSpec, ...], nodes: Collection[Node], problems: Problems) -> None:
    seen: set[str] = set()
    for spec, node in zip(specs, nodes, strict=True):
        if spec.name in seen:
            message = f"two inputs have the name {spec.name!r}"
            problems.add(node.value["name"].place, message, "give each input its own name")
        seen.add(spec.name)


def _ranges(specs: tuple[TensorSpec, ...], nodes: Collection[Node], problems: Problems) -> None:
    """One symbol means one size: wherever its range is written it is the same."""
    first_uses: dict[str, tuple[SymbolRange, str]] = {}
    for spec, node in zip(specs, nodes, strict=True):
        for symbol, size in spec.ranges.items():
            first, owner = first_uses.setdefault(symbol, (size, spec.name))
            if size != first:
                at = node.get(symbol) or node.value["shape"]
                message = (
                    f"{symbol} is {_size_text(size)} here, but {_size_text(first)} in input {owner!r}"
                )
                hint = "write the same range in both, or another symbol"
                problems.add(at.place, message, hint)


def _size_text(size: SymbolRange) -> str:
    return f"{size.min}..{size.opt}..{size.max}"


def _batch_symbols(specs: tuple[TensorSpec, ...], nodes: Collection[Node], problems: Problems) -> None:
    first: TensorSpec | None = None
    for spec, node in zip(specs, nodes, strict=True):
        if spec.batch_symbol is None:
            continue
        if first is not None and spec.batch_symbol != first.batch_symbol:
            message = (
                f"the batch is {spec.batch_symbol!r} here, but {first.batch_symbol!r} in {first.name!r}"
            )
            hint = f"begin both shapes with {first.batch_symbol}"
            problems.add(node.value["shape"].elements()[0].place, message, hint)
        first = first or spec


def _batch_sizes(
    recipe: Node, specs: tuple[TensorSpec, ...], latency: LatencySettings, problems: Problems
) -> None:
    """Every batch size asked for is one that the inputs take."""
    if "batch_sizes" not in latency.model_fields_set:
        return  # the default goes by the inputs
    # Beside an input with a batch, one without is no batch of its own: anchors, a prompt.
    batched = [spec for spec in specs if spec.batch_symbol]
    batched = batched or [spec for spec in specs if not spec.whole]
    written = recipe.value["latency"].value["batch_sizes"].elements()
    for index, size in enumerate(latency.batch_sizes):
        for spec in batched:
            takes = spec.batch_range()
            if takes.min <= size <= takes.max:
                continue
            fixed = spec.batch_symbol is None
            wanted = str(takes.min) if fixed else f"{takes.min} to {takes.max}"
            message = f"latency measures batch size {size}, but input {spec.name!r} takes {wanted}"
            mend = "begin its shape with batch instead of a number"
            hint = mend if fixed else "widen the range of its batch"
            problems.add(written[index].place, message, hint)


def _preparations(recipe: Node, data: Mapping[str, DataSettings], problems: Problems) -> None:
    """One model has one preparation; those of presets are compared when the data are opened."""
    for role, other, how in two_preparations(data):
        node = recipe.value["data"].value[role]
        at = node.get("prepare") or node
        message = f"data.{role}.prepare gives images other values than {other}: {'; '.join(how)}"
        problems.add(at.start, message, ONE_PREPARATION)


def _data_inputs(
    recipe: Node,
    specs: tuple[TensorSpec, ...],
    data: Mapping[str, DataSettings],
    problems: Problems,
) -> None:
    names, valued = [spec.name for spec in fed(specs)], {spec.name for spec in specs if spec.value}
    for role, settings in data.items():
        if settings.input is not None and settings.input not in names:
            node = recipe.value["data"].value[role].value["input"]
            message = f"data.{role}.input: there is no input {settings.input!r}"
            if settings.input in valued:
                message = f"data.{role}.input: {settings.input!r} has a value, and no data feed it"
            problems.add(node.place, message, did_you_mean(settings.input, names))


def _values(
    specs: tuple[TensorSpec, ...],
    nodes: Collection[Node],
    data: Mapping[str, DataSettings],
    problems: Problems,
) -> None:
    """Data feed one input at least, and where the size of the original is wanted there are images."""
    unprepared = next((role for role, each in data.items() if each.holds_inputs), None)
    for spec, node in zip(specs, nodes, strict=True):
        if spec.value is None:
            continue
        sized, most = isinstance(spec.value, str), batch_range(specs).max
        rows = 1 if spec.whole else spec.batch_range().max
        numbers = "[1, 1]" if spec.value == "scale_factor" else "[640, 640]"
        message, hint = "", f"write the numbers instead, such as value: {numbers}"
        if not fed(specs):
            message, hint = "every input has a value", "leave out the value of the one that data feed"
        elif sized and image_size(specs) is None:
            message = f"{spec.value} is of an image, and no input is one"
        elif sized and unprepared is not None:
            message = f"{spec.value} is not known: data.{unprepared} holds prepared inputs, no images"
            hint = f"declare `prepare` for images as they are stored, or {hint}"
        elif most > rows and (sized or not spec.whole):
            message = f"the shape has room for {rows} of the up to {most} samples of a batch"
            hint = f"begin its shape with batch, or let those of the other inputs begin with {rows}"
        if message:
            problems.add(node.value["value"].place, f"input {spec.name!r}: {message}", hint)


def chain_problems(
    source: Format | None,
    variant: Variant,
    roles: Collection[str],
    place: Position,
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
        at = Position.parse(use.place)
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
        _check_runner(current, variant.runner, variant.passes, place, problems)


def _produced(known: Pass | Traits, source: Format | None) -> Format | None:
    """The format made; from an unknown source only where every accepted one gives the same."""
    formats = {
        known.produces[one] if isinstance(known, Traits) else known.produces(one)
        for one in ([source] if source is not None else known.accepts)
    }
    return formats.pop() if len(formats) == 1 else None


def _check_runner(
    final: Format,
    use: RunnerUse | None,
    chain: Sequence[PassUse],
    place: Position,
    problems: Problems,
) -> None:
    if use is None:
        if final not in runners.DEFAULTS:
            at = Position.parse(chain[-1].place) if chain else place
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
    problems.add(Position.parse(use.place), message, hint or "choose another runner")


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


def check_devices(
    recipe: Node, sections: Mapping[str, Any], variants: Mapping[str, Node], problems: Problems
) -> None:
    """Note devices whose names are no folder's, and lists of devices that name unknown ones.

    `variants` are the variants as they are written.
    """
    devices: dict[str, DeviceSettings] | None = sections.get("devices")
    if devices is None:  # something in them is wrong already
        return
    listed = recipe.get("devices")
    seen: dict[str, str] = {}
    for name, node in listed.items() if listed is not None else ():
        wrong = name_problem(name)
        if name == HERE and not devices[name].is_here:
            other = "ssh" if devices[name].ssh else "ray"
            wrong = (f"{HERE} is the machine that runs optcli, found {other}", "choose another name")
        elif name.lower() in seen:
            wrong = (f"it differs from {seen[name.lower()]!r} in capitals only", "rename one of them")
        if wrong is not None:
            problems.add(node.start, f"the device {shown_value(name)}: {wrong[0]}", wrong[1])
        seen.setdefault(name.lower(), name)
    for section in ("latency", "gate"):
        _check_listed(recipe.get(section), f"{section}.devices", devices, problems)
    for name, node in variants.items():
        _check_listed(node, f"devices of {name}", devices, problems)


def _check_listed(
    owner: Node | None, where: str, devices: Mapping[str, DeviceSettings], problems: Problems
) -> None:
    """Names in a list of devices: known, and no machine twice."""
    node = None if owner is None else owner.get("devices")
    machines: dict[str | None, str] = {}
    for item in node.elements() if node is not None else ():
        name = item.value
        if not isinstance(name, str):
            continue
        if name not in devices and name != HERE:
            message = f"{where}: there is no device {shown_value(name)}"
            known = [*devices, *([] if HERE in devices else [HERE])]
            problems.add(item.place, message, _meant_device(name, known))
            continue
        is_here = name == HERE or devices[name].is_here
        machine = HERE if is_here else name
        if machine in machines:
            other = machines[machine]
            same = "is named twice" if other == name else f"is the same machine as {other!r}"
            problems.add(item.place, f"{where}: {name!r} {same}", "name each machine once")
        machines.setdefault(machine, name)


def _meant_device(name: str, known: list[str]) -> str:
    near = did_you_mean(name, known)
    return near if "did you mean" in near else f"{near}; add it to devices: {{{name}: {{ray: ...}}}}"
