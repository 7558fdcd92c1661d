"""Samples that are prepared once: kept in memory or in files, and taken from there afterwards.

    FOLDER/part-N/about.json     which samples the part holds, their ids, targets and meta; written last
    FOLDER/part-N/input_M.npy    their M-th input, `[samples, ...]`
    FOLDER/part-N/contents.npy   a digest of the inputs of each, where those were asked for

Whoever reads such a folder maps the files: several processes share one copy in the system's memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.sample import Batch, Sample, SampleSet, collate

if TYPE_CHECKING:
    import numpy as np

ABOUT, CONTENTS, TARGETS = "about.json", "contents.npy", "targets.npy"
MEMORY_BYTES = 512 << 20
FILE_BYTES = 16 << 30
# What others get to read is kept for good: less of it, and only where making it again takes a while.
SHARED_BYTES = 2 << 30
_WORTH_S = 0.5
# Samples that take less are not worth a second thread: most of it is Python, which runs one at a time.
_SLOW_S = 0.0007
_DIGEST_BYTES = 16
_TUPLE = "()"


class CachingSampleSet:
    """A sample set that prepares each of its samples once, as long as there is room to keep it.

    What fits into `memory_bytes` is held in memory; a larger set in files below `folder`, as far as
    `FILE_BYTES` and half of the disk's free space allow. A sample that fits nowhere is prepared anew
    each time. A set of at most `shared_bytes` goes into files in any case: see `finish`. Where
    `memory_bytes` is 0, only such a set is kept. `span` are the samples that are kept, by default all.
    `threads` is how many samples of one batch are prepared side by side.
    """

    def __init__(
        self,
        samples: SampleSet,
        folder: Path | None = None,
        *,
        span: range | None = None,
        shared_bytes: int = 0,
        memory_bytes: int = MEMORY_BYTES,
        threads: int = 1,
    ) -> None:
        import numpy as np

        self._samples, self._folder, self._shared_bytes = samples, folder, shared_bytes
        self._span = range(len(samples)) if span is None else span
        self._memory_bytes, self._threads = memory_bytes, threads
        self._slots = np.full(len(samples), -1, np.int64)
        self._rows: dict[str, np.ndarray] | None = None
        self._whole: frozenset[str] = frozenset()
        self._capacity = self._used = 0
        self._facts: dict[int, tuple[str, Any, Mapping[str, Any]]] = {}
        self._others: dict[int, Sample] = {}
        self._digests: dict[int, bytes] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._shared = self._in_files = False
        self.spent_s = 0.0
        self._prepared = 0

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        """One sample; raises what the set itself raises."""
        if 0 <= index < len(self) and self._slots[index] >= 0:
            assert self._rows is not None
            name, target, meta = self._facts[index]
            inputs = {key: rows[self._slots[index]] for key, rows in self._rows.items()}
            return Sample(name, inputs, target, meta, self._whole)
        if index in self._others:
            return self._others[index]
        return self._fresh([index])[index]

    def batch(self, positions: Sequence[int]) -> Batch:
        """Some samples, stacked. Raises ValueError where they differ in shape."""
        import numpy as np

        missing = [p for p in positions if self._slots[p] < 0 and p not in self._others]
        fresh = self._fresh(list(dict.fromkeys(missing)))
        slots = self._slots[np.asarray(positions, np.int64)]
        if self._rows is None or not (slots >= 0).all():
            return collate([fresh.get(p) or self[p] for p in positions])
        facts = [self._facts[position] for position in positions]
        return Batch(
            ids=tuple(name for name, _, _ in facts),
            inputs=_taken(self._rows, slots, self._whole),
            targets=tuple(target for _, target, _ in facts),
            meta=tuple(meta for _, _, meta in facts),
            whole=self._whole,
        )

    def contents(self, positions: Sequence[int], batch: Batch) -> np.ndarray:
        """A digest of the inputs of each of these samples, which `batch` begins with."""
        digests = digests_of(batch, len(positions))
        if self._shared:
            self._digests.update(zip(positions, digests.tolist(), strict=True))
        return digests

    def targets(self) -> Iterator[tuple[str, Any]] | None:
        """The place and target of every sample, where the set tells them without preparing any."""
        targets: Iterator[tuple[str, Any]] | None = getattr(self._samples, "targets", lambda: None)()
        return targets

    def finish(self) -> bool:
        """Leave what was prepared to others, in `folder`; whether it was worth that.

        It is where all samples of the span were prepared, which took a while, and where targets and
        meta are plain. Else nothing is left.
        """
        done = (
            self._shared
            and self._in_files
            and self.spent_s >= _WORTH_S
            and len(self._facts) == len(self._span)
        )
        about = self._about() if done else None
        if self._folder is None or about is None:
            if self._in_files:
                self._rows = None
                assert self._folder is not None
                shutil.rmtree(self._folder, ignore_errors=True)
            return False
        self._write(self._folder, about)
        return True

    def _fresh(self, positions: list[int]) -> dict[int, Sample]:
        """Samples that are not kept yet, prepared, and kept where there is room."""
        began = time.perf_counter()
        slow = self._prepared > 1 and self.spent_s / self._prepared > _SLOW_S
        parallel = getattr(self._samples, "parallel", False)
        if slow and self._threads > 1 and len(positions) > 1 and parallel:
            self._pool = self._pool or ThreadPoolExecutor(self._threads)
            samples = list(self._pool.map(self._samples.__getitem__, positions))
        else:
            samples = [self._samples[position] for position in positions]
        self.spent_s += time.perf_counter() - began
        self._prepared += len(positions)
        fresh = dict(zip(positions, samples, strict=True))
        for position, sample in fresh.items():
            self._keep(position, sample)
        return fresh

    def _keep(self, position: int, sample: Sample) -> None:
        if position not in self._span:
            return
        if self._rows is None:
            self._make_room(sample)
        assert self._rows is not None
        fits = all(
            name in sample.inputs and rows.shape[1:] == sample.inputs[name].shape
            for name, rows in self._rows.items()
        )
        if not fits:  # of another size than the first: nobody can stack them, but they can be kept
            size_bytes = _size_bytes(sample)
            if size_bytes <= self._memory_bytes:
                self._memory_bytes -= size_bytes
                self._others[position] = sample
            return
        whole = self._capacity >= len(self._span)
        slot = position - self._span.start if whole else self._used
        if slot >= self._capacity:
            return
        self._used += 1
        for name, rows in self._rows.items():
            rows[slot] = sample.inputs[name]
        self._slots[position] = slot
        self._facts[position] = (sample.id, sample.target, sample.meta)

    def _make_room(self, first: Sample) -> None:
        """Decide by the first sample where all go, and how many of them."""
        import numpy as np

        self._whole = first.whole
        sample_bytes, count = max(1, _size_bytes(first)), len(self._span)
        free = 0
        if self._folder is not None:
            there = next(each for each in (self._folder, *self._folder.parents) if each.exists())
            free = shutil.disk_usage(there).free // 2
        in_files = min(free, FILE_BYTES) // sample_bytes
        self._shared = count * sample_bytes <= min(self._shared_bytes, free)
        large = self._memory_bytes > 0 and count * sample_bytes > self._memory_bytes
        if self._shared or (large and in_files > self._memory_bytes // sample_bytes):
            with suppress(OSError):  # no room after all
                self._rows = self._files(first, min(count, in_files))
                self._capacity, self._in_files = min(count, in_files), True
                return
        self._capacity = min(count, self._memory_bytes // sample_bytes)
        self._rows = {
            name: np.empty((self._capacity, *array.shape), array.dtype)
            for name, array in first.inputs.items()
        }
        self._memory_bytes -= self._capacity * sample_bytes

    def _files(self, first: Sample, capacity: int) -> dict[str, np.ndarray]:
        """Arrays in files whose place on the disk is reserved. Raises OSError."""
        import numpy as np
        from numpy.lib.format import open_memmap

        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        arrays = {}
        for number, (name, array) in enumerate(first.inputs.items()):
            path = self._folder / f"input_{number}.npy"
            rows = open_memmap(path, mode="w+", dtype=array.dtype, shape=(capacity, *array.shape))
            if hasattr(os, "posix_fallocate"):
                with path.open("rb+") as stream:
                    # A full disk would otherwise end the process when a page is written.
                    os.posix_fallocate(stream.fileno(), 0, os.fstat(stream.fileno()).st_size)
            arrays[name] = np.asarray(rows)
        return arrays

    def _about(self) -> dict[str, Any] | None:
        """All but the inputs as plain data; None where it is not plain."""
        facts = [self._facts[position] for position in self._span]
        targets = [target for _, target, _ in facts]
        metas: dict[str, int] = {}
        places = []
        for _, _, meta in facts:
            try:
                text = json.dumps(_plain(dict(meta)))
            except (TypeError, ValueError):
                return None
            if _restored(json.loads(text)) != meta:
                return None
            places.append(metas.setdefault(text, len(metas)))
        plain = all(target is None or type(target) in (int, str) for target in targets)
        if self._rows is None or not (plain or _are_one_array(targets)):
            return None
        return {
            "span": [self._span.start, self._span.stop],
            "total": len(self),
            "inputs": list(self._rows),
            "whole": sorted(self._whole),
            "ids": [name for name, _, _ in facts],
            "targets": targets if plain else None,
            "metas": [json.loads(text) for text in metas],
            "meta": places,
        }

    def _write(self, folder: Path, about: dict[str, Any]) -> None:
        import numpy as np

        assert self._rows is not None
        for rows in self._rows.values():
            getattr(rows.base, "flush", lambda: None)()
        if about["targets"] is None:
            np.save(folder / TARGETS, np.stack([self._facts[p][1] for p in self._span]))
        if len(self._digests) == len(self._span):
            digests = [self._digests[position] for position in self._span]
            np.save(folder / CONTENTS, np.array(digests, f"V{_DIGEST_BYTES}"))
        (folder / ABOUT).write_text(json.dumps(about))


class CachedSampleSet:
    """Samples that another process has prepared: mapped from a folder of `CachingSampleSet`.

    Raises OSError, ValueError or KeyError where the folder does not hold a whole set.
    """

    def __init__(self, folder: Path) -> None:
        self._parts = [_Part(path) for path in _parts(folder)]
        self._starts = [part.start for part in self._parts]

    def __len__(self) -> int:
        return int(self._parts[-1].stop)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = self._part(index)
        row = index - part.start
        inputs = {name: rows[row] for name, rows in part.inputs.items()}
        meta = part.metas[part.places[row]]
        return Sample(part.ids[row], inputs, part.targets[row], meta, part.whole)

    def batch(self, positions: Sequence[int]) -> Batch:
        """Some samples, stacked; the arrays are copies."""
        parts = [self._part(position) for position in positions]
        first = parts[0]
        if any(part is not first for part in parts):
            return collate([self[position] for position in positions])
        rows = [position - first.start for position in positions]
        return Batch(
            ids=tuple(first.ids[row] for row in rows),
            inputs=_taken(first.inputs, rows, first.whole),
            targets=tuple(first.targets[row] for row in rows),
            meta=tuple(first.metas[first.places[row]] for row in rows),
            whole=first.whole,
        )

    def contents(self, positions: Sequence[int], batch: Batch) -> np.ndarray:
        """A digest of the inputs of each of these samples, which `batch` begins with."""
        import numpy as np

        parts = [self._part(position) for position in positions]
        if any(part.contents is None for part in parts):
            return digests_of(batch, len(positions))
        digests = [
            part.contents[position - part.start]  # type: ignore[index]
            for part, position in zip(parts, positions, strict=True)
        ]
        return np.array(digests, f"V{_DIGEST_BYTES}")

    def targets(self) -> Iterator[tuple[str, Any]]:
        """The id and target of every sample."""
        return ((n, t) for part in self._parts for n, t in zip(part.ids, part.targets, strict=True))

    def _part(self, index: int) -> _Part:
        from bisect import bisect_right

        return self._parts[bisect_right(self._starts, index) - 1]


class _Part:
    """One folder of kept samples, `start` up to `stop` of the set."""

    def __init__(self, folder: Path) -> None:
        import numpy as np

        about = json.loads((folder / ABOUT).read_bytes())
        self.start, self.stop = about["span"]
        self.inputs = {
            # Private: who writes into a batch of one writes into no file.
            name: np.asarray(np.load(folder / f"input_{number}.npy", mmap_mode="c", allow_pickle=False))
            for number, name in enumerate(about["inputs"])
        }
        if any(len(rows) != self.stop - self.start for rows in self.inputs.values()):
            raise ValueError(f"{folder} does not hold the samples that it names")
        self.whole = frozenset(about.get("whole", ()))
        self.ids: list[str] = about["ids"]
        self.metas = [_restored(each) for each in about["metas"]]
        self.places: list[int] = about["meta"]
        self.targets: Any = about["targets"]
        if self.targets is None:
            self.targets = np.asarray(np.load(folder / TARGETS, mmap_mode="c", allow_pickle=False))
        self.contents: np.ndarray | None = None
        if (folder / CONTENTS).is_file():
            self.contents = np.load(folder / CONTENTS, allow_pickle=False)


def is_whole(folder: Path) -> bool:
    """Whether a folder holds a whole set, so far as `about.json` says; imports nothing heavy."""
    try:
        _parts(folder)
    except (OSError, ValueError, LookupError):
        return False
    return True


def _taken(
    stored: Mapping[str, np.ndarray], rows: Sequence[int] | np.ndarray, whole: frozenset[str]
) -> dict[str, np.ndarray]:
    """Some rows as the inputs of a batch."""
    return {
        name: array[rows[0]] if name in whole else array.take(rows, axis=0)
        for name, array in stored.items()
    }


def digests_of(batch: Batch, rows: int) -> np.ndarray:
    """A digest of the inputs of each of the first samples of a batch."""
    import numpy as np

    digests = []
    for row in range(rows):
        mark = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for name in sorted(batch.inputs):
            array = batch.inputs[name]
            mark.update(np.ascontiguousarray(array if name in batch.whole else array[row]).data)
        digests.append(mark.digest())
    return np.array(digests, f"V{_DIGEST_BYTES}")


def _parts(folder: Path) -> list[Path]:
    """The parts of a set in their order. Raises OSError, ValueError, KeyError where one is missing."""
    abouts = {path.parent: json.loads(path.read_bytes()) for path in folder.glob(f"part-*/{ABOUT}")}
    abouts = {path: about for path, about in abouts.items() if about["span"][0] < about["span"][1]}
    ordered = sorted(abouts, key=lambda path: abouts[path]["span"][0])
    reached = 0
    for path in ordered:
        start, stop = abouts[path]["span"]
        if start != reached:
            raise ValueError(f"{folder} lacks samples from {reached} on")
        reached = stop
    if not ordered or reached != abouts[ordered[0]]["total"]:
        raise ValueError(f"{folder} holds {reached} samples, which are not all")
    return ordered


def _are_one_array(targets: Sequence[Any]) -> bool:
    """Whether targets are arrays of numbers that can be stacked."""
    import numpy as np

    shapes = {(t.shape, t.dtype.str) if isinstance(t, np.ndarray) else None for t in targets}
    return len(shapes) == 1 and None not in shapes and targets[0].dtype.kind in "buif"


def _plain(value: Any) -> Any:
    """A value as JSON data, in which tuples can be told from lists. Raises TypeError."""
    if isinstance(value, tuple):
        return {_TUPLE: [_plain(each) for each in value]}
    if isinstance(value, dict):
        if _TUPLE in value or not all(isinstance(name, str) for name in value):
            raise TypeError("its names are no names")
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"{type(value).__name__} is no plain data")


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if _TUPLE in value:
            return tuple(_restored(each) for each in value[_TUPLE])
        return {name: _restored(each) for name, each in value.items()}
    return [_restored(each) for each in value] if isinstance(value, list) else value


def _size_bytes(sample: Sample) -> int:
    own = sum(int(array.nbytes) for array in sample.inputs.values())
    return own + int(getattr(sample.target, "nbytes", 0))
