"""Vision networks of timm and of transformers, the libraries that read Hugging Face's hub.

Those of transformers come from a folder as `save_pretrained` writes it; its code never runs. A folder
is a local one, or the snapshot of a repository in Hugging Face's cache.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from optcli import environment
from optcli.environment import Needs
from optcli.errors import InputError, MissingError, did_you_mean, first_line
from optcli.files import regular_files

if TYPE_CHECKING:
    from types import ModuleType

    import torch

CONFIG = "config.json"
PROCESSOR = "preprocessor_config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
# What a class does by the end of its name, and which of its outputs say it.
_HEADS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ForImageClassification": ("classify", ("logits",)),
    "ForImageClassificationWithTeacher": ("classify", ("logits",)),
    "ForObjectDetection": ("detect", ("logits", "pred_boxes")),
    "ForSemanticSegmentation": ("semantic", ("logits",)),
    "ForDepthEstimation": ("depth", ("predicted_depth",)),
}
# Of networks of images and texts, the half that reads images.
_ENCODERS = {
    "CLIPModel": "CLIPVisionModelWithProjection",
    "MetaClip2Model": "MetaClip2VisionModelWithProjection",
    "SiglipModel": "SiglipVisionModel",
}
_EMBEDDINGS = ("image_embeds", "pooler_output", "last_hidden_state")
_WANTED = (
    "wanted image classification, object detection, semantic segmentation, depth estimation or an image"
    " encoder such as those of CLIP, SigLIP, DINOv2 and DINOv3"
)


def snapshot(
    target: str,
    folder: Path,
    *,
    revision: str | None = None,
    download: bool = False,
    files: Sequence[str] = (),
) -> Path:
    """The folder that `hf:TARGET` names: a local one, or a repository's in the cache.

    With `download` those of its `files` (patterns) that are not in the cache are fetched.
    Raises `MissingError`, and `InputError` for what is no name.
    """
    local = folder / Path(target).expanduser()
    if regular_files.is_folder(local):
        return local.absolute()
    place = f"hf:{target}"
    if os.path.lexists(local):
        hint = "name the folder that holds config.json, or a file that ends in .onnx"
        raise InputError(f"{target} is a file, wanted a folder", place=place, hint=hint)
    if target.startswith((".", "/", "~")) or target.count("/") > 1:
        hint = "paths are relative to the recipe's folder; a repository is hf:OWNER/NAME"
        raise InputError(f"there is no folder {target}", place=place, hint=hint)
    hub = library("huggingface_hub")
    try:
        copy = hub.snapshot_download(
            target, revision=revision, local_files_only=not download, allow_patterns=list(files) or None
        )
    except Exception as error:  # the hub's errors differ by version and by what is wrong
        at = "" if revision is None else f" at revision {revision}"
        if download:
            message = f"{target}{at} cannot be downloaded: {first_line(error)}"
            raise MissingError(message, place=place, hint="look at its name and the network") from error
        raise MissingError(
            f"there is no folder {target}, and no repository{at} of that name in Hugging Face's cache",
            place=place,
            hint=f"model: {{download: true}} fetches it, and so does `hf download {target}`",
        ) from error
    return Path(copy)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a repository. Raises `InputError`."""
    try:
        record = json.loads(regular_files.read(path))
    except FileNotFoundError as error:
        hint = "name a folder that `save_pretrained` wrote"
        raise InputError(f"there is no {path.name}", place=str(path.parent), hint=hint) from error
    except (OSError, ValueError) as error:
        raise InputError(
            f"it cannot be read: {error}", place=str(path), hint="copy it again"
        ) from error
    if not isinstance(record, dict):
        raise InputError("it holds no object", place=str(path), hint="copy it again")
    return record


