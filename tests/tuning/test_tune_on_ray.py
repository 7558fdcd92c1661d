"""A search whose passes and evaluations run on nodes of a real Ray cluster of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import RayCluster, ray_cluster
from tiny_project import DATA, HEAD, Heard, write_images, write_model

import optcli
from optcli.cli import run
from optcli.errors import StepError, UsageError
from optcli.observer import Silent
from optcli.pipeline.execute import BuildSettings, evaluating_nodes
from optcli.pipeline.making import BuiltPlan
from optcli.recipe import Recipe, load
from optcli.settings.latency import LatencySettings
from optcli.store import Store
from optcli.tuning import repair
from optcli.tuning.trial_runner import TrialRunner, artifact

pytestmark = [pytest.mark.slow, pytest.mark.long]

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


VARIANTS = "variants:\n  plain: []\n  int8: [quantize_onnxruntime]\n"


def remote_store(folder: Path) -> Store:
    return Store.at(folder / "store", f"file://{folder}/remote")


def test_a_trial_on_a_cluster_is_the_same_and_is_timed_here(
    tmp_path: Path, cluster: RayCluster
) -> None:
    read = load(project(tmp_path, VARIANTS))
    asked = LatencySettings.model_validate({"batch_sizes": (1,), "launches": 1, "max_seconds": 0.2})
    heard, before = Heard(), cluster.results()
    settings = BuildSettings(jobs=4, ray=cluster.address)
    far_store = remote_store(tmp_path / "far")
    with (
        far_store.connected(heard.warned),
        evaluating_nodes(cluster.address, far_store, heard) as nodes,
    ):
        far = TrialRunner(far_store, tmp_path / "far", heard, settings, nodes)
        made = far.make(read)
        judged = far.judge(made, "int8")
        measured = far.measure(made, ("plain", "int8"), asked, 0)
    here = TrialRunner(Store(tmp_path / "here"), tmp_path, Silent(), BuildSettings())
    alone = here.make(read)
    assert artifact(made, "int8").key == artifact(alone, "int8").key
    assert artifact(made, "int8").digest == artifact(alone, "int8").digest
    assert judged == here.judge(alone, "int8")
    assert not [note for note in heard.notes if HERE in note], heard.notes
    assert cluster.results() - before == 1, "the pass ran on a node"
    assert not measured.failures


@pytest.mark.long
def test_a_search_on_a_cluster(tmp_path: Path, cluster: RayCluster) -> None:
    heard = Heard()
    found = optcli.tune(
        project(tmp_path),
        minutes=0.6,
        store=remote_store(tmp_path),
        artifacts=tmp_path / "artifacts",
        settings=BuildSettings(jobs=4, ray=cluster.address),
        observer=heard,
    )
    first = found.trials[0]
    assert (first.stage, first.value) == ("inside", 1.0), first.reason
    assert first.p50_ms, "it was timed"
    assert found.winner is not None
    assert not [note for note in heard.notes if HERE in note], heard.notes


def test_a_search_has_its_trials_made_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[TrialRunner] = []

    def make(self: TrialRunner, recipe: Recipe) -> BuiltPlan:
        heard.append(self)
        raise StepError("enough")

    monkeypatch.setattr(TrialRunner, "make", make)
    for address in (None, "local", "10.0.0.1:6379"):
        store = remote_store(tmp_path)
        with pytest.raises(StepError, match="enough"):
            optcli.tune(
                project(tmp_path),
                store=store,
                artifacts=tmp_path / "out",
                settings=BuildSettings(ray=address),
            )
    assert [each.settings.ray for each in heard] == [None, "local", "10.0.0.1:6379"]
    assert [each.nodes is not None for each in heard] == [False, False, True]


def test_a_repair_on_a_cluster(tmp_path: Path, cluster: RayCluster) -> None:
    path, heard = project(tmp_path, VARIANTS), Heard()
    with pytest.raises(UsageError, match="is inside its accuracy bar already"):
        repair(
            path,
            "int8",
            trials=1,
            store=remote_store(tmp_path),
            artifacts=tmp_path / "artifacts",
            settings=BuildSettings(ray=cluster.address),
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
