"""Triton: a model repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from optcli.artifact import Artifact, Format
from optcli.errors import InputError
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.results.plan import Semantics
from optcli.scaffold.inspection.findings import Tensor
from optcli.serving.deploy import (
    ensemble,
    extras,
    golden_images,
    instructions,
    model_configuration,
    repository,
)
from optcli.serving.deploy.backends import Backend
from optcli.serving.deploy.model_configuration import Served
from optcli.serving.targets import Declared, Deployment, ServerOptions, Target, Written
from optcli.settings import TensorSpec

# How an engine's sidecar writes the types of its inputs and outputs.
_SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class Triton(Target):
    """A model repository: the model and config.pbtxt, with an ensemble where it takes images."""

    title: ClassVar[str] = "Triton"
    server: ClassVar[str] = "Triton"
    semantics: ClassVar[Semantics] = "oldest-age"
    takes: ClassVar[frozenset[str]] = frozenset({"images"})

    def __init__(self, options: ServerOptions) -> None:
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

    def write(self, folder: Path, deployment: Deployment) -> Written:
        built, plan, name = deployment.built, deployment.plan, deployment.name
        served, notes = self._served(deployment)
        repository.write(folder, built, served, plan)
        steps = instructions.for_triton(served)
        if self.options.images:
            serving = extras.images_of(built, deployment.interface)
            ensemble.write(folder, name, serving)
            notes += serving.notes
            golden = golden_images.write(folder, built, serving)
            steps = instructions.for_images(steps, ensemble.name_of(name), golden)
        about = f"A model repository for Triton, written by optcli. {plan.sentence}"
        return Written(about, steps, notes, self.closing(built))

    def closing(self, built: BuiltVariant) -> list[str]:
        """What is to be known of every repository."""
        version = built.effective.get("version", "")
        return instructions.of_triton(f"{built.runner_name} {version}".strip())

    def _served(self, deployment: Deployment) -> tuple[Served, list[str]]:
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
    """The fewest and the most rows of a call in the profile of an engine that Triton is told.

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