def weights_of(folder: Path) -> list[Path]:
    """The files of weights in a folder; none where it has no more than a config."""
    names = [name for name in WEIGHTS if regular_files.is_file(folder / name)][:1]
    if names and names[0].endswith(".index.json"):
        shards = read_json(folder / names[0]).get("weight_map", {})
        names = [*names, *sorted({str(name) for name in shards.values()})]
    return [folder / name for name in names]


def architecture_of(config: Mapping[str, Any], place: str) -> tuple[str, str]:
    """The class of transformers that a config names, and its task. Raises `InputError`."""
    transformers = library("transformers")
    names = config.get("architectures") or ()
    name = str(names[0]) if names else _base(str(config.get("model_type")))
    name = _ENCODERS.get(name, name)
    known = getattr(transformers, name, None) if name.isidentifier() else None
    if known is None or not hasattr(known, "config_class"):
        code = "code in the repository, which never runs (trust_remote_code is off)"
        why = f"its model is {code}" if config.get("auto_map") else "no model of transformers"
        raise InputError(
            f"found {name} in {CONFIG}: {why}",
            place=place,
            hint="export it where its code is trusted, and name the file: onnx:PATH or exported:PATH",
        )
    task = next((task for end, (task, _) in _HEADS.items() if name.endswith(end)), None)
    encoder = name.endswith(("Model", "WithProjection")) and known.main_input_name == "pixel_values"
    if task is None and not encoder:
        half = name.removesuffix("Model") + "VisionModel"
        hint = "a model of your own code: python:FILE.py:CALLABLE"
        if name.endswith("Model") and hasattr(transformers, half):  # without the embedding's projection
            hint = f'its image encoder alone: "architectures": ["{half}"] in {CONFIG}; or {hint}'
        raise InputError(f"found {name} of transformers, {_WANTED}", place=place, hint=hint)
    return name, task or "embed"


def _base(model_type: str) -> str:
    """The class without a head, which a config without a model's name is of."""
    names = library("transformers").models.auto.modeling_auto.MODEL_MAPPING_NAMES
    name = names.get(model_type, model_type)
    return str(name if isinstance(name, str) else name[0])


def build(source: Mapping[str, Any]) -> torch.nn.Module:
    """The network of `{architecture, config}` with untrained weights. Raises `InputError`."""
    transformers = library("transformers")
    network = getattr(transformers, source["architecture"])
    try:
        config = network.config_class.from_dict(dict(source["config"]))
        return seeing(network(config), source["architecture"])
    except Exception as error:  # whatever a config's values lead to
        raise InputError(
            f"transformers cannot build {source['architecture']}: {first_line(error)}",
            place="model.source",
            hint="correct config.json or model.arguments",
        ) from error


def pretrained(
    architecture: str, folder: Path, arguments: Mapping[str, Any]
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The network with the weights in its folder, and its config as plain data. Raises `InputError`."""
    transformers = library("transformers")
    import torch

    network = getattr(transformers, architecture)
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        stated = {**_projection(architecture, folder), **arguments}
        config = network.config_class.from_pretrained(folder, **local, **stated)
        model, loading = network.from_pretrained(
            folder, config=config, dtype=torch.float32, output_loading_info=True, **local
        )
    except Exception as error:  # whatever a folder from elsewhere leads to
        raise InputError(
            f"transformers cannot load {architecture}: {first_line(error)}",
            place=str(folder),
            hint="look whether all files of the repository are there, and correct model.arguments",
        ) from error
    lacking = sorted(loading["missing_keys"])
    if lacking:
        raise InputError(
            f"the weights lack {len(lacking)} tensors of {architecture}: {', '.join(lacking[:3])}",
            place=str(folder),
            hint="the head is not trained: name the folder of a trained model, or another head by"
            " `architectures` in config.json",
        )
    return seeing(model, architecture), json.loads(config.to_json_string(use_diff=False))


def config_of(architecture: str, folder: Path, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a folder as the class reads it, as plain data. Raises `InputError`."""
    stated = {**_projection(architecture, folder), **arguments}
    try:
        config = getattr(library("transformers"), architecture).config_class.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **stated
        )
    except Exception as error:  # the same
        hint = "correct config.json or model.arguments"
        message = f"transformers cannot read {CONFIG}: {first_line(error)}"
        raise InputError(message, place=str(folder), hint=hint) from error
    plain: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return plain


