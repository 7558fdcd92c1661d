"""Accuracy whose parts nodes of a real Ray cluster evaluate, all of it on this machine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import RayCluster, built, wait_for
from tiny_project import DATA, Heard, Project, write_images

from optcli.pipeline.building import build
from optcli.pipeline.execute import BuildSettings
from optcli.results import Report
from optcli.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("all_unmeasured")]

PLAIN = "  plain: []\n"
HERE = "evaluated on this machine"
# A metric of the user's own, which notes on which machine it counts.
METRIC = """\
import ctypes, os, time
from pathlib import Path

NOTES, WAY = Path({notes!r}), {way!r}


def metric(outputs, target, meta):
    machine = os.environ.get("OPTCLI_STORE", "here")
    with NOTES.open("a") as stream:
        stream.write(f"{{machine}} {{os.getpid()}}\\n")
    if WAY == "crash" and machine != "here":
        ctypes.string_at(0)
    if WAY == "hang at first" and machine != "here":
        try:
            NOTES.with_suffix(".hung").open("x").write(machine)
        except FileExistsError:
            pass
        else:
            time.sleep(600)
    return int(outputs["logits"].argmax()) == target
"""


@pytest.fixture
def cluster(shared_cluster: RayCluster) -> RayCluster:
    """Two nodes, of one and of two cores."""
    return shared_cluster.settle({"one": {"cores": 1}, "two": {"cores": 2}})


def judging(project: Project, variants: str = PLAIN, way: str = "") -> Path:
    """A recipe with the metric; gives the file of its notes."""
    notes = project.folder.parent / "notes.txt"
    write_images(project.folder / "images", 60)
    (project.folder / "metric.py").write_text(METRIC.format(notes=str(notes), way=way))
    data = DATA.replace("metric: top1", 'metric: "python:metric.py:metric", batch_size: 2')
    project.recipe(variants, data=data)
    return notes


def machines(notes: Path) -> list[tuple[str, ...]]:
    """Machine and process of each sample that was counted."""
    return [tuple(line.split()) for line in notes.read_text().splitlines()]


def accuracies(report: Report) -> dict[str, Any]:
    return {
        name: each.accuracy.model_dump() if each.accuracy is not None else None
        for name, each in report.variants.items()
    }


@pytest.mark.parametrize(
    ("remote", "variants"), [(True, PLAIN + "  int8: [quantize_onnxruntime]\n"), (False, PLAIN)]
)
def test_counts_are_those_of_an_undivided_evaluation(
    project: Project, cluster: RayCluster, remote: bool, variants: str
) -> None:
    notes = judging(project, variants)
    wanted = accuracies(project.build())
    samples = wanted["plain"]["samples"]
    assert samples >= 20
    assert {machine for machine, _ in machines(notes)} == {"here"}
    notes.unlink()
    report, heard, store = built(project, cluster.address, remote=remote)
    assert accuracies(report) == wanted
    seen = machines(notes)
    assert len(seen) == len(wanted) * samples, "each sample of each variant once"
    assert {Path(machine).name for machine, _ in seen} <= {"one", "two"}
    assert len({process for _, process in seen}) == 3 * len(wanted), (
        "three cores, so three parts of each"
    )
    assert not [note for note in heard.notes if HERE in note], heard.notes
    assert store.keys("evaluation") == Store(project.store).keys("evaluation")
    assert store.verify() == []
    notes.unlink()
    # By the remote store another machine has it, too.
    where = "store-of-another-machine" if remote else "store-ray"
    again, _, _ = built(project, cluster.address, remote=remote, store=where)
    assert accuracies(again) == wanted
    assert not notes.exists(), "it is kept"


def test_a_node_that_is_killed_is_replaced(project: Project, cluster: RayCluster) -> None:
    notes = judging(project, way="hang at first")
    hung = notes.with_suffix(".hung")
    hung.touch()
    wanted = accuracies(project.build())
    hung.unlink()

    def kill() -> None:
        wait_for(lambda: hung.exists() and hung.read_text())
        cluster.kill(Path(hung.read_text()).name)

    killing = threading.Thread(target=kill)
    killing.start()
    report, heard, store = built(project, cluster.address)
    killing.join()
    assert accuracies(report) == wanted
    assert [note for note in heard.notes if "its node was lost" in note]
    assert store.verify() == []


def test_a_crash_is_not_repeated(project: Project, cluster: RayCluster) -> None:
    notes = judging(project, way="crash")
    report, _, _ = built(project, cluster.address)
    reason = report.variants["plain"].reason or ""
    assert "segmentation fault" in reason
    seen = machines(notes)
    assert "here" not in {machine for machine, _ in seen}
    assert len(seen) <= 4, "no part is begun again: each core has one"


def test_without_a_cluster_that_answers_it_is_evaluated_here(project: Project) -> None:
    notes = judging(project)
    wanted = accuracies(project.build())
    store = Store(project.store)
    for kind in ("evaluation", "comparison"):
        for key in store.keys(kind):
            store.discard(kind, key)
    notes.unlink()
    heard = Heard()
    report = build(
        project.folder / "recipe.yaml",
        store=Store.at(project.store, f"file://{project.folder.parent}/remote"),
        artifacts=project.artifacts,
        observer=heard,
        settings=BuildSettings(ray="127.0.0.1:1"),
    )
    assert accuracies(report) == wanted
    assert {machine for machine, _ in machines(notes)} == {"here"}
    assert [note for note in heard.notes if "no Ray cluster answers" in note]
