"""A running bundle that takes images and keeps answers: real models, photographs and a real Redis."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs import needs
from redis_server import RedisServer
from served_variants import NORMALIZED, Server, real, served

from optcli import data
from optcli.accuracy import decoding
from optcli.accuracy.metrics._classes import best
from optcli.model_files.built_variant import BuiltVariant
from optcli.prediction.of_recipe import MOST_BOXES
from optcli.sample import SampleSet
from optcli.serving.running import running
from optcli.settings.postprocess import PostprocessSettings

_SMALL_IMAGES = "datasets/cifar10_subset/test"

pytestmark = pytest.mark.slow
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
    built = real(tmp_path, file, spec, source, postprocess=after)
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
            boxes = json.loads(content)["boxes"]
            own = step(outputs_of(file, "images", sample.inputs["images"]), sample.meta, (416, 416))
            assert len(boxes) == min(len(own["boxes"]), MOST_BOXES)
            assert [each["label"] for each in boxes] == own["labels"][:MOST_BOXES].tolist()
            np.testing.assert_allclose(
                [each["box"] for each in boxes], own["boxes"][:MOST_BOXES], atol=1e-2
            )
            hits = server.count("model_cache_hits_total")
            assert server.post("images", body) == (200, content)
            assert server.count("model_cache_hits_total") == hits + 1
        # 301,665 numbers an answer, which tritonclient gets in either encoding.
        rows = sample.inputs["images"][None]
        ((name, raw),) = outputs_of(file, "images", rows[0]).items()
        for binary in (True, False):
            found = _asked(server, rows, "images", name, binary=binary)
            np.testing.assert_allclose(found[0], raw, rtol=1e-3, atol=1e-2)
        computed = server.count('model_compute_seconds_count{batch="1"}')
        for wrong, code, sentence in (
            (b"", 415, "found no bytes"),
            (b"no image", 415, "not a JPEG or PNG image"),
            (body[: len(body) // 2], 422, "damaged or cut short"),
        ):
            status, content = server.post("images", wrong)
            assert (status, sentence in json.loads(content)["error"]) == (code, True)
        late, content = server.post(
            "images", samples.read(1).place.encode(), **{"x-deadline-ms": "0.001"}
        )
        assert late == 504
        assert server.count('model_compute_seconds_count{batch="1"}') == computed
        assert server.count('model_requests_total{code="415"}') == 2


def test_a_classifier_keeps_its_answers_in_a_redis_that_dies(
    shared: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    needs("redis-server")
    place = shared / "datasets" / "cifar10_subset" / "test"
    file = shared / "models" / "resnet20_cifar10.onnx"
    batch = {"min": 1, "opt": 4, "max": 8}
    spec = {"name": "input", "shape": ("batch", 3, 32, 32), "batch": batch}
    built = real(tmp_path, file, spec, {"source": f"imagefolder:{place}", "prepare": NORMALIZED})
    assert built.samples.data is not None
    samples = data.open(built.samples.data, tmp_path, built.inputs)
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


def _classifies(server: Server, samples: Any, place: Path, file: Path, *, times: int = 2) -> None:
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


def _tensors(server: Server, samples: Any, file: Path, chosen: Sequence[int] = (5, 505, 1005)) -> None:
    rows = np.stack([samples[index].inputs["input"] for index in chosen])
    for binary in (True, False):
        logits = _asked(server, rows, "input", "logits", binary=binary)
        for row, found in zip(rows, logits, strict=True):
            np.testing.assert_allclose(found, outputs_of(file, "input", row)["logits"], atol=1e-3)


def _asked(server: Server, rows: np.ndarray, name: str, output: str, *, binary: bool) -> Any:
    """An output for rows of an input, by tritonclient, which sends and gets binary tensors or JSON."""
    from tritonclient import http

    client = http.InferenceServerClient(server.url.removeprefix("http://"), network_timeout=120)
    tensor = http.InferInput(name, list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows, binary_data=binary)
    wanted = [http.InferRequestedOutput(output, binary_data=binary)]
    return client.infer("net", [tensor], outputs=wanted).as_numpy(output)


def _of_small_images(shared: Path, tmp_path: Path, file: Path) -> tuple[BuiltVariant, SampleSet]:
    """A network for images of 32 by 32, and the samples of CIFAR-10 that it is tried on."""
    batch = {"min": 1, "opt": 2, "max": 8}
    spec = {"name": "input", "shape": ("batch", 3, 32, 32), "batch": batch}
    source = f"imagefolder:{shared / _SMALL_IMAGES}"
    built = real(tmp_path, file, spec, {"source": source, "prepare": NORMALIZED})
    assert built.samples.data is not None
    return built, data.open(built.samples.data, tmp_path, built.inputs)


@pytest.mark.long
def test_a_vision_transformer_answers_tritonclient(shared: Path, tmp_path: Path) -> None:
    file = shared / "models" / "vit_tiny_fashion.onnx"
    built, samples = _of_small_images(shared, tmp_path, file)
    with served(tmp_path, built, 4) as server:
        for number in range(10):  # twenty requests, of one row to six: in two parts at most
            _tensors(server, samples, file, range(number, number + 1 + number % 6))


@pytest.mark.long
def test_equal_tensors_are_computed_once_whatever_their_encoding(shared: Path, tmp_path: Path) -> None:
    file = shared / "models" / "resnet20_cifar10.onnx"
    built, samples = _of_small_images(shared, tmp_path, file)
    with served(tmp_path, built, 2, images=True, cache="memory") as server:
        assert not (server.folder / "model" / "images.json").exists()
        _tensors(server, samples, file)  # three rows in calls of two at most: two parts
        assert server.count("model_cache_misses_total") == 1
        assert server.count("model_cache_hits_total") == 1
        rows = server.count("model_batch_rows_sum")
        assert rows == 3
        body = (shared / _SMALL_IMAGES / samples[0].id).read_bytes()
        with ThreadPoolExecutor(8) as threads:
            answers = set(threads.map(lambda _: server.post("images", body), range(40)))
        assert len(answers) == 1
        assert server.count("model_batch_rows_sum") == rows + 1
        assert server.count("model_cache_hits_total") == 40
    # As a load test starts it: each is computed.
    with running(server.folder, variables={"CACHE_URL": "off"}) as again:
        server = Server(again.url, server.folder)
        assert server.post("images", body) == server.post("images", body)
        assert server.count("model_batch_rows_sum") == 2
        assert server.count("model_cache_hits_total") == 0
