"""Where samples come from and how they are prepared: one file is one kind of source.

`npz:digits.npz` is read by `optcli/data/layouts/npz.py`. Checking and keys need no heavy library;
samples are opened in workers, decoded one at a time, and every one is checked against the model's
inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import environment
from optcli.data import hf, layouts
from optcli.data.collection import Collection, Finding
from optcli.data.labels import LabelledItems, Labels, with_map
from optcli.data.preparation import Preparation, other_values
from optcli.data.selection import disjoint
from optcli.data.settings import DataSettings
from optcli.environment import version
from optcli.errors import InputError, MissingError, did_you_mean, excerpt, raised_as
from optcli.files import regular_files
from optcli.files.digest import FileDigests
from optcli.settings import TensorSpec, fed
from optcli.settings.labels import LabelSettings

if TYPE_CHECKING:
    from optcli.data.samples import PreparedSet

ONE_PREPARATION = (
    "give both the same `prepare`, with a YAML anchor for example, or set allow_difference: true there"
    " if the model takes both"
)


def problems(settings: DataSettings, folder: Path) -> list[Finding]:
    """What is wrong with a role's data, without a heavy import: (field, message, hint).

    `folder` is the one that paths are relative to. Looks at what exists, not into the samples.
    """
    known = layouts.names()
    if settings.kind not in known:
        hint = did_you_mean(settings.kind, known)
        return [("source", f"unknown data source {settings.kind!r}", hint)]
    findings = []
    split = settings.split
    if split and split.file:
        path = folder / regular_files.expanded(split.file)
        if wrong := regular_files.problem(path, excerpt(split.file)):
            findings.append(("split.file", wrong, "a path relative to the recipe"))
    try:
        return findings + collection(settings, folder).problems()
    except OSError as error:
        reason = error.strerror or str(error)
        return [*findings, ("source", f"cannot be read: {reason}", "look at its permissions")]


def ingredients(settings: DataSettings, folder: Path, digests: FileDigests) -> dict[str, Any]:
    """Everything that decides the samples, by content: never a path. Plain JSON data.

    Imports nothing heavy. Raises `InputError` where files are missing.
    """
    message = "cannot read the data"
    hint = "look at its permissions"
    source = collection(settings, folder)
    with raised_as(InputError, message, of=OSError, reason=str, place=settings.source, hint=hint):
        content = source.ingredients(digests)
    preset = (settings.prepare and settings.prepare.preset) or ""
    library = {"hf": "transformers"}.get(kind := preset.partition(":")[0], kind)
    libraries = {"numpy", "pillow", *source.needs.packages, *([library] if preset else [])}
    if settings.labels is not None:
        labels = with_map(settings.labels, folder)
        settings = settings.model_copy(update={"labels": labels})
    record = dict(settings.without_paths())
    if kind == "hf":
        record["prepare"] = {**record["prepare"], "preset": hf.digest(preset, digests)}
    return {
        "settings": record,
        "content": content,
        "code": digests.of_folder(Path(__file__).parent),
        "versions": {name: version(name) for name in sorted(libraries)},
    }


def listed(settings: DataSettings, folder: Path) -> Iterator[Path]:
    """Files whose names take part in the choice of samples: `ingredients` need not read all of them."""
    return collection(settings, folder).listed()


def open(settings: DataSettings, folder: Path, inputs: Sequence[TensorSpec]) -> PreparedSet:
    """The samples of a role, prepared for a model's inputs and decoded one at a time.

    Inputs with a value are filled here, whatever the source.
    Raises `InputError` for data that cannot be used as declared, `TrustError` for pickled arrays.
    A sample that does not fit the inputs raises `InputError` when it is read.
    """
    from optcli.data.samples import PreparedSet

    source = collection(settings, folder)
    items = source.open(fed(inputs))
    if settings.labels is not None:
        items = LabelledItems(items, _labels(source, settings.labels))
    return PreparedSet(settings, items, inputs)


def class_names(settings: DataSettings, folder: Path) -> tuple[str, ...] | None:
    """What the classes are called, that of number 0 first; None where nobody says.

    Names come from `labels`, class folders, COCO's categories and torchvision's data sets. Raises as
    `open` does.
    """
    source = collection(settings, folder)
    return source.class_names() if settings.labels is None else _labels(source, settings.labels).names


def remarks(settings: DataSettings, folder: Path) -> list[str]:
    """Where images and annotations of a role do not agree, with counts. Raises as `open` does."""
    orient = settings.prepare is not None and settings.prepare.orient
    return collection(settings, folder).remarks(orient)


def _labels(source: Collection, settings: LabelSettings) -> Labels:
    return Labels(with_map(settings, source.folder), source.class_names(), source.class_ids())


def numbers_of_ids(settings: DataSettings, folder: Path) -> dict[int, int]:
    """The class number for each number that the source has, such as COCO's category ids; else empty.

    It is -1 for a class that does not count. Raises as `open` does.
    """
    source = collection(settings, folder)
    labels = None if settings.labels is None else _labels(source, settings.labels)
    numbers = {}
    for label, each in enumerate(source.class_ids()):
        number = label if labels is None else labels.of(label)
        numbers[each] = -1 if number is None else number
    return numbers


def collection(settings: DataSettings, folder: Path) -> Collection:
    """The source of a role. Raises `InputError`, and `MissingError` where its library is not here."""
    known = layouts.names()
    if settings.kind not in known:
        hint = did_you_mean(settings.kind, known)
        raise InputError(f"unknown data source {settings.kind!r}", place=settings.source, hint=hint)
    kind = layouts.find(settings.kind)
    for missing in environment.missing(kind.needs):
        raise MissingError(missing.what, place=settings.source, hint=missing.hint)
    return kind(settings, folder)


def two_preparations(
    roles: Mapping[str, DataSettings], *, presets: bool = False
) -> Iterator[tuple[str, str, list[str]]]:
    """Roles whose images get other values than those of `evaluation`: role, other role, and how.

    A role says itself where that is meant (`allow_difference`). Without evaluation the first role
    counts. `presets` are looked up where they are true, which imports their library.
    """
    from optcli.data.preset import resolved

    pixels = {role: each for role, each in roles.items() if each.layout.holds == "images"}
    if not pixels:
        return
    judged = "evaluation" if "evaluation" in pixels else next(iter(pixels))
    expected = pixels[judged].prepare or Preparation()
    for role, each in pixels.items():
        own = each.prepare or Preparation()
        if role == judged or each.allow_difference or own == expected:
            continue
        if presets:
            own, expected = resolved(own), resolved(expected)
        if own.preset is expected.preset is None and (how := other_values(own, expected)):
            yield role, judged, how
