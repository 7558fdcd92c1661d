"""Builds whose passes run on the nodes of a real Ray cluster, all of it on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pytest
from needs import REPOSITORY
from ray_cluster import RayCluster, built, made, wait_for
from tiny_project import CALIBRATION, DATA, Project, project_in

from optcli.errors import MissingError, UsageError
from optcli.pipeline.on_ray import parcels
from optcli.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("all_unmeasured")]

# One of each kind: optcli's own passes, the user's own, one that reads data, one of this CPU.
VARIANTS = """\
  plain: []
  own: [optimize_onnx, to_openvino]
  users: ["./fakes.py:Copy", "./fakes.py:Convert"]
  calibrated: ["./fakes.py:Calibrated"]
  int8: [quantize_onnxruntime]
  bound: ["./fakes.py:Tuned"]
"""
HERE = "made on this machine"


@pytest.fixture
def cluster(shared_cluster: RayCluster) -> RayCluster:
    """Two nodes that run steps, of one and of two cores."""
    return shared_cluster.settle({"one": {"cores": 1}, "two": {"cores": 2}})


@pytest.fixture(scope="module")
def wanted(
    template: Path, tmp_path_factory: pytest.TempPathFactory, all_unmeasured: None
) -> dict[str, Any]:
    """What VARIANTS come to on this machine alone."""
    place = tmp_path_factory.mktemp("alone")
    project = project_in(place, template)
    project.recipe(VARIANTS, data=CALIBRATION)
    return made(project.build())


@pytest.fixture
def noted(project: Project) -> Path:
    """The file in which passes of `ray_fakes.py` note their starts."""
    shutil.copyfile(REPOSITORY / "tests" / "ray_fakes.py", project.folder / "ray_fakes.py")
    return project.folder.parent / "notes.txt"


def noting(notes: Path, way: str, name: str = "noted") -> str:
    return f'  {name}: [{{"./ray_fakes.py:Noted": {{notes: {notes}, way: {way}}}}}]\n'


def started(project: Project, cluster: RayCluster) -> subprocess.Popen[bytes]:
    """The same build as a process of its own."""
    root = project.folder.parent
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "optcli", "build", "recipe.yaml", "--ray", cluster.address),
            *("--store", str(root / "store-ray"), "--remote-store", f"file://{root}/remote"),
            *("--artifacts", str(root / "artifacts-ray")),
        ],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A suite in the background of a shell has it ignored, and so would have the build.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def starts(notes: Path) -> list[str]:
    """The store of each machine on which a pass of `ray_fakes.py` began."""
    return [line.split()[0] for line in notes.read_text().splitlines()] if notes.exists() else []


def processes(notes: Path) -> list[int]:
    """The processes of these passes."""
    return [int(line.split()[1]) for line in notes.read_text().splitlines()]


def test_a_node_with_other_versions_is_named_and_not_used(project, tmp_path, shared_cluster, wanted):
    about = tmp_path / "other" / "onnx-0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: onnx\nVersion: 0.1\n")
    path = os.pathsep.join([str(about.parent), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    other = shared_cluster.settle({"old": {"cores": 2, "variables": {"PYTHONPATH": path}}})
    project.recipe(VARIANTS, data=CALIBRATION)
    report, heard, _ = built(project, other.address, only=["users"])
    assert made(report)["users"] == wanted["users"]
    assert [note for note in heard.notes if "onnx 0.1, wanted" in note and "not run on" in note]
    assert [note for note in heard.notes if HERE in note]


def test_nodes_make_the_same_as_this_machine(project, cluster, wanted):
    project.recipe(VARIANTS, data=CALIBRATION)
    before = cluster.results()
    report, heard, store = built(project, cluster.address)
    assert all(wanted.values())
    assert made(report) == wanted
    assert not [note for note in heard.notes if HERE in note], heard.notes
    assert cluster.results() - before == 7, "every pass ran on a node"
    assert store.verify() == []
    assert all(not entry.origin for entry in store.entries()), "it is trusted as what is made here"
    # Another machine finds all of it in the remote store.
    assert {each.status for each in report.variants.values()} == {"built"}
    again, _, _ = built(project, "local", store="store-of-another-machine")
    assert {each.status for each in again.variants.values()} == {"cached"}


def test_a_crash_costs_its_variant_and_is_not_repeated(project, cluster, noted):
    project.recipe("  plain: []\n" + noting(noted, "segfault", "bad") + noting(noted, "warn", "good"))
    report, heard, store = built(project, cluster.address)
    states = {name: each.status for name, each in report.variants.items()}
    assert states == {"plain": "built", "bad": "failed", "good": "built"}
    assert "segmentation fault" in report.variants["bad"].reason
    assert len(starts(noted)) == 2
    assert "mind the gap" in heard.notes
    assert "ctypes" in Path(report.variants["bad"].log).read_text(), "the log came from the node"
    assert store.verify() == []


@pytest.mark.parametrize("remote", [True, False])
def test_a_node_that_is_killed_is_replaced(project, cluster, noted, remote):
    project.recipe(f"  plain: []\n{noting(noted, 'hang at first')}")

    def kill() -> None:
        wait_for(lambda: starts(noted))
        cluster.kill(Path(starts(noted)[0]).name)

    killing = threading.Thread(target=kill)
    killing.start()
    report, heard, store = built(project, cluster.address, remote)
    killing.join()
    assert {each.status for each in report.variants.values()} == {"built"}
    first, second = starts(noted)
    assert first != second
    assert [note for note in heard.notes if "lost" in note]
    assert store.verify() == []


def test_after_a_kill_of_the_driver_the_next_goes_on(project, cluster, noted):
    first = '{"./fakes.py:Copy": {note: first}}'
    second = f'{{"./ray_fakes.py:Noted": {{notes: {noted}, way: wait}}}}'
    project.recipe(f"  plain: []\n  chain: [{first}, {second}]\n")
    process = started(project, cluster)
    try:
        wait_for(lambda: starts(noted))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    noted.with_suffix(".go").touch()
    report, heard, store = built(project, cluster.address)
    assert {each.status for each in report.variants.values()} == {"cached", "built"}
    passes = [step for step in heard.built if "›" in step and "fakes" in step]
    assert len(passes) == 1, "the first pass was there"
    assert store.verify() == []


def test_an_interrupt_ends_what_runs_on_nodes(project, cluster, noted):
    project.recipe(f"  plain: []\n{noting(noted, 'wait')}")
    process = started(project, cluster)
    try:
        wait_for(lambda: starts(noted))
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    finally:
        process.kill()
        process.wait()
    (worker,) = processes(noted)
    wait_for(lambda: not psutil.pid_exists(worker))


def built_alone(project: Project) -> tuple[dict[str, Any], list[str], list[Any], int]:
    """What a build on a Ray of its own made and told, what is damaged in its store, its process."""
    report, heard, store = built(project, "local", remote=False)
    return made(report), heard.notes, store.verify(), os.getpid()


def test_ray_of_this_machine_alone_ends_with_the_build(project, noted, wanted):
    project.recipe(f"  plain: []\n{noting(noted, 'warn')}")
    # In a process of its own: after it, Ray would destroy the actors of this process in other clusters.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        found, notes, damaged, process = apart.submit(built_alone, project).result()
    assert found["plain"] == wanted["plain"]
    assert found["noted"][1] == wanted["plain"][1], "it was copied"
    assert len(starts(noted)) == 1
    assert not [note for note in notes if HERE in note]
    assert not list(Path("/tmp").glob(f"optcli-ray-{process}-*"))
    assert damaged == []


def test_without_a_remote_store_nodes_work_in_the_store_that_they_see(project, cluster, noted, wanted):
    project.recipe(VARIANTS + noting(noted, "warn"), data=CALIBRATION)
    names = ["users", "calibrated", "bound", "noted"]
    report, heard, store = built(project, cluster.address, remote=False, only=names)
    found = made(report)
    assert found.pop("noted")
    assert found == {name: wanted[name] for name in found}
    assert {*found} == {"plain", "users", "calibrated", "bound"}
    assert starts(noted)[0] in {str(cluster.folder / name) for name in cluster.nodes}
    assert not [note for note in heard.notes if HERE in note]
    assert store.verify() == []


def test_without_a_remote_store_nodes_that_see_no_store_are_refused(project, cluster, monkeypatch):
    project.recipe('  plain: []\n  a: ["./fakes.py:Copy"]\n')
    seen = parcels.shared_with

    def elsewhere(store, log):
        shared = seen(store, log)
        shared.mark.write_text("of another store")
        return shared

    monkeypatch.setattr(parcels, "shared_with", elsewhere)
    with pytest.raises(UsageError, match="do not see the store") as caught:
        built(project, cluster.address, remote=False)
    assert "--remote-store" in caught.value.hint


def test_files_that_cannot_be_fetched_cost_time_alone(project, cluster, monkeypatch, wanted):
    """The remote store loses what is sent there, so that no node can fetch it."""
    project.recipe('  plain: []\n  a: [{"./fakes.py:Copy": {note: unreachable}}]\n')
    monkeypatch.setattr(parcels, "send", lambda *_: None)
    report, heard, store = built(project, cluster.address)
    assert made(report)["a"][1] == wanted["plain"][1], "it was copied"
    assert [note for note in heard.notes if HERE in note and "is missing" in note]
    assert store.verify() == []


def test_without_a_cluster_nothing_is_made(project):
    project.recipe('  plain: []\n  a: ["./fakes.py:Copy"]\n')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(MissingError, match="no Ray cluster answers") as caught:
            built(project, nobody)
    assert caught.value.place == nobody
    assert list(Store(project.folder.parent / "store-ray").entries("artifact")) == []


def test_nodes_make_the_same_through_a_store_on_s3(project, shared_cluster, s3, wanted):
    node = {"cores": 1, "variables": s3.server.variables}
    cluster = shared_cluster.settle({"far": node})
    project.recipe('  plain: []\n  copied: ["./fakes.py:Copy"]\n', data=DATA)
    report, heard, store = built(project, cluster.address, s3.url)
    assert made(report)["copied"][1] == wanted["plain"][1]
    assert cluster.results() == 1, "the pass ran on the node"
    assert not [note for note in heard.notes if "on this machine" in note], heard.notes
    assert store.verify() == []
