"""The parent's outputs that a conversion is checked against: computed beside the pass, or when asked.

Most of a conversion is Python on one core. A second process opens the parent meanwhile and computes
what the check will want to know.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Self

from optcli.pipeline._check_samples import Expected, drawn
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import numpy as np

    from optcli.runners import Runner

    Feed = dict[str, np.ndarray]
    # Outputs of batches, by a digest of their inputs; what gives them waits until they are there.
    Outputs = Mapping[str, Feed]
    KnownOutputs = Callable[[], Outputs]

# Outputs that are kept; the others are computed again.
_KEPT_BYTES = 512 << 20


class Parent:
    """The parent of a conversion. It is opened with the first batch whose outputs are not known."""

    def __init__(self, opened: Callable[[], Runner], known: Outputs) -> None:
        self._opened, self._known = opened, known
        self._runner: Runner | None = None

    def run(self, feed: Feed) -> Feed:
        """The outputs of a batch, by name and in the model's order."""
        known = self._known.get(_digest(feed)) if self._known else None
        if known is not None:
            return known
        if self._runner is None:
            self._runner = self._opened()
        return self._runner.run(feed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            self._runner.close()


class _Beside:
    """A process that computes the outputs of a parent."""

    def __init__(self, compute: Callable[[Connection], None]) -> None:
        context = multiprocessing.get_context("fork")
        self._receiving, sending = context.Pipe(duplex=False)
        self._process = context.Process(target=compute, args=(sending,), daemon=True)
        self._process.start()
        sending.close()
        self._outputs: Outputs | None = None

    def outputs(self) -> Outputs:
        """What it computed, as soon as that is there. Nothing where it could not, or has died."""
        if self._outputs is None:
            self._outputs = {}
            with suppress(EOFError, OSError):
                self._outputs = self._receiving.recv()
        return self._outputs

    def close(self) -> None:
        """End the process."""
        # A confined worker may signal nobody where Landlock is old: its keeper ends what it leaves.
        with suppress(PermissionError):
            self._process.kill()
            self._process.join()
        self._receiving.close()


@contextmanager
def computed_beside(
    opened: Callable[[], Runner],
    inputs: Sequence[TensorSpec],
    probe: Path | None,
    tolerance: float,
) -> Iterator[KnownOutputs]:
    """The outputs of a parent that a check within `tolerance` wants, computed while the block runs.

    In another process, which takes a core, and memory for the parent. Call before this process has
    started any thread. `opened` opens the parent; `probe` is that of the check.
    """
    # Forking is safe on Linux alone.
    if not sys.platform.startswith("linux"):
        yield dict
        return

    def compute(sending: Connection) -> None:
        # What fails here fails again where the check computes it, with an error that says so.
        with suppress(Exception), opened() as runner:
            sending.send(_wanted(runner, inputs, probe, tolerance))

    try:
        beside = _Beside(compute)
    except OSError:  # there are as many processes as there may be
        yield dict
        return
    try:
        yield beside.outputs
    finally:
        beside.close()


def _wanted(
    runner: Runner, inputs: Sequence[TensorSpec], probe: Path | None, tolerance: float
) -> Outputs:
    """The outputs of every batch that a check asks a parent for, as far as they are kept."""
    noting = _Noting(runner)
    for samples in drawn(inputs, probe):
        expected = Expected(noting, samples, tolerance)
        for rows in samples.batches:
            expected.of(rows)
    return noting.noted


class _Noting:
    """A model that notes its outputs."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._left_bytes = _KEPT_BYTES
        self.noted: dict[str, Feed] = {}

    def run(self, feed: Feed) -> Feed:
        """The outputs of a batch."""
        outputs = {name: array.copy() for name, array in self._runner.run(feed).items()}
        held = sum(array.nbytes for array in outputs.values())
        if held <= self._left_bytes:
            self._left_bytes -= held
            self.noted[_digest(feed)] = outputs
        return outputs


def _digest(feed: Feed) -> str:
    """A digest of the arrays of a batch, with their names, types and shapes."""
    digest = hashlib.sha256()
    for name, array in sorted(feed.items()):
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
