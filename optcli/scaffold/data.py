"""What a folder is as the data of a recipe: COCO's annotations, masks, or class folders."""

from __future__ import annotations

import os
from pathlib import Path

from optcli.data import DataSettings, class_names
from optcli.data.image_files import SUFFIXES
from optcli.errors import InputError
from optcli.scaffold import coco, masks
from optcli.scaffold.roles import Data, limited, require, shares, two_parts
from optcli.scaffold.wording import relative


def described(place: Path, recipe: Path) -> Data:
    """What data are to a recipe in the folder `recipe`.

    Raises `InputError`.
    """
    path = place.expanduser().absolute()
    if not path.exists():
        raise InputError("there is no such folder", place=str(place), hint="--data FOLDER of images")
    annotated = coco.described(path, recipe)
    if annotated is not None:
        return annotated
    if not path.is_dir():
        raise InputError(
            "this is no folder of images, and no annotations in COCO's format",
            place=str(place),
            hint="--data FOLDER of class folders, of images beside masks, or with instances.json",
        )
    return masks.described(path, recipe) or _class_folders(path, recipe)


def images_below(folder: Path) -> int:
    """How many images lie below a folder."""
    return sum(name.lower().endswith(SUFFIXES) for _, _, names in os.walk(folder) for name in names)


def _class_folders(path: Path, recipe: Path) -> Data:
    names = sorted(each.name for each in path.iterdir() if each.is_dir())
    parts = two_parts(names)
    if parts:
        first, second = parts
        lines = ((f"split: {first}", *limited(images_below(path / first))), (f"split: {second}",))
    else:
        to, rest = shares()
        lines = ((to, *limited(images_below(path) / 2)), (rest,))
    said = {"source": f"imagefolder:{path}", "split": parts[1] if parts else None}
    settings = DataSettings.model_validate(said)
    require(settings, path, path)
    classes = len(class_names(settings, path) or ())
    source = f"imagefolder:{relative(path, recipe)}"
    about = "one folder per class" if classes else "images without labels"
    return Data("classes", source, *lines, classes=classes or None, about=about)
