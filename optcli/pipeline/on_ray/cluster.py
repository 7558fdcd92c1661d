"""A Ray cluster as the driver sees it: it places tasks where they fit, and anew when a node is lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.errors import StepError, UsageError, first_line
from optcli.pipeline import ray_session
from optcli.pipeline.on_ray.messages import NodeAnswer, NodeOrder, NodePart
from optcli.workers import messages

# How often a step goes to another node because the one before was lost.
_TRIES = 4
# How often a driver looks whether a node is still there.
LOOK_S = 2.0
_PROBE_S = 120.0
# The label by which Ray finds a node.
NODE_ID = "ray.io/node-id"
_SOURCES = Path(__file__).parents[3]


class NoNodeError(Exception):
    """No node of the cluster can run a step."""


@dataclass(frozen=True)
class Resources:
    """What Ray keeps free for one step on its node: cores, bytes of memory, GPUs."""

    cores: int
    memory_bytes: int
    gpus: int


class Cluster:
    """Starts or joins Ray with the first call; several threads may call at once."""

    def __init__(self, address: str, tell: Callable[[str, str], None]) -> None:
        """`tell` hears of nodes that are lost or not used: a label and a sentence."""
        self._address, self._tell = address, tell
        self._session = ExitStack()
        self._starting = threading.Lock()
        self._function: Any = None
        self._running: set[Any] = set()
        self._warned: set[tuple[str, str]] = set()
        self._stopped = False

    def call(
        self, label: str, resources: Resources, order_of: Callable[[int], NodeOrder | NodePart]
    ) -> NodeAnswer:
        """The answer of a node that fits. `order_of` gives the order for each try, counted from 0.

        A node that is lost is replaced by another. Raises `NoNodeError` where none is left, `StepError`
        where nodes are lost again and again, or Ray ends the step for want of memory.
        """
        from ray import exceptions

        self.connect()
        unfit: list[str] = []
        lost = 0
        while True:
            order = order_of(lost)
            what = "evaluate" if isinstance(order, NodePart) else "carry_out"
            record = messages.to_record(order)
            resources_there = self._with_cores(resources, unfit)
            try:
                answer = self._answer(what, record, resources_there, unfit)
            except exceptions.OutOfMemoryError as error:
                raise StepError(
                    "Ray ended it: its node ran out of memory",
                    hint="declare the memory of the pass in its `needs`, or use smaller batches",
                ) from error
            except exceptions.RayTaskError as error:
                raise StepError(
                    f"Ray could not run it: {first_line(error.cause or error)}",
                    hint="a node needs the same optcli and Python as this machine",
                ) from error
            except exceptions.RayError as error:
                if self._stopped:
                    raise StepError("it was interrupted") from error
                lost += 1
                if lost == _TRIES:
                    raise StepError(
                        f"{lost} nodes were lost while it ran: {type(error).__name__}",
                        hint="see whether it takes more memory than a node has",
                    ) from error
                self._tell(label, f"its node was lost ({type(error).__name__}); it begins again")
                continue
            if not answer.unfit:
                return answer
            unfit.append(answer.node)
            if (answer.node, answer.unfit[0]) not in self._warned:
                self._warned.add((answer.node, answer.unfit[0]))
                name = f"{answer.host}, node {answer.node[:8]}"
                self._tell(label, f"not run on {name}: {'; '.join(answer.unfit)}")

    def require_sight(self, mark: Path, content: str) -> None:
        """Raise `UsageError` unless every node reads this content in a file."""
        self.connect()
        import ray

        def sees(place: str, wanted: str) -> bool:
            from pathlib import Path

            try:
                return Path(place).read_text() == wanted
            except OSError:
                return False

        probe = ray.remote(num_cpus=0, max_retries=0)(sees)
        nodes = {node["NodeID"]: node["NodeName"] for node in alive()}
        probes = {
            name: probe.options(label_selector={NODE_ID: key}).remote(str(mark), content)
            for key, name in nodes.items()
        }
        blind = []
        for name, ref in probes.items():
            try:
                seen = ray.get(ref, timeout=_PROBE_S)
            except ray.exceptions.RayError:
                continue  # a node that is lost takes no part
            if not seen:
                blind.append(name)
        if blind:
            raise UsageError(
                f"{len(blind)} of {len(nodes)} nodes do not see the store {mark.parent}: {blind[0]}",
                place="--ray",
                hint="name a store that machines share: --remote-store s3://bucket/prefix",
            )

    def room_for(self, cores: int) -> int:
        """How many tasks of so many cores the nodes have room for; one where each has fewer."""
        self.connect()
        of_nodes = [int(node["Resources"].get("CPU", 0)) for node in alive()]
        return sum(each // cores for each in of_nodes) or min(1, max(of_nodes, default=0))

    def stop(self) -> None:
        """End what runs on nodes; nothing is begun any more."""
        self._stopped = True
        if self._function is not None:
            import ray

            for ref in list(self._running):
                with suppress(ray.exceptions.RayError, ValueError):
                    ray.cancel(ref, force=True)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self.stop()
        self._session.close()

    def connect(self) -> None:
        """Start or join Ray, once. Raises `MissingError` and `StepError` where that fails."""
        with self._starting:
            if self._function is not None:
                return
            cores = environment.usable_cores()
            # What is started here imports this very optcli, also where it is not installed.
            paths = (str(_SOURCES), os.environ.get("PYTHONPATH", ""))
            variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
            self._session.enter_context(ray_session.started(self._address, cores, variables))
            import ray

            self._function = ray.remote(max_retries=0)(_task())

    def _answer(
        self, what: str, record: dict[str, Any], resources: Resources, unfit: list[str]
    ) -> NodeAnswer:
        """The answer to one try, on a node that is not known to be unfit. Raises Ray's errors."""
        import ray

        selector = {"label_selector": {NODE_ID: f"!in({','.join(unfit)})"}} if unfit else {}
        ref = self._function.options(
            num_cpus=resources.cores,
            num_gpus=resources.gpus,
            memory=resources.memory_bytes,
            **selector,
        ).remote(what, record)
        self._running.add(ref)
        try:
            while not ray.wait([ref], timeout=LOOK_S)[0]:
                if not _could_run(resources, unfit):
                    ray.cancel(ref, force=True)
                    raise NoNodeError(_nobody(resources, unfit))
            if self._stopped:
                raise StepError("it was interrupted")
            return messages.read(NodeAnswer, ray.get(ref))
        finally:
            self._running.discard(ref)

    def _with_cores(self, resources: Resources, unfit: list[str]) -> Resources:
        """No more cores than the largest node has: it takes longer there, and does the same.

        Raises `NoNodeError` where no node has the rest.
        """
        if self._stopped:
            raise StepError("it was interrupted")
        cores = [node["Resources"].get("CPU", 0) for node in alive() if node["NodeID"] not in unfit]
        most = int(max(cores, default=0))
        lowered = Resources(min(resources.cores, most), resources.memory_bytes, resources.gpus)
        if most < 1 or not _could_run(lowered, unfit):
            raise NoNodeError(_nobody(lowered, unfit))
        return lowered


