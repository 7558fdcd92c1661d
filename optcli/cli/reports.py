"""Where the reports of builds lie, found in one way by every verb that reads one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.cli import committed_links
from optcli.errors import UsageError, did_you_mean, shown_path
from optcli.files import regular_files
from optcli.results import Report

if TYPE_CHECKING:
    from optcli.store import Store

RECIPES = (".yaml", ".yml")
_FILE = "report.json"
_FOLDER = "artifacts"
_AGAIN = "run `optcli build RECIPE` first, or name the folder with --artifacts"


@dataclass(frozen=True)
class FoundReport:
    """A report, its file, and the folder of artifacts in which it was laid out.

    The path of its recipe is one that can be opened from the current folder, where it can be found.
    `recipe` is the file by which the report was asked for.
    """

    report: Report
    path: Path
    root: Path
    recipe: Path | None = None

    def store(self, explicit: Path | None) -> Path | None:
        """The store that the build used: as `--store` and OPTCLI_STORE say, else beside the report."""
        neighbour = self.root / ".store"
        if explicit is not None or os.environ.get("OPTCLI_STORE") or not neighbour.is_dir():
            return explicit
        return neighbour

    def own_store(self, explicit: Path | None) -> Path | None:
        """The same for verbs that open what the store holds: that is trusted.

        A store beside a report that was named by its path came with that report. It counts only where
        it is the one of this folder, or of one above it.
        """
        return explicit if self.is_from_elsewhere else self.store(explicit)

    def opened(self, explicit: Path | None) -> Store:
        """The store of `own_store`."""
        from optcli.store import Store

        committed_links.refuse(self.root)
        return Store(Store.default_root(self.own_store(explicit)))

    @property
    def is_from_elsewhere(self) -> bool:
        """Whether it was named by its path, and lies neither here nor in a folder above."""
        here = Path.cwd()
        return self.recipe is None and self.root.resolve().parent not in (here, *here.parents)


def root(explicit: Path | None) -> Path:
    """Where artifacts and reports are laid out by a build that is run here."""
    named = os.environ.get("OPTCLI_ARTIFACTS") or _FOLDER
    return (explicit or Path(named)).expanduser().absolute()


def root_to_write(explicit: Path | None) -> Path:
    """The same for what writes there. Raises `UsageError` where a link of a commit leads elsewhere."""
    place = root(explicit)
    committed_links.refuse(place)
    return place


def nearest(explicit: Path | None) -> Path:
    """The folder of artifacts to look into: where one is named that, else the nearest with a report."""
    places = _places(None, explicit)
    return next((place for place in places if _reports(place)), places[0])


def find(where: Path | None, explicit: Path | None) -> FoundReport:
    """The report of a report file or its folder, of a recipe, of its name, or else the newest.

    `explicit` is `--artifacts`. Without it and OPTCLI_ARTIFACTS, `artifacts` is looked for in the
    current folder, then beside the recipe, and in the folders above either. Raises `UsageError` with
    the places that were looked at, and `RecipeError` for a recipe that cannot be read.
    """
    if where is not None and where.suffix == ".json":
        return _read(where, where.absolute().parent.parent)
    recipe = where if where is not None and where.suffix in RECIPES else None
    places = _places(recipe, explicit)
    if where is None:
        newest = ((files[-1], place) for place in places if (files := _reports(place)))
        for file, place in newest:
            return _read(file, place)
        raise _nothing("", places)
    if recipe is not None:
        return _of_recipe(recipe, places)
    if (where / _FILE).is_file():
        return _read(where / _FILE, where.absolute().parent)
    for place in places:
        if (place / where / _FILE).is_file():
            return _read(place / where / _FILE, place)
    raise _nothing(where.name, places)


def _places(recipe: Path | None, explicit: Path | None) -> list[Path]:
    """Folders of artifacts to look into, the likeliest first; there is at least one."""
    if explicit is not None or os.environ.get("OPTCLI_ARTIFACTS"):
        return [root(explicit)]
    begin = [Path.cwd()]
    if recipe is not None:
        begin.append(Path(shown_path(recipe)).absolute().parent)
    folders = [folder for start in begin for folder in (start, *start.parents)]
    candidates = dict.fromkeys(folder / _FOLDER for folder in folders)
    return [place for place in candidates if place.is_dir() or place == begin[0] / _FOLDER]


def _reports(place: Path) -> list[Path]:
    return sorted(place.glob(f"*/{_FILE}"), key=lambda path: path.stat().st_mtime)


def _of_recipe(recipe: Path, places: Sequence[Path]) -> FoundReport:
    """The report of a recipe: the one that speaks of this very file, else one of its name."""
    from optcli.recipe import name_of

    name = name_of(recipe)
    candidates = [
        _read(place / name / _FILE, place) for place in places if (place / name / _FILE).is_file()
    ]
    own = [each for each in candidates if _is_file(each.report.recipe.path, recipe)]
    # One of the name alone may come from another machine. Further away it must not be of another
    # recipe that is still there.
    likely = [
        each
        for each in candidates
        if each.root == places[0] or _is_like(each.report.recipe.path, recipe)
    ]
    chosen = next(iter([*own, *likely]), None)
    if chosen is None:
        raise _nothing(name, places)
    chosen = replace(chosen, recipe=recipe)
    if Path(chosen.report.recipe.path).is_file():
        return chosen
    summary = chosen.report.recipe.model_copy(update={"path": str(recipe)})
    return replace(chosen, report=chosen.report.model_copy(update={"recipe": summary}))


def _read(path: Path, place: Path) -> FoundReport:
    """A report; the path of its recipe counts from where it was built, usually the folder above."""
    report = Report.load(path)
    recorded = report.recipe.path
    if recorded and not os.path.isabs(recorded):
        above = [place.parent] if place.name == _FOLDER else []
        files = [each / recorded for each in (*above, Path.cwd(), place.parent)]
        file = next((each for each in files if each.is_file()), Path(recorded))
        summary = report.recipe.model_copy(update={"path": shown_path(file)})
        report = report.model_copy(update={"recipe": summary})
    return FoundReport(report, path, place)


def _is_file(recorded: str, recipe: Path) -> bool:
    try:
        return Path(recorded).samefile(recipe)
    except OSError:
        return False


def _is_like(recorded: str, recipe: Path) -> bool:
    """Whether a report may be of a recipe: the one that it names is gone, or reads the same."""
    try:
        return regular_files.read(recorded) == regular_files.read(recipe)
    except OSError:
        return True


def _nothing(name: str, places: Sequence[Path]) -> UsageError:
    """The error for a report that is missing: it names the folders that were searched."""
    names = sorted({path.parent.name for place in places for path in _reports(place)})
    looked = ", ".join(shown_path(place / name) for place in places)
    hint = (did_you_mean(name, names) if name else "") or _AGAIN
    return UsageError("no report here yet", place=looked, hint=hint)
