"""Workers of this machine: each opens the artifact once, then answers shards until none is left."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from optcli.errors import WorkerEndError
from optcli.serving.inference.listing import Shard
from optcli.serving.inference.shard_worker import (
    ATTEMPTS,
    ShardAnswering,
    ShardResult,
    ShardWork,
    died,
)
from optcli.workers import Channel, Child, spawn


def answered(
    shards: Sequence[Shard], work: ShardWork, *, workers: int, variables: Mapping[str, str], log: Path
) -> Iterator[ShardResult]:
    """What workers tell of each shard, in the order in which they end.

    `variables` are the environment of a worker, which writes to `log`. A worker that dies is started
    again. Raises the error of a worker, and `StepError` for a shard at which too many died.
    """
    crew = _Crew(shards, work, variables, log)
    threads = [
        threading.Thread(target=crew.drive, daemon=True) for _ in range(min(workers, len(shards)))
    ]
    try:
        for thread in threads:
            thread.start()
        at_work = len(threads)
        while at_work:
            result = crew.results.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                at_work -= 1
            else:
                yield result
    finally:
        crew.stop()
        for thread in threads:
            thread.join()


class _Crew:
    """Workers that share the shards. In `results`, None is said by each thread that ends."""

    def __init__(
        self, shards: Sequence[Shard], work: ShardWork, variables: Mapping[str, str], log: Path
    ) -> None:
        self.results: SimpleQueue[ShardResult | BaseException | None] = SimpleQueue()
        self._waiting = deque(shards)
        self._work, self._variables, self._log = work, variables, log
        self._deaths: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stopped = False
        self._children: set[Child] = set()

    def drive(self) -> None:
        """Have a worker answer shards until none is left; the work of one thread."""
        try:
            shard = self._next()
            while shard is not None:
                with self._started() as child:
                    shard = self._answers(child, shard)
        except BaseException as error:
            self.results.put(error)
        finally:
            self.results.put(None)

    def stop(self) -> None:
        """Kill the workers that still run."""
        with self._lock:
            self._stopped = True
            for child in self._children:
                child.kill()

    @contextmanager
    def _started(self) -> Iterator[Child]:
        function = "optcli.serving.inference.local_workers:serve"
        with self._lock:
            child = spawn(function, self._work, log=self._log, environment=self._variables)
            self._children.add(child)
        try:
            with child:
                yield child
        finally:
            with self._lock:
                self._children.discard(child)

    def _answers(self, child: Child, shard: Shard | None) -> Shard | None:
        """Hand shards to a worker; gives the one at which it died, None where all are answered."""
        while shard is not None:
            try:
                child.send(shard)
                self.results.put(child.receive(ShardResult))
            except WorkerEndError as error:
                if self._stopped:
                    return None
                self._deaths[shard.name] += 1  # by this thread alone: it holds the shard
                if self._deaths[shard.name] == ATTEMPTS:
                    raise died(ATTEMPTS, shard.name) from error
                return shard
            shard = self._next()
        return None

    def _next(self) -> Shard | None:
        with self._lock:
            return None if self._stopped or not self._waiting else self._waiting.popleft()


def serve(work: ShardWork, channel: Channel) -> None:
    """Open the artifact and answer shards until nobody asks any more; for a worker."""
    shards = ShardAnswering(work, work.artifact)
    while (shard := channel.receive(Shard)) is not None:
        channel.send(shards.answer(shard))
