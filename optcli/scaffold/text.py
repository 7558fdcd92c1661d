"""The recipe as text, with a comment for everything that a person will want to change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from optcli.errors import counted
from optcli.outputs import Guess
from optcli.recipe import MODELINE
from optcli.scaffold.known_layouts import Data
from optcli.scaffold.variants import Offer
from optcli.scaffold.wording import input_line, quoted
from optcli.settings import TensorSpec, batch_range
from optcli.settings.postprocess import PostprocessSettings

_IMAGENET = "mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]"
# The metric for what stands beside boxes, what data must have for it, and what it is in words.
_MAPS = {
    "mask": ("mask_map", "segmentation", "masks"),
    "keypoints": ("keypoint_map", "keypoints", "keypoints"),
    "corners": ("rotated_map", "corners", "rotated boxes"),
}


@dataclass(frozen=True)
class DraftModel:
    """A network as a recipe writes it; `cached` are weights of its library that lie here already."""

    source: str
    weights: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    cached: str | None = None
    trained: bool = False

    @property
    def kind(self) -> str:
        """What stands before the colon."""
        return self.source.partition(":")[0]


@dataclass(frozen=True)
class Preparing:
    """How samples are prepared: what a recipe writes, and how sure it is.

    `guess` says what of it is guessed, for the comment and for the person; empty where it is known.
    """

    settings: str
    guess: str = ""

    @property
    def written(self) -> str:
        """What stands in the recipe: a build tries others than those that are guessed."""
        if not self.guess:
            return self.settings
        steps = self.settings if self.settings.startswith("{") else f"{{preset: {self.settings}}}"
        return f"{steps[:-1]}, guessed: true}}"


def written(
    name: str,
    model: DraftModel,
    inputs: Sequence[TensorSpec],
    outputs: Guess,
    preparing: Preparing,
    data: Data | None,
    variants: Sequence[Offer],
) -> str:
    """The whole recipe."""
    lines = [
        MODELINE,
        "# Written by `optcli init`. Paths are relative to this file; build it with",
        "#",
        "#     optcli build FILE",
        "version: 1",
        f"name: {quoted(name)}",
        "",
        *_model(model),
        "",
        "# A name in a shape, like `batch`, is a size that may change between its bounds.",
        "inputs:",
        *(input_line(spec) for spec in inputs),
        "",
        *_data(preparing, data, outputs.kind),
        "",
        *_measures(model, inputs, outputs, data),
        "",
        "# The first variant is the baseline. `optcli passes` lists what else can be done.",
        "variants:",
        *_variants(variants),
    ]
    return "\n".join(lines) + "\n"


def _model(model: DraftModel) -> Iterator[str]:
    yield "model:"
    yield f"  source: {quoted(model.source)}"
    if model.weights is not None:
        yield f"  weights: {quoted(model.weights)}"
    elif model.cached:
        yield f"  weights: {model.cached}    # of {model.kind}, already on this machine"
    elif model.kind in ("torchvision", "timm"):
        if "num_classes" in model.arguments:
            about = f"a local file; {model.kind}'s own are of other classes"
            yield f"  # weights: weights.safetensors    # {about}. Without: random"
        else:
            about = f"{model.kind}'s own (downloaded), or a local file"
            yield f"  # weights: DEFAULT    # {about}. Without: random"
    elif model.kind == "python":
        yield "  # weights: weights.safetensors    # or a .pth that holds a state dict. Without: random"
    if model.arguments:
        written = ", ".join(f"{key}: {json.dumps(value)}" for key, value in model.arguments.items())
        yield f"  arguments: {{{written}}}"
    elif model.kind in ("torchvision", "timm"):
        yield "  # arguments: {num_classes: 10}"


def _data(preparing: Preparing, data: Data | None, kind: str) -> Iterator[str]:
    yield "# Real samples: calibration sets the ranges of INT8, evaluation judges the result. They must"
    yield "# share no sample."
    mark = "" if data is not None else "# "
    shown = data or Data(
        "classes",
        "imagefolder:FOLDER",
        ("split: train",),
        ("split: val",),
        about="one folder per class",
    )
    if data is None and kind != "classes":
        what = "annotations in COCO's format" if kind == "boxes" else "images/ beside masks/"
        yield f"# For a folder with {what}, `optcli init --data FOLDER` writes this section."
    yield f"{mark}data:"
    yield f"{mark}  calibration:"
    yield f"{mark}    source: {quoted(shown.source)}    # {shown.about}"
    yield from (f"{mark}    {line}" for line in shown.calibration)
    if preparing.guess:
        yield f"{mark}    # A GUESS: {preparing.guess}."
        yield f"{mark}    # Write how the training images were prepared, and take `guessed` away."
    yield f"{mark}    prepare: &prepare {preparing.written}"
    yield f"{mark}  evaluation:"
    yield f"{mark}    source: {quoted(shown.source)}"
    yield from (f"{mark}    {line}" for line in shown.evaluation)
    yield f"{mark}    prepare: *prepare"


def prepared(
    inputs: Sequence[TensorSpec], outputs: Guess, preset: str | None, *, own_weights: bool
) -> Preparing:
    """The preparation of a preset, of a kind of detectors, or the usual one of images.

    `own_weights` says that the weights are not those that the preset belongs to.
    """
    if preset and preset.startswith("{"):
        return Preparing(preset, "")  # the network's own
    if preset:
        other = f"{preset} is how the library's own weights were trained, and yours are others"
        return Preparing(preset, other if own_weights else "")
    if outputs.prepare:
        return Preparing(
            outputs.prepare,
            "size, channels and scale are what detectors with such outputs usually take",
        )
    spec = next((each for each in inputs if len(each.shape) == 4), inputs[0])
    if len(spec.shape) != 4:
        return Preparing("{scale: 1/255}", "the model does not say what its values were scaled by")
    sizes = [size if isinstance(size, int) else spec.ranges[size].opt for size in spec.shape[1:]]
    last = sizes[2] in (1, 3) and sizes[0] not in (1, 3)
    channels, height, width = (sizes[2], *sizes[:2]) if last else sizes
    order = "grey" if channels == 1 else "rgb"
    resize = f"resize: [{height}, {width}]"
    if outputs.kind == "classes" and height == width >= 160:
        # Photographs to be classified are usually cropped to 7/8 of the shorter side.
        resize = f"resize: {round(height / 0.875)}, crop: {height}"
    steps = f"{resize}, channel_order: {order}"
    if spec.dtype == "uint8":
        return Preparing(
            f"{{{steps}}}", "whether images were resized or cropped, and the channels' order"
        )
    usual = f", {_IMAGENET}" if channels == 3 else ""
    guess = "scale, mean and std are ImageNet's" if usual else "values from 0 to 1, nothing subtracted"
    return Preparing(
        f"{{{steps}, scale: 1/255{usual}}}", f"the model does not say how it was trained; {guess}"
    )


def why_not_judged(model: DraftModel, outputs: Guess, data: Data | None) -> str:
    """Why the metric that goes with the data would mislead here; empty where it would not."""
    if data is None:
        return "needs data: evaluation with labels"
    here = {"classes": "class folders", "boxes": "categories", "pixels": "classes in the masks"}
    gives = (
        counted(outputs.count, "class", "classes")
        if outputs.count
        else "outputs that are no scores of classes"
    )
    if data.kind == "boxes" and outputs.kind != "boxes":
        return "`postprocess:` must say first what boxes and scores the outputs are"
    if data.kind == "classes" and data.classes is None:
        return "the images have no labels: they lie in no class folders"
    if data.kind != outputs.kind:
        return f"the data have {data.classes} {here[data.kind]}, the model gives {gives}"
    too_few = data.kind == "pixels" and (data.classes or 0) <= (outputs.count or 0)
    if outputs.count is not None and data.classes != outputs.count and not too_few:
        return f"the data have {data.classes} {here[data.kind]}, the model {gives}"
    if not model.trained:
        return "the weights are random"
    return ""


def _measures(
    model: DraftModel, inputs: Sequence[TensorSpec], outputs: Guess, data: Data | None
) -> Iterator[str]:
    why = why_not_judged(model, outputs, data)
    unlabelled = data is not None and data.kind == "classes" and data.classes is None
    kind = outputs.kind if data is None or unlabelled else data.kind
    mark = "# " if why else ""
    if why:
        yield f"# {why}: outputs are compared instead"
    if kind == "boxes":
        known = " The file says it." if outputs.source == "metadata" else ""
        known = " A guess by their shapes." if outputs.source == "shape" else known
        yield f"# What the outputs mean: `yolox`, `boxes`, `rows`, or a callable of yours.{known}"
        known_form = unlabelled and outputs.postprocess  # `infer` and comparisons decode without labels
        form = outputs.postprocess or "python:decode.py:decode"
        yield f"{'' if known_form else mark}postprocess: {form}"
        metric, note = _map_of(outputs, data)
        yield f"{mark}accuracy: {{metric: {metric}, max_drop: 0.01}}    # may lose one point of {note}"
    elif kind == "pixels":
        ignored = "null" if data is not None and data.ignored is None else "255"
        options = f"options: {{ignore_index: {ignored}, resize: true}}"
        yield f"{mark}accuracy: {{metric: miou, max_drop: 0.01, {options}}}    # one point of mIoU"
    elif kind == "unknown":
        metric = "python:metric.py:score, max_drop: 0.01"
        yield f"# accuracy: {{metric: {metric}}}    # or abs_rel of depth, knn of embeddings"
    else:
        several = data is not None and data.several
        metric, words = ("multilabel_map", "mAP of classes") if several else ("top1", "top-1")
        yield f"{mark}accuracy: {{metric: {metric}, max_drop: 0.01}}    # may lose one point of {words}"
    span = batch_range(inputs)
    sizes = sorted({size for size in (1, span.opt) if span.min <= size <= span.max} or {span.min})
    yield f"latency: {{batch_sizes: [{', '.join(map(str, sizes))}]}}"
    yield "# slo: {p99_ms: 50}    # a promise to keep, at batch size 1"


def _map_of(outputs: Guess, data: Data | None) -> tuple[str, str]:
    """The metric of a detector, and what it is the mean of in words."""
    from optcli.outputs import instances

    decoding = yaml.safe_load(outputs.postprocess or "null")
    detector = PostprocessSettings.model_validate(decoding).detector if decoding else None
    for name in instances.further_outputs(detector[1]) if detector else ():
        metric, part, words = _MAPS[name]
        if data is None or part in data.further_targets:
            return metric, f"mAP of {words}"
        return "map", f"mAP of boxes: the data have no {words}"
    return "map", "mAP"


def _variants(variants: Sequence[Offer]) -> Iterator[str]:
    for offer in variants:
        line = f"{offer.name}: {offer.passes}"
        if offer.reason:
            yield f"  # {line}    # {offer.reason}"
        else:
            yield f"  {line}    # {offer.about}"
