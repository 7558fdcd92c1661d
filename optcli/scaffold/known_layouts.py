"""Data in a layout that says itself what it is: which parts a recipe takes, and how it names them."""

from __future__ import annotations

from pathlib import Path

from optcli import data, environment
from optcli.data import DataSettings, layouts
from optcli.data.collection import Collection
from optcli.errors import MissingError, counted
from optcli.scaffold import masks
from optcli.scaffold.roles import EVALUATION, Data, limited, require, shares
from optcli.scaffold.wording import relative
from optcli.settings import TensorSpec

# Of one set so much calibrates: boxes want many images to be judged by.
_CALIBRATING = {True: 0.25, False: 0.5}


def described(path: Path, recipe: Path) -> Data | None:
    """What a file or folder is to a recipe in the folder `recipe`; None where no layout knows it.

    Raises `InputError` where the data of a layout that is recognised are not whole, and `MissingError`.
    """
    for kind in layouts.names():
        layout = layouts.find(kind)
        if layout.recognises(path):
            for missing in environment.missing(layout.needs):
                raise MissingError(missing.what, place=str(path), hint=missing.hint)
            data = divided(kind, path, recipe)
            return masks.with_values(data, path) if layout.of_pixels else data
    return None


def divided(kind: str, path: Path, recipe: Path, *more: str) -> Data:
    """The data of a layout, which part of them calibrates and which judges.

    `more` are lines that both roles have. Raises `InputError`.
    """

    def opened(part: str | None) -> Collection:
        settings = _settings(kind, path, part, more)
        require(settings, recipe, path)
        return layouts.find(kind)(settings, recipe)

    every = list(layouts.find(kind)(_settings(kind, path, None, more), recipe).parts())
    parts = [part for part in every if not data.problems(_settings(kind, path, part, more), recipe)]
    usual = [part for name in EVALUATION for part in parts if part.rstrip("0123456789") == name]
    judging = next(iter([*usual, *parts[::-1], *every]), None)
    others = [part for part in parts if part != judging]
    judged = opened(judging)
    if others:
        calibrating = next((p for p in others if p.startswith(("train", "calib"))), others[0])
        count = opened(calibrating).count()
        lines = ((f"split: {calibrating}", *limited(count)), (f"split: {judging}",))
    else:
        share = _CALIBRATING[judged.boxed]
        to, rest = shares(judging, share)
        lines = ((to, *limited(judged.count() * share)), (rest,))
    classes = judged.class_count()
    labels = counted(classes, "class", "classes") if classes else "without labels"
    labels = "each with a mask" if judged.of_pixels else labels
    about = f"{kind}, {counted(judged.count(), 'image')}, {labels}"
    return Data(
        "boxes" if judged.boxed else "classes",
        f"{kind}:{relative(path, recipe)}",
        (*more, *lines[0]),
        (*more, *lines[1]),
        classes=classes,
        about=about,
        notes=(f"the data are read as {about}",),
        beside=_beside(judged) if judged.boxed else (),
    )


def _beside(judged: Collection) -> tuple[str, ...]:
    """What the objects have beside boxes: every target of the data has it."""
    items = judged.open((TensorSpec(name="image", shape=(1, 3, 1, 1)),))
    targets = getattr(items, "targets", lambda: iter(()))()
    _, target = next(targets, ("", {}))
    return tuple(part for part in ("segmentation", "keypoints", "corners") if part in target)


def _settings(kind: str, path: Path, part: str | None, more: tuple[str, ...]) -> DataSettings:
    lines = dict(line.split(": ", 1) for line in more)
    return DataSettings.model_validate({"source": f"{kind}:{path}", "split": part, **lines})
