"""A store with bits flipped, files cut, removed and replaced at random: sound results or none."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from optcli.store import Store, key_of

KEYS = [key_of({"number": number}) for number in range(4)]


def _content(key: str, name: str) -> bytes:
    return f"{key}{name}".encode() * 50


def _filled(root: Path) -> Store:
    store = Store(root)
    for number, key in enumerate(KEYS):
        with store.lock("artifact", key), store.work("artifact", key) as work:
            for name in ("model.onnx", "data.bin"):
                (work / name).write_bytes(_content(key, name))
            store.put("artifact", key, work, {"number": number}, {"number": number})
    store.digests.save()
    return store


def _damage(root: Path, draw: random.Random) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path = draw.choice(files)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    way = draw.choice(("flip", "flip", "cut", "remove", "empty", "pipe", "folder", "link", "add"))
    if way == "flip" and data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
    elif way == "cut":
        path.write_bytes(data[: draw.randrange(len(data) + 1)])
    elif way == "empty":
        path.write_bytes(b"")
    elif way == "add":
        (path.parent / "more").write_bytes(b"more")
    elif way != "flip":
        path.unlink()
        if way == "pipe":
            os.mkfifo(path)
        elif way == "folder":
            path.mkdir()
        elif way == "link":
            path.symlink_to(path.name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_what_is_handed_out_is_sound(tmp_path, seed):
    draw = random.Random(seed)
    _filled(tmp_path / "store")
    for _ in range(draw.choice((1, 2, 5))):
        _damage(tmp_path / "store" / "entries", draw)
    store = Store(tmp_path / "store")
    for number, key in enumerate(KEYS):
        found = store.get("artifact", key)
        if found is not None:
            assert found.record == {"number": number}
            for name in ("model.onnx", "data.bin"):
                assert (found.path / name).read_bytes() == _content(key, name)
    store.verify(repair=True)
    assert store.verify() == []
    _filled(tmp_path / "store")
    assert all(Store(tmp_path / "store").get("artifact", key) for key in KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_memory_of_digests_is_begun_again(tmp_path, seed):
    draw = random.Random(seed)
    _filled(tmp_path / "store")
    memory = tmp_path / "store" / "digests.json"
    memory.write_bytes(bytes(draw.randrange(256) for _ in range(draw.randrange(400))))
    assert all(Store(tmp_path / "store").get("artifact", key) for key in KEYS)