def _task() -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """What Ray calls on a node, sent by its content: the node need not have this optcli, or any."""

    def on_node(what: str, record: dict[str, Any]) -> dict[str, Any]:
        import socket

        import ray

        node_id = ray.get_runtime_context().get_node_id()
        try:
            from optcli.pipeline.on_ray import node

            function: Callable[..., dict[str, Any]] = getattr(node, what)
        except (ImportError, AttributeError) as error:
            unfit = f"its optcli cannot do this ({error})"
            return {"node": node_id, "host": socket.gethostname(), "unfit": [unfit]}
        return function(record, node_id)

    return on_node


def alive() -> list[dict[str, Any]]:
    """The nodes that are alive, as Ray describes them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _could_run(resources: Resources, unfit: list[str]) -> bool:
    """Whether a node is there that could, once nothing else runs on it."""
    wanted = {"CPU": resources.cores, "memory": resources.memory_bytes, "GPU": resources.gpus}
    return any(
        all(node["Resources"].get(name, 0) >= amount for name, amount in wanted.items())
        for node in alive()
        if node["NodeID"] not in unfit
    )


def _nobody(resources: Resources, unfit: list[str]) -> str:
    able = [node for node in alive() if node["Resources"].get("CPU", 0) >= 1]
    if all(node["NodeID"] in unfit for node in able):
        return "no node of the cluster fits" if able else "no node of the cluster has a core"
    parts = [f"{resources.cores} cores", f"{resources.memory_bytes / 1e9:.1f} GB"]
    parts += [f"{resources.gpus} GPU"] if resources.gpus else []
    return f"no node that fits has {', '.join(parts)}"
