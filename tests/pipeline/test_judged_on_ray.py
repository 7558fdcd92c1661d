"""Accuracy whose parts nodes of a real Ray cluster evaluate, all of it on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import RayCluster, built, ray_cluster, wait_for
from tiny_project import DATA, Heard, Project, write_images

from optcli.pipeline import build
from optcli.results import Report
from optcli.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.long]

VARIANTS = "  plain: []\n  int8: [quantize_onnxruntime]\n"
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


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes, of one and of two cores."""
    with ray_cluster() as found:
        found.add("one", 1)
        found.add("two", 2)
        yield found


def judging(project: Project, variants: str = VARIANTS, way: str = "") -> Path:
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


@pytest.mark.parametrize("remote", [True, False])
def test_counts_are_those_of_an_undivided_evaluation(
    project: Project, cluster: RayCluster, remote: bool
) -> None:
    notes = judging(project)
    wanted = accuracies(project.build())
    samples = wanted["plain"]["samples"]
    assert samples >= 20
    assert {machine for machine, _ in machines(notes)} == {"here"}
    notes.unlink()
    report, heard, store = built(project, cluster.address, remote=remote)
    assert accuracies(report) == wanted
    seen = machines(notes)
    assert len(seen) == 2 * samples, "each sample of each variant once"
    assert {Path(machine).name for machine, _ in seen} <= {"one", "two"}
    assert len({process for _, process in seen}) == 6, "three cores, so three parts of each"
    assert not [note for note in heard.notes if HERE in note], heard.notes
    assert store.keys("evaluation") == Store(project.store).keys("evaluation")
    assert store.verify() == []
    notes.unlink()
    again, _, _ = built(project, cluster.address, remote=remote)
    assert accuracies(again) == wanted
    assert not notes.exists(), "it is kept"


def test_a_node_that_is_killed_is_replaced(project: Project, cluster: RayCluster) -> None:
    notes = judging(project, way="hang at first")
    hung = notes.with_suffix(".hung")
    hung.touch()
    wanted = accuracies(project.build())
    hung.unlink()
    cluster.add("three", 1)  # two are left in any case

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
    for name in {"one", "two"} - {*cluster.nodes}:  # for the tests that follow
        cluster.add(name, 1 if name == "one" else 2)


def test_a_crash_is_not_repeated(project: Project, cluster: RayCluster) -> None:
    notes = judging(project, "  plain: []\n", way="crash")
    report, _, _ = built(project, cluster.address)
    reason = report.variants["plain"].reason or ""
    assert "segmentation fault" in reason
    seen = machines(notes)
    assert "here" not in {machine for machine, _ in seen}
    assert len(seen) <= 4, "no part is begun again: each core has one"


def test_without_a_cluster_that_answers_it_is_evaluated_here(project: Project) -> None:
    notes = judging(project, "  plain: []\n")
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
        ray="127.0.0.1:1",
    )
    assert accuracies(report) == wanted
    assert {machine for machine, _ in machines(notes)} == {"here"}
    assert [note for note in heard.notes if "no Ray cluster answers" in note]
