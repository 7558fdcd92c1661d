"""What a node does with an order: it checks that it fits, carries it out and sends the files.

An order is a pass, a part of a sample set to be evaluated, or a measurement.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from optcli import accuracy, data, environment, runners
from optcli.artifact import Artifact
from optcli.errors import OptcliError, StepError, StoreError, first_line
from optcli.files import folders
from optcli.files.digest import FileDigests, of_file, of_value
from optcli.passes import Traits
from optcli.pipeline import step
from optcli.pipeline.keys import PACKAGE
from optcli.pipeline.local_maker import LocalMaker, StepWorkers, log_of
from optcli.pipeline.messages import Call, Order, PassRequest, StepNews
from optcli.pipeline.on_ray import parcels
from optcli.pipeline.on_ray.messages import NodeAnswer, NodeOrder, NodePart, Shared, Shipped
from optcli.pipeline.remote_devices import measuring
from optcli.pipeline.remote_devices.measuring import (
    USERS_CODE,
    code_differences,
    cpu_differences,
    device_differences,
)
from optcli.pipeline.remote_devices.messages import Travelling, UnreachableError
from optcli.settings import user_code
from optcli.store import Entry, Store, key_of
from optcli.workers import messages
from optcli.workers.confinement import require_confinement_of
from optcli.workers.logs import log_end

T = TypeVar("T")

_KIND = "made"


class _UnfitError(Exception):
    """The step would have another key here."""

    def __init__(self, differences: tuple[str, ...]) -> None:
        super().__init__(*differences)
        self.differences = differences


@dataclass
class _Workers:
    """The worker processes of this node's process, which Ray uses for one order after the other."""

    made_for: tuple[Any, ...] = ()
    workers: StepWorkers | None = None
    news: list[StepNews] = field(default_factory=list)

    def of(self, order: NodeOrder) -> StepWorkers:
        wanted = (order.threads, order.timeout_s, order.preload)
        if self.workers is None or wanted != self.made_for:
            if self.workers is not None:
                self.workers.close()
            self.workers = StepWorkers(
                order.threads,
                order.timeout_s,
                lambda: order.preload,
                lambda _, news: self._heard(news),
            )
            self.made_for = wanted
        self.news.clear()
        return self.workers

    def _heard(self, news: StepNews) -> None:
        if news.warned is not None:  # how far a step is cannot be told from here
            self.news.append(news)


_workers = _Workers()
_digests = FileDigests()


def carry_out(record: dict[str, Any], node: str) -> dict[str, Any]:
    """What becomes of the order in a record, on the node of this id; a `NodeAnswer` as a record."""

    def log(order: NodeOrder) -> str:
        return "" if order.shipped is None else log_end(log_of(node_store(), order.key))

    return _answered_or_why(NodeOrder, record, node, _answered, log)


def evaluate(record: dict[str, Any], node: str) -> dict[str, Any]:
    """The same for a part of a sample set, a `NodePart` as a record."""

    def log(part: NodePart) -> str:
        return "" if part.shipped is None else log_end(_log_of(part))

    return _answered_or_why(NodePart, record, node, _evaluated, log)


def _answered_or_why(
    kind: type[T],
    record: dict[str, Any],
    node: str,
    do: Callable[[T, NodeAnswer], NodeAnswer],
    log: Callable[[T], str],
) -> dict[str, Any]:
    answer = NodeAnswer(node=node, host=socket.gethostname())
    try:
        order = messages.read(kind, record)
    except StepError:
        unfit = ("its optcli does not understand the messages of this one",)
        return _record(replace(answer, unfit=unfit))
    _workers.news.clear()
    try:
        answer = do(order, answer)
    except _UnfitError as error:
        answer = replace(answer, unfit=error.differences)
    except UnreachableError as error:
        answer = replace(answer, unreachable=str(error))
    except StoreError as error:
        answer = replace(answer, unreachable=f"the store of {answer.host}: {error.message}")
    except OptcliError as error:
        answer = replace(answer, error=error.to_record(), log=log(order))
    return _record(replace(answer, news=tuple(_workers.news)))


def _record(answer: NodeAnswer) -> dict[str, Any]:
    return dict(messages.to_record(answer))


