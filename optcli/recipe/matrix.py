"""`matrix`: one entry writes a variant for every combination of its values.

    matrix:
      ov-${threads}t:
        over: {threads: [1, 2]}
        variant: {passes: [export_onnx, to_openvino], runner: {name: openvino, threads: "${threads}"}}

writes `ov-1t` and `ov-2t`. Every name under `over` stands in the entry's own name, so that no two
variants share one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from optcli.recipe.nodes import MOST_VALUES, Node, Problems, size
from optcli.recipe.placeholders import substituted, written_out
from optcli.recipe.validation import shown_value, unknown_keys

# Of one entry, and of all of them together: variants, and the values in what they say.
_MOST_VARIANTS = 200
_MOST_WRITTEN = 1000
_MOST_VALUES = 5 * MOST_VALUES
_NAME = re.compile(r"[A-Za-z_]\w*")


def expanded(matrix: Node, problems: Problems) -> dict[str, Node]:
    """The variants that a matrix writes, by name; what is wrong is noted as a problem."""
    variants: dict[str, Node] = {}
    if not isinstance(matrix.value, dict):
        message = f"matrix: found {shown_value(matrix.value)}, wanted a mapping"
        problems.add(matrix.place, message, "write NAME-${x}: {over: {x: [1, 2]}, variant: {...}}")
        return variants
    left = _MOST_VALUES
    for name, entry in matrix.items():
        for full, variant in _variants(name, entry, problems):
            left -= size(variant, left + 1)
            if left < 0 or len(variants) >= _MOST_WRITTEN:
                many = f"{_MOST_WRITTEN} variants" if left >= 0 else f"{_MOST_VALUES} values"
                message = f"matrix: the entries write more than {many} together"
                problems.add(entry.start, message, "name fewer values, or write several recipes")
                return variants
            if full in variants:
                message = f"the matrix writes a variant {full!r} twice"
                problems.add(entry.start, message, "make the values or the names differ")
            variants.setdefault(full, variant)
    return variants


def _variants(name: str, entry: Node, problems: Problems) -> Iterator[tuple[str, Node]]:
    """The name and content of each variant of an entry, written when it is asked for."""
    over, template = _parts(entry, problems)
    if over is None or template is None:
        return
    values = _values(name, entry, over, problems)
    if not values:
        return
    combinations = list(itertools.islice(itertools.product(*values.values()), _MOST_VARIANTS + 1))
    if len(combinations) > _MOST_VARIANTS:
        message = f"{name} writes more than {_MOST_VARIANTS} variants"
        problems.add(over.start, message, "name fewer values")
        return
    for combination in combinations:
        names = dict(zip(values, combination, strict=True))
        title = substituted(Node(name, entry.start), problems, names)
        variant = substituted(template, problems, names)
        wrapped = written_out(Node({"variants": Node({"it": variant}, entry.place)}, entry.place))
        yield str(title.value), replace(wrapped.value["variants"].value["it"], key=entry.key)


def _parts(entry: Node, problems: Problems) -> tuple[Node | None, Node | None]:
    if not isinstance(entry.value, dict):
        message = f"found {shown_value(entry.value)}, wanted a mapping with over and variant"
        problems.add(entry.place, message, "write {over: {x: [1, 2]}, variant: {...}}")
        return None, None
    unknown_keys(entry, ("over", "variant"), problems)
    for key in ("over", "variant"):
        if key not in entry.value:
            hint = "over: {x: [1, 2]}" if key == "over" else "variant: {passes: [...]}"
            problems.add(entry.start, f"missing key {key!r}", f"add {hint}", kind=key)
    over = entry.get("over")
    if over is not None and (not isinstance(over.value, dict) or not over.value):
        message = f"over: found {shown_value(over.value)}, wanted names with lists of values"
        problems.add(over.place, message, "write over: {threads: [1, 2]}")
        over = None
    return over, entry.get("variant")


def _values(name: str, entry: Node, over: Node, problems: Problems) -> dict[str, tuple[Node, ...]]:
    """The lists under `over`; empty where one of them is wrong."""
    before = len(problems)
    values: dict[str, tuple[Node, ...]] = {}
    for key, listed in over.items():
        if not _NAME.fullmatch(key):
            problems.add(listed.start, f"found the name {key!r}, wanted letters, digits and _")
        elif not isinstance(listed.value, tuple) or not listed.value:
            message = f"{key}: found {shown_value(listed.value)}, wanted a list of values"
            problems.add(listed.place, message, f"write {key}: [1, 2]")
        elif f"${{{key}}}" not in name:
            message = f"the name {name!r} does not contain ${{{key}}}, so variants would share it"
            problems.add(entry.start, message, f"write {name}-${{{key}}}", kind=key)
        else:
            values[key] = tuple(listed.value)
    return values if len(problems) == before else {}
