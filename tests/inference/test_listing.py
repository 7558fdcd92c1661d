"""What is stored, and how it is divided into shards."""

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from optcli.errors import InputError, MissingError, UsageError
from optcli.serving.inference.listing import Listing, listing
from optcli.serving.prediction import storage


def files(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return folder


def tar(path: Path, *names: str, mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            archive.addfile(info, io.BytesIO(name.encode()))
    return path


def ids(found: Listing) -> list[list[str]]:
    return [[image.id for image in shard.images] for shard in found.shards]


def contents(found: Listing) -> dict[str, bytes]:
    place = storage.place_of(found.uri)
    return {
        image.id: storage.read(place, image.path, image.offset, image.size)
        for shard in found.shards
        for image in shard.images
    }


def test_pipes_and_devices_are_no_images_and_nothing_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(tmp_path / "in", "a.png", "large.png")
    for name in ("pipe.png", "pipe.tar", "pipe.parquet"):
        os.mkfifo(folder / name)
    (folder / "zero.jpg").symlink_to("/dev/zero")
    monkeypatch.setattr(storage, "MOST_BYTES", 7)
    place = storage.place_of(str(folder))
    says = {"pipe.png": "a pipe", "zero.jpg": "a device", "large.png": "at most 7"}
    (images,) = ids(listing(str(folder), 10))
    assert images == ["a.png", *sorted(says)]
    for name, text in says.items():
        with pytest.raises(OSError, match=text):
            storage.read(place, str(folder / name))
    with pytest.raises(OSError, match="a pipe"):
        storage.read(place, str(folder / "pipe.png"), 0, 4)
    with pytest.raises(OSError, match="at most 7"):
        storage.read(place, str(folder / "a.png"), 0, 8)
    for name in ("pipe.parquet", "pipe.tar"):
        with pytest.raises(UsageError, match="there are no images"):
            listing(str(folder / name), 10)


def test_a_folder_is_looked_through_in_order(tmp_path: Path) -> None:
    folder = files(
        tmp_path / "in", "b.png", "a/2.JPG", "a/1.jpeg", "notes.txt", ".hidden.png", ".git/x.png"
    )
    found = listing(str(folder), 2)
    assert ids(found) == [["a/1.jpeg", "a/2.JPG"], ["b.png"]]
    assert found.images == 3
    assert contents(found)["a/2.JPG"] == b"a/2.JPG"
    assert [shard.name.rsplit("-", 1)[0] for shard in found.shards] == ["part-000000", "part-000001"]


def test_the_same_images_give_the_same_names_and_others_do_not(tmp_path: Path) -> None:
    folder = files(tmp_path / "in", "a.png", "b.png")
    first = listing(str(folder), 10)
    assert listing(f"{folder}/", 10).digest == first.digest
    assert listing(f"file://{folder}", 10).digest == first.digest
    files(folder, "c.png")
    assert listing(str(folder), 10).digest != first.digest
    (folder / "c.png").unlink()
    (folder / "b.png").write_bytes(b"another image of this name")
    assert listing(str(folder), 10).digest != first.digest


def test_images_of_tar_files_are_read_from_the_middle(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    tar(folder / "b.tar", "x/1.png", "x/2.png", "x/3.png", "readme.md")
    files(folder, "single.png")
    found = listing(str(folder), 2)
    assert ids(found) == [
        ["single.png"],
        ["b.tar/x/1.png", "b.tar/x/2.png"],
        ["b.tar/x/3.png"],
    ], "a shard ends where a tar file ends"
    assert contents(found)["b.tar/x/3.png"] == b"x/3.png"
    alone = listing(str(folder / "b.tar"), 100)
    assert ids(alone) == [["b.tar/x/1.png", "b.tar/x/2.png", "b.tar/x/3.png"]]


@pytest.mark.slow
def test_a_list_names_paths_beside_it_and_elsewhere(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    folder = files(tmp_path / "in", "lists/a.png", "other/b.png")
    paths = ["a.png", str(folder / "other" / "b.png"), f"file://{folder}/other/b.png"]
    target = folder / "lists" / "images.parquet"
    parquet.write_table(pyarrow.table({"path": paths, "id": [7, 8, 9]}), target)
    found = listing(str(target), 2)
    assert ids(found) == [["7", "8"], ["9"]]
    assert contents(found) == {"7": b"lists/a.png", "8": b"other/b.png", "9": b"other/b.png"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"file": ["a.png"]}, "has the columns file, wanted `path`"),
        ({"path": ["a.png", "a.png"]}, "two images have the id 'a.png'"),
        ({"path": [None]}, "row 0 of the list has the path None"),
        ({"path": [3]}, "row 0 of the list has the path 3"),
    ],
)
def test_a_list_that_says_something_else(tmp_path: Path, columns: dict, says: str) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    parquet.write_table(pyarrow.table(columns), tmp_path / "images.parquet")
    with pytest.raises(InputError, match=says):
        listing(str(tmp_path / "images.parquet"), 10)


@pytest.mark.slow
def test_a_list_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "images.parquet").write_bytes(b"PAR1 and nothing")
    with pytest.raises(InputError, match="the list cannot be read"):
        listing(str(tmp_path / "images.parquet"), 10)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        listing(str(tmp_path / "none"), 10)
    with pytest.raises(UsageError, match="there are no images"):
        listing(str(files(tmp_path / "in", "a.txt")), 10)
    with pytest.raises(UsageError, match="this is a file"):
        listing(str(tmp_path / "in" / "a.txt"), 10)
    with pytest.raises(UsageError, match="compressed tar"):
        listing(str(tar(tmp_path / "a.tar.gz", "x.png", mode="w:gz")), 10)
    (tmp_path / "broken.tar").write_bytes(b"x" * 700)
    with pytest.raises(InputError, match="cannot be read"):
        listing(str(tmp_path / "broken.tar"), 10)
    with pytest.raises(UsageError, match="Protocol not known"):
        listing("nothing://there", 10)


def test_a_protocol_whose_library_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def missing(*_: object, **__: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(MissingError, match="s3: needs a library") as caught:
        listing("s3://bucket/images", 10)
    assert "fsspec[s3]" in caught.value.hint


def test_a_passing_fault_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_PAUSE_S", 0.0)
    calls = []

    class Faulty:
        def cat_file(self, path: str) -> bytes:
            calls.append(path)
            if len(calls) < 3:
                raise TimeoutError("the network is slow")
            return b"bytes"

    place = storage.StoragePlace(Faulty(), "/")  # type: ignore[arg-type]
    assert storage.read(place, "a") == b"bytes"
    calls.clear()
    calls.extend(["one", "two", "three"])
    monkeypatch.setattr(Faulty, "cat_file", lambda *_: (_ for _ in ()).throw(TimeoutError("gone")))
    with pytest.raises(TimeoutError):
        storage.read(place, "a")


def test_a_folder_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its images would be left out, and nobody would hear of them."""
    from fsspec.implementations.local import LocalFileSystem

    (tmp_path / "closed").mkdir()
    (tmp_path / "one.png").write_bytes(b"1")
    real = LocalFileSystem.ls

    def ls(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if str(path).rstrip("/").endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(self, path, *arguments, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", ls)
    with pytest.raises(InputError, match="Permission denied"):
        listing(str(tmp_path), 5)
