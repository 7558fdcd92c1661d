from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from optcli.files import digest
from optcli.files.digest import FileDigests

KNOWN_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, "abc"


def written(path: Path, data: bytes, age_s: float = 60) -> Path:
    """A file that looks old enough for its digest to be remembered."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were really read."""
    read: list[str] = []
    real = digest.of_file

    def of_file(path: Path) -> str:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(digest, "of_file", of_file)
    monkeypatch.setattr(digest, "_SETTLED_NS", -1)
    return read


def test_digest_is_sha256(tmp_path):
    assert digest.of_bytes(b"abc") == KNOWN_ABC
    assert digest.of_file(written(tmp_path / "abc", b"abc")) == KNOWN_ABC


def test_value_ignores_the_order_of_keys_and_nothing_else():
    assert digest.of_value({"a": 1, "b": [1, 2]}) == digest.of_value({"b": [1, 2], "a": 1})
    values = [
        {"a": 1},
        {"a": 1.0},
        {"a": "1"},
        {"a": True},
        {"a": None},
        {"a": [1]},
        {"b": 1},
        {},
        [],
        "",
    ]
    assert len({digest.of_value(value) for value in values}) == len(values)
    assert digest.of_value([1, 2]) != digest.of_value([2, 1])


def test_value_takes_plain_data_only():
    with pytest.raises(TypeError):
        digest.of_value({"path": Path("model.onnx")})


def test_value_takes_file_names_that_are_not_utf8():
    odd = os.fsdecode(b"caf\xe9.png")
    assert digest.of_value([odd]) != digest.of_value(["cafe.png"])


def test_folder_is_over_names_and_contents_not_over_its_place(tmp_path):
    for name in ("here", "there/deep"):
        written(tmp_path / name / "a.py", b"a")
        written(tmp_path / name / "sub" / "b.py", b"b")
    known = FileDigests()
    before = known.of_folder(tmp_path / "here")
    assert before == known.of_folder(tmp_path / "there" / "deep")
    (tmp_path / "here" / "a.py").rename(tmp_path / "here" / "c.py")
    assert known.of_folder(tmp_path / "here") != before


def test_folder_leaves_out_caches_of_python(tmp_path):
    written(tmp_path / "a.py", b"a")
    before = FileDigests().of_folder(tmp_path)
    written(tmp_path / "__pycache__" / "a.pyc", b"compiled")
    assert FileDigests().of_folder(tmp_path) == before


def test_memory_spares_reading_in_the_next_run(tmp_path, count):
    data = written(tmp_path / "data.npz", b"data")
    first = FileDigests(tmp_path / "memory" / "digests.json")
    expected = first.of(data)
    first.of(data)
    first.save()
    assert FileDigests(tmp_path / "memory" / "digests.json").of(data) == expected
    assert count == ["data.npz"]
    assert os.listdir(tmp_path / "memory") == ["digests.json"]


def test_a_young_file_is_read_once_in_a_run_and_again_in_the_next(tmp_path, count, monkeypatch):
    monkeypatch.setattr(digest, "_SETTLED_NS", 3_600_000_000_000)
    data = tmp_path / "data"
    data.write_bytes(b"data")
    fine = data.stat().st_mtime_ns % 1_000_000 and data.stat().st_ctime_ns % 1_000_000
    known = FileDigests(tmp_path / "digests.json")
    known.of(data)  # so young that a second change could have the same time
    while time.time_ns() - data.stat().st_ctime_ns < 2 * digest._TICK_NS:
        time.sleep(0.01)
    for _ in range(3):
        assert known.of(data) == digest.of_bytes(b"data")
    assert len(count) == (2 if fine else 4)
    data.write_bytes(b"atad")
    assert known.of(data) == digest.of_bytes(b"atad")
    known.save()
    assert not (tmp_path / "digests.json").exists()


def test_a_file_whose_times_are_coarse_is_read_again(tmp_path, count, monkeypatch):
    monkeypatch.setattr(digest, "_SETTLED_NS", 3_600_000_000_000)
    monkeypatch.setattr(digest, "_TICK_NS", -1)
    data = tmp_path / "data"
    data.write_bytes(b"data")
    seconds = data.stat().st_mtime_ns // 1_000_000_000
    os.utime(data, ns=(seconds * 1_000_000_000,) * 2)
    known = FileDigests()
    known.of(data)
    known.of(data)
    assert len(count) == 2


def test_memory_sees_a_change_of_the_same_size(tmp_path, count):
    data = written(tmp_path / "data", b"old")
    known = FileDigests()
    known.of(data)
    written(data, b"new", age_s=50)
    assert known.of(data) == digest.of_bytes(b"new")


def test_memory_sees_a_change_that_hides_its_time(tmp_path, count):
    data = written(tmp_path / "data", b"old")
    known = FileDigests()
    known.of(data)
    before = data.stat()
    while data.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of files has its own tick
        data.write_bytes(b"new")
        os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (data.stat().st_mtime_ns, data.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert known.of(data) == digest.of_bytes(b"new")


def test_memory_sees_a_file_put_in_place_of_another(tmp_path, count):
    data = written(tmp_path / "data", b"old")
    other = written(tmp_path / "other", b"new")
    stamp = data.stat()
    os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    known = FileDigests()
    known.of(data)
    other.replace(data)
    assert known.of(data) == digest.of_bytes(b"new")


def test_memory_does_not_trust_a_file_that_was_just_written(tmp_path):
    data = tmp_path / "data"
    data.write_bytes(b"data")
    known = FileDigests(tmp_path / "digests.json")
    assert known.of(data) == digest.of_bytes(b"data")
    known.save()
    assert not (tmp_path / "digests.json").exists()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "3", '{"a": 1}', '{"a": [1, 2]}', '{"a": [[], 1, 2]}']
)
def test_damaged_memory_is_begun_again(tmp_path, count, content):
    memory = tmp_path / "digests.json"
    memory.write_text(content)
    data = written(tmp_path / "data", b"abc")
    known = FileDigests(memory)
    assert known.of(data) == KNOWN_ABC
    known.save()
    assert str(data.resolve()) in json.loads(memory.read_text())


def test_memory_that_cannot_be_written_is_no_error(tmp_path, count):
    written(tmp_path / "file", b"")
    known = FileDigests(tmp_path / "file" / "digests.json")
    known.of(written(tmp_path / "data", b"abc"))
    known.save()


def test_missing_file_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        FileDigests().of(tmp_path / "nothing")
