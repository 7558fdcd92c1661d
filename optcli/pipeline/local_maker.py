"""Makes results in the local store, in worker processes that are forked or started afresh.

A worker gets copies of its inputs, and what it did is checked.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from optcli.artifact import Artifact
from optcli.errors import OptcliError, StepError, raised_as, strerror
from optcli.files import digest
from optcli.pipeline.messages import Order, PassRequest, StepNews, StepRequest
from optcli.pipeline.prepared import PreparedSamples
from optcli.store import Entry, Store, disk
from optcli.workers import (
    Child,
    ForkServer,
    Listener,
    environment_of_steps,
    messages,
    spawn,
)
from optcli.workers.memory import available_bytes

_HINT = "read `source.path` only; write into `job.out`, or copy what must be changed"


class StepWorkers:
    """Starts a worker for each request; the fork server starts with the first that is forked."""

    def __init__(
        self,
        threads: int,
        timeout_s: float,
        preload: Callable[[], Sequence[str]],
        hear: Callable[[str, StepNews], None],
    ) -> None:
        """`preload` names what the fork server imports, `hear` gets a step's label and its news."""
        self._threads, self._timeout_s = threads, timeout_s
        self.preload, self._hear = preload, hear
        self._server: ForkServer | None = None
        self._starting = threading.Lock()
        self._running: set[Child] = set()
        self._stopped = False

    def carry_out(self, order: Order, request: StepRequest, log: Path) -> Any:
        """What the order's function gives for this request, in a worker that ends with it."""
        call = order.call
        temporary: Path | None = getattr(request, "temporary", None)
        writable = (request.out, temporary) if temporary else (request.out,)
        options: dict[str, Any] = {"log": log, "confined": writable if order.confined else None}
        if order.forked_after is None:
            child = spawn(call.function, request, environment=self._environment(), **options)
        else:
            child = self._fork_server().start(
                call.function, request, after=order.forked_after, **options
            )
        self._running.add(child)
        try:
            with child:
                if self._stopped:  # while it was started: whoever ended the others has not seen it
                    child.kill()
                listener = Listener(StepNews, partial(self._hear, order.label))
                return child.result(call.gives, self._timeout_s, listener)
        finally:
            self._running.discard(child)

    def stop(self) -> None:
        """End the workers, those that are being started among them."""
        self._stopped = True
        for child in list(self._running):
            child.kill()

    def close(self) -> None:
        """End the workers and the fork server."""
        for child in list(self._running):
            child.kill()
        if self._server is not None:
            self._server.close()

    def _fork_server(self) -> ForkServer:
        with self._starting:
            if self._server is None:
                modules = list(dict.fromkeys(self.preload()))
                self._server = ForkServer(modules, self._environment())
            return self._server

    def _environment(self) -> dict[str, str]:
        return environment_of_steps(self._threads)


@dataclass(frozen=True)
class _Copied:
    """One file of an input: the copy, its digest's source, and what the system knew of it."""

    copy: Path
    original: Path
    mark: tuple[int, ...]


class StepInputs:
    """The artifacts handed to one step, by name; each is a copy."""

    def __init__(self, artifacts: Mapping[str, Artifact], folder: Path) -> None:
        self._files: list[_Copied] = []
        self._folders: dict[Path, Path] = {}
        self.artifacts = {name: self._copied(artifact, folder) for name, artifact in artifacts.items()}

    def _copied(self, artifact: Artifact, folder: Path) -> Artifact:
        copy = folder / artifact.key[:16]
        if copy not in self._folders:  # the origin of a first pass is its source as well
            self._folders[copy] = artifact.path
            for name, original in disk.plain_files(artifact.path).items():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                _copy(original, copy / name)
                (copy / name).chmod(0o444)
                self._files.append(_Copied(copy / name, original, _mark(copy / name)))
            copy.mkdir(parents=True, exist_ok=True)
        return replace(artifact, path=copy)

    def check(self) -> None:
        """See that the step left its inputs as they were. Raises `StepError` naming the first change.

        Contents are read only of files whose size, times or inode are not what they were.
        """
        for file in self._files:
            name = file.copy.name
            message = f"it removed or replaced {name} of its input"
            with raised_as(StepError, message, of=OSError, reason=strerror, hint=_HINT):
                same = _mark(file.copy) == file.mark
                same = same or digest.of_file(file.copy) == digest.of_file(file.original)
            if not same:
                raise StepError(f"it changed {name} of its input", hint=_HINT)
        copies = {file.copy for file in self._files}
        for folder in self._folders:
            for path in digest.files_below(folder):
                if path not in copies:
                    raise StepError(f"it wrote {path.name} into the folder of its input", hint=_HINT)

    @contextmanager
    def named_as_kept(self) -> Iterator[None]:
        """Errors of the block name the inputs where they are kept, not the copies, which go."""
        try:
            yield
        except OptcliError as error:
            for copy, original in self._folders.items():
                texts = (error.message, error.place, error.hint)
                named = (text.replace(str(copy), str(original)) for text in texts)
                error.message, error.place, error.hint = named
            raise


Carry = Callable[[Order, StepRequest, Path], Any]
"""Carries out an order's function for a request whose folders are set, its log in a file."""


