"""A search whose passes and evaluations run on nodes of a real Ray cluster of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import RayCluster, ray_cluster
from tiny_project import DATA, HEAD, Heard, write_images, write_model

import optcli
from optcli.cli import run
from optcli.errors import UsageError
from optcli.results.tuning import Tuning
from optcli.store import Store
from optcli.tuning import repair

pytestmark = pytest.mark.slow

TUNE = "tune: {runtimes: [onnxruntime], precisions: [fp32, int8], finalists: 2}\n"
HERE = "on this machine"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as found:
        found.add("one", 1)
        found.add("two", 1)
        yield found


def project(folder: Path, rest: str = TUNE) -> Path:
    write_images(folder / "images", 40)
    write_model(folder / "model.onnx")
    path = folder / "recipe.yaml"
    path.write_text(f"{HEAD}{DATA}{rest}")
    return path


def keys_of(found: Tuning) -> dict[str, tuple[str | None, float | None]]:
    """Key and value of each trial that was built and judged, by what was tried."""
    return {
        each.label: (each.key, each.value)
        for each in found.trials
        if each.key is not None and each.value is not None
    }


def test_a_search_on_a_cluster_makes_the_same(tmp_path: Path, cluster: RayCluster) -> None:
    alone = optcli.tune(
        project(tmp_path / "alone"),
        minutes=0.8,
        store=tmp_path / "alone" / "store",
        artifacts=tmp_path / "alone" / "artifacts",
    )
    path, heard = project(tmp_path / "far"), Heard()
    store = Store.at(tmp_path / "far" / "store", f"file://{tmp_path}/remote")
    found = optcli.tune(
        path,
        minutes=0.8,
        store=store,
        artifacts=tmp_path / "far" / "artifacts",
        jobs=4,
        ray=cluster.address,
        observer=heard,
    )
    assert found.outcome in ("faster", "accurate")
    both = keys_of(alone).keys() & keys_of(found).keys()
    assert len(both) >= 2, "the reference and a trial with a pass at least"
    for label in both:
        assert keys_of(found)[label] == keys_of(alone)[label], label
    assert not [note for note in heard.notes if HERE in note], heard.notes
    made = [key for name in cluster.nodes for key in Store(cluster.folder / name).keys("made")]
    assert made, "passes ran on nodes"
    assert all(trial.p50_ms for trial in found.trials if trial.stage == "inside"), "timed here"


def test_a_repair_on_a_cluster(tmp_path: Path, cluster: RayCluster) -> None:
    variants = "variants:\n  plain: []\n  int8: [quantize_onnxruntime]\n"
    path, heard = project(tmp_path, variants), Heard()
    with pytest.raises(UsageError, match="is inside its accuracy bar already"):
        repair(
            path,
            "int8",
            trials=1,
            store=Store.at(tmp_path / "store", f"file://{tmp_path}/remote"),
            artifacts=tmp_path / "artifacts",
            ray=cluster.address,
            observer=heard,
        )
    assert not [note for note in heard.notes if HERE in note], heard.notes
    assert Store(tmp_path / "store").keys("evaluation")


def test_what_cannot_work_is_said_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project(tmp_path)
    assert run(["tune", str(path), "--ray", "ray://127.0.0.1:1"]) == 2
    assert "wanted auto, local or HOST:PORT" in capsys.readouterr().err
    assert not list((tmp_path).rglob("trials.jsonl"))
