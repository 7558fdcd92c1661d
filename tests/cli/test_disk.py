"""A store that is damaged, full, read-only or no folder: said, survived, mended."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from commands import as_an_ordinary_user
from needs import needs
from tiny_project import DATA, Project

from optcli.artifact import Artifact, Format
from optcli.errors import StoreError
from optcli.pipeline import view
from optcli.store import Store


def stored(place: Project, kind: str, file: str) -> Path:
    """A file of the one entry of a kind that has it."""
    found = [path for path in (place.store / "entries" / kind).rglob(file) if path.is_file()]
    assert found, f"no {file} among the entries of kind {kind}"
    return found[0]


def flip(path: Path) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def garble(path: Path) -> None:
    path.chmod(0o644)
    path.write_text("{garbage")


DAMAGES = [
    ("artifact", "model.onnx", flip, "model.onnx: its content has changed"),
    ("artifact", "model.onnx", Path.unlink, "model.onnx: missing"),
    ("artifact", "entry.json", garble, "entry.json: missing or damaged"),
    ("artifact", "entry.json", Path.unlink, "entry.json: missing or damaged"),
    ("data", "probe.npz", flip, "probe.npz: its content has changed"),
    ("measurement", "samples.npz", flip, "samples.npz: its content has changed"),
    ("evaluation", "samples.npz", flip, "samples.npz: its content has changed"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "file", "damage", "says"), DAMAGES)
def test_damage_is_found_removed_and_made_again(place, optcli, kind, file, damage, says):
    damage(stored(place, kind, file))
    found = optcli("cache", "verify")
    assert found.code == 4
    assert f"damaged: {kind} " in found.out
    assert says in found.out
    assert "Traceback" not in found.err
    assert json.loads(optcli("cache", "verify", "--json").out)[0]["kind"] == kind
    repaired = optcli("cache", "verify", "--repair")
    assert repaired.code == 0
    assert "1 damaged and removed" in repaired.out
    again = optcli("build", "recipe.yaml")
    assert again.code == 0, again.err
    assert "  built   " in again.err or kind == "evaluation", "the comparison of outputs is kept"
    assert optcli("cache", "verify").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "file", "damage", "says"), DAMAGES)
def test_a_damaged_result_is_never_served(place, optcli, kind, file, damage, says):
    good = stored(place, kind, file).read_bytes()
    damage(stored(place, kind, file))
    said = optcli("build", "recipe.yaml", "--remeasure")
    assert said.code == 0, said.err
    assert optcli("cache", "verify").code == 0
    if kind == "artifact":
        assert "  built   " in said.err
        shown = place.artifacts / "tiny" / "plain" / "model.onnx"
        assert shown.read_bytes() == stored(place, kind, "model.onnx").read_bytes()
        if file == "model.onnx":
            assert stored(place, kind, file).read_bytes() == good
    if damage is flip and kind == "artifact":
        assert "a file of it in the store was changed; making it again" in said.err


@pytest.mark.slow
def test_a_dry_run_sees_a_changed_file(place, optcli):
    assert "to do" not in optcli("build", "recipe.yaml", "--dry-run").out
    flip(stored(place, "artifact", "model.onnx"))
    assert "to do" in optcli("build", "recipe.yaml", "--dry-run").out


@pytest.mark.slow
def test_a_store_that_is_a_file(place, optcli, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for root in (file, file / "below"):
        monkeypatch.setenv("OPTCLI_STORE", str(root))
        said = optcli("build", "recipe.yaml")
        assert said.code == 4
        assert f"error: {file}" in said.err
        assert "hint: choose a place you can write to with --store or OPTCLI_STORE" in said.err
    assert file.read_text() == "mine"


def test_an_empty_name_of_the_store_is_none(place, optcli, monkeypatch):
    monkeypatch.setenv("OPTCLI_STORE", "")
    assert optcli("cache", "ls").out.strip().endswith("in artifacts/.store")


@pytest.mark.slow
def test_a_folder_of_the_users_is_not_overwritten(place, optcli, nothing_lost):
    mine = place.artifacts / "tiny" / "other" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    place.recipe('  plain: []\n  other: ["./fakes.py:Copy"]\n', data=DATA)
    said = optcli("build", "recipe.yaml")
    assert said.code == 4
    assert f"error: {mine.parent}: this folder is in the way" in said.err
    assert "hint: move it away" in said.err
    assert mine.read_text() == "years of work"
    nothing_lost()


LIMITED = """
import resource, sys
from optcli.cli import run
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("limit_bytes", [0, 500, 2000])
def test_a_full_disk_is_said_and_loses_nothing(place, optcli, nothing_lost, limit_bytes):
    """Files may not grow beyond a limit: what a full disk or a used-up quota is to a program."""
    place.recipe('  plain: []\n  new: [{"./fakes.py:Copy": {note: new}}]\n', data=DATA)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit_bytes), "build", "recipe.yaml"],
        cwd=place.folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stderr + done.stdout
    assert done.returncode == 4, said
    assert "Traceback" not in said
    assert "file size limit" in said or "File too large" in said
    assert "hint: make room" in said
    nothing_lost()
    after = optcli("build", "recipe.yaml")
    assert after.code == 0, after.err


def test_a_disk_that_gets_full_while_files_are_copied_is_said_in_words(tmp_path, monkeypatch):
    """shutil collects what went wrong with each file, and lists it with all paths."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/somewhere")
    monkeypatch.setattr("shutil.copyfile", Mock(side_effect=full))
    (tmp_path / "stored").mkdir()
    for name in ("model.xml", "model.bin"):
        (tmp_path / "stored" / name).write_bytes(b"x")
    artifact = Artifact("a" * 64, Format.OPENVINO, tmp_path / "stored", "fp32", 2, "d")
    with pytest.raises(StoreError, match=r"cannot write: No space left on device \("):
        view.place(tmp_path / "artifacts" / "v", artifact, [])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("closed", ["store", "artifacts", "recipe.yaml", "model.onnx", "images"])
def test_what_may_not_be_read_or_written(place, closed):
    needs("file modes that hold")
    store, artifacts = place.folder / "store", place.folder / "artifacts"
    store.mkdir()
    artifacts.mkdir()
    (place.folder / closed).chmod(0o500 if closed in ("store", "artifacts") else 0)
    done = subprocess.run(
        [sys.executable, "-m", "optcli", "build", "recipe.yaml"],
        cwd=place.folder,
        env={**os.environ, "OPTCLI_STORE": str(store), "OPTCLI_ARTIFACTS": str(artifacts)},
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=as_an_ordinary_user,
        check=False,
    )
    (place.folder / closed).chmod(0o700)
    assert done.returncode == (4 if closed in ("store", "artifacts") else 2), done.stderr
    assert "Traceback" not in done.stderr
    assert closed in done.stderr
    assert "hint: " in done.stderr
    assert Store(store).verify() == []


@pytest.mark.slow
def test_a_read_only_store_serves_what_it_has(place):
    needs("file modes that hold")
    for path in (place.store, *place.store.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    done = subprocess.run(
        [sys.executable, "-m", "optcli", "build", "recipe.yaml"],
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=as_an_ordinary_user,
        check=False,
    )
    for path in (place.store, *place.store.rglob("*")):
        path.chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("  cached") for line in done.stderr.splitlines())
