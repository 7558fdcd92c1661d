"""Image files below a folder, whatever the layout: which count as images, and how one is opened."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from optcli.environment import pip_install
from optcli.errors import InputError, counted, excerpt
from optcli.files import regular_files

SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".jfif",
    ".jpe",
    ".png",
    ".bmp",
    ".webp",
    ".tif",
    ".tiff",
    ".gif",
    ".ppm",
    ".pgm",
    ".pbm",
)
_HEIC = (".heic", ".heif")  # read where pillow-heif is installed
# What is opened as an image, whatever it is called: Pillow's other readers are little used, and that of
# EPS starts Ghostscript on what it finds.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF", "PPM")
_ORIENTATION, _QUARTER_TURNS = 0x0112, (5, 6, 7, 8)  # EXIF
_TEXTS = (
    *(".txt", ".json", ".jsonl", ".xml", ".csv", ".tsv", ".yaml", ".yml", ".md", ".cache", ".html"),
    *(".py", ".pdf", ".rst", ".log"),
)
_OF_SYSTEMS = ("Thumbs.db", "desktop.ini")
_MOST_KINDS = 5
_MOST_FOLDERS = 50_000  # a tree that is no set of images: a whole disk, say


def open_image(path: str) -> Any:
    """An image of Pillow, decoded. Raises `InputError` where the file is none."""
    try:
        with regular_files.opened(path) as stream:
            return decoded(stream, path)
    except OSError as error:
        raise _no_image(path, error) from error


def decoded(stream: IO[bytes], place: str) -> Any:
    """An image of Pillow from the bytes at a place. Raises `InputError` where they are none."""
    from PIL import Image

    try:
        with Image.open(stream, formats=_formats()) as image:
            image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _no_image(place, error) from error
    return image


def passed_over(*folders: Path) -> list[str]:
    """How many files below the folders are no images by their suffix, in one sentence; none: no files.

    Annotations, lists and descriptions are not counted.
    """
    kinds = Counter(
        os.path.splitext(name)[1].lower()
        for folder in folders
        for _, _, names in os.walk(folder)
        for name in names
        if _shown(name) and not (is_image(name) or name.lower().endswith(_TEXTS) or name in _OF_SYSTEMS)
    )
    if not kinds:
        return []
    listed = ", ".join(f"{count} {kind or 'without'}" for kind, count in kinds.most_common(_MOST_KINDS))
    count = kinds.total()
    mend = f" ({pip_install('heic')} reads .heic)" if {*_HEIC} & kinds.keys() else ""
    phrase = "file is no image by its suffix, and is", "files are no images by their suffix, and are"
    return [f"{counted(count, *phrase)} left out: {listed}{mend}"]


def id_of(path: str) -> str:
    r"""The id of an image by its path: text that any file and report can hold.

    A name that is no UTF-8 has its bytes written out, as in `caf\udce9.png`.
    """
    return path.replace(os.sep, "/").encode("utf-8", "backslashreplace").decode("utf-8")


def size_of(path: Path, *, oriented: bool) -> tuple[int, int]:
    """Width and height from the header of an image. Raises `InputError` where the file is none.

    `oriented`: as it is when it is turned by its EXIF orientation.
    """
    from PIL import Image

    try:
        with regular_files.opened(path) as stream, Image.open(stream, formats=_formats()) as image:
            width, height = image.size
            turned = oriented and image.getexif().get(_ORIENTATION) in _QUARTER_TURNS
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _no_image(path, error) from error
    return (height, width) if turned else (width, height)


def _no_image(path: str | Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(
        f"not a readable image: {excerpt(reason, 200)}",
        place=str(path),
        hint="replace the file or take it out of the data",
    )


def folders_in(base: Path) -> list[str]:
    """The sorted names of the folders in a folder, without hidden ones and links that lead up."""
    return sorted(
        entry.name
        for entry in os.scandir(base)
        if entry.is_dir() and _shown(entry.name) and not _leads_up(str(base), entry.name)
    )


def folders_down_to(base: Path, depth: int) -> Iterator[Path]:
    """A folder and those below it, level by level, to a depth: the outer ones first."""
    level = [base]
    for _ in range(depth + 1):
        yield from level
        level = [folder / name for folder in level for name in folders_in(folder)]


def images_below(base: Path) -> Iterator[str]:
    """Paths of all images below a folder, links followed; one that leads back up adds nothing.

    Raises `InputError` for a folder that is reached in two ways: its images would count twice.
    """
    seen: dict[tuple[int, int], str] = {}
    for root, folders, names in os.walk(base, followlinks=True):
        status = os.stat(root)
        first = seen.setdefault((status.st_dev, status.st_ino), root)
        folders[:] = [name for name in filter(_shown, folders) if not _leads_up(root, name)]
        if len(seen) > _MOST_FOLDERS:
            raise InputError(
                f"more than {_MOST_FOLDERS} folders lie below {excerpt(str(base))}",
                hint="name the folder of the images itself",
            )
        if first != root:
            raise InputError(
                f"{os.path.basename(root)} and {os.path.basename(first)} are the same folder",
                place=root,
                hint="remove the link: each image counts once",
            )
        yield from (os.path.join(root, name) for name in names if is_image(name))


def _leads_up(root: str, name: str) -> bool:
    """Whether a folder is a link to the one that it lies in, or to one above that."""
    place = os.path.join(root, name)
    if not os.path.islink(place):
        return False
    own, target = os.path.realpath(root), os.path.realpath(place)
    return os.path.commonpath([own, target]) == target


@cache
def _reads_heic() -> bool:
    return find_spec("pillow_heif") is not None


@cache
def _formats() -> tuple[str, ...]:
    """What Pillow may open here."""
    if not _reads_heic():
        return FORMATS
    import pillow_heif

    pillow_heif.register_heif_opener()
    return (*FORMATS, "HEIF")


def is_image(name: str) -> bool:
    """Whether a file counts as an image, by its name."""
    return _shown(name) and name.lower().endswith((*SUFFIXES, *(_HEIC if _reads_heic() else ())))


def _shown(name: str) -> bool:
    return not name.startswith(".")
