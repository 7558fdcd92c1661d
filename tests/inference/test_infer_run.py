"""`optcli infer` for real, with workers of this machine, and with Ray Data."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from foreign_modules import imported, write_foreign_modules
from PIL import Image
from tiny_project import DATA, HEAD, write_images, write_model

from optcli import environment
from optcli.environment import usable_cores
from optcli.errors import MissingError
from optcli.pipeline import ray_session
from optcli.pipeline.building import build
from optcli.results import Report
from optcli.results.serving import Inference
from optcli.serving.inference import InferenceSettings, infer
from optcli.serving.inference.listing import listing
from optcli.serving.prediction import storage
from optcli.store import Store

pytestmark = pytest.mark.slow

COUNT = 60
BROKEN = {"b/007.png": b"no image", "a/030.png": b""}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A recipe that was built, and stored images, two of which are broken."""
    folder = tmp_path_factory.mktemp("infer")
    write_images(folder / "images")
    write_model(folder / "model.onnx")
    (folder / "recipe.yaml").write_text(f"{HEAD}{DATA}variants:\n  plain: []\n")
    build(folder / "recipe.yaml", store=folder / "store", artifacts=folder / "artifacts")
    generator = np.random.default_rng(3)
    for index in range(COUNT):
        path = folder / "stored" / "ab"[index % 2] / f"{index:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (4, 4, 3), np.uint8)).save(path)
    # A format that data sets have and browsers do not send.
    (folder / "stored" / "a" / "010.png").unlink()
    Image.new("RGB", (4, 4), (9, 200, 40)).save(folder / "stored" / "a" / "010.bmp")
    for name, content in BROKEN.items():
        (folder / "stored" / name).write_bytes(content)
    current = write_foreign_modules(folder / "current")
    with chdir(current):
        yield folder
    assert not imported(current)


def run(project: Path, target: Path, **options: Any) -> Inference:
    path = project / "artifacts" / "tiny" / "report.json"
    return infer(
        "plain",
        Report.load(path),
        path,
        str(project / "stored"),
        str(target),
        settings=InferenceSettings(**{"per_shard": 10, "batch_size": 4, **options}),
        store=Store(project / "store"),
    )


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.long
def test_all_images_are_answered_and_a_second_run_changes_nothing(
    project: Path, tmp_path: Path
) -> None:
    import onnxruntime
    import pyarrow.parquet as parquet

    found = run(project, tmp_path / "out")
    assert (found.images, found.answered, found.failed, found.shards) == (COUNT, 58, 2, 6)
    assert {each.partition(":")[0] for each in found.failures} == set(BROKEN)
    assert found.images_per_s is not None
    table = [
        row
        for path in sorted((tmp_path / "out").glob("*.parquet"))
        for row in parquet.read_table(path).to_pylist()
    ]
    assert len({row["id"] for row in table}) == len(table) == 58
    session = onnxruntime.InferenceSession(project / "model.onnx")
    for row in table:
        pixels = np.asarray(Image.open(project / "stored" / row["id"]), np.float64) * 0.004
        feed = pixels.transpose(2, 0, 1)[None].astype(np.float32)
        (logits,) = session.run(None, {"image": feed})
        assert row["label"] == logits[0].argmax(), row["id"]
    errors = [
        json.loads(line)["id"]
        for path in (tmp_path / "out").glob("*.errors.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sorted(errors) == sorted(BROKEN)
    before = content(tmp_path / "out")
    again = run(project, tmp_path / "out", batch_size=None)
    assert (again.answered, again.shards_before, again.answered_before) == (0, 6, COUNT)
    assert again.batch_size == 4, "as recorded"
    assert found.rates
    assert not again.rates, "nothing is timed where nothing is missing"
    assert content(tmp_path / "out") == before


@pytest.mark.long
def test_a_killed_run_goes_on(project: Path, tmp_path: Path) -> None:
    run(project, tmp_path / "undisturbed", form="jsonl")
    target = tmp_path / "killed"
    command = [sys.executable, "-m", "optcli", "infer", "plain", str(project / "recipe.yaml")]
    command += ["--artifacts", str(project / "artifacts"), "--store", str(project / "store")]
    command += ["--input", str(project / "stored"), "--output", os.path.relpath(target)]
    command += ["--shard", "10", "--batch-size", "4", "--format", "jsonl", "--json"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 240
    # The errors of a shard are written before its answers.
    while time.monotonic() < until and not list(target.glob("part-??????-????????.jsonl")):
        assert first.poll() is None
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["shards_before"] >= 1
    assert found["answered"] + found["failed"] + found["answered_before"] == COUNT
    assert content(target) == content(tmp_path / "undisturbed")


@pytest.mark.long
def test_each_core_has_a_copy_of_its_own_in_a_long_run(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optcli.serving.inference._LONG_S", 0.0)
    monkeypatch.setattr("optcli.serving.inference._SHARDS_EACH", 1)
    monkeypatch.setattr("optcli.serving.inference.environment.usable_cores", lambda: 2)
    found = run(project, tmp_path / "out", form="jsonl", per_shard=5)
    assert (found.workers, found.threads) == (2, 1)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["threads"] == 1
    # A run that goes on takes the threads of the one before.
    (tmp_path / "out" / sorted(manifest["finished"])[0]).with_suffix(".jsonl").unlink()
    again = run(project, tmp_path / "out", form="jsonl", per_shard=5)
    assert (again.threads, again.shards_before) == (1, found.shards - 1)
    assert run(project, tmp_path / "two", workers=2).threads == 1


@pytest.mark.long
def test_workers_of_a_cluster_answer_the_same(project: Path, tmp_path: Path) -> None:
    import ray

    here = run(project, tmp_path / "here", form="jsonl")
    with ray_session.started(ray_session.LOCAL, max(usable_cores(), 2)):
        address = ray.get_runtime_context().gcs_address
        options = {"address": address, "workers": here.workers}
        there = run(project, tmp_path / "there", form="jsonl", **options)
    assert (there.answered, there.failed) == (58, 2)
    assert sorted(there.failures) == sorted(here.failures)
    for name, held in content(tmp_path / "here").items():
        if name != "manifest.json":
            assert (tmp_path / "there" / name).read_bytes() == held


def test_a_list_in_parquet_and_answers_in_it_need_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = environment.version
    monkeypatch.setattr(environment, "version", lambda name: None if name == "pyarrow" else known(name))
    (tmp_path / "images.parquet").write_bytes(b"PAR1")
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / storage.MANIFEST).write_text('{"format": "parquet"}')
    monkeypatch.setattr(storage, "deciding", lambda *_: {"preparation": 1})
    monkeypatch.setattr(storage, "_DECIDES", ())
    built: Any = SimpleNamespace(name="plain")
    serving: Any = storage.ImageServing({}, {})
    with pytest.raises(MissingError, match="pyarrow"):
        listing(str(tmp_path / "images.parquet"), 10)
    with pytest.raises(MissingError, match="pyarrow"):
        storage.open_answers(str(tmp_path / "answers"), built, serving, "--known-answers")


@pytest.mark.parametrize("address", ["local", "auto"])
def test_what_is_not_installed_is_named_before_anything_is_listed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    absent = {"local": "pyarrow", "auto": "ray"}[address]
    known = environment.version
    monkeypatch.setattr(environment, "version", lambda name: None if name == absent else known(name))
    with pytest.raises(MissingError, match=absent) as error:
        run(project, tmp_path / "out", address=address)
    assert ("--format jsonl" in error.value.hint) == (address == "local")
    assert not (tmp_path / "out").exists()
