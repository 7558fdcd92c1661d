from __future__ import annotations

import os
import shutil
import time

import pytest

from optcli.store import Store, disk, key_of


def make(
    store: Store, name: str, size_bytes: int = 100, used_s_ago: float = 0, kind: str = "artifact"
) -> str:
    ingredients = {"step": name}
    key = key_of(ingredients)
    with store.work(kind, key) as work:
        (work / "model").write_bytes(b"m" * size_bytes)
        (work / "sub").mkdir()
        (work / "sub" / "more").write_bytes(b"more")
        made = store.put(kind, key, work, {}, ingredients)
    os.utime(made.path.parent / "entry.json", (time.time() - used_s_ago,) * 2)
    return key


def keys(store: Store) -> set[str]:
    return {entry.key for entry in store.entries()}


def flip(path) -> None:
    """Change one bit and nothing else that can be seen: size and times stay."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda files: flip(files / "model"), "model: its content has changed"),
        (lambda files: flip(files / "sub" / "more"), "sub/more: its content has changed"),
        (lambda files: flip(files.parent / "entry.json"), "entry.json: missing or damaged"),
        (lambda files: (files / "sub" / "more").unlink(), "sub/more: missing"),
        (lambda files: (files / "extra").write_bytes(b""), "extra: does not belong here"),
        (lambda files: (files.parent / "entry.json").unlink(), "entry.json: missing or damaged"),
        (lambda files: shutil.rmtree(files), "model: missing"),
        (lambda files: ((files / "model").unlink(), (files / "model").symlink_to("/x")), "link"),
    ],
)
def test_verify_names_the_damage_and_repair_removes_it(tmp_store, damage, problem):
    sound, broken = make(tmp_store, "sound"), make(tmp_store, "broken")
    assert tmp_store.verify() == []
    damage(tmp_store.folder("artifact", broken) / "files")
    found = tmp_store.verify()
    assert [(each.kind, each.key, each.removed) for each in found] == [("artifact", broken, False)]
    assert any(problem in each for each in found[0].problems)
    assert [each.removed for each in tmp_store.verify(repair=True)] == [True]
    assert tmp_store.verify() == []
    assert keys(tmp_store) == {sound}
    assert make(tmp_store, "broken") == broken


def test_verify_of_an_empty_store_is_clean(tmp_store):
    assert tmp_store.verify(repair=True) == []


def test_damage_of_one_entry(tmp_store):
    entry = tmp_store.get("artifact", make(tmp_store, "one"))
    assert tmp_store.verify() == []
    flip(entry.path / "model")
    assert [each.problems for each in tmp_store.verify()] == [("model: its content has changed",)]


def test_what_is_wanted_anew_is_removed(tmp_store):
    key = make(tmp_store, "one")
    assert tmp_store.get("artifact", key, anew=True) is None
    assert keys(tmp_store) == set()


def test_discard_removes_one_entry_and_is_content_with_none(tmp_store):
    kept, dropped = make(tmp_store, "kept"), make(tmp_store, "dropped")
    tmp_store.discard("artifact", dropped)
    tmp_store.discard("artifact", dropped)
    assert keys(tmp_store) == {kept}
    assert os.listdir(tmp_store.root / "work") == []


def test_gc_removes_the_least_recently_used_until_it_fits(tmp_store):
    old, middle, new = (make(tmp_store, f"{age}", 1000, age) for age in (300, 200, 100))
    assert tmp_store.gc(max_bytes=4000) == []
    removed = tmp_store.gc(max_bytes=2100)
    assert [(each.key, each.size_bytes) for each in removed] == [(old, 1004)]
    assert keys(tmp_store) == {middle, new}


def test_gc_knows_that_looking_up_is_using(tmp_store):
    old, new = make(tmp_store, "old", 1000, 300), make(tmp_store, "new", 1000, 200)
    tmp_store.get("artifact", old)
    assert [each.key for each in tmp_store.gc(max_bytes=1500)] == [new]


def test_gc_removes_what_was_not_used_for_long(tmp_store):
    old, new = make(tmp_store, "old", used_s_ago=1000), make(tmp_store, "new", used_s_ago=10)
    assert [each.key for each in tmp_store.gc(older_than_s=500)] == [old]
    assert keys(tmp_store) == {new}


def test_gc_without_limits_removes_no_entry(tmp_store):
    make(tmp_store, "old", used_s_ago=10**8)
    assert tmp_store.gc() == []


def test_gc_never_removes_what_is_being_made(tmp_store):
    key = make(tmp_store, "old", used_s_ago=1000)
    with tmp_store.lock("artifact", key):
        assert Store(tmp_store.root).gc(max_bytes=0) == []
    assert [each.key for each in tmp_store.gc(max_bytes=0)] == [key]


def test_gc_in_a_dry_run_says_the_same_and_removes_nothing(tmp_store):
    make(tmp_store, "old", used_s_ago=1000)
    (tmp_store.folder("artifact", make(tmp_store, "broken")) / "entry.json").unlink()
    (tmp_store.root / "work" / "artifact-dead-x").mkdir()
    before = sorted(path for path in tmp_store.root.rglob("*") if path.suffix != ".lock")
    planned = tmp_store.gc(max_bytes=0, dry_run=True)
    assert sorted(path for path in tmp_store.root.rglob("*") if path.suffix != ".lock") == before
    assert tmp_store.gc(max_bytes=0) == planned
    assert len(planned) == 3
    assert keys(tmp_store) == set()
    assert os.listdir(tmp_store.root / "work") == []


def test_gc_spares_the_work_of_the_living(tmp_store):
    key = key_of({})
    with tmp_store.work("artifact", key) as work:
        (work / "half").write_bytes(b"half")
        other = Store(tmp_store.root)
        assert other.gc(max_bytes=0) == []
        with other.work("artifact", key):
            assert (work / "half").exists()
        tmp_store.put("artifact", key, work, {}, {})
    assert tmp_store.get("artifact", key)


def log(store: Store, key: str, age_s: float = 0) -> None:
    store.log_folder(key).mkdir(parents=True)
    (store.log_folder(key) / "log.txt").write_text("said")
    os.utime(store.log_folder(key), (time.time() - age_s,) * 2)


def test_log_goes_with_its_entry(tmp_store):
    kept, gone = make(tmp_store, "kept"), make(tmp_store, "gone", used_s_ago=1000)
    log(tmp_store, kept)
    log(tmp_store, gone)
    tmp_store.gc(older_than_s=500)
    assert tmp_store.logged() == [kept]


def test_logs_of_failures_go_when_they_are_old(tmp_store):
    made = make(tmp_store, "made")
    for key, age_s in ((made, 1000), ("old", 1000), ("new", 10)):
        log(tmp_store, key, age_s)
    assert tmp_store.gc() == []
    assert len(tmp_store.gc(older_than_s=500, dry_run=True)) == 1
    assert [(each.kind, each.key) for each in tmp_store.gc(older_than_s=500)] == [("log", "old")]
    assert sorted(tmp_store.logged()) == sorted([made, "new"])


def test_damage_and_removal_read_as_lines(tmp_store):
    key = make(tmp_store, "one")
    (tmp_store.folder("artifact", key) / "files" / "model").unlink()
    assert str(tmp_store.verify()[0]) == f"artifact {key[:12]}: model: missing"
    assert str(tmp_store.gc()[0]) == f"artifact {key[:12]} (0.00 MB): damaged"


def keep_scratch(store: Store, name: str, size_bytes: int = 100, s_ago: float = 0) -> str:
    key = key_of({"step": name})
    folder = store.scratch_folder("artifact", key)
    folder.mkdir(parents=True)
    (folder / "checkpoint").write_bytes(b"c" * size_bytes)
    os.utime(folder, (time.time() - s_ago,) * 2)
    return key


def test_scratch_outlives_a_killed_step_and_goes_when_its_entry_is_kept(tmp_store):
    key, other = keep_scratch(tmp_store, "one"), keep_scratch(tmp_store, "other")
    with tmp_store.work("artifact", key):
        pass  # it failed, or was killed
    assert (tmp_store.scratch_folder("artifact", key) / "checkpoint").exists()
    assert tmp_store.unfinished() == sorted([("artifact", key), ("artifact", other)])
    assert make(tmp_store, "one") == key
    assert tmp_store.unfinished() == [("artifact", other)]
    assert tmp_store.verify() == []


def test_gc_removes_scratch_by_age_and_to_make_room_but_not_by_itself(tmp_store):
    entry = make(tmp_store, "entry", 1000)
    old, new = (keep_scratch(tmp_store, f"{age}", 1000, age) for age in (300, 10))
    assert tmp_store.gc() == []
    assert [(each.kind, each.key) for each in tmp_store.gc(older_than_s=100)] == [("scratch", old)]
    assert tmp_store.unfinished() == [("artifact", new)]
    planned = tmp_store.gc(max_bytes=1500, dry_run=True)
    assert tmp_store.gc(max_bytes=1500) == planned
    assert [(each.kind, each.key, each.size_bytes) for each in planned] == [("scratch", new, 1000)]
    assert tmp_store.unfinished() == []
    assert keys(tmp_store) == {entry}


def test_gc_leaves_the_scratch_of_a_step_that_is_being_made(tmp_store):
    key = keep_scratch(tmp_store, "one", 10, 300)
    with tmp_store.lock("artifact", key):
        assert Store(tmp_store.root).gc(max_bytes=0, older_than_s=1) == []
    assert [each.key for each in tmp_store.gc(older_than_s=1)] == [key]


def test_gc_removes_scratch_of_a_step_that_is_done(tmp_store):
    key = make(tmp_store, "one")
    assert keep_scratch(tmp_store, "one") == key
    assert [each.reason for each in tmp_store.gc()] == ["its step is done"]


def test_gc_removes_caches_that_no_step_has_written_for_long(tmp_store):
    old, new = (tmp_store.cache_folder() / "tensorrt" / name for name in ("old", "new"))
    new.parent.mkdir(parents=True)
    for path in (old, new):
        path.write_bytes(b"timings")
    then = time.time() - 1000
    os.utime(old, (then, then))
    wanted = [("cache", "old")]
    assert [(each.kind, each.key) for each in tmp_store.gc(older_than_s=500, dry_run=True)] == wanted
    assert old.exists()
    assert [(each.kind, each.key) for each in tmp_store.gc(older_than_s=500)] == wanted
    assert sorted(path.name for path in new.parent.iterdir()) == ["new"]


def test_what_cannot_be_removed_is_set_aside_once_and_gc_tries_it_again(tmp_store, monkeypatch, caplog):
    make(tmp_store, "one")
    left = tmp_store.root / "work" / f"artifact-{key_of({'name': 'one'})[:16]}-left"
    (left / "entry" / "files").mkdir(parents=True)
    remove = disk.remove
    monkeypatch.setattr(disk, "remove", lambda _: None)
    tmp_store.clear_stale("artifact-")
    (aside,) = (tmp_store.root / "work").iterdir()
    assert aside.name.startswith("stuck-")
    assert str(aside) in caplog.text
    tmp_store.clear_stale("artifact-")
    assert list((tmp_store.root / "work").iterdir()) == [aside]
    (stays,) = tmp_store.gc()
    assert (stays.key, stays.reason) == (aside.name, "stays: it cannot be removed")
    assert list((tmp_store.root / "work").iterdir()) == [aside]
    monkeypatch.setattr(disk, "remove", remove)
    assert [each.key for each in tmp_store.gc()] == [aside.name]
    assert not list((tmp_store.root / "work").iterdir())
