from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from optcli.errors import StoreError
from optcli.store import Entry, Store, disk, key_of

INGREDIENTS = {"step": "export_onnx", "options": {"opset": 18}}
KEY = key_of(INGREDIENTS)
FILES = {"model.onnx": b"graph", "code/net.py": b"class Net: pass", "empty": b""}


def make(
    store: Store,
    ingredients: dict = INGREDIENTS,
    files: dict = FILES,
    kind: str = "artifact",
    change=lambda folder: None,
) -> Entry:
    key = key_of(ingredients)
    with store.lock(kind, key), store.work(kind, key) as work:
        for name, data in files.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes(data)
        change(work)
        return store.put(kind, key, work, {"opset": 18}, ingredients)


def run(program: str, *arguments: str) -> str:
    """What a program in its own process prints."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def names_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def nothing_half_done(store: Store) -> bool:
    return not names_below(store.root / "work") and not list(store.entries()) and not store.verify()


def test_what_was_put_is_found_by_another_process(tmp_store):
    made = make(tmp_store)
    found = Store(tmp_store.root).get("artifact", KEY)
    assert found == made
    assert {name: (found.path / name).read_bytes() for name in FILES} == FILES
    assert (found.record, found.ingredients) == ({"opset": 18}, INGREDIENTS)
    assert found.size_bytes == sum(map(len, FILES.values()))
    assert names_below(tmp_store.root / "work") == []


def test_nothing_is_found_before_and_under_another_kind_or_key(tmp_store):
    assert tmp_store.get("artifact", KEY) is None
    assert not tmp_store.root.exists(), "looking must not write"
    make(tmp_store)
    assert tmp_store.get("measurement", KEY) is None
    assert tmp_store.get("artifact", key_of({"step": "prune"})) is None


def test_key_is_of_everything_in_the_ingredients():
    assert key_of({"options": {"opset": 18}, "step": "export_onnx"}) == KEY
    assert key_of({"options": {"opset": 17}, "step": "export_onnx"}) != KEY
    assert len(KEY) == 64


def test_digest_is_of_the_files_alone(tmp_store):
    first = make(tmp_store)
    same = make(tmp_store, {"step": "another"})
    other = make(tmp_store, {"step": "third"}, {**FILES, "model.onnx": b"GRAPH"})
    assert first.digest == same.digest != other.digest


def test_record_reads_back_as_it_was_returned(tmp_store):
    with tmp_store.work("data", KEY) as work:
        made = tmp_store.put(
            "data", KEY, work, {"shape": (1, 2), "by": {10: 0.1, 9: None}}, INGREDIENTS
        )
    assert made.record == {"shape": [1, 2], "by": {"10": 0.1, "9": None}}
    assert tmp_store.get("data", KEY) == made


def test_entries_are_listed_by_kind(tmp_store):
    make(tmp_store)
    make(tmp_store, kind="measurement")
    assert sorted(entry.kind for entry in tmp_store.entries()) == ["artifact", "measurement"]
    assert [entry.kind for entry in tmp_store.entries("measurement")] == ["measurement"]
    assert list(tmp_store.entries("traits")) == []


def test_files_are_read_only_yet_copied_and_deleted_freely(tmp_store, tmp_path):
    made = make(tmp_store)
    model = made.path / "model.onnx"
    assert stat.S_IMODE(model.stat().st_mode) & 0o222 == 0
    shutil.copytree(made.path, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy")
    shutil.rmtree(tmp_store.root)


def test_executable_files_stay_executable(tmp_store):
    with tmp_store.work("artifact", KEY) as work:
        (work / "model.so").write_bytes(b"elf")
        (work / "model.so").chmod(0o755)
        made = tmp_store.put("artifact", KEY, work, {}, INGREDIENTS)
    assert stat.S_IMODE((made.path / "model.so").stat().st_mode) == 0o555


def test_caches_of_python_are_not_kept(tmp_store):
    made = make(tmp_store, files={"code/net.py": b"", "code/__pycache__/net.pyc": b"x"})
    assert names_below(made.path) == ["code", "code/net.py"]


def test_first_entry_stays_when_two_make_the_same(tmp_store):
    with tmp_store.work("artifact", KEY) as slow:
        (slow / "model").write_bytes(b"slow")
        first = make(tmp_store)
        assert tmp_store.put("artifact", KEY, slow, {}, INGREDIENTS) == first
    assert (first.path / "model.onnx").read_bytes() == b"graph"
    assert names_below(tmp_store.root / "work") == []


def test_work_that_is_not_put_leaves_nothing(tmp_store):
    def fail() -> None:
        with tmp_store.work("artifact", KEY) as work:
            (work / "half").write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert nothing_half_done(tmp_store)


def test_links_are_refused(tmp_store, tmp_path):
    (tmp_path / "outside").write_bytes(b"changes later")

    def link(folder: Path) -> None:
        (folder / "link.onnx").symlink_to(tmp_path / "outside")

    with pytest.raises(StoreError, match="link"):
        make(tmp_store, change=link)
    assert nothing_half_done(tmp_store)
    assert (tmp_path / "outside").read_bytes() == b"changes later"


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"seal": "", "entry": {}}', "lost", "edited", "cut", "gone"]
)
def test_damaged_entry_counts_as_absent_and_is_made_again(tmp_store, damage):
    made = make(tmp_store)
    facts = made.path.parent / "entry.json"
    facts.chmod(0o644)
    if damage == "lost":
        facts.unlink()
    elif damage == "edited":
        facts.write_text(facts.read_text().replace('"opset": 18', '"opset": 17'))
    elif damage == "cut":
        (made.path / "model.onnx").chmod(0o644)
        (made.path / "model.onnx").write_bytes(b"gra")
    elif damage == "gone":
        shutil.rmtree(made.path)
    else:
        facts.write_text(damage)
    assert tmp_store.get("artifact", KEY) is None
    assert list(tmp_store.entries()) == []
    again = make(tmp_store)
    assert tmp_store.get("artifact", KEY) == again
    assert (again.path / "model.onnx").read_bytes() == b"graph"
    assert tmp_store.verify() == []
    assert names_below(tmp_store.root / "work") == []


def test_entry_of_a_future_schema_counts_as_absent(tmp_store):
    facts = make(tmp_store).path.parent / "entry.json"
    body = {**json.loads(facts.read_text())["entry"], "schema": 99}
    facts.unlink()
    facts.write_text(json.dumps({"seal": key_of(body), "entry": body}))
    assert tmp_store.get("artifact", KEY) is None


@pytest.mark.parametrize("failing", ["settle", "write_whole", "sync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_what_the_disk_refuses_is_said_and_nothing_is_left(tmp_store, monkeypatch, failing, code):
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code), "model.onnx")

    monkeypatch.setattr(disk, failing, refuse)
    with pytest.raises(StoreError) as caught:
        make(tmp_store)
    monkeypatch.undo()
    assert caught.value.place == "model.onnx"
    assert "--store" in caught.value.hint
    if code in (errno.ENOSPC, errno.EDQUOT):
        assert "free" in caught.value.message
        assert "cache gc" in caught.value.hint
    assert nothing_half_done(tmp_store)
    assert make(tmp_store)


def test_file_size_limit_of_the_process_is_said(tmp_path):
    """A real refusal by the kernel in the middle of a write: RLIMIT_FSIZE."""
    program = """
