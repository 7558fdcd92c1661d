"""What the `data.yaml` of a data set of YOLO says: its classes, its parts and where they lie."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.data.text_files import text_of, yaml_of
from optcli.errors import InputError, excerpt
from optcli.files import regular_files

PARTS = ("train", "val", "test")
OTHER_NAMES = {"validation": "val", "valid": "val"}
_WANTED = "wanted names, and train, val or test: folders of images or lists of them"


@dataclass(frozen=True)
class YoloDescription:
    """What the YAML file says, or the list of classes where there is no such file.

    `count` is how many classes there are, `keypoints` how many an object has and the numbers of each.
    `parts` has the places of each part, `roots` the folders that these may be relative to, in order.
    """

    file: Path
    names: tuple[str, ...] | None
    count: int | None
    keypoints: tuple[int, int] | None
    parts: dict[str, tuple[str, ...]]
    roots: tuple[Path, ...]


def about(path: Path, folder: Path | None = None) -> YoloDescription:
    """The description of a data set by its YAML file, or by the folder that holds it.

    A relative `path` in it may start from the `folder` of the recipe too. Raises `InputError`.
    """
    file = description_in(path)
    if file is None and regular_files.is_file(path / "data.yaml"):
        file = path / "data.yaml"  # what is wrong with it is said below
    if file is None:
        classes = _list_of_classes(path)
        if classes is None:
            message = "there is no data.yaml" if path.is_dir() else "there is no such file or folder"
            raise InputError(message, place=str(path), hint=f"a YAML file, {_WANTED}")
        lines = (line.strip() for line in text_of(classes, _WANTED).splitlines())
        listed = tuple(line for line in lines if line)
        return YoloDescription(classes, listed, len(listed), None, _folders_in(path), (path,))
    content = yaml_of(file, _WANTED)
    names = _names(content.get("names"), file)
    count = _count(content.get("nc"), names, file)
    parts: dict[str, tuple[str, ...]] = {}
    for key, value in content.items():
        part = OTHER_NAMES.get(key, key)
        if part in PARTS and value and part not in parts:
            parts[part] = _places(value, f"{file}, {key}")
    if not parts:
        raise InputError("found no train, val or test", place=str(file), hint=_WANTED)
    return YoloDescription(
        file,
        names,
        count,
        _keypoints(content.get("kpt_shape"), file),
        parts,
        _roots(content, file, folder),
    )


def description_in(path: Path) -> Path | None:
    """The YAML file that describes a data set: the file itself, or one in the folder; else None."""
    if regular_files.is_file(path):
        return path
    usual = [path / name for name in ("data.yaml", "data.yml", "dataset.yaml", f"{path.name}.yaml")]
    others = [path / each for each in regular_files.names_in(path) if each.endswith((".yaml", ".yml"))]
    return next((file for file in dict.fromkeys([*usual, *others]) if describes(file)), None)


def described_below(folder: Path) -> bool:
    """Whether a folder has such a file, or a list of classes with labels of YOLO."""
    if description_in(folder) or regular_files.is_file(folder / "data.yaml"):
        return True
    classes = _list_of_classes(folder)
    return classes is not None and any(
        name.endswith(".txt") and name != classes.name
        for place in (folder, folder / "labels", *folder.glob("obj_*_data"))
        for name in regular_files.names_in(place)
    )


def _list_of_classes(folder: Path) -> Path | None:
    """The file with a class a line, of Label Studio or of Darknet; None: there is none."""
    names = regular_files.names_in(folder)
    lists = ["classes.txt", *(name for name in names if name.endswith(".names"))]
    return next((folder / name for name in lists if regular_files.is_file(folder / name)), None)


def _folders_in(path: Path) -> dict[str, tuple[str, ...]]:
    """The parts of a folder without a YAML file: those of Darknet, or all of it."""
    parts: dict[str, tuple[str, ...]] = {}
    for folder in sorted(path.glob("obj_*_data")):  # CVAT's, with labels beside images
        part = folder.name.removeprefix("obj_").removesuffix("_data").lower()
        parts[OTHER_NAMES.get(part, part)] = (folder.name,)
    return parts or {"all": ("images" if (path / "images").is_dir() else ".",)}


def describes(file: Path) -> bool:
    """Whether a file is a description of a data set as YOLO has it."""
    if not (file.suffix.lower() in (".yaml", ".yml") and regular_files.is_file(file)):
        return False
    try:
        content = yaml_of(file, _WANTED)
    except InputError:
        return False
    return ("names" in content or "nc" in content) and bool({*PARTS, *OTHER_NAMES} & content.keys())


def _places(value: Any, place: str) -> tuple[str, ...]:
    places = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in places):
        raise InputError(
            "found no path", place=place, hint="a folder, a list of folders, or a .txt file"
        )
    return tuple(places)


def _names(value: Any, file: Path) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, dict):
        numbers = {int(key): name for key, name in value.items() if str(key).isdecimal()}
        if sorted(numbers) != list(range(len(value))):
            message = f"the names have the numbers {excerpt(', '.join(map(str, value)))}"
            hint = "number the classes from 0 without gaps"
            raise InputError(message, place=f"{file}, names", hint=hint)
        value = [numbers[number] for number in range(len(numbers))]
    if not isinstance(value, list) or not all(isinstance(name, str | int | float) for name in value):
        raise InputError("found no names of classes", place=f"{file}, names", hint="names: [cat, dog]")
    return tuple(str(name) for name in value)


def _count(value: Any, names: tuple[str, ...] | None, file: Path) -> int | None:
    if value is None:
        return len(names) if names is not None else None
    if not isinstance(value, int) or (names is not None and value != len(names)):
        few = "" if names is None else f", and {len(names)} names"
        hint = "nc is the number of names, and may be left out"
        raise InputError(f"found {excerpt(str(value))}{few}", place=f"{file}, nc", hint=hint)
    return value


def _keypoints(value: Any, file: Path) -> tuple[int, int] | None:
    if value is None:
        return None
    sound = (
        isinstance(value, list) and len(value) == 2 and all(isinstance(n, int) and n > 0 for n in value)
    )
    if not sound or value[1] not in (2, 3):
        message = f"found {excerpt(str(value))}, wanted two numbers"
        hint = "how many keypoints an object has, and 2 or 3 numbers for each: kpt_shape: [17, 3]"
        raise InputError(message, place=f"{file}, kpt_shape", hint=hint)
    return value[0], value[1]


def _roots(content: Mapping[str, Any], file: Path, folder: Path | None) -> tuple[Path, ...]:
    """Where the parts may be relative to: what `path` names, and where the file itself lies."""
    own = content.get("path")
    if not isinstance(own, str) or not own:
        return (file.parent,)
    inner = regular_files.expanded(own)
    places = [file.parent, *([folder] if folder else []), *_ultralytics_folder()]
    return (*(place / inner for place in places), file.parent)


def _ultralytics_folder() -> Iterator[Path]:
    """The folder of data sets in the settings of Ultralytics, as far as this machine has them."""
    base = os.environ.get("YOLO_CONFIG_DIR") or regular_files.expanded("~/.config/Ultralytics")
    try:
        yield Path(regular_files.json_of(Path(base) / "settings.json")["datasets_dir"])
    except (OSError, ValueError, KeyError, TypeError):
        return


def place(base: Path, text: str) -> Path | None:
    """The folder, list or image that a text names from `base`; None where there is none.

    `../train/images` of Roboflow's files means `train/images`, and of an absolute path of another
    machine the end may be here: two parts at least, since `images` alone may be those of another part.
    """
    plain = text.replace("\\", "/")
    parts = plain.split("/")[1:] if plain.startswith("/") or plain[1:3] == ":/" else []
    ends = ("/".join(parts[start:]) for start in range(len(parts) - 1))
    for each in (text, text.removeprefix("../"), plain, *ends):
        path = Path(os.path.normpath(base / regular_files.expanded(each)))
        if regular_files.is_folder(path) or regular_files.is_file(path):
            return path
    return None
