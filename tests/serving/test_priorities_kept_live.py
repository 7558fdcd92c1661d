"""Two priorities in a real Ray with what else a bundle keeps: known answers, and inputs it drew."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_known_live import counted, project

import optcli
from optcli.cli import run
from optcli.results.drift import Drift
from optcli.serving.drift import input_statistics
from optcli.serving.running import running

pytestmark = pytest.mark.slow

SHARES = {"high": 0.3, "low": 0.7}


def asked(url: str, way: str, body: bytes, priority: str) -> dict:
    request = urllib.request.Request(f"{url}/v2/models/plain/{way}", body, {"x-priority": priority})
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict = json.loads(response.read())
        return answer


def tensor(seed: int) -> bytes:
    data = np.random.default_rng(seed).random(48).round(4).tolist()
    described = {"name": "image", "datatype": "FP32", "shape": [1, 3, 4, 4], "data": data}
    return json.dumps({"inputs": [described]}).encode()


def png(path: Path, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path.read_bytes()


def seen(url: str) -> int:
    """The rows of which the server drew its sample."""
    with urllib.request.urlopen(f"{url}/v2/models/plain/inputs", timeout=60) as response:
        kept = input_statistics.unpacked(response.read())
    return sum(each["seen"] for each in kept.about["periods"])


@pytest.mark.long
def test_each_priority_gets_known_answers_and_the_inputs_of_all_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, answers, out = tmp_path / "stored", tmp_path / "answers", tmp_path / "bundle"
    stored.mkdir()
    images = {f"{seed}.png": png(stored / f"{seed}.png", seed) for seed in range(4)}
    named = project(tmp_path)
    inferring = ["infer", *named, "--input", str(stored), "--output", str(answers), "--format", "jsonl"]
    assert run([*inferring, "--json"]) == 0
    lines = [line for part in answers.glob("part-*.jsonl") for line in part.read_text().splitlines()]
    wanted = {each["id"]: each["classes"] for each in map(json.loads, lines)}
    assert wanted.keys() == images.keys()
    plan = optcli.plan(
        curve="1ms+1ms*b",
        rate_per_s=20,
        slo={"p95_ms": 5000},
        batch=2,
        semantics="sealed",
        priorities=SHARES,
    )
    (tmp_path / "plan.json").write_text(plan.to_json())
    deploying = ["deploy", *named, "--target", "ray", "--plan", str(tmp_path / "plan.json"), "--force"]
    keeping = ["--cache", "memory", "--known-answers", str(answers), "--sample-inputs", "64"]
    capsys.readouterr()
    assert run([*deploying, "--images", *keeping, "--out", str(out), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert {"priorities.py", "known_answers.sqlite", "keeping.py", "cache.json"} <= {*files}

    with running(out, log=tmp_path / "log") as server:
        url = server.url
        for priority in SHARES:
            for name, body in images.items():
                assert asked(url, "images", body, priority) == {"classes": wanted[name]}
        assert counted(url) == {"hits": 8.0, "misses": 0.0}
        assert seen(url) == 0  # nothing of it was computed
        # What one priority had computed, the other gets from the cache.
        fresh = png(tmp_path / "fresh.png", 9)
        assert asked(url, "images", fresh, "low") == asked(url, "images", fresh, "high")
        assert counted(url) == {"hits": 9.0, "misses": 1.0}
        for seed in range(8):
            priority = "high" if seed < 3 else "low"
            assert asked(url, "infer", tensor(seed), priority)["outputs"][0]["shape"] == [1, 2]
        assert seen(url) == 9
    # Its server is gone: what it kept of both priorities lies beside the bundle.
    capsys.readouterr()
    assert run(["loadtest", str(out), "--drift", "--json"]) == 5
    found = Drift.model_validate_json(capsys.readouterr().out)
    assert (found.seen, found.kept, found.missed) == (9, 9, 0)
