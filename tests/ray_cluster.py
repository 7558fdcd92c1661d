"""A Ray cluster of several nodes on this machine, each with a store of its own."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from needs import REPOSITORY
from tiny_project import Heard, Project

from optcli.pipeline.building import build
from optcli.pipeline.execute import BuildSettings
from optcli.results import Report
from optcli.store import Store

_OBJECTS_BYTES = 80 * 1024**2
_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Five looks that nobody answers tell that a node is dead: by default that takes 15 seconds.
    "RAY_health_check_period_ms": "200",
    "RAY_health_check_initial_delay_ms": "500",
    # Ray collects figures of its own, which nobody reads here.
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
}


def command_line(process: psutil.Process) -> str:
    """Its command line; empty where it has ended, or ends while it is looked at."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@dataclass
class RayCluster:
    """`nodes` by name; the store of each lies in `folder / NAME`. The head runs no step."""

    folder: Path
    cluster: Any
    nodes: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(
        self,
        name: str,
        cores: int,
        variables: Mapping[str, str] | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        """A node that has one of a resource of its name, and further `resources`."""
        paths = (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))
        own = {
            "OPTCLI_STORE": str(self.folder / name),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            **(variables or {}),
        }
        self.nodes[name] = self.cluster.add_node(
            num_cpus=cores,
            object_store_memory=_OBJECTS_BYTES,
            env_vars=own,
            resources={name: 1, **(resources or {})},
        )

    def settle(self, wanted: Mapping[str, Mapping[str, Any]]) -> RayCluster:
        """Have these nodes and no others: what `add` takes, by name. One that is there stays."""
        for name in {*self.nodes} - {*wanted}:
            self.remove(name)
        for name, how in wanted.items():
            if name not in self.nodes:
                self.add(name, **how)
        return self

    def kill(self, name: str) -> None:
        """kill -9 of the node's raylet. Afterwards Ray counts the node among the dead."""
        node = self.nodes.pop(name)
        (raylet,) = node.all_processes["raylet"]
        os.kill(raylet.process.pid, signal.SIGKILL)
        raylet.process.wait()
        wait_for(lambda: node.node_id not in self._alive())

    def remove(self, name: str) -> None:
        """The same, of all processes of the node."""
        node = self.nodes.pop(name)
        self.cluster.remove_node(node, allow_graceful=False)
        wait_for(lambda: node.node_id not in self._alive())

    def results(self) -> int:
        """How many results of passes the nodes have in their stores."""
        return sum(len(Store(self.folder / name).keys("made")) for name in self.nodes)

    def _alive(self) -> set[str]:
        table = self.cluster.global_state.node_table()
        return {each["NodeID"] for each in table if each["Alive"]}


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """A cluster of a head alone; its files lie in a folder with a short name, for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="oc-", dir="/tmp"))
    patch = pytest.MonkeyPatch()
    for name, value in {**_VARIABLES, "RAY_TMPDIR": str(folder)}.items():
        patch.setenv(name, value)
    (folder / "ray").mkdir()  # Ray notes there which cluster began last
    from ray.cluster_utils import Cluster

    children = {each.pid for each in psutil.Process().children()}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "object_store_memory": _OBJECTS_BYTES,
            "include_dashboard": False,
            "include_log_monitor": False,
            "no_monitor": True,
        },
    )
    try:
        yield RayCluster(folder, cluster)
    finally:
        cluster.shutdown()
        for child in psutil.Process().children():
            if child.pid not in children and "ray" in command_line(child):
                child.kill()
        patch.undo()
        shutil.rmtree(folder, ignore_errors=True)


def built(
    project: Project,
    address: str,
    remote: bool | str = True,
    store: str = "store-ray",
    only: Sequence[str] = (),
) -> tuple[Report, Heard, Store]:
    """A build on Ray with a store of its own, and a remote one beside it: a folder, or at a URL."""
    heard, root = Heard(), project.folder.parent
    url = f"file://{root}/remote" if remote is True else remote or None
    kept = Store.at(root / store, url)
    report = build(
        project.folder / "recipe.yaml",
        store=kept,
        artifacts=root / "artifacts-ray",
        only=only,
        observer=heard,
        settings=BuildSettings(jobs=4, ray=address),
    )
    return report, heard, kept


def made(report: Report) -> dict[str, tuple[str, str] | None]:
    """The key and digest of what each variant came to."""
    found = {name: each.artifact for name, each in report.variants.items()}
    return {name: (of.key, of.digest) if of is not None else None for name, of in found.items()}


def wait_for(holds: Callable[[], object], within_s: float = 120.0) -> None:
    """Wait until something holds, looking again and again."""
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)
