"""Files of a recipe that its commit does not hold: both sides of a comparison then use today's."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from optcli import data, regular_files, user_code
from optcli.baselines import CheckedOut
from optcli.digest import FileDigests
from optcli.errors import OptcliError
from optcli.pipeline.plan import source_of
from optcli.pipeline.terms import judging_code, judging_files
from optcli.recipe import Recipe
from optcli.results.gate import Change, Unversioned

_POINTER = b"version https://git-lfs.github.com/spec/"
_LARGEST_POINTER_BYTES = 1024
_DATA = Path(data.__file__).parent


class _Noting(FileDigests):
    """Digests that note the files they are asked for: the files that decide a key."""

    def __init__(self, known: FileDigests) -> None:
        super().__init__()
        self._from, self.noted = known, list[Path]()

    def of(self, path: Path) -> str:
        self.noted.append(Path(path))
        return self._from.of(path)


def unversioned(recipe: Recipe, there: CheckedOut, digests: FileDigests) -> list[Change]:
    """What the recipe of a commit names and the commit does not hold, one entry for each reason.

    A file counts as the commit's only where it lies, all links followed, in the worktree itself: what
    git ignores or never had, and what lies beside the repository, is linked into it from today's; or
    where today's is as the commit has it.
    """
    changes = []
    for kind, place, files in _named(recipe, digests):
        reasons: dict[Unversioned, list[str]] = {}
        for file in dict.fromkeys(files):
            why = _why_not_of_the_commit(file, there)
            if why is not None:
                reasons.setdefault(why, []).append(_shown(file, there))
        changes += [
            Change(kind=kind, place=place, unversioned=why, files=tuple(names))
            for why, names in reasons.items()
        ]
    return changes


def in_submodules(recipe: Recipe, there: CheckedOut, digests: FileDigests) -> list[Change]:
    """What the recipe, as it is now, names in submodules: a checked-out commit has these empty."""
    modules = [os.path.realpath(there.top / each) for each in there.submodules()]
    changes = []
    for kind, place, files in _named(recipe, digests) if modules else ():
        names = [
            str(Path(real).relative_to(os.path.realpath(there.top)))
            for real in map(os.path.realpath, dict.fromkeys(files))
            if any(real.startswith(f"{module}{os.sep}") for module in modules)
        ]
        if names:
            changes.append(Change(kind=kind, place=place, unversioned="submodule", files=tuple(names)))
    return changes


_Kind = Literal["untracked-model", "untracked-data"]


def _named(recipe: Recipe, digests: FileDigests) -> Iterator[tuple[_Kind, str, Sequence[Path]]]:
    """Every file that decides an artifact or a judgement, by the part of the recipe that names it."""
    yield "untracked-model", "recipe", recipe.read_from
    noting = _Noting(digests)
    # A pointer of git-lfs is no model that can be read: then there is only the file itself.
    with suppress(OptcliError, OSError):
        source_of(recipe).ingredients(noting)
    plain = (recipe.model.source.partition(":")[2], recipe.model.weights)
    own = [file for name in plain if name and (file := recipe.folder / name).is_file()]
    yield "untracked-model", "model", [*own, *noting.noted]
    references = {"plugins": list(recipe.plugins.values())}
    uses = [use for variant in recipe.variants.values() for use in variant.passes]
    references["variants"] = [use.reference for use in uses if use.reference]
    references |= {place: [reference] for place, reference in judging_code(recipe).items()}
    for place, listed in references.items():
        files: list[Path] = []
        for reference in listed:
            code = user_code.closure(reference, recipe.folder)
            files += [*code.files, *(file for _, file in code.outside)]
        yield "untracked-model", place, files
    for place, file in judging_files(recipe).items():
        yield "untracked-data", place, [file]
    for role, settings in recipe.data.items():
        noting = _Noting(digests)
        with suppress(OptcliError, OSError):
            data.ingredients(settings, recipe.folder, noting)
        # optcli's own files are part of the key as well.
        files = [each for each in noting.noted if _DATA not in each.parents]
        if (file := recipe.folder / settings.place).is_file():
            files.append(file)
        yield "untracked-data", f"data.{role}", files


def _why_not_of_the_commit(file: Path, there: CheckedOut) -> Unversioned | None:
    real = Path(os.path.realpath(file))
    if not real.is_relative_to(os.path.realpath(there.worktree)):
        top = Path(os.path.realpath(there.top))
        if not real.is_relative_to(top):
            return "outside"
        return None if _as_committed(real, there.worktree / real.relative_to(top)) else "untracked"
    return "lfs" if _is_pointer(real) else None


def _as_committed(today: Path, then: Path) -> bool:
    """Whether the commit has a file as it is today: code on PYTHONPATH comes from today's checkout."""
    if Path(os.path.realpath(then)) == today:  # a link to today's
        return False
    try:
        return filecmp.cmp(today, then, shallow=False)
    except OSError:
        return False


def _is_pointer(file: Path) -> bool:
    try:
        if file.stat().st_size > _LARGEST_POINTER_BYTES:
            return False
        with regular_files.opened(file) as stream:
            return stream.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def _shown(file: Path, there: CheckedOut) -> str:
    """As people know it: below the repository, else its real place."""
    real = Path(os.path.realpath(file))
    for top in (there.worktree, there.top):
        if real.is_relative_to(os.path.realpath(top)):
            return real.relative_to(os.path.realpath(top)).as_posix()
    return str(real)
