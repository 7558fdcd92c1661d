"""An ensemble for Triton: its models fit each other, and computed in turn they give the answers."""

from __future__ import annotations

import json
import runpy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_triton_utils
import numpy as np
import pytest
import sized_detector
from copied_modules import load
from small_variants import onnx_model, variant

import optcli
from optcli.artifact import Format, own_inputs
from optcli.data import DataSettings, steps
from optcli.errors import UsageError
from optcli.observer import Silent
from optcli.passes import Job
from optcli.passes.embed_nms import EmbedNms
from optcli.passes.embed_preparation import EmbedPreparation
from optcli.pipeline.decoding import Decoding, own_postprocess
from optcli.pipeline.model_files.built_variant import BuiltVariant, Samples
from optcli.recipe import load as load_recipe
from optcli.results.plan import Plan
from optcli.serving.deploy import model_configuration, repository
from optcli.serving.deploy.extras import images_of
from optcli.serving.deploy.interface import LookRequest, look, write_golden_image
from optcli.serving.prediction.of_recipe import ImageServing
from optcli.serving.targets import triton
from optcli.settings.postprocess import PostprocessSettings

pytestmark = pytest.mark.usefixtures("hurried_plans")

NORMALIZED = {"scale": "1/255", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def plan(batch: int) -> Plan:
    return optcli.plan(curve="1ms+1ms*b", rate_per_s=50, slo={"p95_ms": 100}, batch=batch)


def repository_of(built: BuiltVariant, out: Path, batch: int) -> ImageServing:
    """A repository with the ensemble."""
    out.mkdir()
    request = LookRequest("net", built.artifact, built.runner_name, built.options, built.inputs, out)
    interface = look(request, None)  # type: ignore[arg-type]
    made = plan(batch)
    assert made.recommended is not None
    backend = repository.backend_for(built)
    served = repository.served_of("net", built, interface, made.recommended, backend)
    repository.write(out, built, served, made)
    serving = images_of(built, interface)
    triton.write_ensemble(out, "net", serving)
    return serving


def real(
    folder: Path, file: Path, spec: dict[str, Any], source: dict[str, Any], **more: Any
) -> BuiltVariant:
    place = folder / "artifact"
    place.mkdir()
    shutil.copyfile(file, place / "model.onnx")
    samples = Samples(data=DataSettings.model_validate(source), folder=folder, **more)
    return replace(variant(place, Format.ONNX, spec), samples=samples)


class Served:
    """The ensemble, computed as its steps say; the model itself by ONNX Runtime."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        self._config = model_configuration.read(folder / "net-images" / "config.pbtxt")
        file = str(folder / "net" / "1" / "model.onnx")
        self._session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        self._models = {
            name: fake_triton_utils.model(
                folder / name, model_configuration.read(folder / name / "config.pbtxt")
            )
            for name in ("net-prepare", "net-answer")
        }

    def answers(self, *bodies: bytes) -> list[Any]:
        """What comes for one request of several images; a sentence where it is refused."""
        images = np.array(bodies, np.object_)
        tensors = {"image": images[:, None] if self._config.max_batch_size else images}
        for step in self._config.ensemble_scheduling.step:
            feed = {name: tensors[known] for name, known in step.input_map.items()}
            if step.model_name == "net":
                names = list(step.output_map)
                results = dict(zip(names, self._session.run(names, feed), strict=True))
            else:
                (response,) = self._models[step.model_name].execute([feed])
                if response.error is not None:
                    return [response.error.text]
                results = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors}
            tensors.update({known: results[name] for name, known in step.output_map.items()})
        return [json.loads(text) for text in tensors["answer"].ravel()]


def own(serving: ImageServing, file: Path, body: bytes, input_name: str) -> Any:
    """The same by the modules alone."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    array, placement = load("images").Images(serving.images).prepared(body)
    names = [each.name for each in session.get_outputs()]
    outputs = zip(names, session.run(names, {input_name: array[None]}), strict=True)
    answering = load("postprocess").Postprocess(serving.postprocess)
    return answering.answer({name: rows[0] for name, rows in outputs}, placement)


@pytest.mark.slow
def test_resnet20_answers_classes_in_batches(shared: Path, tmp_path: Path) -> None:
    place = shared / "datasets" / "cifar10_subset" / "test"
    file = shared / "models" / "resnet20_cifar10.onnx"
    batch = {"min": 1, "opt": 4, "max": 8}
    spec = {"name": "input", "shape": ("batch", 3, 32, 32), "batch": batch}
    source = {"source": f"imagefolder:{place}", "prepare": NORMALIZED}
    serving = repository_of(real(tmp_path, file, spec, source), tmp_path / "out", 8)
    config = model_configuration.read(tmp_path / "out" / "net-images" / "config.pbtxt")
    assert (config.platform, config.max_batch_size) == ("ensemble", 8)
    assert [step.model_name for step in config.ensemble_scheduling.step] == [
        "net-prepare",
        "net",
        "net-answer",
    ]
    served = Served(tmp_path / "out")
    bodies = [path.read_bytes() for path in sorted(place.rglob("*.jpg"))[::500]]
    assert len(bodies) == 4
    answers = served.answers(*bodies)
    for answer, body in zip(answers, bodies, strict=True):
        alone = own(serving, file, body, "input")
        assert [each["name"] for each in answer["classes"]] == [
            each["name"] for each in alone["classes"]
        ]
        scores = [[each["score"] for each in one["classes"]] for one in (answer, alone)]
        np.testing.assert_allclose(*scores, atol=1e-5)
    assert answers[0]["classes"][0]["name"] == "airplane"
    assert served.answers(bodies[0], b"none") == ["this is not a JPEG or PNG image that can be read"]


@pytest.mark.slow
def test_yolox_answers_boxes_one_image_at_a_time(shared: Path, tmp_path: Path) -> None:
    place = shared / "datasets" / "coco_tiny_val"
    file = shared / "models" / "yolox_nano.onnx"
    spec = {"name": "images", "shape": (1, 3, 416, 416)}
    prepare = {"letterbox": {"size": 416, "fill": 114, "align": "top_left"}, "channel_order": "bgr"}
    source = {"source": f"coco:{place}", "prepare": prepare}
    after = PostprocessSettings.model_validate({"yolox": {}})
    built = real(tmp_path, file, spec, source, decoding=Decoding(after, "recipe"))
    serving = repository_of(built, tmp_path / "out", 1)
    config = model_configuration.read(tmp_path / "out" / "net-prepare" / "config.pbtxt")
    assert config.max_batch_size == 0
    assert [list(each.dims) for each in config.output] == [[1, 3, 416, 416], [1, 8]]
    body = sorted((place / "images").iterdir())[0].read_bytes()
    (answer,) = Served(tmp_path / "out").answers(body)
    alone = own(serving, file, body, "images")
    assert len(answer["boxes"]) == len(alone["boxes"]) > 0
    for one, other in zip(answer["boxes"], alone["boxes"], strict=True):
        assert one["name"] == other["name"]
        np.testing.assert_allclose(one["box"], other["box"], atol=1e-2)


@pytest.mark.slow
def test_an_ensemble_leaves_out_what_is_inside_of_the_model(shared: Path, tmp_path: Path) -> None:
    """A detector that prepares photographs of any size, and decodes its detections."""
    place = shared / "datasets" / "coco_tiny_val"
    file = shared / "models" / "yolox_nano.onnx"
    spec = {"name": "images", "shape": (1, 3, 416, 416)}
    prepare = {"letterbox": {"size": 416, "fill": 114, "align": "top_left"}, "channel_order": "bgr"}
    source = {"source": f"coco:{place}", "prepare": prepare}
    after = PostprocessSettings.model_validate({"yolox": {}})
    plain = real(tmp_path, file, spec, source, decoding=Decoding(after, "recipe"))
    built = whole(plain, tmp_path / "whole")
    outside = repository_of(plain, tmp_path / "plain", 1)
    repository_of(built, tmp_path / "out", 1)
    config = model_configuration.read(tmp_path / "out" / "net-prepare" / "config.pbtxt")
    assert [list(each.dims) for each in config.output] == [[1, -1, -1, 3], [1, 8]]
    body = sorted((place / "images").iterdir())[0].read_bytes()
    (answer,) = Served(tmp_path / "out").answers(body)
    alone = own(outside, file, body, "images")
    for one, other in zip(answer["boxes"][:5], alone["boxes"][:5], strict=True):
        assert one["name"] == other["name"]
        np.testing.assert_allclose(one["box"], other["box"], atol=2)


def whole(built: BuiltVariant, folder: Path) -> BuiltVariant:
    """The same variant with its decoding and its preparation inside, as the passes write it."""
    data, decoding = built.samples.data, built.samples.decoding
    assert data is not None
    assert decoding is not None
    prepare = {**steps.written_out(data.prepare), "layout": None}
    artifact = built.artifact
    for one in (EmbedNms(), EmbedPreparation(size="any")):
        out = folder / type(one).__name__
        out.mkdir(parents=True)
        inputs = own_inputs(artifact.facts, built.inputs)
        told = {"preparation": prepare, "postprocess": decoding.settings.detector}
        job = Job(out=out, inputs=inputs, origin=artifact, observer=Silent(), **told)
        made = one.run(artifact, job)
        artifact = replace(artifact, path=out, facts={**artifact.facts, **made.facts})
    rows = Decoding(own_postprocess(artifact.facts), "recipe")
    samples = replace(built.samples, data=data.for_model(artifact.facts), decoding=rows)
    inputs = own_inputs(artifact.facts, built.inputs)
    return replace(built, artifact=artifact, inputs=inputs, samples=samples)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "whole"), [("batch", False), (1, False), (1, True)])