def _projection(architecture: str, folder: Path) -> dict[str, int]:
    """The size of CLIP's embedding, which may stand beside the config of the half that reads images."""
    size = read_json(folder / CONFIG).get("projection_dim")
    return {"projection_dim": size} if size and architecture.endswith("WithProjection") else {}


def seeing(network: torch.nn.Module, architecture: str) -> torch.nn.Module:
    """The network as a function of `pixel_values` alone, with those outputs that say its answer."""
    import torch

    ends = [outputs for end, (_, outputs) in _HEADS.items() if architecture.endswith(end)]

    class Seeing(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
            given = self.network(pixel_values=pixel_values)
            if ends:
                return {name: given[name] for name in ends[0]}
            name = next(name for name in _EMBEDDINGS if given.get(name) is not None)
            return {name: given[name]}

    return Seeing()


def metadata(task: str, config: Mapping[str, Any], outputs: Mapping[str, int]) -> dict[str, str]:
    """What the network is, as entries such as an exporter writes them; `outputs` have last sizes.

    A detector of as many scores as classes has a sigmoid; one more is DETR's "no object".
    """
    names = class_names(config)
    count = len(config.get("id2label") or ()) or None
    scores = "softmax" if count is not None and outputs.get("logits") == count + 1 else "sigmoid"
    head = scores if task == "detect" else task
    return {"task": task, "head": head, "names": repr(dict(enumerate(names))) if names else "{}"}


def class_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes by `id2label`, in their order; none where nobody named them."""
    labels = config.get("id2label") or {}
    numbered = {int(number): str(name) for number, name in labels.items() if str(number).isdecimal()}
    if sorted(numbered) != list(range(len(numbered))):
        return ()
    names = tuple(numbered[number] for number in range(len(numbered)))
    unnamed = all(name == f"LABEL_{number}" for number, name in enumerate(names))
    return () if unnamed else names


def library(name: str) -> ModuleType:
    """A package that reads the hub. Raises `MissingError` with the command that installs it."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        package = importlib.import_module(name)
    except ImportError as error:
        lacking = environment.missing(Needs((name,)))
        hint = lacking[0].hint if lacking else f"pip install --force-reinstall {name}"
        raise MissingError(f"{name} cannot be imported: {first_line(error)}", hint=hint) from error
    return package


def require_timm_name(name: str, place: str) -> None:
    """Raise `InputError` for a name, with or without a tag behind a dot, that timm does not know."""
    timm = library("timm")
    base, _, tag = name.partition(".")
    if not timm.is_model(base):
        raise InputError(
            f"timm {environment.version('timm')} has no model {base!r}",
            place=place,
            hint=did_you_mean(base, timm.list_models(), "names: timm.list_models()"),
        )
    tags = [each.partition(".")[2] for each in timm.list_pretrained(f"{base}.*")]
    if tag and tag not in tags:
        hint = did_you_mean(tag, tags) or "it has none: leave the tag out"
        raise InputError(f"timm's {base} has no pretrained weights {tag!r}", place=place, hint=hint)


def build_timm(name: str, arguments: dict[str, Any]) -> torch.nn.Module:
    """The network with untrained weights. Raises `InputError` for arguments that it does not take."""
    timm = library("timm")
    try:
        model: torch.nn.Module = timm.create_model(name, pretrained=False, **arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError, KeyError) as error:
        raise InputError(
            f"timm cannot build {name} with {arguments or 'its defaults'}: {first_line(error)}",
            hint=f"see the arguments of timm.create_model({name!r}, ...), and correct model.arguments",
        ) from error
    return model
