"""What a device does: it says what it is, and measures what it is asked to."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optcli
from optcli import environment, passes
from optcli.artifact import Artifact
from optcli.errors import OptcliError, StepError
from optcli.files import folders
from optcli.files.digest import FileDigests, of_value
from optcli.measure import latency
from optcli.measure.latency import Candidate, LatencyOrder, SweepOrder
from optcli.observer import Observer
from optcli.passes import Traits
from optcli.pipeline import places
from optcli.pipeline.keys import PACKAGE
from optcli.pipeline.remote_devices.messages import (
    DeviceAnswer,
    DeviceOrder,
    Look,
    Seen,
    Travelling,
    UnreachableError,
    Wish,
)
from optcli.results import Sweep
from optcli.workers import confinement, messages
from optcli.workers.confinement import require_confinement_of
from optcli.workers.logs import log_end

_SAMPLES = "samples.npz"
_OTHER = "its optcli does not understand the messages of this one"
_MOST_NAMED = 3
# In the code of a step: a pass of the user's own, by the digest of its source.
USERS_CODE = "pass"


def look(record: dict[str, Any], node_id: str) -> dict[str, Any]:
    """What this machine is, for the `Look` in a record; a `Seen` as a record with the id of a node."""
    seen = Seen(node=node_id, host=socket.gethostname())
    try:
        order = messages.read(Look, record)
    except StepError:
        return dict(messages.to_record(replace(seen, unfit=(_OTHER,))))
    answer = replace(
        seen,
        unfit=code_differences(order.code, FileDigests()),
        environment=environment.describe(order.packages),
        machine=environment.machine(),
        confinement=str(confinement.available()),
        lacks={name: _lacking(wish) for name, wish in order.wishes.items()},
    )
    return dict(messages.to_record(answer))


def _lacking(wish: Wish) -> tuple[environment.Missing, ...]:
    lacking = environment.missing(wish.needs)
    if wish.bound_to is not None and wish.traits is not None:
        hint = "its native code runs only on the machine that made it: build on the device"
        differences = device_differences(wish.bound_to, wish.traits)
        lacking += [environment.Missing(what, hint) for what in differences]
    return tuple(lacking)


class _HearingObserver(Observer):
    """Tells the warnings, or keeps them: how far a measurement is cannot be told from here."""

    def __init__(self, tell: Callable[[str], None] | None) -> None:
        self.warnings: list[str] = []
        self._tell = tell or self.warnings.append

    def warned(self, step: str, message: str) -> None:
        self._tell(message)


@dataclass
class _Arrived:
    """The files of an order on this machine."""

    at: Mapping[str, Path] = field(default_factory=dict)

    def artifact(self, artifact: Artifact) -> Artifact:
        require_confinement_of(artifact)
        return replace(artifact, path=self.at.get(str(artifact.path), artifact.path))

    def candidate(self, candidate: Candidate) -> Candidate:
        return replace(candidate, artifact=self.artifact(candidate.artifact))

    def latency(self, order: LatencyOrder) -> LatencyOrder:
        candidates = tuple(self.candidate(each) for each in order.candidates)
        return replace(order, candidates=candidates, feeds=self.feeds(order.feeds))

    def feeds(self, path: Path | None) -> Path | None:
        if path is None:
            return None
        return self.at[str(path.parent)] / path.name if str(path.parent) in self.at else path


def carry_out(
    record: dict[str, Any],
    arrived: Callable[[Travelling], Mapping[str, Path]],
    tell: Callable[[str], None] | None = None,
) -> tuple[dict[str, Any], bytes]:
    """What becomes of the `DeviceOrder` in a record: a `DeviceAnswer` as a record, and raw samples.

    `arrived` says where files and folders of the driver lie on this machine; it raises
    `UnreachableError`. `tell` hears of warnings at once; None: they stand in the answer. The machine's
    lock of measurements is held meanwhile: what people build on this machine waits too.
    """
    answer, heard, samples = DeviceAnswer(host=socket.gethostname()), _HearingObserver(tell), b""
    with folders.temporary("measures") as folder:
        work = Path(folder)
        try:
            order = messages.read(DeviceOrder, record)
            files = _Arrived(arrived(order.travelling))
            answer, samples = _measured(order, files, answer, work, heard)
        except UnreachableError as error:
            answer = replace(answer, unreachable=str(error))
        except OptcliError as error:
            answer = replace(answer, error=error.to_record())
        logs = {path.stem: log_end(path) for path in work.glob("*.log")}
    answer = replace(answer, logs=logs, warned=tuple(heard.warnings))
    return dict(messages.to_record(answer)), samples


def _measured(
    order: DeviceOrder, arrived: _Arrived, answer: DeviceAnswer, work: Path, observer: Observer
) -> tuple[DeviceAnswer, bytes]:
    if order.shapes is not None:
        request = order.shapes
        here = replace(
            request, artifact=arrived.artifact(request.artifact), feeds=arrived.feeds(request.feeds)
        )
        return replace(answer, comparison=places.HERE.compare(order.step, here, observer)), b""
    if order.sweep is not None:
        return replace(answer, sweep=_swept(order.step, order.sweep, arrived, work, observer)), b""
    if order.pairs is not None:
        return answer, _paired(order, order.pairs, arrived, work, observer)
    assert order.latency is not None
    measured = places.HERE.measure(order.step, arrived.latency(order.latency), work, observer)
    return answer, _bytes_of(measured, work)


def _bytes_of(measured: latency.Measured, work: Path) -> bytes:
    latency.save(measured, work / _SAMPLES)
    return (work / _SAMPLES).read_bytes()


@dataclass
class _Begun:
    """The launch pairs that this process measures, until others are asked for."""

    run: str = ""
    pairs: latency.LaunchPairs | None = None


_begun = _Begun()


def _paired(
    sent: DeviceOrder, order: LatencyOrder, arrived: _Arrived, work: Path, observer: Observer
) -> bytes:
    if _begun.pairs is None or _begun.run != sent.run:
        _begun.run = sent.run
        logs = Path(tempfile.mkdtemp(prefix="optcli-pairs-"))
        _begun.pairs = latency.LaunchPairs(arrived.latency(order), logs, observer)
    with places.holding_measurement_lock(sent.step, observer):
        return _bytes_of(_begun.pairs.measure(max(0, sent.count - _begun.pairs.count)), work)


def _swept(step: str, order: SweepOrder, arrived: _Arrived, work: Path, observer: Observer) -> Sweep:
    here = replace(
        order, candidate=arrived.candidate(order.candidate), feeds=arrived.feeds(order.feeds)
    )
    return places.HERE.sweep(step, here, work / f"{order.candidate.name}.log", observer)


def code_differences(code: Mapping[str, str], digests: FileDigests) -> tuple[str, ...]:
    """Which of optcli's own modules, digests by file, are other ones here: a phrase, or nothing."""
    other = []
    for file, digest in code.items():
        if file == USERS_CODE:
            continue
        try:
            same = digests.of(PACKAGE / file) == digest
        except OSError:
            same = False
        if not same:
            other.append(file)
    if other:
        named = ", ".join(other[:_MOST_NAMED]) + (", ..." if len(other) > _MOST_NAMED else "")
        return (f"its optcli ({optcli.__version__}) differs in {named}",)
    return ()


def device_differences(device: Mapping[str, Any], traits: Traits) -> tuple[str, ...]:
    """What tells that this is not the device that a result is bound to: a phrase, or nothing."""
    if "cpu" in device:
        return cpu_differences(device["cpu"])
    if traits.reference is not None:  # only its own code could tell
        return (
            "a pass of your own that is bound to a device runs on the machine that planned it only",
        )
    bound_to = passes.find(traits.name).model_validate(traits.options).bound_to()
    if of_value(bound_to) != of_value(dict(device)):
        other = sorted(name for name in device if bound_to.get(name) != device[name])
        named = ", ".join(other[:_MOST_NAMED]) or "nothing is known of it"
        return (f"it is another device: {named}",)
    return ()


def cpu_differences(cpu: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells that this is not the processor of a description: a phrase, or nothing."""
    if dict(cpu) == environment.cpu():
        return ()
    return (f"its CPU is {environment.cpu()['model']}, wanted {cpu.get('model')}",)
