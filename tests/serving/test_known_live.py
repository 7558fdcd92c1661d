"""Images that `optcli infer` has answered, sent to a server that was told these answers."""

from __future__ import annotations

import json
import re
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_project import DATA, HEAD, write_images, write_model

import optcli
from optcli.cli import run
from optcli.pipeline import build
from optcli.results.loadtest import LoadTest
from optcli.serving.running import running

pytestmark = pytest.mark.slow


def project(folder: Path, seed: int = 0) -> list[str]:
    """A build of the tiny classifier; gives what names it on a command line."""
    write_images(folder / "images")
    write_model(folder / "model.onnx", seed)
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"{HEAD}{DATA}variants:\n  plain: []\n")
    build(recipe, store=folder / "store", artifacts=folder / "artifacts")
    return [
        *("plain", str(recipe), "--artifacts", str(folder / "artifacts")),
        *("--store", str(folder / "store")),
    ]


def sent(url: str, body: bytes) -> bytes:
    request = urllib.request.Request(f"{url}/v2/models/plain/images", body)
    with urllib.request.urlopen(request, timeout=60) as response:
        content: bytes = response.read()
        return content


def counted(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        text = response.read().decode()
    found = re.findall(r"^model_cache_(hits|misses)_total (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


@pytest.mark.long
def test_an_image_that_infer_answered_is_a_hit_with_its_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, outs = tmp_path / "stored", {form: tmp_path / form for form in ("parquet", "jsonl")}
    stored.mkdir()
    generator = np.random.default_rng(7)
    for index in range(6):
        pixels = generator.integers(0, 256, (4, 4, 3), np.uint8)
        Image.fromarray(pixels).save(stored / f"{index}.png")
    (stored / "broken.png").write_bytes(b"no image")
    named = project(tmp_path)
    for form, out in outs.items():
        asked = ["infer", *named, "--input", str(stored), "--output", str(out), "--format", form]
        assert run([*asked, "--batch-size", "4", "--json"]) == 0
    plan = optcli.plan(
        curve="1ms+1ms*b", rate_per_s=20, slo={"p95_ms": 5000}, batch=2, semantics="sealed"
    )
    (tmp_path / "plan.json").write_text(plan.to_json())
    deploying = ["deploy", *named, "--target", "ray", "--plan", str(tmp_path / "plan.json"), "--force"]
    known = ["--images", "--cache", "memory", "--known-answers"]
    for form, out in outs.items():
        capsys.readouterr()
        bundle = tmp_path / f"bundle-{form}"
        assert run([*deploying, *known, str(out), "--out", str(bundle), "--json"]) == 0
        files = json.loads(capsys.readouterr().out)["files"]
        assert {"known_answers.py", "known_answers.sqlite"} <= {*files}
    assert _known(tmp_path / "bundle-jsonl") == _known(tmp_path / "bundle-parquet") != []
    rows = {each["id"]: each for each in _rows(outs["parquet"])}
    assert len(rows) == 6
    with running(tmp_path / "bundle-parquet", log=tmp_path / "log") as server:
        for name, row in rows.items():
            answer = json.loads(sent(server.url, (stored / name).read_bytes()))
            assert answer == {"classes": row["classes"]}
        assert counted(server.url) == {"hits": 6.0, "misses": 0.0}
        fresh = np.full((4, 4, 3), 9, np.uint8)
        Image.fromarray(fresh).save(tmp_path / "fresh.png")
        body = (tmp_path / "fresh.png").read_bytes()
        assert sent(server.url, body) == sent(server.url, body)
        assert counted(server.url) == {"hits": 7.0, "misses": 1.0}

    other = project(tmp_path / "other", seed=5)
    refused = ["deploy", *other, *deploying[len(named) + 1 :], *known, str(outs["jsonl"])]
    refused += ["--out", str(tmp_path / "wrong")]
    assert run(refused) == 2
    assert "answers of another artifact" in capsys.readouterr().err
    assert not (tmp_path / "wrong").exists()


@pytest.mark.long
def test_a_load_test_of_images_sends_the_golden_one_and_holds_its_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named, bundle = project(tmp_path), tmp_path / "bundle"
    plan = optcli.plan(
        curve="1ms+1ms*b", rate_per_s=20, slo={"p95_ms": 5000}, batch=2, semantics="sealed"
    )
    (tmp_path / "plan.json").write_text(plan.to_json())
    deploying = ["deploy", *named, "--target", "ray", "--plan", str(tmp_path / "plan.json"), "--force"]
    assert run([*deploying, "--images", "--cache", "memory", "--out", str(bundle)]) == 0
    loading = ["loadtest", str(bundle), "--encoding", "image", "--rate", "10"]
    loading += ["--seconds", "3", "--settle", "0.5s", "--json"]
    capsys.readouterr()
    assert run(loading) in (1, 5)  # seconds of load accept nothing
    found = LoadTest.model_validate_json(capsys.readouterr().out)
    assert "1 image, compared with the first answers, the golden one with its answer" in found.payload
    (point,) = found.points
    assert point.checked > 0
    assert point.wrong == 0
    assert not point.server.cache_hit_share  # it is switched off
    answer = json.loads((bundle / "golden-answer.json").read_text())
    answer["classes"][0]["score"] /= 2
    (bundle / "golden-answer.json").write_text(json.dumps(answer))
    assert run(loading) == 1
    (point,) = LoadTest.model_validate_json(capsys.readouterr().out).points
    assert point.wrong == point.checked > 0


def _known(bundle: Path) -> list[tuple[Any, ...]]:
    """All rows of all tables of what a bundle knows."""
    with closing(sqlite3.connect(bundle / "known_answers.sqlite")) as file:
        tables = [
            name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return [
            row for name in sorted(tables) for row in file.execute(f"SELECT * FROM {name} ORDER BY 1")
        ]


def _rows(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as parquet

    return [row for path in folder.glob("*.parquet") for row in parquet.read_table(path).to_pylist()]