def node_store() -> Store:
    """The store of this machine: OPTCLI_STORE, else one in the user's cache folder."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Store(Path(os.environ.get("OPTCLI_STORE") or Path(caches) / "optcli" / "store"))


def _answered(order: NodeOrder, answer: NodeAnswer) -> NodeAnswer:
    _require_fit(_step_differences(order.ingredients, order.made_of, order.request.traits, _digests))
    require_confinement_of(order.request.parent)
    if order.shared is not None:
        result = _in_shared_store(order, order.shared)
        return replace(answer, result=dict(messages.to_record(result)))
    assert order.shipped is not None
    store = node_store()
    made = _made(order, order.shipped, store)
    connection = parcels.opened(order.shipped.url, store).connection
    parcels.send(connection, {made.path / name: about for name, about in made.contents.items()})
    log = log_end(log_of(store, order.key))
    return replace(answer, result=made.record["answer"], contents=made.contents, log=log)


def _require_fit(differences: tuple[str, ...]) -> None:
    if differences:
        raise _UnfitError(differences)


def _in_shared_store(order: NodeOrder, shared: Shared) -> Any:
    """Run the pass in the store that driver and node share; the driver checks the result itself."""
    if not sees(shared.mark, shared.content):
        raise _UnfitError((f"it does not see the store {shared.mark.parent}",))
    _require_fit(_project_differences(order.request, order.ingredients, order.made_of, _digests))
    return _workers.of(order).carry_out(_order(order, {}), order.request, shared.log)


def sees(mark: Path, content: str) -> bool:
    """Whether this machine sees a file, and that very one."""
    try:
        return mark.read_text() == content
    except OSError:
        return False


def _made(order: NodeOrder, shipped: Shipped, store: Store) -> Entry:
    """What was ordered, from this machine's store or made now; the entry's record holds the answer."""
    of = {"step": _KIND, "of": order.key}
    key = key_of(of)
    remote = parcels.opened(shipped.url, store)
    with store.lock(_KIND, key):
        made = store.get(_KIND, key)
        if made is not None:
            return made
        folder = order.request.folder.as_posix().lstrip("/")
        project = parcels.fetched(store, remote, shipped.project, folder)
        probe = parcels.fetched(store, remote, shipped.probe)
        entries = {
            "parent": parcels.fetched(store, remote, shipped.parent),
            "origin": parcels.fetched(store, remote, shipped.origin),
        }
        request = replace(
            order.request,
            folder=project.path / folder,
            probe=probe.path / order.request.probe.name if order.request.probe else None,
            parent=_at(order.request.parent, entries["parent"]),
            origin=_at(order.request.origin, entries["origin"]),
        )
        _require_fit(_project_differences(request, order.ingredients, order.made_of, _digests))
        here = replace(order, request=request)
        with store.work(_KIND, key) as work:
            record = LocalMaker(store, _workers.of(here)).make(_order(here, entries), work)
            return store.put(_KIND, key, work, {"answer": record}, of)


def _evaluated(part: NodePart, answer: NodeAnswer) -> NodeAnswer:
    """The part's files lie where the driver wanted them, or are sent."""
    _require_fit(_evaluation_differences(part, _digests))
    require_confinement_of(part.request.artifact)
    if part.shared is not None:
        if not sees(part.shared.mark, part.shared.content):
            raise _UnfitError((f"it does not see the store {part.shared.mark.parent}",))
        _require_fit(_judging_differences(part, _digests))
        accuracy.evaluate_part(part.request, log=part.shared.log, timeout_s=part.timeout_s)
        return replace(answer, result={})
    assert part.shipped is not None
    store, log = node_store(), _log_of(part)
    remote = parcels.opened(part.shipped.url, store)
    folder = part.request.folder.as_posix().lstrip("/")
    project = parcels.fetched(store, remote, part.shipped.project, folder)
    artifact = _at(part.request.artifact, parcels.fetched(store, remote, part.shipped.artifact))
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    with folders.temporary("part") as out:
        whole = replace(part.request, artifact=artifact, folder=project.path / folder, out=Path(out))
        _require_fit(_judging_differences(replace(part, request=whole), _digests))
        accuracy.evaluate_part(whole, log=log, timeout_s=part.timeout_s)
        made = [path for path in sorted(Path(out).rglob("*")) if path.is_file()]
        files = {path: (path.stat().st_size, of_file(path)) for path in made}
        parcels.send(remote.connection, files)
        contents = {path.relative_to(out).as_posix(): about for path, about in files.items()}
    return replace(answer, result={}, contents=contents, log=log_end(log))


def _log_of(part: NodePart) -> Path:
    return log_of(node_store(), key_of({"part": part.request.job, "of": part.key}))


def _at(artifact: Artifact, entry: Entry) -> Artifact:
    return replace(artifact, path=entry.path)


