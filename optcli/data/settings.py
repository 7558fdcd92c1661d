"""What a recipe says about one data role: where its samples come from, which, and how prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from optcli.artifact import EMBEDDED_STEPS
from optcli.data.preparation import Preparation
from optcli.files import regular_files
from optcli.settings import Abbreviated
from optcli.settings.labels import LabelSettings
from optcli.settings.references import RecipePath, SourceReference

if TYPE_CHECKING:
    from optcli.data.collection import Collection


class Split(Abbreviated):
    """A part of a data source: by name, by a file that lists ids, or by a seeded shuffle.

    `split: train` is short for `{name: train}`. What a name means is up to the source: a value of the
    array `split` in an npz, a subfolder of an image folder, `train` or `test` of a torchvision set.
    `file` is a text file with one id a line, a JSON list of ids, or a JSON mapping from names to such
    lists, of which `name` takes one. `seed` shuffles the samples by id and takes the share between
    `from` and `to`; a sample that is added later moves few of the others. `of` is the named part that
    `file` or `seed` choose from.
    """

    model_config = ConfigDict(populate_by_name=True)
    short_for: ClassVar[str] = "name"

    name: str | None = Field(None, min_length=1, description="name of the split, or of the list of ids")
    file: Annotated[RecipePath, Field(min_length=1)] | None = Field(
        None, description="a file that lists ids"
    )
    seed: int | None = Field(None, description="seed of the shuffle by id")
    start: float = Field(
        0.0, ge=0, le=1, alias="from", description="where in the shuffle the part begins, as a fraction"
    )
    stop: float = Field(
        1.0, ge=0, le=1, alias="to", description="where in the shuffle the part ends, as a fraction"
    )
    of: str | None = Field(None, min_length=1, description="the named part to choose from")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.seed is not None and (self.file or self.name):
            raise ValueError("wanted either seed with from and to, or file, or name; found several")
        if self.seed is None and not (self.file or self.name):
            raise ValueError("wanted name, file or seed; found none of them")
        if self.seed is None and (self.start, self.stop) != (0, 1):
            raise ValueError("from and to are parts of a seeded shuffle: wanted a seed beside them")
        if self.start >= self.stop:
            raise ValueError(f"wanted from < to, found from {self.start}, to {self.stop}")
        if self.of and not (self.file or self.seed is not None):
            raise ValueError("of names the part that file or seed choose from: wanted one of them")
        return self

    @property
    def part(self) -> str | None:
        """The named part of the source itself that is read; None: all of it."""
        return self.of if self.file or self.seed is not None else self.name


def _layout(kind: str) -> type[Collection]:
    """The layout of a kind, which says itself what it reads and holds; of an unknown kind any."""
    from optcli.data import layouts
    from optcli.data.collection import Collection

    return layouts.find(kind) if kind in layouts.names() else Collection


class _DataReference(SourceReference):
    def is_file(self, kind: str) -> bool:
        return _layout(kind).reads == "path"

    def code(self, text: str) -> str | None:
        kind, _, what = text.partition(":")
        return what if _layout(kind).reads == "code" else None


# Of what most roles do not set: their samples are what they were.
_USUAL: tuple[tuple[str, Any], ...] = (
    ("labels", None),
    ("first_pixel", None),
    ("first_label", None),
    ("missing", "refuse"),
    ("allow_difference", False),
    ("without", []),
)


class DataSettings(Abbreviated):
    """Where the samples of one role come from, which of them are taken and how they are prepared.

    `source` is the [layout](sources.md#data) of the data and their place, such as `npz:PATH` or
    `torchvision:DATASET`; paths are relative to the recipe. `samples` takes that many, spread
    evenly over the split by `seed`. Nothing is downloaded unless `download` says so.
    """

    short_for: ClassVar[str] = "source"

    source: Annotated[str, _DataReference()] = Field(
        min_length=1,
        description="the layout of the data, a colon, and where they lie",
        examples=["npz:digits.npz", "imagefolder:photos", "torchvision:CIFAR10"],
    )
    root: RecipePath | None = Field(
        None, description="torchvision: the folder that holds the data set; coco: that of the images"
    )
    download: bool = Field(False, description="torchvision: fetch the data set where it is missing")
    split: Split | None = None
    samples: int | None = Field(None, ge=1, description="how many to take; default: all of the split")
    seed: int = Field(0, description="seed by which `samples` chooses")
    without: tuple[str, ...] = Field((), description="ids of samples that are left out of those chosen")
    prepare: Preparation | None = None
    allow_difference: bool = Field(
        False, description="its images may get other values from `prepare` than those of `evaluation`"
    )
    input: str | None = Field(None, description="the input that gets the image; default: the first")
    array: str | None = Field(
        None, description="npz, parquet: the array or column behind `input`; default: its name"
    )
    target: str | None = Field(
        None,
        description="npz, parquet, table: the array or column of the labels; default: target, label, y",
    )
    first_pixel: Literal[0, 1] | None = Field(
        None,
        description="voc: the number of an image's first pixel; default: 0 where a box begins below 1,"
        " else 1, as in Pascal VOC",
    )
    table: RecipePath | None = Field(
        None,
        description="imagefolder: a file with the path and the label of each image: text, CSV or JSON",
    )
    first_label: int | None = Field(
        None,
        description="table: the number of the first class, where the labels are numbers: 0 or 1",
    )
    missing: Literal["refuse", "skip"] = Field(
        "refuse",
        description="coco, table: what to do where an image is named that is not there; `skip` leaves"
        " it out, and the report says how many",
    )
    labels: LabelSettings | None = Field(
        None, description="which class numbers its labels are; default: what the recipe's `labels` says"
    )

    arguments: dict[str, Any] = Field(
        default_factory=dict, description="python: keyword arguments of the callable"
    )
    files: tuple[RecipePath, ...] = Field(
        (),
        description="python: files and folders that the code reads; their content is part of the key",
    )

    @field_validator("source")
    @classmethod
    def _kind_and_place(cls, value: str) -> str:
        kind, _, place = value.partition(":")
        if not kind or not place:
            raise ValueError(f"wanted KIND:PLACE such as npz:digits.npz, found {value!r}")
        return value

    @property
    def kind(self) -> str:
        """What stands before the colon of `source`."""
        return self.source.partition(":")[0]

    @property
    def place(self) -> str:
        """What stands behind the colon of `source`."""
        return self.source.partition(":")[2]

    @property
    def layout(self) -> type[Collection]:
        """The layout of the source: what it reads and holds, as its own file declares it."""
        return _layout(self.kind)

    @property
    def runs_code(self) -> bool:
        """Whether reading the samples runs Python of the recipe's own."""
        return self.layout.reads == "code"

    @property
    def holds_inputs(self) -> bool:
        """Whether it holds arrays that are the model's inputs already: no step prepares them."""
        return self.layout.holds == "arrays" and self.prepare is None

    def with_paths(self, moved: Callable[[str], str]) -> DataSettings:
        """The same data with every path in the settings changed; the user's code is left as it is."""
        changed: dict[str, Any] = {"files": tuple(map(moved, self.files))}
        if self.layout.reads == "path":
            changed["source"] = f"{self.kind}:{moved(self.place)}"
        for name in ("root", "table"):
            if path := getattr(self, name):
                changed[name] = moved(path)
        if self.split is not None and self.split.file:
            changed["split"] = self.split.model_copy(update={"file": moved(self.split.file)})
        return self.model_copy(update={k: v for k, v in changed.items() if v != getattr(self, k)})

    def located(self, folder: Path) -> DataSettings:
        """The same data with an absolute path in a preset that names a folder of a recipe's."""
        kind, _, what = ((self.prepare and self.prepare.preset) or "").partition(":")
        place = folder / Path(what).expanduser()
        if kind != "hf" or not regular_files.is_folder(place):
            return self
        prepare = self.prepare.model_copy(update={"preset": f"hf:{place.absolute()}"})  # type: ignore[union-attr]
        return self.model_copy(update={"prepare": prepare})

    def for_model(self, facts: Mapping[str, Any]) -> DataSettings:
        """The same data for a model that does some of the preparation itself, as its facts say."""
        inside = facts.get(EMBEDDED_STEPS)
        if inside not in ("values", "all") or self.prepare is None:
            return self
        prepare = self.prepare.model_copy(update={"inside": inside, "layout": None})
        return self.model_copy(update={"prepare": prepare, "input": None})

    def without_paths(self) -> Mapping[str, Any]:
        """Plain JSON data of all that decides the samples beside the content of files."""
        record = self.model_dump(
            mode="json",
            by_alias=True,
            exclude={"source", "root", "table", "download", "files"},
        )
        if record["split"]:
            record["split"].pop("file")
        for name, default in _USUAL:
            if record[name] == default:
                record.pop(name)
        return {"kind": self.kind, **record}
