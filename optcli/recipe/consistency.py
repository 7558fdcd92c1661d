"""What only the parts of a recipe together can get wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from optcli.data import ONE_PREPARATION, DataSettings, two_preparations
from optcli.errors import did_you_mean
from optcli.recipe.nodes import Node, Problems
from optcli.recipe.sections import roles_of
from optcli.settings import SymbolRange, TensorSpec, batch_range, fed, image_size
from optcli.settings.latency import LatencySettings


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
                message = f"{symbol} is {_said(size)} here, but {_said(first)} in input {owner!r}"
                hint = "write the same range in both, or another symbol"
                problems.add(at.place, message, hint)


def _said(size: SymbolRange) -> str:
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