def test_a_detector_is_told_the_size_of_each_image(
    tmp_path: Path, rows: int | str, whole: bool
) -> None:
    """Answered by the ensemble, and by the golden image of a bundle."""
    recipe = load_recipe(sized_detector.write_project(tmp_path, rows=rows, whole=whole))
    sized_detector.write_model(tmp_path / "artifact" / "model.onnx", rows, whole=whole)
    settings = recipe.data["evaluation"]
    samples = Samples(data=settings, folder=tmp_path, decoding=Decoding(recipe.postprocess, "recipe"))
    specs = [each.model_dump() for each in recipe.inputs]
    built = replace(variant(tmp_path / "artifact", Format.ONNX, *specs), samples=samples)
    batch = 1 if rows == 1 else 4
    serving = repository_of(built, tmp_path / "out", batch)
    files = sorted((tmp_path / "set" / "images").iterdir())
    bodies = [file.read_bytes() for file in files]
    net = Served(tmp_path / "out")
    answers = net.answers(*bodies) if rows == "batch" else [net.answers(body)[0] for body in bodies]
    found = [answer["boxes"][0]["box"] for answer in answers]
    np.testing.assert_allclose(found, [box for _, box in sized_detector.IMAGES], atol=1e-4)
    request = LookRequest(
        "net",
        built.artifact,
        built.runner_name,
        built.options,
        built.inputs,
        tmp_path,
        settings,
        tmp_path,
    )
    look(request, None)  # type: ignore[arg-type]
    assert write_golden_image(tmp_path, built, serving) == "golden-image.png"
    golden = json.loads((tmp_path / "golden-answer.json").read_text())
    np.testing.assert_allclose(golden["boxes"][0]["box"], sized_detector.IMAGES[0][1], atol=1e-4)
    sent = json.loads((tmp_path / "golden-request.json").read_text())["inputs"][1]
    assert sent["data"] == [48, 32]
    assert sent["shape"] == ([2] if whole else [1, 2])


