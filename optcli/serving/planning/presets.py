"""Presets: targets that people name in practice, each a plan file in `preset_files/`."""

from __future__ import annotations

from pathlib import Path

from optcli.errors import UsageError, did_you_mean
from optcli.recipe.budget import ReadingBudget
from optcli.recipe.nodes import Node, Place, Problems
from optcli.recipe.reading import read

FOLDER = Path(__file__).parent / "preset_files"


def names() -> list[str]:
    """The names of all presets."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def text(name: str) -> str:
    """The plan file of a preset. Raises `UsageError` where there is none of the name."""
    if name not in names():
        raise UsageError(
            f"there is no preset {name!r}", place="--preset", hint=did_you_mean(name, names())
        )
    return (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def node(name: str, place: Place, problems: Problems) -> Node:
    """A preset as nodes, its name included; an empty mapping where there is none, which is noted."""
    if name not in names():
        problems.add(place, f"there is no preset {name!r}", did_you_mean(name, names()))
        return Node({}, place)
    node = read(FOLDER / f"{name}.yaml", f"preset {name}", problems, ReadingBudget())
    assert node is not None, f"the preset {name} cannot be read"
    return node
