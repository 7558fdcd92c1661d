"""The recipe as text, with a comment for everything that a person will want to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from optcli.draft.data import Data
from optcli.draft.variants import Offer
from optcli.draft.wording import input_line, quoted
from optcli.recipe import MODELINE
from optcli.settings import TensorSpec, batch_range


def written(
    name: str,
    source: str,
    weights: str | None,
    inputs: Sequence[TensorSpec],
    found: dict[str, Any],
    images: Data | None,
    variants: Sequence[Offer],
) -> str:
    """The whole recipe; `source` and `weights` as it names them."""
    lines = [
        MODELINE,
        "# Written by `optcli init`. Paths are relative to this file; build it with",
        "#",
        "#     optcli build FILE",
        "version: 1",
        f"name: {quoted(name)}",
        "",
        *_model(source, weights, found),
        "",
        "# A name in a shape, like `batch`, is a size that may change between its bounds.",
        "inputs:",
        *(input_line(spec) for spec in inputs),
        "",
        *_data(inputs, found, images),
        "",
        *_measures(inputs, found, images),
        "",
        "# The first variant is the baseline. `optcli passes` lists what else can be done.",
        "variants:",
        *_variants(variants),
    ]
    return "\n".join(lines) + "\n"


def _model(source: str, weights: str | None, found: dict[str, Any]) -> Iterator[str]:
    kind = source.partition(":")[0]
    yield "model:"
    yield f"  source: {quoted(source)}"
    if weights is not None:
        yield f"  weights: {quoted(weights)}"
    elif found["cached"]:
        yield f"  weights: {found['cached']}    # of {kind}, already on this machine"
    elif kind in ("torchvision", "timm"):
        yield f"  # weights: DEFAULT    # {kind}'s own (downloaded), or a local file. Without: random"
        yield "  # arguments: {num_classes: 10}"
    elif kind == "python":
        yield "  # weights: weights.safetensors    # or a .pth that holds a state dict. Without: random"


def _data(inputs: Sequence[TensorSpec], found: dict[str, Any], images: Data | None) -> Iterator[str]:
    yield "# Real samples: calibration sets the ranges of INT8, evaluation judges the result. They must"
    yield "# share no sample."
    source, first, second = "imagefolder:FOLDER", "train", "val"
    mark = "# "
    if images is not None:
        source, first, second, mark = images.source, images.calibration, images.evaluation, ""
    prepare = found["prepare"] or _prepare(inputs[0])
    yield f"{mark}data:"
    yield f"{mark}  calibration:"
    yield f"{mark}    source: {quoted(source)}    # one folder per class"
    yield f"{mark}    split: {first}"
    if images is not None and images.samples:
        yield f"{mark}    samples: {images.samples}"
    yield f"{mark}    prepare: &prepare {prepare}"
    yield f"{mark}  evaluation:"
    yield f"{mark}    source: {quoted(source)}"
    yield f"{mark}    split: {second}"
    yield f"{mark}    prepare: *prepare"


def _prepare(spec: TensorSpec) -> str:
    """A usual preparation of images for an input; its mean and std are for the user to check."""
    if len(spec.shape) != 4:
        return "{scale: 1/255}"
    sizes = [size if isinstance(size, int) else spec.ranges[size].opt for size in spec.shape[1:]]
    last = sizes[2] in (1, 3) and sizes[0] not in (1, 3)
    channels, height, width = (sizes[2], *sizes[:2]) if last else sizes
    order = "grey" if channels == 1 else "rgb"
    usual = ", mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]" if channels == 3 else ""
    if spec.dtype == "uint8":
        return f"{{resize: [{height}, {width}], channel_order: {order}}}"
    return f"{{resize: [{height}, {width}], channel_order: {order}, scale: 1/255{usual}}}"


def _measures(
    inputs: Sequence[TensorSpec], found: dict[str, Any], images: Data | None
) -> Iterator[str]:
    why = "needs data: evaluation with labels"
    if images is not None:
        why = ""
        if images.classes != found["classes"]:
            why = (
                f"the folder has {images.classes} classes, the model {found['classes'] or 'no classes'}"
            )
        elif not (found["trained"] or found["cached"]):
            why = "the weights are random"
    mark = f"# {why}: outputs are compared instead\n# " if why else ""
    yield f"{mark}accuracy: {{metric: top1, max_drop: 0.01}}    # may lose one point of top-1"
    span = batch_range(inputs)
    sizes = sorted({size for size in (1, 8) if span.min <= size <= span.max} or {span.min})
    yield f"latency: {{batch_sizes: [{', '.join(map(str, sizes))}]}}"
    yield "# slo: {p99_ms: 50}    # a promise to keep, at batch size 1"


def _variants(variants: Sequence[Offer]) -> Iterator[str]:
    for each in variants:
        line = f"{each.name}: {each.passes}"
        if each.reason:
            yield f"  # {line}    # {each.reason}"
        else:
            yield f"  {line}    # {each.about}"