import resource, signal, sys
from pathlib import Path
from optcli.errors import StoreError
from optcli.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(Path(sys.argv[1]))
try:
    with store.work("artifact", "k" * 64) as work:
        (work / "model").write_bytes(b"x" * 100)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
        store.put("artifact", "k" * 64, work, {"long": "x" * 1000}, {})
except StoreError as error:
    print(error)
"""
    assert "file size limit" in run(program, str(tmp_path / "store"))
    assert nothing_half_done(Store(tmp_path / "store"))


READ_ONLY = """
import os, sys
from pathlib import Path
import filelock
from optcli.errors import StoreError
from optcli.store import Store
store = Store(Path(sys.argv[1]))
if os.geteuid() == 0:
    os.setuid(65534)  # the superuser may write everywhere
print("found", store.get("artifact", sys.argv[2]) is not None, store.verify())
for attempt in (lambda: store.lock("artifact", "new"), lambda: store.work("artifact", "new")):
    try:
        with attempt():
            print("written")
    except StoreError as error:
        print(type(error).__name__, error.hint)
"""


def test_read_only_store_is_read_and_says_that_it_cannot_be_written():
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to other users
        os.chmod(place, 0o755)
        store = Store(Path(place, "store"))
        made = make(store)
        folders = [store.root, *(path for path in store.root.rglob("*") if path.is_dir())]
        for folder in folders:
            folder.chmod(0o555)
        try:
            said = run(READ_ONLY, str(store.root), made.key).splitlines()
        finally:
            for folder in folders:
                folder.chmod(0o755)
    assert said[0] == "found True []"
    assert len(said) == 3
    assert all(line.startswith("StoreError choose a place you can write to") for line in said[1:])


def test_root_that_is_a_file_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file")
    assert store.get("artifact", KEY) is None
    with pytest.raises(StoreError), store.work("artifact", KEY):
        pass


def test_root_comes_from_the_command_then_the_environment_then_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPTCLI_STORE", raising=False)
    assert Store.default_root(None) == tmp_path / "artifacts" / ".store"
    monkeypatch.setenv("OPTCLI_STORE", "")
    assert Store.default_root(None) == tmp_path / "artifacts" / ".store"
    monkeypatch.setenv("OPTCLI_STORE", str(tmp_path / "elsewhere"))
    assert Store.default_root(None) == tmp_path / "elsewhere"
    assert Store.default_root(Path("named")) == tmp_path / "named"


def test_root_is_hidden_from_git(tmp_store):
    make(tmp_store)
    assert (tmp_store.root / ".gitignore").read_text() == "*\n"


def test_digests_are_remembered_in_the_store(tmp_store, tmp_path):
    make(tmp_store)
    (tmp_path / "data").write_bytes(b"data")
    os.utime(tmp_path / "data", (time.time() - 60,) * 2)
    assert tmp_store.digests is tmp_store.digests
    assert tmp_store.digests.of(tmp_path / "data") == Store(tmp_path).digests.of(tmp_path / "data")


def test_looking_up_loads_neither_locks_nor_numpy(tmp_store):
    make(tmp_store)
    program = """
