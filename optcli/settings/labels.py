"""What a recipe may say under `labels`: how the labels of the data become the model's class numbers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from optcli.settings import Settings
from optcli.settings.references import RecipePath

ClassName = Annotated[str, Field(min_length=1, max_length=200)]
Level = Annotated[int, Field(ge=0, le=255)]
Colour = tuple[Level, Level, Level]


class LabelSettings(Settings):
    """Which class number of the model each label of the data is.

    A class is written by its name. Where the data have no names, and where no class has that name, it
    is written as its number: COCO's category id, the value in a mask, the label in an npz.
    """

    map: dict[str, int | ClassName] | RecipePath = Field(
        default_factory=dict,
        description="class number, or class name of the model, by class of the data; a mapping, or a"
        " YAML or JSON file with one",
    )
    ignore: tuple[int | ClassName, ...] = Field(
        (),
        description="classes of the data whose images, boxes and pixels are left out",
    )
    colours: tuple[Colour, ...] = Field(
        (),
        description="of masks in colours: red, green and blue of each class, in the order of their"
        " numbers; a mask with another colour is an error",
    )
    offset: int = Field(
        0,
        description="added to each label that `map` does not name: 1 where the model's 0 is background",
    )
    numbering: Literal["consecutive", "ids"] = Field(
        "consecutive",
        description="`ids`: the model counts by the category ids of COCO's annotations, gaps included",
    )
    classes: Annotated[tuple[ClassName, ...], Field(min_length=1)] | None = Field(
        None,
        description="the model's classes in its order, by which labels are numbered; default:"
        " `class_names`, what the model itself says, or the classes of the data together",
    )
