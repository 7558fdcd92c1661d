"""The nodes of a cluster that are a device: which ones fit, and one of them held to measure on.

Who measures on a node holds it through Ray: by an actor that is named after the node, and takes all
of its cores and GPUs. So no task of Ray runs there meanwhile, and no other driver measures there. The
actor ends with its driver, however that ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from optcli.errors import MissingError, StepError, counted, first_line, plural
from optcli.pipeline.on_ray.cluster import LOOK_S, NODE_ID, alive
from optcli.pipeline.remote_devices.messages import DeviceAnswer, DeviceOrder, Look, Seen
from optcli.settings.devices import RayPlace
from optcli.workers import messages

_NAMESPACE = "optcli"
_LOOK_TIMEOUT_S = 120.0
# What every node has says nothing of a device.
_EVERYWHERE = ("CPU", "memory", "object_store_memory")


class NodeLostError(Exception):
    """The node of a device was lost while it measured."""


@dataclass(frozen=True)
class RayNode:
    """One node of a cluster: its id, the name of its host and its resources by Ray's names."""

    id: str
    host: str
    resources: Mapping[str, float]


def nodes() -> list[RayNode]:
    """The nodes that are alive, in an order that does not change from one build to the next."""
    living = [
        RayNode(each["NodeID"], each.get("NodeManagerHostname", ""), dict(each["Resources"]))
        for each in alive()
    ]
    return sorted(living, key=lambda node: (node.host, node.id))


def fitting(device: str, place: RayPlace, present: Iterable[RayNode]) -> list[RayNode]:
    """The nodes that have what a device asks for. Raises `MissingError` where there are none."""
    present = list(present)
    fit = [
        node
        for node in present
        if all(node.resources.get(name, 0) >= amount for name, amount in place.wanted.items())
    ]
    if fit:
        return fit
    # Ray gives each node resources of its own name, such as node:10.0.0.1.
    there: dict[str, float] = {}
    for node in present:
        for name, amount in node.resources.items():
            if name not in _EVERYWHERE and not name.startswith("node:"):
                there[name] = max(there.get(name, 0), amount)
    known = ", ".join(f"{name}: {amount:g}" for name, amount in sorted(there.items()))
    wanted = ", ".join(f"{name}: {amount:g}" for name, amount in place.wanted.items())
    count = counted(len(present), "node")
    raise MissingError(
        f"no node of the cluster has {wanted}",
        place=f"devices.{device}",
        hint=f"its {count} {plural(len(present), 'has', 'have')} {known or 'nothing but CPU'};"
        " `ray start --resources` gives a node more",
    )


def seen(device: str, node: RayNode, look: Look) -> Seen:
    """What a node says of itself. Raises `NodeLostError` where it does not answer."""
    import ray

    # It takes none of the node's resources: it waits for nobody.
    function = ray.remote(num_cpus=0, max_retries=0)(_looking())
    ref = function.options(label_selector={NODE_ID: node.id}).remote(messages.to_record(look))
    try:
        return messages.read(Seen, ray.get(ref, timeout=_LOOK_TIMEOUT_S))
    except ray.exceptions.RayTaskError as error:
        raise StepError(
            f"the device {device} does not answer: {first_line(error.cause or error)}",
            hint="its node needs the same optcli and Python as this machine",
        ) from error
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise NodeLostError(f"{node.host} does not answer: {type(error).__name__}") from error


class Held:
    """A node that is held to measure on, until it is released."""

    def __init__(
        self, device: str, place: RayPlace, node: RayNode, tell: Callable[[str], None]
    ) -> None:
        """Waits until nobody else measures there, and nothing of Ray runs there; `tell` hears of it.

        Raises `NodeLostError` where the node is lost meanwhile.
        """
        self._device, self._node = device, node
        self._actor = self._acquired(place, tell)

    def carry_out(self, order: DeviceOrder) -> tuple[DeviceAnswer, bytes]:
        """The answer to an order, and raw samples. Raises `NodeLostError` and `StepError`."""
        import ray

        ref = self._actor.carry_out.remote(messages.to_record(order))
        try:
            while not ray.wait([ref], timeout=LOOK_S)[0]:
                _require_alive(self._node)
            record, samples = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            raise StepError(
                f"the device {self._device} could not measure: {first_line(error.cause or error)}",
                hint="its node needs the same optcli and Python as this machine",
            ) from error
        except ray.exceptions.RayError as error:
            raise NodeLostError(f"{self._node.host} was lost: {type(error).__name__}") from error
        return messages.read(DeviceAnswer, record), samples

    def release(self) -> None:
        """Let others measure there."""
        import ray

        with suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self._actor)

    def _acquired(self, place: RayPlace, tell: Callable[[str], None]) -> Any:
        import ray

        # Ray makes an actor's name unique, but two that begin at once may both pass its first look:
        # then one of them dies at once, and tries again here.
        kind = ray.remote(max_restarts=0, max_task_retries=0)(_measuring())
        warned = False
        while True:
            try:
                actor = kind.options(
                    name=f"optcli-measures-{self._node.id}",
                    namespace=_NAMESPACE,
                    label_selector={NODE_ID: self._node.id},
                    **_all_of(self._node, place),
                ).remote()
            except ValueError:
                if not warned:
                    tell(f"another build measures on {self._device}; waiting for it")
                    warned = True
                time.sleep(LOOK_S / 4)
                _require_alive(self._node)
                continue
            if self._began(actor, tell):
                return actor

    def _began(self, actor: Any, tell: Callable[[str], None]) -> bool:
        """Whether an actor was started, once its node is free; not where another had the name."""
        import ray

        ref, warned = actor.begin.remote(), False
        try:
            while not ray.wait([ref], timeout=LOOK_S)[0]:
                _require_alive(self._node)
                if not warned:
                    tell(f"other tasks run on {self._device}; waiting until it is free")
                    warned = True
            ray.get(ref)
        except ray.exceptions.RayActorError:
            _require_alive(self._node)
            time.sleep(LOOK_S / 4)
            return False
        except BaseException:
            with suppress(ray.exceptions.RayError, ValueError):
                ray.kill(actor)
            raise
        return True


def _all_of(node: RayNode, place: RayPlace) -> dict[str, Any]:
    """All cores and GPUs of a node, and of what the device asks for as much as it asks."""
    own = {name: amount for name, amount in place.wanted.items() if name not in ("CPU", "GPU")}
    return {
        "num_cpus": node.resources.get("CPU", 0),
        "num_gpus": node.resources.get("GPU", 0),
        "resources": own,
    }


def _require_alive(node: RayNode) -> None:
    if all(each.id != node.id for each in nodes()):
        raise NodeLostError(f"{node.host} was lost")


def _looking() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What Ray calls on a node, sent by its content: the node need not have this optcli, or any."""

    def on_node(record: dict[str, Any]) -> dict[str, Any]:
        import socket

        import ray

        node_id = ray.get_runtime_context().get_node_id()
        try:
            from optcli.pipeline.remote_devices import measuring
        except ImportError as error:
            unfit = f"its optcli cannot do this ({error})"
            return {"node": node_id, "host": socket.gethostname(), "unfit": [unfit]}
        return measuring.look(record, node_id)

    return on_node


def _measuring() -> type:
    """The actor that holds a node, sent by its content."""

    class Measuring:
        def begin(self) -> None: ...

        def carry_out(self, record: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
            from optcli.pipeline.on_ray import node

            return node.measure(record)

    return Measuring
