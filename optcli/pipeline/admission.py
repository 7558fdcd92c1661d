"""Which results of a remote store a build uses: what is in form and, unless it is trusted, no code.

A remote store is written by others: docs/decisions/trust.md. Each class here is an `Admission` of the
store for one kind of result.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.accuracy import Evaluation
from optcli.artifact import CODE, SCANNED, Format
from optcli.errors import InputError, MissingError, OptcliError, TrustError
from optcli.models import formats
from optcli.pipeline.messages import WrittenArtifact
from optcli.pipeline.plan import BuildPlan, Step
from optcli.pipeline.trusting import doubts_of, why_opened_free
from optcli.settings import TensorSpec
from optcli.store import Entry
from optcli.workers import Channel, confinement, messages, run

_HINT = "add --trust if you know who writes to the remote store"
_DAMAGED = "who may write to the remote store put it there, or a disk lost it"
_PROBE = "probe.npz"
# To open a model of many gigabytes takes as long as to read it.
_CHECK_S = 600.0


@dataclass(frozen=True)
class RecordAdmission:
    """Of results that are a record alone, of the type `gives`; that of a step has its `seconds`."""

    gives: type[Any]

    def of_record(self, entry: Entry) -> None:
        """Raises `OptcliError` for a record of another form."""
        self.read(entry)

    def of_files(self, entry: Entry) -> None:
        """A record has no files."""
        if entry.contents:
            raise _wrong(entry, "it has files, wanted none")

    def of_model(self, entry: Entry) -> None:
        """A record has no model."""

    def read(self, entry: Entry) -> Any:
        """What the record holds."""
        record = dict(entry.record)
        seconds = record.pop("seconds", None)
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 <= seconds < 1e9):
            raise _wrong(entry, "its seconds are no time")
        try:
            return messages.read(self.gives, record)
        except OptcliError as error:
            raise _wrong(entry, f"its record: {error.message.partition(': ')[2]}") from error


@dataclass(frozen=True)
class ArtifactAdmission(RecordAdmission):
    """Of artifacts: the format is the planned one by its files, and code is for who trusts it.

    `free` says why a worker that opens it cannot be confined; empty: all can.
    """

    gives: type[Any] = WrittenArtifact
    format: Format = Format.ONNX
    trust: bool = False
    free: str = ""

    @classmethod
    def of(cls, step: Step, plan: BuildPlan, *, trust: bool) -> ArtifactAdmission:
        """Of what a step of a plan makes."""
        free = why_opened_free(step, plan)[1] if step.format in SCANNED else ""
        return cls(format=step.format, trust=trust, free=free)

    def of_record(self, entry: Entry) -> None:
        """Raises `TrustError` for what runs code, or was made under `--trust`, without `trust`."""
        written: WrittenArtifact = self.read(entry)
        if written.format != self.format:
            raise _wrong(entry, f"it is {written.format}, wanted {self.format}")
        if self.trust:
            return
        if self.format in CODE:
            raise _untrusted(f"its results of the format {self.format} run code when they are opened")
        if self.format in SCANNED and (self.free or not confinement.available().whole):
            why = self.free or "this system has no such workers"
            raise _untrusted(f"its {self.format} is a program that cannot be confined: {why}")
        if doubts_of(entry):
            raise _untrusted("it has results made with --trust, of a model that could run code")

    def of_files(self, entry: Entry) -> None:
        """Raises `TrustError` for objects of classes and for libraries of others, without `trust`."""
        # Imported here: most builds fetch nothing, and have no use for it.
        from optcli.models.formats.recognition import recognized

        actual = recognized(entry.path)
        if actual != self.format:
            what = f"files of {actual}" if actual else "files of no one format"
            raise _wrong(entry, f"it holds {what}, wanted {self.format}")
        if not self.trust and (doubts := formats.doubts(self.format, entry.path)):
            raise _untrusted(f"it has results that could run code when they are opened: {doubts[0]}")

    def of_model(self, entry: Entry) -> None:
        """Have a worker open what was fetched, one that can only read unless this is trusted code.

        Raises `InputError` for what is no sound model of the format, whatever becomes of the worker. A
        format whose library is not installed is looked at where it is opened.
        """
        request = CheckRequest(self.format, entry.path, self.trust)
        confined = None if self.format in CODE else ()
        try:
            run(f"{__name__}:check", request, bool, timeout_s=_CHECK_S, confined=confined)
        except MissingError:
            return
        except OptcliError as error:
            what = f"it is no sound {self.format} model: {error.message}"
            raise _wrong(entry, what) from error


@dataclass(frozen=True)
class ProbeAdmission(RecordAdmission):
    """Of the samples that a build keeps for its checks and measurements: arrays of the inputs alone."""

    inputs: Sequence[TensorSpec] = ()

    def of_files(self, entry: Entry) -> None:
        """Raises `InputError` where arrays are missing, of other shapes, or larger than their file."""
        import numpy as np

        if set(entry.contents) != {_PROBE}:
            raise _wrong(entry, f"it has other files than {_PROBE}")
        try:
            with zipfile.ZipFile(entry.path / _PROBE) as archive:
                packed = any(each.compress_type != zipfile.ZIP_STORED for each in archive.infolist())
            if packed:
                raise _wrong(entry, f"{_PROBE} is compressed")
            with np.load(entry.path / _PROBE, allow_pickle=False) as arrays:
                wanted = {spec.name: (spec.dtype, len(spec.shape)) for spec in self.inputs}
                stored = {name: (str(arrays[name].dtype), arrays[name].ndim) for name in arrays.files}
                counts = {len(arrays[name]) for name in arrays.files}
        except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise _wrong(entry, f"{_PROBE} cannot be read ({str(error)[:120]})") from error
        if stored != wanted or len(counts) != 1 or 0 in counts:
            raise _wrong(entry, f"{_PROBE} has {stored}, wanted {wanted}")


class EvaluationAdmission:
    """Admits an artifact's outputs and figures on the evaluation set."""

    def of_record(self, entry: Entry) -> None:
        """Its facts are in a file."""

    def of_files(self, entry: Entry) -> None:
        """Raises `InputError` where it cannot be read, or names a file outside of it."""
        try:
            outputs = Evaluation.load(entry.path).outputs
            named = {each.file for each in outputs if each.file is not None}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _wrong(entry, f"it cannot be read ({str(error)[:120]})") from error
        if not named <= set(entry.contents):
            raise _wrong(entry, "it names files that it does not have")

    def of_model(self, entry: Entry) -> None:
        """It has no model."""


@dataclass(frozen=True)
class CheckRequest:
    """A folder of files that were fetched, which should be a sound model of a format."""

    format: Format
    folder: Path
    trust: bool


def check(request: CheckRequest, channel: Channel) -> bool:
    """The format's own check. Raises as it does."""
    formats.check(request.format, request.folder, trust=request.trust)
    return True


def _wrong(entry: Entry, what: str) -> InputError:
    return InputError(what, place=f"{entry.kind} {entry.key[:12]}", hint=_DAMAGED)


def _untrusted(what: str) -> TrustError:
    return TrustError(what, hint=_HINT)
