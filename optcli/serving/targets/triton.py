"""Triton: a model repository."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from optcli.artifact import Artifact, Format
from optcli.errors import InputError
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.results.plan import Semantics
from optcli.scaffold.inspection.findings import Tensor
from optcli.serving import prediction
from optcli.serving.deploy import extras, instructions, model_configuration, repository
from optcli.serving.deploy.backends import Backend
from optcli.serving.deploy.instructions import IMAGE
from optcli.serving.deploy.interface import write_golden_image
from optcli.serving.deploy.model_configuration import FILE, ServedModel
from optcli.serving.prediction.of_recipe import ImageServing
from optcli.serving.targets import Declared, Deployment, DeployOptions, ServingTarget, WrittenServer
from optcli.settings import TensorSpec

SENDER, DOCKERFILE = "send_image.py", "Dockerfile"
_FILES = Path(__file__).parents[1] / "deploy" / "triton_files"
_PREPARE, _ANSWER, _ENSEMBLE = "prepare", "answer", "images"
# Height and width of the original, vertical and horizontal scale, top and left of the padding.
_PLACEMENT = 8
# How an engine's sidecar writes the types of its inputs and outputs.
_SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def name_of(model: str) -> str:
    """The name of the ensemble for a model."""
    return f"{model}-{_ENSEMBLE}"


def write_ensemble(folder: Path, model: str, serving: ImageServing) -> None:
    """Write the three models beside `model`, whose config.pbtxt lies in `folder`.

    A script that sends an image is written as well, and a Dockerfile with what the models import.
    """
    config = model_configuration.read(folder / model / FILE)
    configs = {
        _PREPARE: _prepare(config),
        _ANSWER: _answer(config, serving),
        _ENSEMBLE: _ensemble(config, serving),
    }
    for part, made in configs.items():
        place = folder / made.name
        (place / "1").mkdir(parents=True)
        comment = f"Written by optcli: images for the model {model}."
        model_configuration.write(made, place / FILE, [comment])
        if part == _PREPARE:
            _copy(place / "1", "prepare", ["images"])
            serving.write_images(place / "1")
        elif part == _ANSWER:
            _copy(place / "1", "answer", prediction.ANSWERING)
            serving.write_postprocess(place / "1")
        else:  # Triton wants the version's folder, and no storage of objects keeps an empty one
            (place / "1" / ".keep").touch()
    shutil.copyfile(_FILES / SENDER, folder / SENDER)
    (folder / DOCKERFILE).write_text(ensemble_dockerfile(), encoding="utf-8")


def ensemble_dockerfile() -> str:
    """An image of Triton with what the Python backend's models import, as it is installed here."""
    from optcli.environment import version

    packages = " ".join(f"{name}=={version(name)}" for name in ("numpy", "pillow"))
    return f"FROM {IMAGE}\nRUN pip install --no-cache-dir {packages}\n"


def _copy(place: Path, model: str, modules: Sequence[str]) -> None:
    shutil.copyfile(_FILES / f"{model}.py", place / "model.py")
    for module in modules:
        shutil.copyfile(prediction.COPIED[module], place / f"{module}.py")


def _python(config: Any, part: str) -> Any:
    """A model of the Python backend that takes as many rows as the model does."""
    kinds = model_configuration.messages()
    made = kinds.ModelConfig(
        name=f"{config.name}-{part}", backend="python", max_batch_size=config.max_batch_size
    )
    made.instance_group.add(
        count=max(1, sum(group.count for group in config.instance_group)),
        kind=kinds.ModelInstanceGroup.KIND_CPU,
    )
    return made


def _rows(config: Any, *dims: int) -> list[int]:
    """The dims of a tensor with one row an image. Triton adds the batch where the model has one."""
    return [*dims] if config.max_batch_size else [1, *dims]


def _prepare(config: Any) -> Any:
    kinds = model_configuration.messages()
    made = _python(config, _PREPARE)
    made.input.add(name="image", data_type=kinds.TYPE_STRING, dims=[1])
    for each in config.input:
        made.output.add(name=each.name, data_type=each.data_type, dims=list(each.dims))
    made.output.add(name="placement", data_type=kinds.TYPE_FP64, dims=_rows(config, _PLACEMENT))
    return made


def _answer(config: Any, serving: ImageServing) -> Any:
    kinds = model_configuration.messages()
    made = _python(config, _ANSWER)
    declared = {each.name: each for each in config.output}
    for name in serving.outputs:
        made.input.add(name=name, data_type=declared[name].data_type, dims=list(declared[name].dims))
    made.input.add(name="placement", data_type=kinds.TYPE_FP64, dims=_rows(config, _PLACEMENT))
    made.output.add(name="answer", data_type=kinds.TYPE_STRING, dims=_rows(config, 1))
    return made


