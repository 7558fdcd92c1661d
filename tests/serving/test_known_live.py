"""A server with all that a bundle can keep: known answers, equal requests, inputs that are drawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from served_variants import Server, asked
from small_bundles import already_started
from tiny_project import weights, write_recipe

import optcli
from optcli.cli import run
from optcli.pipeline.building import build
from optcli.results.loadtest import Drift, LoadTest
from optcli.serving.drift import input_statistics
from optcli.serving.prediction.storage import MANIFEST
from optcli.serving.running import Running, running

_HURRIED = pytest.mark.usefixtures("hurried_loads", "hurried_plans")
pytestmark = [pytest.mark.slow, pytest.mark.long, _HURRIED]

Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command line in this process, which must end with one of these codes; gives its stdout."""

    def said(*words: str, codes: Sequence[int] = (0,)) -> str:
        capsys.readouterr()
        code = run([*words, "--json"])
        heard = capsys.readouterr()
        assert code in codes, heard.err
        return heard.out

    return said


def png(path: Path, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path.read_bytes()


def test_known_answers_equal_requests_and_inputs_that_are_drawn(
    tmp_path: Path,
    say: Say,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored, outs = tmp_path / "stored", {form: tmp_path / form for form in ("parquet", "jsonl")}
    stored.mkdir()
    images = {f"{seed}.png": png(stored / f"{seed}.png", seed) for seed in range(6)}
    (stored / "broken.png").write_bytes(b"no image")
    recipe = write_recipe(tmp_path)
    build(recipe, store=tmp_path / "store", artifacts=tmp_path / "artifacts")
    named = ["plain", str(recipe), "--artifacts", str(tmp_path / "artifacts")]
    named += ["--store", str(tmp_path / "store")]
    for form, out in outs.items():
        inferring = ["infer", *named, "--input", str(stored), "--output", str(out)]
        say(*inferring, "--format", form, "--batch-size", "4")
    plan = optcli.plan(
        curve="1ms+1ms*b",
        rate_per_s=20,
        slo={"p95_ms": 5000},
        batch=2,
        target="ray",
    )
    (tmp_path / "plan.json").write_text(plan.to_json())
    deploying = ["deploy", *named, "--target", "ray", "--plan", str(tmp_path / "plan.json"), "--force"]
    deploying += ["--name", "net", "--images", "--cache", "memory", "--sample-inputs", "64"]
    bundle = tmp_path / "bundle"
    said = say(*deploying, "--known-answers", str(outs["parquet"]), "--out", str(bundle))
    files = {*json.loads(said)["files"]}
    assert {"known_answers.py", "known_answers.sqlite", "cache.json", "cache.py"} <= files
    rows = {each["id"]: each["classes"] for each in _rows(outs["parquet"])}
    assert rows == {each["id"]: each["classes"] for each in _lines(outs["jsonl"])}
    assert rows.keys() == images.keys()

    with running(bundle, log=tmp_path / "log") as started:
        server = Server(started.url, bundle)
        for name, body in images.items():
            assert _answer(server, body) == {"classes": rows[name]}
        assert _counted(server) == (6, 0)
        assert _seen(server) == 0  # nothing of it was computed
        fresh = png(tmp_path / "fresh.png", 9)
        assert _answer(server, fresh) == _answer(server, fresh)
        assert _counted(server) == (7, 1)
        _equal_requests_are_computed_once(server, png(tmp_path / "again.png", 10))
        assert _counted(server) == (7 + 1 + 39, 1 + 1 + 1)
        for seed in range(8):
            body = _tensor(seed)
            status, content = server.post("infer", body)
            assert (status, json.loads(content)["outputs"][0]["shape"]) == (200, [1, 2])
        assert _seen(server) == 1 + 3 + 1 + 8
        _a_load_test_of_images_holds_the_golden_answer(started, bundle, say, monkeypatch)
        seen = _seen(server)
        url = f"{started.url}/v2/models/net"
        found = Drift.model_validate_json(say("loadtest", url, "--drift", codes=(0, 1, 5)))
        assert (found.seen, found.kept) == (seen, seen)

    about = outs["jsonl"] / MANIFEST
    about.write_text(json.dumps({**json.loads(about.read_text()), "artifact": "another"}))
    wrong = ["--known-answers", str(outs["jsonl"]), "--out", str(tmp_path / "wrong")]
    assert run([*deploying, *wrong]) == 2
    assert "answers of another artifact" in capsys.readouterr().err
    assert not (tmp_path / "wrong").exists()


def _equal_requests_are_computed_once(server: Server, body: bytes) -> None:
    """Whatever their encoding, where one comes after the other."""
    rows = np.random.default_rng(0).random((3, 3, 4, 4)).astype(np.float32)
    for binary in (True, False):  # three rows in calls of two at most: two parts
        found = asked(server, rows, "image", "logits", binary=binary)
        np.testing.assert_allclose(found, rows.reshape(3, -1) @ weights(), rtol=1e-4)
    computed = server.count("model_compute_seconds_count")
    assert computed == 2 + 1
    ((status, _),) = {server.post("images", body) for _ in range(40)}
    assert status == 200
    assert server.count("model_compute_seconds_count") == computed + 1


def _a_load_test_of_images_holds_the_golden_answer(
    server: Running, bundle: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    already_started(server, monkeypatch)
    loading = ["loadtest", str(bundle), "--trust", "--encoding", "image", "--rate", "20"]
    loading += ["--seconds", "1.5", "--settle", "0.2s"]
    # Seconds of load accept nothing.
    found = LoadTest.model_validate_json(say(*loading, codes=(1, 5)))
    assert "1 image, compared with the first answers, the golden one with its answer" in found.payload
    (point,) = found.points
    assert point.checked > 0
    assert point.wrong == 0
    answer = json.loads((bundle / "golden-answer.json").read_text())
    answer["classes"][0]["score"] /= 2
    (bundle / "golden-answer.json").write_text(json.dumps(answer))
    (point,) = LoadTest.model_validate_json(say(*loading, codes=(1,))).points
    assert point.wrong == point.checked > 0


def _answer(server: Server, body: bytes) -> Any:
    status, content = server.post("images", body)
    assert status == 200, content
    return json.loads(content)


def _tensor(seed: int) -> bytes:
    data = np.random.default_rng(seed).random(48).round(4).tolist()
    described = {"name": "image", "datatype": "FP32", "shape": [1, 3, 4, 4], "data": data}
    return json.dumps({"inputs": [described]}).encode()


def _counted(server: Server) -> tuple[float, float]:
    """Hits and misses of the cache."""
    return server.count("model_cache_hits_total"), server.count("model_cache_misses_total")


def _seen(server: Server) -> int:
    """The rows of which the server drew its sample."""
    kept = input_statistics.unpacked(server.get("v2/models/net/inputs"))
    return sum(each["seen"] for each in kept.about["periods"])


def _lines(folder: Path) -> list[dict[str, Any]]:
    files = folder.glob("part-*.jsonl")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [each for each in lines if "classes" in each]


def _rows(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as parquet

    return [row for path in folder.glob("*.parquet") for row in parquet.read_table(path).to_pylist()]
