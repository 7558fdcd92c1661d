"""What a folder is as the data of a recipe: a layout that is known, masks, tables, or class folders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from optcli.data import DataSettings, class_names
from optcli.data.image_files import is_image
from optcli.data.image_tables import tabled
from optcli.errors import InputError, counted, excerpt
from optcli.scaffold import known_layouts
from optcli.scaffold.known_layouts import (
    CALIBRATION,
    EVALUATION,
    Data,
    limited,
    require,
    shares,
    two_parts,
)
from optcli.scaffold.wording import quoted, relative

_TABLES = (".csv", ".tsv", ".txt", ".json", ".jsonl")
# Folders that hold the halves of a data set, and are no classes.
_HALVES = ("annotation", "annotations", "images", "imagesets", "jpegimages", "labels", "labeltxt")
_NO_CLASSES = {*_HALVES, *CALIBRATION, *EVALUATION}
_ANNOTATIONS = (*_TABLES, ".xml", ".yaml", ".yml", ".mat", ".npy", ".h5", ".pkl", ".tfrecord")
_READ = (
    "YOLO (data.yaml with names and val), COCO's JSON, Pascal VOC (XML), masks beside images, class"
    " folders, a table of paths and labels (table: FILE), metadata.csv of Hugging Face, Parquet, or a"
    " callable (python:FILE.py:NAME)"
)


def described(place: Path, recipe: Path) -> Data:
    """What data are to a recipe in the folder `recipe`.

    Raises `InputError`, and `MissingError` where the library of a layout is not here.
    """
    path = place.expanduser().absolute()
    if not path.exists():
        raise InputError("there is no such folder", place=str(place), hint="--data FOLDER of images")
    if known := known_layouts.described(path, recipe):
        return known
    if not path.is_dir():
        message = "this is no folder of images, and no file that describes one"
        raise InputError(message, place=str(place), hint=f"read are {_READ}")
    return _folders(path, recipe)


def images_below(folder: Path) -> int:
    """How many images lie below a folder."""
    return sum(is_image(name) for _, _, names in os.walk(folder) for name in names)


def _folders(path: Path, recipe: Path) -> Data:
    """Images in class folders, or flat with their labels in a table, or without labels."""
    names = sorted(each.name for each in path.iterdir() if each.is_dir())
    parts = two_parts(names)
    if parts:
        first, second = parts
        lines = ((f"split: {first}", *limited(images_below(path / first))), (f"split: {second}",))
    else:
        to, rest = shares()
        lines = ((to, *limited(images_below(path) / 2)), (rest,))
    by_part = {}
    for part in parts or (None,):
        settings = DataSettings.model_validate({"source": f"imagefolder:{path}", "split": part})
        require(settings, path, path)
        by_part[part] = class_names(settings, path) or ()
    classes = tuple(sorted({name for each in by_part.values() for name in each}))
    halves, others = [name for name in classes if name.lower() in _NO_CLASSES], _neighbours(path)
    if len(classes) < 2 or halves:  # a folder of images is no class where a table has their labels
        for folder in (path, *(path / name for name in names)):
            if labelled := _labelled(folder, recipe):
                return labelled
    if halves and others:
        raise InputError(
            f"found folders that are no classes: {', '.join(halves)}; {others}",
            place=str(path),
            hint=f"read are {_READ}",
        )
    if classes == tuple(halves) == tuple(names) and len(names) == 1:
        return _folders(path / names[0], recipe)
    source = f"imagefolder:{relative(path, recipe)}"
    about = "one folder per class" if classes else "images without labels"
    notes = [
        f"{part} has no folder of the classes {', '.join(excerpt(name) for name in absent[:5])}"
        for part, own in by_part.items()
        if (absent := [name for name in classes if name not in own])
    ]
    if not classes and others:
        notes.append(f"no labels were found: {others}, which no layout reads; read are {_READ}")
    return Data(
        "classes", source, *lines, classes=len(classes) or None, about=about, notes=tuple(notes)
    )


def _labelled(path: Path, recipe: Path) -> Data | None:
    """A flat folder whose labels stand in a table in it or beside it; None: there is none."""
    for file in _tables(path):
        line = f"table: {quoted(relative(file, recipe))}"
        for first in (None, 1):
            settings = DataSettings(source=f"imagefolder:{path}", table=str(file), first_label=first)
            try:
                read = tabled(file, path, path, settings)
            except InputError:
                continue
            more = (line,) if first is None else (line, f"first_label: {first}")
            data = known_layouts.divided("imagefolder", path, recipe, *more)
            notes = [
                f"the labels stand in {file.name}: {counted(len(read.images), 'image')},"
                f" {counted(read.classes, 'class', 'classes')}"
            ]
            if first is not None:
                notes.append(f"`first_label: {first}` is a guess: no label is 0")
            several = any(isinstance(target, list) for _, target in read.images.values())
            return replace(data, notes=tuple(notes), several=several)
    return None


def _tables(path: Path) -> Iterator[Path]:
    for folder in (path, path.parent):
        yield from sorted(each for each in folder.iterdir() if each.suffix.lower() in _TABLES)


def _neighbours(path: Path) -> str:
    """What lies below a folder beside images, in words; empty where nothing does."""
    kinds: Counter[str] = Counter()
    for _, _, names in os.walk(path):
        suffixes = (os.path.splitext(name)[1].lower() for name in names)
        kinds.update(suffix for suffix in suffixes if suffix in _ANNOTATIONS)
    listed = ", ".join(f"{count} {suffix}" for suffix, count in kinds.most_common(5))
    return excerpt(f"beside the images lie {listed}") if kinds else ""
