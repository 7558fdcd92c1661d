"""Images in, classes or boxes out: the settings of `data.images` and `outputs.postprocess`.

A recipe's preparation, postprocessing and class names become plain data, which those modules read
without optcli. What they cannot carry is refused here, before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli import data
from optcli.accuracy.metrics import reads
from optcli.data import DataSettings, Preparation
from optcli.data.labels import class_names_in
from optcli.data.preset import resolved
from optcli.data.samples import layout_of
from optcli.data.steps import written_out
from optcli.errors import InputError, OptcliError, UsageError, counted, did_you_mean
from optcli.outputs import class_count
from optcli.pipeline.decoding import Decoding
from optcli.pipeline.model_files.built_variant import BuiltVariant, Samples
from optcli.recipe import load
from optcli.scaffold.inspection.findings import Tensor
from optcli.settings import TensorSpec, fed

IMAGES, POSTPROCESS = "images.json", "postprocess.json"
FORMATS = ("JPEG", "PNG")
# What Pillow warns of. Decoded as RGB such an image takes 256 MiB.
MOST_PIXELS = 89_478_485
TOP = 5  # classes of an answer
_RANK = 4
_UNPLANNED = (
    "decoding and preparing an image takes time beside the model's: the plan counts it only where"
    " `optcli plan --overhead 6ms+2ms` says how much"
)


@dataclass(frozen=True)
class ImageServing:
    """The contents of `images.json` and `postprocess.json`, and what to know of them."""

    images: dict[str, Any]
    postprocess: dict[str, Any]
    notes: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write both files. Raises OSError."""
        self.write_images(folder)
        self.write_postprocess(folder)

    def write_images(self, folder: Path) -> None:
        """Write `images.json`. Raises OSError."""
        _write(folder / IMAGES, self.images)

    def write_postprocess(self, folder: Path) -> None:
        """Write `postprocess.json`. Raises OSError."""
        _write(folder / POSTPROCESS, self.postprocess)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of the model that answers are made of, in the order of their use."""
        from optcli.outputs.postprocess import outputs_of

        return outputs_of(self.postprocess[self.postprocess["kind"]])


def image_serving(built: BuiltVariant, outputs: Sequence[Tensor], *, raw: bool = False) -> ImageServing:
    """How images become inputs of the variant, and outputs answers; `raw`: outputs are the answers.

    Raises `UsageError` for a recipe whose preparation or outputs cannot be carried into a bundle, and
    `InputError` for class names that do not fit the model.
    """
    samples = built.samples
    if samples.data is None:
        reason = samples.notes[0] if samples.notes else "the recipe names no data"
        reason = reason.removeprefix("inputs are random: ")
        raise _refused(
            f"how an image becomes an input is not known: {reason}",
            "declare `prepare` under data: {evaluation: ...} and build again",
        )
    spec = _image_input(samples.data, built.inputs)
    steps = _steps(samples, spec, built.inputs)
    layout = steps.layout or layout_of(spec)
    images = _images(spec, steps, layout, _values(built.inputs))
    if raw:
        return ImageServing(images, {})
    follows = _follows(samples, outputs)
    count = class_count(follows["kind"], follows[follows["kind"]], outputs)
    names, notes = _names(samples, count)
    words = samples.decoding.words if samples.decoding.known is not None else None
    postprocess = {
        "schema": 1,
        **follows,
        "names": names and list(names),
        "size": _size(spec, layout),
    }
    return ImageServing(images, postprocess, (*([words] if words else []), *notes, _UNPLANNED))


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _refused(message: str, hint: str) -> UsageError:
    return UsageError(message, place="the recipe", hint=hint)


def _image_input(settings: DataSettings, inputs: Sequence[TensorSpec]) -> TensorSpec:
    if len(fed(inputs)) > 1:
        raise _refused(
            f"an image feeds one input, the model has {', '.join(spec.name for spec in fed(inputs))}",
            "take a variant with one input, or give the others a `value` in the recipe",
        )
    (spec,) = fed(inputs)
    if settings.input not in (None, spec.name):
        raise _refused(
            f"the data feed the input {settings.input!r}, the model has {spec.name!r}",
            "correct `input` under the recipe's data",
        )
    rows = spec.batch_range().min
    if rows > 1:
        raise _refused(
            f"the model takes at least {rows} images at once, and a request brings one",
            "let the first size of its input be `batch` from 1 on in the recipe, and build again",
        )
    if not 3 <= len(spec.shape) <= _RANK:
        what = "a stack of images or a video" if len(spec.shape) > _RANK else "no image"
        raise _refused(
            f"the input {spec.name!r} has {len(spec.shape)} dimensions: it takes {what}",
            "take a model of single images",
        )
    return spec


def _steps(samples: Samples, spec: TensorSpec, inputs: Sequence[TensorSpec]) -> Preparation:
    """The declared steps, with a preset spelled out."""
    settings = samples.data
    assert settings is not None
    if settings.runs_code:
        raise _refused(
            f"{settings.source} prepares the samples in Python of the recipe's own",
            "declare the steps under `prepare`, with a source of images for the evaluation data, such"
            " as imagefolder:, coco: or npz:",
        )
    if settings.layout.holds == "arrays":
        if settings.holds_inputs:
            raise _refused(
                f"{settings.source} holds inputs that are prepared already: the recipe does not say how"
                " an image becomes one",
                "declare the steps under `prepare`, with the images as they are in the npz",
            )
        items = data.open(settings, samples.folder, inputs)
        kind = items.read(0).raw[spec.name].dtype if len(items) else None
        if str(kind) != "uint8":
            raise _refused(
                f"{settings.source} holds {kind or 'no'} values, wanted pixels of uint8, 0..255",
                "store the images as uint8 and declare `scale` under `prepare`",
            )
    return resolved(settings.prepare or Preparation())


def _values(inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """The inputs that no image feeds; nothing is said where there are none."""
    values = {
        spec.name: {
            "dtype": spec.dtype,
            "shape": list(spec.shape if spec.whole else spec.shape[1:]),
            "whole": spec.whole,
            "value": spec.value,
        }
        for spec in inputs
        if spec.value is not None
    }
    return {"values": values} if values else {}


def _images(
    spec: TensorSpec, steps: Preparation, layout: str, values: dict[str, Any]
) -> dict[str, Any]:
    return {
        "schema": 1,
        "input": spec.name,
        "dtype": spec.dtype,
        "shape": list(spec.shape[1:]),
        "ranges": {
            name: [spec.ranges[name].min, spec.ranges[name].max]
            for name in spec.shape[1:]
            if name in spec.ranges
        },
        "layout": layout,
        "formats": list(FORMATS),
        "most_pixels": MOST_PIXELS,
        "steps": written_out(steps),
        **values,
    }


def _size(spec: TensorSpec, layout: str) -> list[int] | None:
    """Height and width of the input; None where one of them varies."""
    sizes = spec.shape[1:]
    height, width = sizes[1:] if layout.endswith("chw") else sizes[:2]
    return [height, width] if isinstance(height, int) and isinstance(width, int) else None


def _follows(samples: Samples, outputs: Sequence[Tensor]) -> dict[str, Any]:
    """What becomes of the outputs: its kind, and its settings under that name."""
    after = samples.decoding.known
    if after is not None and after.python is not None:
        raise _refused(
            f"the recipe's postprocess is Python of its own ({after.python}), which does not travel",
            "declare `postprocess: {yolox: ...}`, `{boxes: ...}` or `{rows: ...}`",
        )
    if after is not None and after.detector is not None:
        kind, words = after.detector
        field = "boxes" if kind == "boxes" else "output"
        how = {**words, field: words[field] or (outputs[0].name if outputs else None)}
        _require_outputs(how, outputs)
        return {"kind": kind, kind: how}
    scores = _tensor(outputs, samples.output)
    shape = scores.shape if scores is not None else None
    if scores is None or shape is None or len(shape) < 2 or any(size != 1 for size in shape[2:]):
        given = (
            f"{scores.name} of shape {list(shape)}"
            if scores is not None and shape
            else "no such output"
        )
        raise _refused(
            f"wanted an output of scores [batch, classes], found {given}",
            "declare `postprocess` for a detector, or name the scores with `accuracy: {output: ...}`"
            if samples.decoding.settings is None
            else f"their form suggests `{samples.decoding.written}`: if that is right, write it",
        )
    how = {"output": scores.name, "activation": "auto", "top": TOP}
    return {"kind": "classes", "classes": how}


def _require_outputs(how: dict[str, Any], outputs: Sequence[Tensor]) -> None:
    from optcli.outputs.postprocess import outputs_of

    known = [each.name for each in outputs]
    for name in outputs_of(how):
        if known and name not in known:
            raise _refused(
                f"postprocess reads the output {name!r}, and the model has {', '.join(known)}",
                did_you_mean(name, known) or "correct `postprocess` in the recipe",
            )


def _tensor(outputs: Sequence[Tensor], name: str | None) -> Tensor | None:
    named = [each for each in outputs if name is None or each.name == name]
    return named[0] if named else None


def _names(samples: Samples, count: int | None) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The names of the classes, and why there are none."""
    declared = samples.class_names
    if declared is not None:
        names = declared if isinstance(declared, tuple) else class_names_in(samples.folder, declared)
        if count is not None and len(names) != count:
            raise InputError(
                f"the recipe names {counted(len(names), 'class', 'classes')}, the model has {count}",
                place="class_names",
                hint="name each class once, that of label 0 first",
            )
        return names, ()
    assert samples.data is not None
    of_file = samples.decoding.class_names
    if of_file is not None and count in (None, len(of_file)):
        return of_file, ("classes have the names that the model's file gives them",)
    try:
        class_names = data.class_names(samples.data, samples.folder)
    except OptcliError as error:
        return None, (f"answers have no class names: the data cannot be read ({error.message})",)
    mend = "add `class_names` to the recipe"
    if class_names is None:
        return None, (f"answers have class numbers and no names: {mend}",)
    if count is not None and len(class_names) != count:
        why = f"the data have {counted(len(class_names), 'class', 'classes')}, the model {count}"
        return None, (f"answers have class numbers and no names: {why}; {mend}",)
    return class_names, ()


def class_scores_of(samples: Samples, outputs: Sequence[str], *, answers_classes: bool) -> str | None:
    """The output with the scores, None where the recipe does not say that there is one.

    The recipe says it by its metric. Without a metric it does so by `class_names`, or where the server
    answers images with classes; or the model's file says what it is for. What is decoded is something
    else.
    """
    if samples.decoding.known is not None or not outputs:
        return None
    name = samples.output or outputs[0]
    if samples.metric is None:
        exporter = samples.decoding.exporter
        classifies = exporter is not None and exporter.task == "classify"
        named = answers_classes or classifies or samples.class_names is not None
        return name if named else None
    return name if name in outputs and reads(samples.metric) == "logits" else None


def class_scores_in(path: Path, outputs: Sequence[str]) -> str | None:
    """The same by the recipe of a server that has these outputs. Raises as `recipe.load`."""
    recipe = load(path)
    samples = Samples(
        decoding=Decoding(recipe.postprocess, "recipe"),
        metric=recipe.accuracy.metric if recipe.accuracy else None,
        output=recipe.accuracy.output if recipe.accuracy else None,
        class_names=recipe.class_names,
    )
    return class_scores_of(samples, outputs, answers_classes=False)
