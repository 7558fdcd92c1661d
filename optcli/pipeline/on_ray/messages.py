"""What a node is asked to do and what it answers, as plain data on the way through Ray."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optcli.accuracy.evaluation import EvaluationRequest
from optcli.pipeline.messages import PassRequest, StepNews
from optcli.pipeline.remote_devices.messages import Contents


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The driver's store, for nodes that see it: a file of it with its content, and the step's log."""

    mark: Path
    content: str
    log: Path


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """Where files lie that a node fetches: below `url`, under their digests.

    `parent` and `origin` are the artifacts that the request names, `probe` the samples of its checks.
    `project` holds the user's code and data; its names are absolute paths without the first slash.
    """

    url: str
    parent: Contents
    origin: Contents
    probe: Contents
    project: Contents


@dataclass(frozen=True, kw_only=True)
class NodeOrder:
    """One pass to be run: what an `Order` holds, and how its files come to the node.

    `made_of` has the ingredients of each role that the pass reads, `threads` and `preload` are those of
    the worker processes, which get `timeout_s` seconds.
    """

    key: str
    label: str
    function: str
    request: PassRequest
    ingredients: dict[str, Any]
    made_of: dict[str, dict[str, Any]]
    samples: dict[str, str]
    forked_after: tuple[str, ...] | None
    preload: tuple[str, ...]
    confined: bool
    threads: int
    timeout_s: float
    shared: Shared | None = None
    shipped: Shipped | None = None


@dataclass(frozen=True, kw_only=True)
class ShippedPart:
    """As `Shipped`, of what an evaluation reads."""

    url: str
    artifact: Contents
    project: Contents


@dataclass(frozen=True, kw_only=True)
class NodePart:
    """A part of a sample set to be evaluated: the key of the evaluation with its ingredients.

    `samples` is the key of the samples, `references` name the user's code that judges.
    """

    key: str
    request: EvaluationRequest
    ingredients: dict[str, Any]
    samples: str
    references: tuple[str, ...]
    timeout_s: float
    shared: Shared | None = None
    shipped: ShippedPart | None = None


@dataclass(frozen=True, kw_only=True)
class NodeAnswer:
    """What became of an order on a node of this id and host name.

    `unfit` says why the node cannot make the result of this key; `unreachable` why files did not come
    through. Otherwise `error` is that of the step, as `OptcliError.to_record` writes it, or `result` is
    what its function gave. `contents` are the files that were made, which lie in the remote store;
    `log` is the end of what the worker said, where the driver's own log was not written.
    """

    node: str
    host: str
    unfit: tuple[str, ...] = ()
    unreachable: str = ""
    error: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    contents: Contents = field(default_factory=dict)
    log: str = ""
    news: tuple[StepNews, ...] = ()