import sys
from pathlib import Path
from optcli.store import Store
assert Store(Path(sys.argv[1])).get("artifact", sys.argv[2])
print(sorted({"filelock", "numpy", "torch", "pydantic"} & set(sys.modules)))
"""
    assert run(program, str(tmp_store.root), KEY).strip() == "[]"


def flip(path: Path) -> None:
    """Change a file's content behind the store's back; its size stays."""
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[0] ^= 0xFF
    path.write_bytes(data)


def test_a_changed_file_makes_an_entry_none_and_it_is_made_again(tmp_store):
    made = make(tmp_store)
    flip(made.path / "model.onnx")
    found = Store(tmp_store.root)
    assert found.get("artifact", KEY) is None
    assert found.peek("artifact", KEY) is not None, "only the content is wrong"
    make(found)
    assert (found.get("artifact", KEY).path / "model.onnx").read_bytes() == b"graph"
    assert found.verify() == []


def test_an_untouched_entry_is_read_once(tmp_store, monkeypatch):
    from optcli.files import digest

    make(tmp_store)
    monkeypatch.setattr(digest, "_SETTLED_NS", -1)
    assert tmp_store.get("artifact", KEY) is not None
    tmp_store.digests.save()
    monkeypatch.setattr(digest, "of_file", lambda path: pytest.fail(f"{path} is read again"))
    assert Store(tmp_store.root).get("artifact", KEY) is not None
