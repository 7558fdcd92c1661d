"""Files that are none: pipes, devices, sockets, folders, links in a circle, names that cannot be."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from optcli.files import digest, regular_files
from optcli.files.digest import FileDigests


@pytest.fixture
def odd(tmp_path: Path) -> dict[str, Path]:
    """Everything that a path may lead to, by what it is called in messages."""
    os.mkfifo(tmp_path / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(tmp_path)  # the name of a socket may have a hundred characters only
    listening.bind("socket")
    os.chdir(here)
    listening.close()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "circle").symlink_to("circle")
    return {
        "a pipe": tmp_path / "pipe",
        "a pipe, behind a link": tmp_path / "link",
        "a socket": tmp_path / "socket",
        "a folder": tmp_path / "folder",
        "a device": Path("/dev/zero"),
        "a circle": tmp_path / "circle",
    }


def test_none_of_them_is_read(odd):
    for name, path in odd.items():
        readers = (
            regular_files.check,
            regular_files.opened,
            regular_files.read,
            digest.of_file,
            FileDigests().of,
        )
        for read in readers:
            with pytest.raises(OSError) as caught:
                read(path)
            if name != "a circle":
                assert name.partition(",")[0] in str(caught.value.strerror), (name, read)
        assert not regular_files.is_file(path)
        assert regular_files.problem(path, "it").startswith("it: ")


def test_names_that_no_file_can_have(tmp_path):
    for name in ("a\0b", "x" * 300, "y/" * 3000, "\ud800\ud800"):
        path = tmp_path / name
        assert not regular_files.is_file(path)
        assert not regular_files.is_folder(path)
        assert regular_files.problem(path, "it")
        with pytest.raises(OSError):
            regular_files.read(path)
        assert regular_files.names_in(path) == []


def test_regular_files_are_read_up_to_a_size(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to("text")
    assert regular_files.read(tmp_path / "link", 5) == b"12345"
    assert regular_files.problem(path, "it") == ""
    with pytest.raises(OSError, match="found 5 bytes, wanted at most 4"):
        regular_files.read(path, 4)
    assert regular_files.problem(tmp_path / "gone", "it") == "no such file: it"


def test_a_home_that_nobody_has_stays_as_it_is_written():
    assert regular_files.expanded("~nobody_at_all/x") == Path("~nobody_at_all/x")
    assert regular_files.expanded("~") == Path.home()


def test_json_that_cannot_be_read_is_a_value_error(tmp_path):
    for text in ("[" * 100_000, "{", "9" * 6000, '"\udcff"', r'["\ud800"]', r'{"a\uDFFFb": 1}'):
        (tmp_path / "x.json").write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ValueError):
            regular_files.json_of(tmp_path / "x.json")
    assert regular_files.parsed_json(rb'["\ud83d\ude00"]') == ["\N{GRINNING FACE}"]
    with pytest.raises(ValueError):
        regular_files.parsed_json(b'"\xed\xa0\x80"')  # the same half as bytes
