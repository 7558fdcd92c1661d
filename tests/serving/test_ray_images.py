"""A running bundle that takes images and keeps answers and statistics of what it sees.

Real models, photographs and a real Redis.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drifting import drift
from needs import needs
from redis_server import RedisServer
from served_variants import NORMALIZED, Server, asked, real, served
from small_bundles import bundled, sealed_plan
from test_deploy_ray import _computes_the_same

from optcli import cli, data
from optcli.accuracy import decoding
from optcli.accuracy.metrics._classes import best
from optcli.data import DataSettings
from optcli.pipeline.decoding import Decoding
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.results.loadtest import Drift
from optcli.sample import SampleSet
from optcli.serving.drift.input_statistics import unpacked
from optcli.settings.postprocess import PostprocessSettings

_SMALL_IMAGES = "datasets/cifar10_subset/test"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("hurried_plans")]
# As a server keeps them, without one.
_KEEP = """
import pathlib, numpy, keeping
content = pathlib.Path("reference-inputs.npz").read_bytes()
kept = keeping.Kept(keeping.input_statistics.unpacked(content), 512)
kept.offer({"input": numpy.load("rows.npy")})
kept.thread.shutdown()
pathlib.Path("kept.npz").write_bytes(kept.content())
"""
YOLOX = {"letterbox": {"size": 416, "fill": 114, "align": "top_left"}, "channel_order": "bgr"}


def outputs_of(file: Path, name: str, row: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs for one row, without the batch, by ONNX Runtime itself."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, (out[0] for out in session.run(None, {name: row[None]})), strict=True))


@pytest.mark.long
def test_a_detector_finds_in_photographs_what_optcli_finds(shared: Path, tmp_path: Path) -> None:
    place, file = shared / "datasets" / "coco_tiny_val", shared / "models" / "yolox_nano.onnx"
    spec = {"name": "images", "shape": (1, 3, 416, 416)}
    after = PostprocessSettings.model_validate({"yolox": {}})
    source = {"source": f"coco:{place}", "prepare": YOLOX}
    built = real(tmp_path, file, spec, source, decoding=Decoding(after, "recipe"))
    assert built.samples.data is not None
    samples = data.open(built.samples.data, tmp_path, built.inputs)
    step = decoding.make(after, tmp_path)
    assert step is not None
    with served(tmp_path, built, 1, images=True, cache="memory") as server:
        golden = server.answer((server.folder / "golden-image.jpg").read_bytes())
        wanted = json.loads((server.folder / "golden-answer.json").read_text())
        assert golden["image"] == wanted["image"]
        assert [each["name"] for each in golden["boxes"]] == [each["name"] for each in wanted["boxes"]]
        for index in range(3, 80, 19):
            sample = samples[index]
            body = (place / "images" / sample.id).read_bytes()
            status, content = server.post("images", body)
            assert status == 200, content
            answer = json.loads(content)
            boxes, (height, width) = answer["boxes"], answer["image"].values()
            own = step(outputs_of(file, "images", sample.inputs["images"]), sample.meta, (416, 416))
            assert len(boxes) == len(own["boxes"])
            assert [each["label"] for each in boxes] == own["labels"].tolist()
            inside = np.clip(own["boxes"], 0, [width, height] * 2)
            np.testing.assert_allclose([each["box"] for each in boxes], inside, atol=1e-2)
            hits = server.count("model_cache_hits_total")
            assert server.post("images", body) == (200, content)
            assert server.count("model_cache_hits_total") == hits + 1
        # 301,665 numbers an answer, which tritonclient gets in either encoding.
        rows = sample.inputs["images"][None]
        ((name, raw),) = outputs_of(file, "images", rows[0]).items()
        for binary in (True, False):
            found = asked(server, rows, "images", name, binary=binary)
            np.testing.assert_allclose(found[0], raw, rtol=1e-3, atol=1e-2)
        computed = server.count("model_compute_seconds_count", batch="1")
        for wrong, code, sentence in (
            (b"", 415, "found no bytes"),
            (b"no image", 415, "not a JPEG or PNG image"),
            (body[: len(body) // 2], 422, "damaged or cut short"),
        ):
            status, content = server.post("images", wrong)
            assert (status, sentence in json.loads(content)["error"]) == (code, True)
        assert server.count("model_compute_seconds_count", batch="1") == computed
        assert server.count("model_request_seconds_count", outcome="invalid") >= 2


@pytest.mark.long
def test_a_classifier_keeps_statistics_of_what_it_sees(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, file = shared / _SMALL_IMAGES, shared / "models" / "resnet20_cifar10.onnx"
    built, samples = _of_small_images(shared, tmp_path, file)
    calibration = {"source": f"imagefolder:{place.parent / 'train'}", "prepare": NORMALIZED}
    roles = {**built.samples.roles, "calibration": DataSettings.model_validate(calibration)}
    built = replace(built, samples=replace(built.samples, roles=roles))
    with served(tmp_path, built, 4, images=True, cache="memory", sample_inputs=512) as server:
        _is_seen_as_calibrated(server, samples, place, capsys)
        _classifies(server, samples, place, file)
        _tensors(server, samples, file)
    out = tmp_path / "out"
    assert not (out / "model" / "images.json").exists()
    assert "ach replica keeps statistics of 512 inputs a day" in (out / "README.md").read_text()
    assert json.loads((out / "bundle.json").read_text())["sample_inputs"] == 512
    _exchanged_channels_are_found(out, samples)


@pytest.mark.long
def test_a_classifier_keeps_its_answers_in_a_redis_that_dies(
    shared: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    needs("redis-server")
    place, file = shared / _SMALL_IMAGES, shared / "models" / "resnet20_cifar10.onnx"
    built, samples = _of_small_images(shared, tmp_path, file)
    redis = RedisServer(tmp_path_factory.mktemp("redis"))
    redis.start()
    try:
        with served(tmp_path, built, 4, images=True, cache=redis.url, cache_ttl_s=600.0) as server:
            # A busy machine may make Redis late: what is counted below is what it gave.
            _classifies(server, samples, place, file)
            hits = server.count("model_cache_hits_total")
            assert hits > 0
            redis.kill()
            # Once each: of two equal requests in flight the second would count as a hit.
            _classifies(server, samples, place, file, times=1)
            _tensors(server, samples, file)
            assert server.count("model_cache_hits_total") == hits
    finally:
        redis.kill()
    said = (tmp_path / "out" / "requirements.txt").read_text()
    assert re.search(r"^pillow==\d", said, re.MULTILINE)
    assert re.search(r"^redis==\d", said, re.MULTILINE)


def _drift(target: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Drift]:
    capsys.readouterr()
    code = cli.run(["loadtest", target, "--drift", "--json"])
    said = capsys.readouterr()
    assert said.out, said.err
    return code, Drift.model_validate_json(said.out)


def _rows(samples: SampleSet, end: int) -> np.ndarray:
    return np.stack([samples[index].inputs["input"] for index in range(0, end, 8)])


def _is_seen_as_calibrated(
    server: Server, samples: SampleSet, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test images, in two ways: as tensors, eight a request, and as files that the server prepared."""
    rows = _rows(samples, 1200)
    for first in range(0, len(rows), 8):
        asked(server, rows[first : first + 8], "input", "logits", binary=True)
    for index in range(1200, 2000, 8):
        assert server.post("images", (place / samples[index].id).read_bytes())[0] == 200
    code, found = _drift(f"{server.url}/v2/models/net", capsys)
    assert (code, found.outcome) == (0, "accept"), found.sentence
    assert (found.seen, found.kept) == (250, 250)
    assert found.inputs[0].rows == pytest.approx(250)
    reference = found.reference
    assert (reference.role, reference.samples, reference.of) == ("calibration", 512, 10_000)


