"""Listing a remote store, reading all of it, and making room in it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import faulty_remote
import pytest
from faulty_remote import Machine

from optcli.errors import StoreError
from optcli.store import key_of
from optcli.store.remote import manifest, upkeep

FIRST, SECOND = {"step": "first"}, {"step": "second"}


@pytest.fixture
def faults():
    faults = faulty_remote.register()
    yield faults
    faults.never.set()


@pytest.fixture
def machine(tmp_path, faults):
    machine = Machine(tmp_path / "store", f"faulty://{tmp_path}/remote")
    machine.make(FIRST, model=b"1" * 100, shared=b"s" * 10)
    machine.make(SECOND, model=b"2" * 200, shared=b"s" * 10)
    age(tmp_path, FIRST, 10 * 86400)
    return machine


def age(tmp_path: Path, step: dict, seconds: float, *, objects: bool = False) -> None:
    path = tmp_path / "remote" / manifest.path_of("artifact", key_of(step))
    everything = (tmp_path / "remote/v1/objects").rglob("*") if objects else [path]
    for each in everything:
        os.utime(each, (time.time() - seconds,) * 2)


def contents(tmp_path: Path) -> list[bytes]:
    objects = (tmp_path / "remote/v1/objects").rglob("*")
    return sorted(path.read_bytes()[:1] for path in objects if path.is_file())


def connected(machine: Machine):
    return machine.store.connected(lambda _, message: machine.heard.append(message), machine.limits)


def listed(machine: Machine) -> list[str]:
    with connected(machine):
        return [entry.ingredients["step"] for _, entry in upkeep.entries(machine.store.remote)[0]]


def collected(machine: Machine, older_s=None, most=None, **options) -> list[tuple[str, str]]:
    options = {"dry_run": False, **options}
    with connected(machine):
        removed = upkeep.collect(machine.store.remote, older_s, most, **options)
    return sorted((each.kind, each.reason.split(" ")[0]) for each in removed)


def test_entries_are_listed_the_oldest_first(machine):
    assert listed(machine) == ["first", "second"]


def test_entries_of_one_kind_are_listed(machine):
    with connected(machine):
        assert upkeep.entries(machine.store.remote, "comparison") == ([], [])


def test_a_sound_one_is_verified(machine):
    with connected(machine):
        assert upkeep.damaged(machine.store.remote, repair=False) == (2, [])


def test_damage_is_named_and_repaired(machine, tmp_path):
    damaged = (
        tmp_path
        / "remote"
        / manifest.object_of(machine.store.peek("artifact", key_of(FIRST)).contents["model"][1])
    )
    damaged.write_bytes(b"0" * 100)
    broken = tmp_path / "remote" / manifest.path_of("artifact", "0" * 64)
    broken.write_text("{}")
    (tmp_path / "remote/v1/entries/artifact/readme.txt").write_text("mine")
    with connected(machine):
        sound, damage = upkeep.damaged(machine.store.remote, repair=False)
        assert sound == 1
        words = {each.key: each.problems[0] for each in damage}
        assert "model: its object" in words.pop(key_of(FIRST))
        assert "cannot be read" in words.pop("0" * 64)
        assert list(words.values()) == ["it is no manifest"]
        repaired = upkeep.damaged(machine.store.remote, repair=True)[1]
        assert all(each.removed for each in repaired)
        assert upkeep.damaged(machine.store.remote, repair=False) == (1, [])
    assert not damaged.exists()


def test_a_missing_object_is_damage(machine, tmp_path):
    for path in (tmp_path / "remote/v1/objects").rglob("*"):
        if path.is_file() and path.read_bytes() == b"s" * 10:
            path.unlink()
    with connected(machine):
        sound, damage = upkeep.damaged(machine.store.remote, repair=False)
    assert sound == 0
    assert all("is missing" in each.problems[0] for each in damage)


def test_what_was_uploaded_long_ago_goes_with_what_only_it_needs(machine, tmp_path):
    assert collected(machine, 86400.0) == [("artifact", "uploaded")]
    assert listed(machine) == ["second"]
    assert contents(tmp_path) == [b"2", b"s"]
    with connected(machine):
        assert upkeep.damaged(machine.store.remote, repair=False) == (1, [])


def test_bytes_of_what_is_removed_are_counted_once(machine, tmp_path):
    objects = [path for path in (tmp_path / "remote/v1/objects").rglob("*") if path.is_file()]
    before = sum(path.stat().st_size for path in objects)
    with connected(machine):
        removed = upkeep.collect(machine.store.remote, None, 0, dry_run=False)
    assert sum(each.size_bytes for each in removed) == before
    assert contents(tmp_path) == []


def test_a_dry_run_removes_nothing(machine, tmp_path):
    assert collected(machine, 86400.0, dry_run=True) == [("artifact", "uploaded")]
    assert listed(machine) == ["first", "second"]
    assert contents(tmp_path) == [b"1", b"2", b"s"]


@pytest.mark.parametrize(
    ("most", "left"), [(1000, ["first", "second"]), (300, ["second"]), (210, ["second"]), (209, [])]
)
def test_the_first_uploaded_go_until_there_is_room(machine, most, left):
    collected(machine, None, most)
    assert listed(machine) == left


def test_objects_of_an_upload_that_is_going_on_stay_and_old_leftovers_go(machine, tmp_path):
    (tmp_path / "remote" / manifest.path_of("artifact", key_of(SECOND))).unlink()
    part = tmp_path / "remote/v1/objects/00/.part-123"
    part.parent.mkdir(exist_ok=True)
    part.write_bytes(b"p")
    assert collected(machine) == []
    age(tmp_path, FIRST, 2 * 86400, objects=True)
    assert collected(machine) == [("object", "of"), ("object", "of")]
    assert contents(tmp_path) == [b"1", b"s"]


def test_what_is_damaged_goes_always(machine, tmp_path):
    (tmp_path / "remote" / manifest.path_of("artifact", key_of(FIRST))).write_text("{}")
    assert collected(machine) == [("artifact", "damaged")]
    assert listed(machine) == ["second"]


def test_one_that_does_not_answer_is_an_error_here(machine, faults):
    def fail(name, path):
        raise OSError("unreachable")

    faults.before = fail
    with connected(machine), pytest.raises(StoreError, match="cannot be used: OSError: unreachable"):
        upkeep.entries(machine.store.remote)


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(machine, faults, tmp_path):
    age(tmp_path, FIRST, 9 * 86400, objects=True)

    def fail(name, path):
        if name == "ls" and path.endswith("/artifact"):
            raise PermissionError("denied")

    faults.before = fail
    with connected(machine), pytest.raises(StoreError, match="denied"):
        upkeep.collect(machine.store.remote, None, None, dry_run=False)
    assert contents(tmp_path) == [b"1", b"2", b"s"]


def test_one_that_is_empty_has_nothing(tmp_path, faults):
    machine = Machine(tmp_path / "store", f"faulty://{tmp_path}/nothing")
    assert listed(machine) == []
    assert collected(machine, 1.0, 1.0) == []
