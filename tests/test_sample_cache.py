"""Samples are prepared once: in memory, in files, and for other processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import pytest

from optcli.files import sample_cache
from optcli.files.sample_cache import (
    ABOUT,
    CONTENTS,
    CachedSampleSet,
    CachingSampleSet,
    digests_of,
    is_whole,
)
from optcli.sample import Sample, batch_of, collate

ROW_BYTES = 2 * 3 * 4


@dataclass
class Numbered:
    """Samples whose values tell their position, and how often each was prepared."""

    count: int = 10
    targets_of: object = staticmethod(lambda index: index % 3)
    odd: tuple[int, ...] = ()
    parallel: bool = True
    prepared: list[int] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < self.count:
            raise IndexError(index)
        with self.lock:
            self.prepared.append(index)
        size = (2, 4) if index in self.odd else (2, 3)
        meta = {"original_size": (index, 7), "scale": (0.1, 1 / 3), "tags": [1, "a", None]}
        inputs = {"x": np.full(size, index, np.float32)}
        return Sample(f"n{index}", inputs, self.targets_of(index), meta)


def same(one, other) -> bool:
    """Whether two batches or samples hold the same."""
    names = ("ids", "targets", "meta") if hasattr(one, "ids") else ("id", "target", "meta")
    plain = all(str(getattr(one, name)) == str(getattr(other, name)) for name in names)
    return plain and all(np.array_equal(one.inputs[name], other.inputs[name]) for name in other.inputs)


@pytest.fixture
def worth(monkeypatch):
    """Whatever was prepared is worth being kept for others."""
    monkeypatch.setattr(sample_cache, "_WORTH_S", 0.0)


@pytest.mark.parametrize("positions", [[0, 1, 2], [7, 3, 3, 0], [9]])
def test_a_batch_is_what_collating_the_samples_gives(positions):
    plain, kept = Numbered(), CachingSampleSet(Numbered())
    for _ in range(2):
        assert same(batch_of(kept, positions), collate([plain[p] for p in positions]))
    for position in positions:
        assert same(kept[position], plain[position])


def test_every_sample_is_prepared_once():
    samples = Numbered()
    kept = CachingSampleSet(samples)
    for _ in range(3):
        for start in range(0, 10, 4):
            kept.batch(range(start, min(10, start + 4)))
        assert kept[5].id == "n5"
    assert sorted(samples.prepared) == list(range(10))


def test_what_a_batch_gets_can_be_changed_without_harm(tmp_path, worth):
    kept = CachingSampleSet(Numbered(), tmp_path / "part-0", shared_bytes=1 << 20)
    whole = kept.batch(range(10))
    whole.inputs["x"][:] = -1
    assert kept[4].inputs["x"].max() == 4
    assert kept.finish()
    mapped = CachedSampleSet(tmp_path)
    mapped.batch([4, 5]).inputs["x"][:] = -1
    mapped[4].inputs["x"][:] = -1  # a private page
    assert CachedSampleSet(tmp_path)[4].inputs["x"].max() == 4


@pytest.mark.parametrize("room", [0, 3])
def test_beyond_the_room_in_memory_samples_are_prepared_anew(room):
    samples = Numbered()
    kept = CachingSampleSet(samples, memory_bytes=room * ROW_BYTES)
    for _ in range(3):
        assert same(kept.batch(range(10)), collate([Numbered()[p] for p in range(10)]))
    counts = [samples.prepared.count(position) for position in range(10)]
    assert counts == [1] * room + [3] * (10 - room)


def test_a_large_set_lies_in_a_file(tmp_path):
    samples = Numbered()
    kept = CachingSampleSet(samples, tmp_path / "rows", memory_bytes=3 * ROW_BYTES)
    order = [8, 1, 9, 0, 2, 3, 7, 6, 5, 4]
    for _ in range(2):
        assert same(kept.batch(order), collate([Numbered()[p] for p in order]))
    assert sorted(samples.prepared) == list(range(10))
    assert (tmp_path / "rows" / "input_0.npy").stat().st_size > 10 * ROW_BYTES
    assert not kept.finish(), "nobody asked to share it"
    assert not (tmp_path / "rows").exists()


def test_a_file_has_no_more_than_its_share_of_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_cache, "FILE_BYTES", 6 * ROW_BYTES)
    samples = Numbered()
    kept = CachingSampleSet(samples, tmp_path / "rows", memory_bytes=3 * ROW_BYTES)
    for _ in range(2):
        kept.batch(range(10))
    assert [samples.prepared.count(position) for position in range(10)] == [1] * 6 + [2] * 4


def test_without_room_on_the_disk_memory_will_do(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sample_cache.os, "posix_fallocate", full)
    samples = Numbered()
    kept = CachingSampleSet(samples, tmp_path / "rows", memory_bytes=3 * ROW_BYTES)
    assert same(kept.batch(range(10)), collate([Numbered()[p] for p in range(10)]))
    kept.batch(range(10))
    assert samples.prepared.count(0) == 1
    assert samples.prepared.count(9) == 2


def test_samples_of_other_sizes_are_kept_and_do_not_stack():
    samples = Numbered(odd=(4,))
    kept = CachingSampleSet(samples)
    with pytest.raises(ValueError, match="shape"):
        kept.batch([3, 4])
    assert kept[4].inputs["x"].shape == (2, 4)
    assert same(kept.batch([4]), collate([Numbered(odd=(4,))[4]]))
    assert samples.prepared.count(4) == 1


@pytest.mark.parametrize(("parallel", "threads"), [(True, 3), (False, 3), (True, 1)])
def test_threads_change_nothing_but_the_time(monkeypatch, parallel, threads):
    monkeypatch.setattr(sample_cache, "_SLOW_S", 0.0)
    samples = Numbered(64, parallel=parallel)
    kept = CachingSampleSet(samples, threads=threads)
    for start in range(0, 64, 16):
        positions = range(start, start + 16)
        assert same(kept.batch(positions), collate([Numbered(64)[p] for p in positions]))
    assert sorted(samples.prepared) == list(range(64))
    assert (kept._pool is not None) == (parallel and threads > 1)


TARGETS = [
    lambda index: index,
    lambda index: None,
    lambda index: "cat" if index % 2 else "dog",
    lambda index: np.full((3, 2), index, np.uint8),
]


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("parts", [1, 3])
def test_another_process_reads_what_was_prepared(tmp_path, worth, targets, parts):
    ends = [10 * part // parts for part in range(parts + 1)]
    for part in range(parts):
        samples = Numbered(targets_of=targets)
        span = range(ends[part], ends[part + 1])
        kept = CachingSampleSet(samples, tmp_path / f"part-{part}", span=span, shared_bytes=1 << 20)
        batch = kept.batch(span)
        kept.contents(span, batch)
        assert is_whole(tmp_path) is False
        assert kept.finish()
    assert is_whole(tmp_path)
    found, plain = CachedSampleSet(tmp_path), Numbered(targets_of=targets)
    assert len(found) == 10
    assert [place for place, _ in found.targets()] == [f"n{index}" for index in range(10)]
    for index in range(10):
        assert same(found[index], plain[index])
        assert found[index].meta == plain[index].meta, "tuples stay tuples"
    for positions in ([0, 1, 2], [9, 0, 5, 5]):
        whole = collate([plain[p] for p in positions])
        assert same(found.batch(positions), whole)
        assert list(found.contents(positions, whole)) == list(digests_of(whole, len(positions)))
    with pytest.raises(IndexError):
        found[10]


def test_digests_tell_contents_apart():
    batch = collate([Numbered()[position] for position in (1, 2, 1)])
    one, two, three = digests_of(batch, 3).tolist()
    assert one == three != two


@pytest.mark.parametrize("why", ["part", "cheap", "odd", "target", "large"])
def test_nothing_is_left_of_what_is_not_worth_it(tmp_path, monkeypatch, why):
    monkeypatch.setattr(sample_cache, "_WORTH_S", 1e9 if why == "cheap" else 0.0)
    targets = (lambda index: {"boxes": index}) if why == "target" else (lambda index: index)
    samples = Numbered(targets_of=targets, odd=(4,) if why == "odd" else ())
    room = 5 * ROW_BYTES if why == "large" else 1 << 20
    kept = CachingSampleSet(samples, tmp_path / "part-0", shared_bytes=room)
    for position in range(9 if why == "part" else 10):
        kept.batch([position])
    assert not kept.finish()
    assert list(tmp_path.iterdir()) == []
    assert not is_whole(tmp_path)


def test_a_set_that_lost_a_part_is_not_whole(tmp_path, worth):
    for part in range(2):
        span = range(5 * part, 5 * part + 5)
        kept = CachingSampleSet(Numbered(), tmp_path / f"part-{part}", span=span, shared_bytes=1 << 20)
        kept.batch(span)
        assert kept.finish()
    assert not (tmp_path / "part-0" / CONTENTS).exists(), "nobody asked for them"
    (tmp_path / "part-1" / ABOUT).unlink()
    assert not is_whole(tmp_path)
    with pytest.raises(ValueError, match="not all"):
        CachedSampleSet(tmp_path)
    (tmp_path / "part-1" / ABOUT).write_text("no JSON")
    assert not is_whole(tmp_path)
