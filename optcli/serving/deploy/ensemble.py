"""An ensemble for Triton: images in, classes or boxes out, around a model that takes tensors.

Beside the model NAME there are three more: `NAME-prepare` and `NAME-answer` run the modules of a bundle
in Triton's Python backend, and the ensemble `NAME-images` joins the three. Tensors still go to NAME.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.serving import prediction
from optcli.serving.deploy import model_configuration
from optcli.serving.deploy.instructions import IMAGE
from optcli.serving.deploy.model_configuration import FILE
from optcli.serving.prediction.of_recipe import ImageServing

SENDER, DOCKERFILE = "send_image.py", "Dockerfile"
_HERE = Path(__file__).parent
_PREPARE, _ANSWER, _ENSEMBLE = "prepare", "answer", "images"
# Height and width of the original, vertical and horizontal scale, top and left of the padding.
_PLACEMENT = 8


def name_of(model: str) -> str:
    """The name of the ensemble for a model."""
    return f"{model}-{_ENSEMBLE}"


def write(folder: Path, model: str, serving: ImageServing) -> None:
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
    shutil.copyfile(_HERE / "triton_files" / SENDER, folder / SENDER)
    (folder / DOCKERFILE).write_text(dockerfile(), encoding="utf-8")


def dockerfile() -> str:
    """An image of Triton with what the Python backend's models import, as it is installed here."""
    from optcli.environment import version

    packages = " ".join(f"{name}=={version(name)}" for name in ("numpy", "pillow"))
    return f"FROM {IMAGE}\nRUN pip install --no-cache-dir {packages}\n"


def _copy(place: Path, model: str, modules: Sequence[str]) -> None:
    shutil.copyfile(_HERE / "triton_files" / f"{model}.py", place / "model.py")
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