def _order(order: NodeOrder, entries: dict[str, Entry]) -> Order:
    function = getattr(step, order.function.partition(":")[2])
    _, gives = messages.types_of(function)
    return Order(
        kind="artifact",
        key=order.key,
        label=order.label,
        call=Call(order.function, order.request, gives),
        ingredients=order.ingredients,
        entries=entries,
        samples=order.samples,
        forked_after=order.forked_after,
        confined=order.confined,
    )


def _step_differences(
    ingredients: Mapping[str, Any],
    made_of: Mapping[str, Mapping[str, Any]],
    traits: Traits,
    digests: FileDigests,
) -> tuple[str, ...]:
    """What would make the key another one here, a phrase each: versions, optcli's own code, devices.

    `made_of` are the ingredients of the samples that the step reads, by role.
    """
    differing = [each.what for each in environment.missing(traits.needs)]
    differing += code_differences(ingredients.get("code", {}), digests)
    differing += _version_differences(ingredients.get("versions", {}))
    for role in made_of.values():
        differing += _version_differences(role.get("versions", {}))
        if "code" in role and role["code"] != digests.of_folder(PACKAGE / "data"):
            differing.append("its optcli reads data in another way")
    if "device" in ingredients:
        differing += device_differences(ingredients["device"], traits)
    return tuple(dict.fromkeys(differing))


def _project_differences(
    request: PassRequest,
    ingredients: Mapping[str, Any],
    made_of: Mapping[str, Mapping[str, Any]],
    digests: FileDigests,
) -> tuple[str, ...]:
    """What differs in the files of the recipe's folder: the user's pass and the samples."""
    differing = []
    try:
        traits = request.traits
        code = ingredients.get("code", {}).get(USERS_CODE)
        if traits.reference is not None and code is not None:
            here = user_code.digest(traits.reference, request.folder, digests)
            if here != code:
                differing.append(f"{traits.reference}, or what it imports, differs there")
        for role, wanted in made_of.items():
            here_too = data.ingredients(request.data[role], request.folder, digests)
            if of_value({"step": "samples", **here_too}) != of_value(wanted):
                differing.append(f"the samples of {role} differ there")
    except (OptcliError, OSError) as error:
        differing.append(f"the recipe's code or data cannot be read there: {first_line(error)}")
    return tuple(differing)


def _evaluation_differences(part: NodePart, digests: FileDigests) -> tuple[str, ...]:
    """As `_step_differences`, of an evaluation: outputs are those of one kind of processor."""
    runner = runners.find(part.request.runner).model_validate(part.request.options)
    differing = [each.what for each in environment.missing(runner.requires())]
    differing += code_differences(part.ingredients.get("code", {}), digests)
    differing += _version_differences(part.ingredients.get("versions", {}))
    differing += cpu_differences(part.ingredients.get("cpu", {}))
    return tuple(dict.fromkeys(differing))


def _judging_differences(part: NodePart, digests: FileDigests) -> tuple[str, ...]:
    """As `_project_differences`, of a part: the user's metric, decoding and samples."""
    folder = part.request.folder
    differing = []
    try:
        users = [user_code.digest(each, folder, digests) for each in part.references]
        if users != part.ingredients.get("users"):
            differing.append(f"{', '.join(part.references)}, or what it imports, differs there")
        of = data.ingredients(part.request.data, folder, digests)
        if of_value({"step": "samples", **of}) != part.samples:
            differing.append("the samples of evaluation differ there")
    except (OptcliError, OSError) as error:
        differing.append(f"the recipe's code or data cannot be read there: {first_line(error)}")
    return tuple(differing)


def _version_differences(versions: Mapping[str, str | None]) -> Iterator[str]:
    for name, wanted in versions.items():
        here = environment.version(name)
        if here != wanted:
            yield f"{name} {here or 'is not installed'}, wanted {wanted or 'none'}"


def measure(record: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Measure by the `DeviceOrder` in a record, as `remote_devices.measuring.carry_out` does."""
    return measuring.carry_out(record, _arrived)


def _arrived(travelling: Travelling) -> Mapping[str, Path]:
    if travelling.url is None:
        if not sees(Path(travelling.mark), travelling.content):
            where = Path(travelling.mark).parent
            raise UnreachableError(f"it does not see the store {where}")
        return {}
    try:
        store = node_store()
        remote = parcels.opened(travelling.url, store)
        return {
            path: parcels.fetched(store, remote, contents).path
            for path, contents in travelling.files.items()
        }
    except StoreError as error:
        raise UnreachableError(f"the store of {socket.gethostname()}: {error.message}") from error