def _ensemble(config: Any, serving: ImageServing) -> Any:
    kinds = model_configuration.messages()
    made = kinds.ModelConfig(
        name=name_of(config.name), platform="ensemble", max_batch_size=config.max_batch_size
    )
    made.input.add(name="image", data_type=kinds.TYPE_STRING, dims=[1])
    made.output.add(name="answer", data_type=kinds.TYPE_STRING, dims=_rows(config, 1))
    inputs = {each.name: f"input {each.name}" for each in config.input}
    outputs = {name: f"output {name}" for name in serving.outputs}
    steps: Sequence[tuple[str, dict[str, str], dict[str, str]]] = [
        (
            f"{config.name}-{_PREPARE}",
            {"image": "image"},
            {**inputs, "placement": "placement"},
        ),
        (config.name, inputs, outputs),
        (
            f"{config.name}-{_ANSWER}",
            {**outputs, "placement": "placement"},
            {"answer": "answer"},
        ),
    ]
    for name, taken, given in steps:
        step = made.ensemble_scheduling.step.add(model_name=name, model_version=-1)
        step.input_map.update(taken)
        step.output_map.update(given)
    return made


class Triton(ServingTarget):
    """A model repository: the model and config.pbtxt, with an ensemble where it takes images."""

    title: ClassVar[str] = "Triton"
    server: ClassVar[str] = "Triton"
    semantics: ClassVar[Semantics] = "oldest-age"
    takes: ClassVar[frozenset[str]] = frozenset({"images"})

    def __init__(self, options: DeployOptions) -> None:
        super().__init__(options)
        model_configuration.messages()
        self._backend: Backend

    def take(self, built: BuiltVariant) -> None:
        self._backend = repository.backend_for(built)

    @property
    def profile(self) -> int:
        return self._backend.profile

    @classmethod
    def declared(
        cls, artifact: Artifact, specs: Sequence[TensorSpec], files: Declared, profile: int
    ) -> Declared:
        if artifact.format == Format.TORCHSCRIPT:
            _require_flat_outputs(artifact)
            # The file names none, and both its runner and Triton go by their order.
            names = map(str, artifact.facts["outputs"])
            pairs = zip(files.outputs, names, strict=True)
            named = tuple(tensor.model_copy(update={"name": name}) for tensor, name in pairs)
            return replace(files, outputs=named)
        if artifact.format == Format.TENSORRT:
            rows = _rows_of_engine(artifact, specs, profile)
            return Declared(_of_engine(files.inputs), _of_engine(files.outputs), rows)
        return files

    def write(self, folder: Path, deployment: Deployment) -> WrittenServer:
        built, plan, name = deployment.built, deployment.plan, deployment.name
        served, notes = self._served(deployment)
        repository.write(folder, built, served, plan)
        steps = instructions.for_triton(served)
        if self.options.images:
            serving = extras.images_of(built, deployment.interface)
            write_ensemble(folder, name, serving)
            notes += serving.notes
            golden = write_golden_image(folder, built, serving)
            steps = instructions.for_images(steps, name_of(name), golden)
        about = f"A model repository for Triton, written by optcli. {plan.sentence}"
        return WrittenServer(about, steps, notes, self.closing(built))

    def closing(self, built: BuiltVariant) -> list[str]:
        """What is to be known of every repository."""
        version = built.effective.get("version", "")
        return instructions.of_triton(f"{built.runner_name} {version}".strip())

    def _served(self, deployment: Deployment) -> tuple[ServedModel, list[str]]:
        """What config.pbtxt is made of, and what is to be known of it."""
        one = deployment.plan.recommended
        assert one is not None
        served = repository.served_of(
            deployment.name,
            deployment.built,
            deployment.interface,
            one,
            self._backend,
        )
        return served, [*repository.notes_of(deployment.built, served, one, self._backend)]


def _require_flat_outputs(artifact: Artifact) -> None:
    """Raise `InputError` where TorchScript gives what Triton's LibTorch backend cannot hand out."""
    from optcli.models.formats import torchscript

    model = torchscript.open(artifact.path, trust=artifact.trusted)
    kinds: Sequence[Any] = [value.type for value in model.forward.schema.returns]
    inner = [each for kind in kinds for each in (kind.elements() if _is_tuple(kind) else [kind])]
    for kind in inner:
        if kind.kind() != "TensorType":
            raise InputError(
                f"the network gives {kind.annotation_str}, and Triton takes tensors or a tuple of them",
                place=str(artifact.path),
                hint="let forward() give tensors, or deploy a variant with export_onnx",
            )


def _rows_of_engine(artifact: Artifact, specs: Sequence[TensorSpec], number: int) -> tuple[int, ...]:
    """The fewest and the most rows of a call in the profile of an engine that Triton uses.

    Raises `InputError` for an engine whose weights lie beside it: Triton has no way to add them.
    """
    from optcli.models.formats import tensorrt

    engine = tensorrt.open(artifact.path)
    if engine.stripped:
        raise InputError(
            "the engine holds no weights, and Triton cannot add them",
            place=str(artifact.path),
            hint="build it without stripping the weights",
        )
    profile = engine.profiles[number] if number < len(engine.profiles) else {}
    batched = [spec.name for spec in specs if spec.batch_symbol is not None and spec.name in profile]
    if not batched:
        return ()
    fewest, most = ([profile[name][end][0] for name in batched] for end in ("min", "max"))
    return max(fewest), min(most)


def _of_engine(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Tensors of an engine's sidecar, which writes types in short and -1 for a size that varies."""
    return tuple(
        Tensor(
            name=each.name,
            dtype=_SHORT.get(each.dtype, each.dtype),
            shape=None
            if each.shape is None
            else tuple(None if size == -1 else size for size in each.shape),
        )
        for each in tensors
    )


def _is_tuple(kind: Any) -> bool:
    return bool(kind.kind() == "TupleType")