def small(folder: Path, rows: int | str) -> BuiltVariant:
    onnx_model(folder / "artifact", {"image": [rows, 3, 4, 4]})
    batch = {"batch": {"min": 1, "opt": 2, "max": 8}} if isinstance(rows, str) else {}
    spec = {"name": "image", "shape": (rows, 3, 4, 4), **batch}
    samples = Samples(data=DataSettings(source="imagefolder:set"), folder=folder)
    return replace(variant(folder / "artifact", Format.ONNX, spec), samples=samples)


@pytest.mark.slow
def test_a_fixed_number_of_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes at least 2 images at once"):
        repository_of(small(tmp_path, 2), tmp_path / "out", 1)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [[-1, 1], [1]])
def test_the_script_sends_the_bytes_of_an_image(
    tmp_path: Path,
    shape: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tritonclient import http

    sent = []

    class Client:
        def __init__(self, url: str) -> None:
            sent.append(url)

        def get_model_metadata(self, model: str) -> dict[str, Any]:
            return {"inputs": [{"name": "image", "shape": shape}]}

        def infer(self, model: str, inputs: list[Any]) -> Any:
            (tensor,) = inputs
            sent.extend([model, tensor.name(), tensor.shape(), tensor._get_binary_data()])
            return self

        def as_numpy(self, name: str) -> np.ndarray:
            return np.array([[b'{"classes": []}']], np.object_)

    repository_of(small(tmp_path, "batch"), tmp_path / "out", 4)
    monkeypatch.setattr(http, "InferenceServerClient", Client)
    (tmp_path / "one.jpg").write_bytes(b"\xff\xd8 bytes")
    monkeypatch.setattr(
        "sys.argv", ["send_image.py", "net-images", str(tmp_path / "one.jpg"), "host:1"]
    )
    runpy.run_path(str(tmp_path / "out" / "send_image.py"), run_name="__main__")
    length = (8).to_bytes(4, "little")
    assert sent == ["host:1", "net-images", "image", [1] * len(shape), length + b"\xff\xd8 bytes"]
    assert capsys.readouterr().out == '{"classes": []}\n'


def test_the_dockerfile_installs_what_is_installed_here() -> None:
    import numpy
    import PIL

    lines = triton.ensemble_dockerfile().splitlines()
    assert lines[0].startswith("FROM nvcr.io/nvidia/tritonserver:")
    assert lines[1].endswith(f"numpy=={numpy.__version__} pillow=={PIL.__version__}")
