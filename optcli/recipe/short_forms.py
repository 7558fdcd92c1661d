"""Short forms written out: a list for `{passes: [...]}`, a name for `{name: {}}`.

After this every variant that is rightly written has one shape, so that extending, `--set` and the
checks see only that one. What is wrong stays as it is, for the checks to name.
"""

from __future__ import annotations

from dataclasses import replace

from optcli.recipe.nodes import Node


def written_out(recipe: Node) -> Node:
    """The recipe with the short forms of `variants` and `matrix` written out."""
    variants, matrix = recipe.get("variants"), recipe.get("matrix")
    changes = {}
    if variants is not None and isinstance(variants.value, dict):
        changes["variants"] = variants.with_items({k: _variant(v) for k, v in variants.items()})
    if matrix is not None and isinstance(matrix.value, dict):
        changes["matrix"] = matrix.with_items({k: _entry(v) for k, v in matrix.items()})
    return recipe.with_items(changes)


def _entry(entry: Node) -> Node:
    variant = entry.get("variant")
    return entry if variant is None else entry.with_items({"variant": _variant(variant)})


def _variant(variant: Node) -> Node:
    if isinstance(variant.value, tuple):
        listed = Node(variant.value, variant.place, variant.key)
        variant = replace(variant, value={"passes": listed})
    passes, runner = variant.get("passes"), variant.get("runner")
    changes: dict[str, Node] = {}
    if passes is not None and isinstance(passes.value, tuple):
        changes["passes"] = replace(passes, value=tuple(_pass(item) for item in passes.value))
    if runner is not None and isinstance(runner.value, str):
        changes["runner"] = replace(runner, value={"name": replace(runner, key=None)})
    return variant.with_items(changes) if changes else variant


def _pass(item: Node) -> Node:
    if isinstance(item.value, str):
        return replace(item, value={item.value: Node({}, item.place, item.place)})
    if isinstance(item.value, dict) and len(item.value) == 1:
        ((name, options),) = item.value.items()
        if options.value is None:
            return replace(item, value={name: replace(options, value={})})
    return item
