"""Before anything is built: labels of all roles are numbered as the model's classes are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from optcli import data, outputs
from optcli.accuracy.metrics import reads
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.data.labels import class_names_in, with_map
from optcli.data.numbering import ModelClasses, Numbering, RoleClasses, numbered
from optcli.models import sources
from optcli.models.formats import exporter_metadata
from optcli.observer import Observer
from optcli.outputs import FileOutput
from optcli.pipeline import keys
from optcli.pipeline.plan import source_of
from optcli.recipe import Recipe
from optcli.results.outcomes import DataRemark
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.labels import LabelSettings
from optcli.settings.postprocess import PostprocessSettings
from optcli.store import Store, key_of
from optcli.workers import Channel, messages, run

_TIMEOUT_S = 600.0
_IMAGENET = (1000, 1001)  # TensorFlow's has a background at 0


@dataclass(frozen=True, kw_only=True)
class LabelsRequest:
    """The data of a recipe and what is known of its model.

    `onnx` is the model as an ONNX file, where it is one; `source` the model's kind and settings. Of
    another model `outputs` and `metadata` are what its facts say.
    """

    folder: Path
    data: dict[str, DataSettings]
    labels: LabelSettings | None
    class_names: tuple[str, ...] | None
    accuracy: AccuracySettings | None
    postprocess: PostprocessSettings | None
    source: tuple[str, dict[str, Any]] | None = None
    onnx: Path | None = None
    outputs: tuple[FileOutput, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked:
    """What `Numbering` says, with the disagreements of images and annotations among its doubts."""

    roles: dict[str, LabelSettings | None]
    notes: tuple[str, ...]
    doubts: tuple[str, ...]
    orders: dict[str, tuple[int, ...]] = field(default_factory=dict)


def with_labels(
    recipe: Recipe, store: Store, model: Artifact | None = None, *, remember: bool = True
) -> Recipe:
    """The recipe with the labels of every role numbered as the model's classes are.

    What is found out is remembered in the store, but for a look at what would be done. `model` is
    another one than the recipe's. Raises `InputError` where the order of the classes cannot be known,
    or a class is none of the model's.
    """
    judged = recipe.accuracy is not None or "training" in recipe.data
    has_labels = recipe.labels is not None or any(each.labels for each in recipe.data.values())
    evaluation = recipe.data.get("evaluation")
    unjudged = evaluation is not None and evaluation.layout.names_classes()
    if not recipe.data or not (has_labels or judged or unjudged):
        return recipe
    layouts = [each.layout for each in recipe.data.values()]
    if not has_labels and not any(each.names_classes() or each.of_pixels for each in layouts):
        return recipe
    request = _request(recipe, model)
    ingredients = {
        "step": "labels",
        "model": source_of(recipe).ingredients(store.digests) if model is None else _known(request),
        "roles": {
            role: data.ingredients(each, recipe.folder, store.digests)
            for role, each in recipe.data.items()
        },
        "labels": request.labels and request.labels.model_dump(mode="json"),
        "class_names": request.class_names,
        "accuracy": recipe.accuracy and [recipe.accuracy.metric, recipe.accuracy.output],
        "postprocess": recipe.postprocess and recipe.postprocess.model_dump(mode="json"),
        "code": keys.code(["pipeline/labels.py"], store.digests),
    }
    key = key_of(ingredients)
    entry = store.get("labels", key)
    if entry is not None:
        return _with(recipe, messages.read(Checked, entry.record))
    if not remember:
        return _with(recipe, _checked(request, None))
    with store.lock("labels", key), store.work("labels", key) as work:
        checked = _checked(request, store.log_folder(key) / "log.txt")
        store.put("labels", key, work, messages.to_record(checked), ingredients)
    return _with(recipe, checked)


def _checked(request: LabelsRequest, log: Path | None) -> Checked:
    """What a worker finds; a model's file from anywhere is read by one that cannot write."""
    return run(
        "optcli.pipeline.labels:check",
        request,
        Checked,
        log=log,
        timeout_s=_TIMEOUT_S,
        confined=() if request.onnx is not None else None,
        reads="labels",
    )


_OTHER_CLASSES = (
    "the training data are of other classes than the objects that are judged: their labels are not used"
)
_UNJUDGED = (
    "the evaluation data have labels, and the recipe has no `accuracy:`: outputs are compared with the"
    " baseline's, and nothing is judged by the labels; add `accuracy:` with a metric, such as top1 for"
    " classes or map for boxes"
)


def say(recipe: Recipe, observer: Observer) -> None:
    """Tell what was found out of labels and classes."""
    for remark in recipe.data_remarks:
        observer.warned("labels", remark.text)


def check(request: LabelsRequest, channel: Channel | None) -> Checked:
    """In a worker: number the classes of all roles, and see that images and annotations agree."""
    label_maps = {
        role: with_map(own, request.folder)
        for role, each in request.data.items()
        if (own := each.labels or request.labels) is not None
    }
    if not label_maps and request.accuracy is None and "training" not in request.data:
        labelled = _classes(request.data["evaluation"], request.folder) is not None
        return Checked({}, (_UNJUDGED,) if labelled else (), ())
    roles = {
        role: classes
        for role, each in request.data.items()
        if (classes := _classes(each, request.folder)) is not None
    }
    notes = [_OTHER_CLASSES] if _is_unlabelled(roles, request) else []
    if notes:
        del roles["training"]
    model = _model(request, label_maps, roles)
    settings: dict[str, LabelSettings | None] = {
        role: own.model_copy(update={"classes": own.classes or model.names})
        for role, own in label_maps.items()
        if role not in roles
    }
    result = numbered(roles, model, label_maps) if roles else Numbering({})
    remarks = [
        f"{role}: {text}"
        for role, each in request.data.items()
        if role != "calibration"
        for text in data.remarks(each, request.folder)
    ]
    doubts = (*result.doubts, *remarks)
    notes += result.notes
    return Checked({**settings, **result.roles}, tuple(notes), doubts, dict(result.orders))