def _exchanged_channels_are_found(out: Path, samples: SampleSet) -> None:
    """In the inputs that the module of the bundle keeps, which is what a server does."""
    mean, std = (np.array(NORMALIZED[name]).reshape(1, 3, 1, 1) for name in ("mean", "std"))
    pixels = ((_rows(samples, 2000) * std + mean) * 255).round()
    exchanged = ((pixels[:, ::-1] / 255 - mean) / std).astype(np.float32)
    np.save(out / "rows.npy", exchanged)
    subprocess.run([sys.executable, "-c", _KEEP], cwd=out, check=True)
    found = drift(unpacked((out / "kept.npz").read_bytes()))
    assert found.outcome == "reject", found.sentence


def _classifies(server: Server, samples: SampleSet, place: Path, file: Path, *, times: int = 2) -> None:
    """Each image so many times, several at once: the classes are those of the metric."""
    chosen = [samples[index] for index in range(0, 2000, 250)]
    bodies = [(place / sample.id).read_bytes() for sample in chosen]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(server.answer, bodies * times))
    for sample, answer in zip(chosen * times, answers, strict=True):
        logits = outputs_of(file, "input", sample.inputs["input"])["logits"]
        predicted, confidence = best(logits[None].astype(np.float64))
        first = answer["classes"][0]
        assert first["label"] == predicted[0]
        assert first["score"] == pytest.approx(confidence[0], abs=1e-4)
        assert first["name"] == sorted(each.name for each in place.iterdir())[first["label"]]


def _tensors(server: Server, samples: SampleSet, file: Path) -> None:
    rows = np.stack([samples[index].inputs["input"] for index in (5, 505, 1005)])
    for binary in (True, False):
        logits = asked(server, rows, "input", "logits", binary=binary)
        for row, found in zip(rows, logits, strict=True):
            np.testing.assert_allclose(found, outputs_of(file, "input", row)["logits"], atol=1e-3)


def _of_small_images(shared: Path, tmp_path: Path, file: Path) -> tuple[BuiltVariant, SampleSet]:
    """A network for images of 32 by 32, and the samples of CIFAR-10 that it is tried on."""
    batch = {"min": 1, "opt": 2, "max": 8}
    spec = {"name": "input", "shape": ("batch", 3, 32, 32), "batch": batch}
    source = f"imagefolder:{shared / _SMALL_IMAGES}"
    built = real(tmp_path, file, spec, {"source": source, "prepare": NORMALIZED})
    assert built.samples.data is not None
    return built, data.open(built.samples.data, tmp_path, built.inputs)


def test_a_bundle_computes_what_a_vision_transformer_does(shared: Path, tmp_path: Path) -> None:
    built, _ = _of_small_images(shared, tmp_path, shared / "models" / "vit_tiny_fashion.onnx")
    made = bundled(built, sealed_plan(), tmp_path / "out").bundle
    with pytest.MonkeyPatch.context() as patch:
        _computes_the_same(built, made, tmp_path, patch, rows=range(1, 7))
