"""Temporary folders, and removing whatever a pass may leave."""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from optcli.files import folders


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The system's temporary folder, in which nothing was cleared yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders._clear_abandoned.cache_clear()
    return tmp_path


def nested(folder: Path, depth: int) -> None:
    before = os.getcwd()
    try:
        os.chdir(folder)
        for _ in range(depth):
            Path("a folder in a folder").mkdir()
            Path("file").touch()
            os.chdir("a folder in a folder")
    finally:
        os.chdir(before)


def test_folders_of_any_depth_and_mode_are_removed_and_links_are_not_followed(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").touch()
    (tmp_path / "link").symlink_to("theirs")
    top = tmp_path / "top"
    for name in ("one/two", "one/three", "closed/inner"):
        (top / name).mkdir(parents=True)
    (top / "one" / "link").symlink_to(tmp_path / "theirs")
    (top / "closed").chmod(0)
    os.mkfifo(top / "pipe")
    nested(top / "one" / "two", 1500)
    folders.remove(top)
    assert not top.exists()
    folders.remove(tmp_path / "link")
    folders.remove(tmp_path / "gone")
    assert (tmp_path / "theirs" / "file").exists()


def test_what_cannot_be_removed_stays_and_the_rest_goes(tmp_path, monkeypatch):
    for name in ("stays/inner", "goes/inner"):
        (tmp_path / "top" / name).mkdir(parents=True)
    rmdir = os.rmdir

    def refusing(path, *, dir_fd=None):
        if path == "stays":
            raise PermissionError(1, "no", path)
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", refusing)
    folders.remove(tmp_path / "top")
    assert os.listdir(tmp_path / "top") == ["stays"]


def test_a_temporary_folder_is_gone_at_the_end(place):
    with suppress(ZeroDivisionError), folders.temporary("test") as folder:
        (folder / "below").mkdir()
        assert folder.parent.parent == place
        raise ZeroDivisionError
    assert not os.listdir(place)


def test_what_killed_processes_left_is_removed_and_nothing_of_living_ones(place):
    code = (
        "import os, sys; from optcli.files import folders; context = folders.temporary('test');"
        "print(context.__enter__(), flush=True); sys.stdin.read() or os.kill(os.getpid(), 9)"
    )
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    options["env"] = {**os.environ, "TMPDIR": str(place)}
    processes = [subprocess.Popen([sys.executable, "-c", code], **options) for _ in range(2)]
    killed, living = (Path(each.stdout.readline().strip()) for each in processes)
    (place / "optcli-of-a-person").mkdir()
    processes[0].communicate()
    assert killed.exists()
    with folders.temporary("test"):
        assert not killed.parent.exists()
        assert living.exists()
        assert (place / "optcli-of-a-person").exists()
    processes[1].communicate("end")


def test_so_is_what_a_process_left_that_was_killed_while_it_made_one(place):
    old, new = place / "optcli-test-old", place / "optcli-test-new"
    for each in (old, new):
        each.mkdir()
        (each / ".alive-new").touch()
    os.utime(old / ".alive-new", (0, 0))
    with folders.temporary("test"):
        assert not old.exists()
        assert new.exists()


def test_a_folder_is_made_where_files_cannot_be_locked(place, monkeypatch):
    def refuse(_):
        raise OSError("no locks here")

    monkeypatch.setattr(folders, "_lock", refuse)
    with folders.temporary("test") as folder:
        assert folder.is_dir()
    assert not os.listdir(place)