class LocalMaker:
    """Makes each result in a folder of the store, in workers of this machine or where `carry` says."""

    def __init__(self, store: Store, workers: StepWorkers, carry: Carry | None = None) -> None:
        self.store, self._workers = store, workers
        self._carry = carry or workers.carry_out

    def open(self) -> None:
        """Workers are started as they are needed."""

    def make(self, order: Order, work: Path) -> dict[str, Any]:
        """As `Maker` says. Copies of its inputs go to the worker; one that it changed is put back."""
        request = order.call.request
        log = begun_log(self.store, order)
        temporary = work.parent.parent / "temporary"
        with disk.failures(self.store.root):
            temporary.mkdir()
        inputs = self._inputs_of(order, work)
        inputs_of = order.call.request.inputs
        # The samples that a pass reads, by role, as far as others may share them.
        sets = {
            role: PreparedSamples(self.store, key, inputs_of) for role, key in order.samples.items()
        }
        keep = work.parent.parent / "prepared"
        # Not in the recorded call: whoever repeats a step begins at its beginning.
        if isinstance(request, PassRequest):
            request = replace(
                request,
                parent=inputs.artifacts["parent"],
                origin=inputs.artifacts.get("origin", request.origin),
                prepared={role: path for role, each in sets.items() if (path := each.find())},
                keep=keep if sets else None,
                temporary=temporary,
                free_bytes=available_bytes(),
                # Where it is confined nothing can be kept.
                scratch=None if order.confined else self.store.scratch_folder("artifact", order.key),
                cache=None if order.confined else self.store.cache_folder(),
            )
        with inputs.named_as_kept():
            answer = self._carry(order, replace(request, out=work), log)
        inputs.check()
        for role, each in sets.items():
            each.take(keep / role)
        self._see_that_the_store_kept(order, inputs)
        return dict(messages.to_record(answer))

    def stop(self) -> None:
        """End the workers, those that are being started among them."""
        self._workers.stop()

    def close(self) -> None:
        """End the workers and the fork server."""
        self._workers.close()

    def _see_that_the_store_kept(self, order: Order, inputs: StepInputs) -> None:
        """Put back what a step has changed of its inputs in the store, and blame the step."""
        for name, entry in order.entries.items():
            kind, key = entry.kind, entry.key
            if self.store.sound(kind, key) is None:
                with self.store.lock(kind, key):
                    self.store.discard(kind, key)
                    # What was fetched would count as made here; of an origin there may be no copy.
                    put_back = not entry.origin and name in inputs.artifacts
                    if put_back:
                        self._put_back(inputs.artifacts[name], entry)
                done = f"({key[:12]}); {'put back' if put_back else 'removed'}"
                raise StepError(
                    f"it changed files of its input in the store {done}",
                    hint="write into `job.out` only",
                )

    def _put_back(self, artifact: Artifact, entry: Entry) -> None:
        with self.store.work(entry.kind, entry.key) as work:
            shutil.copytree(artifact.path, work, dirs_exist_ok=True)
            self.store.put(entry.kind, entry.key, work, entry.record, entry.ingredients)

    def _inputs_of(self, order: Order, work: Path) -> StepInputs:
        """Copies of the artifacts that a request names, beside the folder that it writes into."""
        request = order.call.request
        named: dict[str, Artifact] = {}
        if isinstance(request, PassRequest):
            named = {"parent": request.parent}
            if request.traits.reads_origin or request.origin.key == request.parent.key:
                named["origin"] = request.origin
        # Copied while the entries are read: of a large model each takes a tenth of a second.
        with disk.failures(self.store.root), ThreadPoolExecutor(1) as pool:
            copied = pool.submit(StepInputs, named, work.parent.parent / "inputs")
            # The origin of a first pass is its parent as well.
            for entry in {(each.kind, each.key): each for each in order.entries.values()}.values():
                if self.store.sound(entry.kind, entry.key) is None:
                    raise StepError(
                        f"its input {entry.key[:12]} in the store was changed while the build ran",
                        hint="build again; a pass of this recipe writes into the store",
                    )
            return copied.result()


def begun_log(store: Store, order: Order) -> Path:
    """Where the log of an order goes, the last one being gone; the call that repeats it lies beside."""
    log = log_of(store, order.key)
    log.unlink(missing_ok=True)
    with suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        call = {"function": order.call.function, "message": messages.to_record(order.call.request)}
        log.with_name("call.json").write_text(json.dumps(call, indent=1))
    return log


def _copy(original: Path, copy: Path) -> None:
    """Copy a file, sharing its blocks where the file system can."""
    with suppress(OSError, AttributeError), original.open("rb") as source, copy.open("wb") as target:
        left = os.fstat(source.fileno()).st_size
        while left:
            done = os.copy_file_range(source.fileno(), target.fileno(), left)
            if not done:
                break
            left -= done
        if not left:
            return
    shutil.copyfile(original, copy)


def _mark(path: Path) -> tuple[int, ...]:
    status = path.lstat()
    return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def log_of(store: Store, key: str) -> Path:
    """Where the log of a step lies; the call that repeats it lies beside."""
    return store.log_folder(key) / "log.txt"


def repeat_command(store: Store, key: str) -> str:
    """The command that carries out one recorded step again, into a folder of one's choice."""
    call = log_of(store, key).with_name("call.json")
    return f"{shlex.quote(sys.executable)} -m optcli.pipeline.step {shlex.quote(str(call))} NEW_FOLDER"
