"""A search for real, on a tiny network: trials, the tuned recipe, a killed run that goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_project import write_recipe

import optcli
from optcli.errors import UsageError
from optcli.recipe import load
from optcli.results import Report
from optcli.results.tuning import Tuning

pytestmark = pytest.mark.slow

TUNE = "tune: {runtimes: [onnxruntime], precisions: [fp32, int8], finalists: 2}\n"


def project(folder: Path, rest: str = TUNE) -> Path:
    return write_recipe(folder, rest)


def tune(path: Path, **options: Any) -> Tuning:
    folder = path.parent
    places = {"store": folder / "store", "artifacts": folder / "artifacts"}
    return optcli.tune(path, **{"minutes": 0.6, **places, **options})


def kept(folder: Path) -> Path:
    (path,) = (folder / "store").rglob("trials.jsonl")
    return path


@pytest.mark.long
def test_a_recipe_without_variants_is_tuned(tmp_path: Path) -> None:
    path = project(tmp_path)
    found = tune(path)
    assert found.trials[0].label.startswith("onnxruntime fp32")
    assert found.trials[0].stage == "inside", found.trials[0].reason
    assert found.trials[0].judging_s, "by it the search keeps time for the finalists"
    assert found.outcome in ("faster", "accurate")
    assert found.winner in {each.variant for each in found.finalists}
    assert found.validation.startswith("20 % of data.calibration")
    assert any("cannot be trained" in sentence for sentence in found.left_out)
    tuned = load(tmp_path / "recipe.tuned.yaml")
    assert set(tuned.variants) == {"source", *(each.variant for each in found.finalists)}
    report = Report.load(tmp_path / "artifacts" / "tiny-tuned" / "report.json")
    assert report.tuning is not None
    assert [each.number for each in report.tuning.trials] == [each.number for each in found.trials]
    page = (tmp_path / "artifacts" / "tiny-tuned" / "report.html").read_text()
    assert "What the search tried" in page
    before = kept(tmp_path).read_text()
    again = tune(path)
    assert kept(tmp_path).read_text().startswith(before), "no finished trial runs again"
    assert again.winner is not None
    with pytest.raises(UsageError, match="no samples to judge"):
        tune(path, overrides=["data.evaluation=null", "accuracy=null"])


@pytest.mark.long
def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    path = project(tmp_path)
    command = [sys.executable, "-m", "optcli", "tune", str(path), "--minutes", "3", "--json"]
    command += ["--store", str(tmp_path / "store"), "--artifacts", str(tmp_path / "artifacts")]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 240
    while time.monotonic() < until and not list((tmp_path / "store").rglob("trials.jsonl")):
        assert first.poll() is None
        time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    before = [json.loads(line) for line in kept(tmp_path).read_text().splitlines()]
    assert before
    command += ["--minutes", "0.4", "--set", "tune.passes={}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode in (0, 1, 5), done.stderr
    found = json.loads(done.stdout)
    assert found["trials"][: len(before)] == before
    assert "going on with" in done.stderr
