"""Builds that measure on nodes of a real Ray cluster, all of it on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from needs import REPOSITORY
from noted_measuring import NOTES, noted
from ray_cluster import RayCluster, wait_for
from tiny_project import DATA, HEAD, Heard, Project, build_options

from optcli import environment
from optcli.errors import ExitCode, MissingError, UsageError
from optcli.pipeline.building import build
from optcli.pipeline.on_ray import devices, parcels
from optcli.pipeline.on_ray.cluster import NODE_ID
from optcli.pipeline.remote_devices.messages import UnreachableError
from optcli.results import Report
from optcli.store import Store

pytestmark = pytest.mark.long

TESTS = REPOSITORY / "tests"
VARIANTS = '  plain: []\n  copied: ["./fakes.py:Copy"]\n'
VERSIONS = {"edge": "9.1", "lab": "9.2"}
DEVICES = """\
devices:
  edge: {ray: {resources: {edge: 1}}}
  lab: {ray: {resources: {lab: 1, big: 2}}}
"""


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notes") / "notes.txt"


def described_as(folder: Path, version: str) -> str:
    """A PYTHONPATH by which a node says that it has this version of ONNX Runtime.

    All nodes are this machine: without a difference one device would have what another one measured.
    """
    # Its distribution may be called either way; optcli looks for this one first.
    about = folder / f"onnxruntime_gpu-{version}.dist-info"
    about.mkdir(parents=True)
    record = f"Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: {version}\n"
    (about / "METADATA").write_text(record)
    paths = (str(folder), str(REPOSITORY), str(TESTS), os.environ.get("PYTHONPATH", ""))
    return os.pathsep.join(filter(None, paths))


@pytest.fixture(scope="module")
def nodes(notes: Path) -> dict[str, Any]:
    """Two nodes with different resources; processes on them may import the tests' own modules."""
    edge, lab = (described_as(notes.parent / name, version) for name, version in VERSIONS.items())
    return {
        "edge": {"cores": 1, "variables": {"PYTHONPATH": edge, NOTES: str(notes)}},
        "lab": {"cores": 2, "variables": {"PYTHONPATH": lab}, "resources": {"big": 3}},
    }


@pytest.fixture
def cluster(shared_cluster: RayCluster, nodes: dict[str, Any]) -> RayCluster:
    return shared_cluster.settle(nodes)


def head(measured_on: str) -> str:
    return HEAD.replace("threads: 1}", f"threads: 1, devices: {measured_on}}}") + DEVICES


def built(
    project: Project, address: str | None, remote: bool = True, **options: object
) -> tuple[Report, Heard]:
    heard, root = Heard(), project.folder.parent
    kept = Store.at(project.store, f"file://{root}/remote" if remote else None)
    report = build(
        project.folder / "recipe.yaml",
        store=kept,
        artifacts=project.artifacts,
        observer=heard,
        **build_options({"ray": address, "jobs": 2, **options}),
    )
    return report, heard


@pytest.mark.parametrize(("remote", "data"), [(True, DATA), (False, "")])
def test_each_device_measures_for_itself_and_once(
    project: Project, cluster: RayCluster, remote: bool, data: str
) -> None:
    project.recipe(VARIANTS, head=head("[here, edge, lab]"), data=data)
    report, heard = built(project, cluster.address, remote)
    assert (report.device, list(report.devices)) == ("here", ["edge", "lab"])
    times = set()
    for name in ("here", "edge", "lab"):
        of = report.on(name)
        for variant in of.variants.values():
            (row,) = variant.latency
            assert row.device == name
            times.add((row.p50_ms.value, row.mean_ms))
        assert of.protocol["conditions"]["after"]["affinity"]
        here = environment.version("onnxruntime")
        assert of.environment["versions"]["onnxruntime"] == VERSIONS.get(name, here)
        assert of.environment["machine"] == environment.machine(), "all nodes are this machine"
        judged = {each.name for each in of.variants["copied"].verdicts}
        assert ("accuracy" in judged) == bool(data)
    assert len(times) == 6, "every figure was measured"
    assert {"latency", "latency on edge", "latency on lab"} <= set(heard.built)
    assert (project.artifacts / "tiny" / "devices" / "lab" / "samples.npz").is_file()
    _, again = built(project, cluster.address, remote)
    assert not [step for step in again.built if "latency" in step]


def test_a_resource_that_no_node_has_is_an_error_before_anything_is_made(
    project: Project, cluster: RayCluster
) -> None:
    devices_there = DEVICES.replace("edge: 1", "egde: 1")
    project.recipe(VARIANTS, head=head("[edge]").replace(DEVICES, devices_there))
    with pytest.raises(MissingError, match="no node of the cluster has egde: 1") as caught:
        built(project, cluster.address)
    assert caught.value.place == "devices.edge"
    assert "big: 3, edge: 1, lab: 1" in caught.value.hint
    assert list(Store(project.store).entries("artifact")) == []


def test_without_ray_a_device_of_a_cluster_is_an_error(project: Project) -> None:
    project.recipe(VARIANTS, head=head("[edge]"))
    with pytest.raises(UsageError, match="found no --ray"):
        built(project, None)


