"""Images with boxes in COCO's format, as the data of a recipe."""

from __future__ import annotations

from pathlib import Path

from optcli import data, regular_files
from optcli.data import DataSettings
from optcli.errors import InputError
from optcli.scaffold.roles import EVALUATION, Data, limited, require, shares
from optcli.scaffold.wording import relative

_CALIBRATING = 0.25  # the part of one set that calibrates; boxes want many images to be judged by
_MOST_BYTES = 2 * 1024**3


def described(path: Path, recipe: Path) -> Data | None:
    """What a file or folder is to a recipe in the folder `recipe`; None where it is no COCO data.

    Known are `instances.json` beside `images/`, COCO's own `annotations/instances_NAME.json`, and the
    JSON file itself. Raises `InputError` where the images are not there.
    """
    if path.is_file():
        if path.suffix.lower() != ".json":
            return None
        return _shared_out(path, path, recipe, None)
    if (path / "instances.json").is_file():
        return _shared_out(path, path / "instances.json", recipe, None)
    files = {
        file.stem.removeprefix("instances_"): file
        for folder in (path / "annotations", path)
        for file in sorted(folder.glob("instances_*.json"))
    }
    if not files:
        return None
    complete = [name for name in files if not data.problems(_settings(path, name), path)]
    if not complete:
        name = next(iter(files))
        require(_settings(path, name), path, path)
    judging = next((n for n in complete if n.rstrip("0123456789") in EVALUATION), complete[-1])
    others = [name for name in complete if name != judging]
    if not others:
        return _shared_out(path, files[judging], recipe, judging)
    calibrating = next((name for name in others if name.startswith("train")), others[0])
    lines = (
        (f"split: {calibrating}", *limited(_count(files[calibrating], "images"))),
        (f"split: {judging}",),
    )
    return _data(path, recipe, lines, files[judging])


def _shared_out(path: Path, file: Path, recipe: Path, part: str | None) -> Data:
    require(_settings(path, part), path, path)
    to, rest = shares(part, _CALIBRATING)
    lines = ((to, *limited(_count(file, "images") * _CALIBRATING)), (rest,))
    return _data(path, recipe, lines, file)


def _data(path: Path, recipe: Path, lines: tuple[tuple[str, ...], tuple[str, ...]], file: Path) -> Data:
    source = f"coco:{relative(path, recipe)}"
    classes = _count(file, "categories")
    return Data("boxes", source, *lines, classes=classes, about=f"{classes} categories")


def _settings(path: Path, part: str | None) -> DataSettings:
    return DataSettings.model_validate({"source": f"coco:{path}", "split": part})


def _count(file: Path, what: str) -> int:
    """How many images or categories the annotations list. Raises `InputError`."""
    try:
        return len(regular_files.json_of(file, _MOST_BYTES)[what])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"these are no annotations in COCO's format: {type(error).__name__} {error}",
            place=str(file),
            hint="wanted images, annotations with bbox, and categories",
        ) from error