def _is_unlabelled(roles: Mapping[str, RoleClasses], request: LabelsRequest) -> bool:
    """Whether training's images, of a detector, are of classes that no other role has."""
    training = roles.get("training")
    if training is None or request.postprocess is None or len(roles) < 2:
        return False
    others = {name for role, of in roles.items() if role != "training" for name in of.names}
    return others.isdisjoint(training.names)


def _request(recipe: Recipe, model: Artifact | None) -> LabelsRequest:
    names = recipe.class_names
    known: dict[str, Any]
    if model is None:
        own = source_of(recipe)
        onnx = getattr(own, "file", None) if own.format == Format.ONNX else None
        known = {"source": (own.kind, own.model_dump(mode="json")), "onnx": onnx}
    else:
        metadata = exporter_metadata.of_facts(model.facts)
        known = {"outputs": outputs.of_facts(model.facts)[0], "metadata": metadata}
    return LabelsRequest(
        folder=recipe.folder,
        data=dict(recipe.data),
        labels=recipe.labels and with_map(recipe.labels, recipe.folder),
        class_names=class_names_in(recipe.folder, names) if isinstance(names, str) else names,
        accuracy=recipe.accuracy,
        postprocess=recipe.postprocess,
        **known,
    )


def _known(request: LabelsRequest) -> list[Any]:
    """What is known of another model, as plain data."""
    tensors = [[each.name, list(each.shape or ()), each.dtype] for each in request.outputs]
    return [tensors, dict(request.metadata)]


def _with(recipe: Recipe, checked: Checked) -> Recipe:
    roles = {
        role: each.model_copy(update={"labels": checked.roles.get(role)})
        for role, each in recipe.data.items()
    }
    remarks = (
        *(DataRemark(text=text) for text in checked.notes),
        *(DataRemark(text=text, doubtful=True) for text in checked.doubts),
    )
    fields = {"data": roles, "data_remarks": remarks, "class_orders": checked.orders}
    return recipe.model_copy(update=fields)


def _classes(settings: DataSettings, folder: Path) -> RoleClasses | None:
    """The classes of a role as its source has them; None where it has numbers alone."""
    own = data.collection(settings, folder)
    names = own.class_names()
    empty = frozenset(own.empty_classes()) if names else frozenset()
    return RoleClasses(names, own.class_ids(), empty, own.numbered) if names else None


def _model(
    request: LabelsRequest, settings: Mapping[str, LabelSettings], roles: Mapping[str, RoleClasses]
) -> ModelClasses:
    """What is known of the model's classes."""
    declared, metadata = _declared(request)
    postprocess = request.postprocess
    if postprocess is None and declared:
        postprocess = outputs.decoding(declared, (), metadata)
    count = _count(request.accuracy, postprocess, declared)
    listed = next((own.classes for own in settings.values() if own.classes), None)
    exported = outputs.exported(metadata)
    names: tuple[str, ...] | None
    if listed is not None:
        names, source = listed, "labels.classes"
    elif request.class_names is not None:
        names, source = request.class_names, "class_names"
    elif exported is not None and exported.names:
        names, source = exported.names, "the model's file"
    else:
        names, source = _of_library(request.source), "the weights"
        names = None if names is None else outputs.decoded_names(names, postprocess)
    of_imagenet = count if names is None else len(names)
    synsets = _synsets(of_imagenet) if of_imagenet in _IMAGENET and roles else None
    return ModelClasses(names, count, source, synsets)


def _declared(request: LabelsRequest) -> tuple[Sequence[FileOutput], Mapping[str, str]]:
    """The outputs of the model, and what its exporter says of it, as far as its file or facts tell."""
    if request.onnx is None:
        return request.outputs, request.metadata
    from optcli.models.formats.onnx import parsed

    model = parsed(request.onnx)
    declared = [
        FileOutput(each["name"], tuple(each["shape"]), each["dtype"])
        for each in exporter_metadata.outputs_of_onnx(model)
    ]
    return declared, exporter_metadata.of_onnx(model)


def _count(
    accuracy: AccuracySettings | None,
    postprocess: PostprocessSettings | None,
    declared: Sequence[FileOutput],
) -> int | None:
    if postprocess is not None:
        return outputs.class_count(*postprocess.detector, declared) if postprocess.detector else None
    if accuracy is None or reads(accuracy.metric) != "logits":
        return None
    return outputs.class_count("classes", {"output": accuracy.output}, declared)


def _of_library(source: tuple[str, dict[str, Any]] | None) -> tuple[str, ...] | None:
    if source is None:
        return None
    return sources.find(source[0]).model_validate(source[1]).class_names()


def _synsets(count: int | None) -> tuple[str, ...] | None:
    """ImageNet's synsets in the order of its 1000 classes, where timm is there to say them."""
    timm = find_spec("timm")  # to import it takes three seconds
    for folder in (timm and timm.submodule_search_locations) or ():
        with suppress(OSError):
            synsets = Path(folder, "data/_info/imagenet_synsets.txt").read_text("utf-8").splitlines()
            return ("background", *synsets) if count == len(synsets) + 1 else (*synsets,)
    return None