def test_a_node_that_does_not_see_the_store_costs_its_device(
    project: Project, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parcels, "mark_of", lambda store: (Path("/nowhere/mark"), "x"))
    project.recipe("  plain: []\n", head=head("[here, edge]"))
    report, _ = built(project, cluster.address, remote=False)
    assert report.variants["plain"].latency
    assert "does not see the store" in (report.devices["edge"].variants["plain"].reason or "")
    assert report.exit_code == ExitCode.FAILED


def test_a_remote_store_that_is_gone_costs_the_devices_that_need_it(
    project: Project, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise UnreachableError("it does not answer")

    monkeypatch.setattr(devices.parcels, "send", gone)
    project.recipe(
        '  plain: []\n  copied: [{"./fakes.py:Copy": {note: lost}}]\n', head=head("[here, edge]")
    )
    report, _ = built(project, cluster.address)
    reason = report.devices["edge"].variants["plain"].reason or ""
    assert "files do not reach the device edge: it does not answer" in reason
    assert report.variants["copied"].latency


def driver(
    cluster: RayCluster, project: Project, seed: int, max_seconds: float
) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(REPOSITORY), str(TESTS), *filter(None, sys.path)])
    return subprocess.Popen(
        [
            *(sys.executable, str(TESTS / "noted_measuring.py"), cluster.address),
            *(str(project.folder), str(seed), str(max_seconds)),
        ],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_drivers_never_measure_on_one_device_at_once(
    project: Project, cluster: RayCluster, notes: Path
) -> None:
    notes.unlink(missing_ok=True)
    drivers = [driver(cluster, project, seed, 1.0) for seed in (1, 2)]
    said = [each.communicate(timeout=300)[0] for each in drivers]
    assert [each.returncode for each in drivers] == [0, 0], said
    whose = [seed for _, what, seed, _ in noted(notes) if what == "begin"]
    # On a busy machine each adds launches of its own.
    assert min(whose.count(1), whose.count(2)) >= 3
    assert whose in (sorted(whose), sorted(whose, reverse=True)), "one after the other"
    running = 0
    for _, what, _, _ in noted(notes):
        running += 1 if what == "begin" else -1
        assert running <= 1, "one process at a time"
    assert any("another build measures on edge" in text for text in said), said


def test_a_driver_that_is_killed_lets_go_of_the_device(
    project: Project, cluster: RayCluster, notes: Path
) -> None:
    notes.unlink(missing_ok=True)
    first = driver(cluster, project, 1, 600.0)
    wait_for(lambda: noted(notes))
    measuring = noted(notes)[0][3]
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = driver(cluster, project, 2, 0.5)
    said, _ = second.communicate(timeout=300)
    assert second.returncode == 0, said
    assert not Path(f"/proc/{measuring}").exists() or "Z" in Path(f"/proc/{measuring}/stat").read_text()
    # The first one's process was killed, or has seen that nobody asks any more and ended.
    whose = [(what, seed) for _, what, seed, _ in noted(notes)]
    assert whose.count(("begin", 1)) == 1
    assert ("end", 2) in whose


def test_passes_do_not_run_on_a_device_while_it_measures(
    project: Project, cluster: RayCluster, notes: Path
) -> None:
    """Whoever measures has all cores of the node, so that Ray starts no task there."""
    import ray

    notes.unlink(missing_ok=True)
    measuring = driver(cluster, project, 1, 3.0)
    wait_for(lambda: noted(notes))
    with devices.ray_session.started(cluster.address, 1):

        def clock() -> float:
            import time

            return time.monotonic()

        ref = ray.remote(num_cpus=1, label_selector={NODE_ID: cluster.nodes["edge"].node_id})(clock)
        began = ray.get(ref.remote(), timeout=300)
    assert measuring.wait(300) == 0
    assert began > max(at for at, what, _, _ in noted(notes) if what == "end")


def test_a_device_that_is_lost_is_replaced_by_one_that_is_the_same(
    project: Project, shared_cluster: RayCluster, nodes: dict[str, Any]
) -> None:
    spare = {**nodes["edge"], "resources": {"edge": 1}}
    other = shared_cluster.settle({**nodes, "spare": spare})
    longer = head("[edge]").replace("max_seconds: 0.05", "max_seconds: 6")
    project.recipe("  plain: []\n", head=longer.replace("launches: 1", "launches: 4"))
    killed = []

    def kill() -> None:
        import ray

        def busy() -> list[str]:
            if not ray.is_initialized():
                return []
            free = {
                node["NodeID"]: ray._private.state.available_resources_per_node().get(
                    node["NodeID"], {}
                )
                for node in ray.nodes()
                if node["Alive"] and node["Resources"].get("edge")
            }
            return [key for key, left in free.items() if not left.get("CPU")]

        wait_for(busy)
        (held,) = busy()
        name = next(n for n, each in other.nodes.items() if each.node_id == held)
        killed.append(name)
        other.kill(name)

    killing = threading.Thread(target=kill)
    killing.start()
    report, heard = built(project, other.address)
    killing.join()
    assert killed
    assert [note for note in heard.notes if "it begins again" in note]
    assert all(each.latency for each in report.variants.values())
    assert report.exit_code == ExitCode.DONE
