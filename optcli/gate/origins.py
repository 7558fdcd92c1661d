"""Where the baseline comes from: a commit, a saved build, a file or a URL; and what judged it."""

from __future__ import annotations

import filecmp
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from optcli import data
from optcli.errors import (
    InputError,
    OptcliError,
    RecipeError,
    RunnerError,
    StepError,
    UsageError,
    first_line,
)
from optcli.files import regular_files
from optcli.files.digest import FileDigests
from optcli.gate import baselines, other_interpreter
from optcli.gate.baselines import Baseline, CheckedOut
from optcli.gate.other_interpreter import interpreter_of, versions_in
from optcli.gate.terms import suggested_by
from optcli.observer import Observer
from optcli.pipeline.execute import BuildSettings
from optcli.pipeline.labels import with_labels
from optcli.pipeline.plan import source_of
from optcli.pipeline.terms import judging_code, judging_files, terms_of
from optcli.pipeline.trusting import is_from_file, opened_as
from optcli.recipe import Recipe, load
from optcli.results.gate import Change, ChangeKind, Terms, Unversioned
from optcli.settings import user_code
from optcli.store import Store

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


_Kind = Literal["untracked-model", "untracked-data"]


_GIT = "git:"


# What is wrong with a commit's recipe, model or data; not what this machine lacks.
_ITS_OWN = (InputError, RecipeError, RunnerError, StepError, UsageError)


@dataclass(frozen=True)
class GateRun:
    """How the gate runs; what it demands stands in the recipe.

    `only` names variants to judge instead of those marked `gate: true`. `baseline_python` is the
    interpreter (or its virtual environment) for the baseline. `history` is a file to append to.
    `accept` are the changes of what the candidate is judged by that whoever runs the gate declares.
    `ray` is the cluster of the devices that `gate.devices` names: `auto` or an address.
    """

    only: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    jobs: int = 1
    timeout_s: float = 3600.0
    trust: bool = False
    baseline_python: Path | None = None
    on_inconclusive: Literal["fail", "pass"] | None = None
    confirm: bool | None = None
    history: Path | None = None
    accept: frozenset[ChangeKind] = frozenset()
    ray: str | None = None


class Origin(ABC):
    """A baseline before it is made: its terms are known, its artifacts may have to be built.

    `terms` is None where they are not known; `recipe` is the one of the commit, where it can be read.
    """

    terms: Terms | None = None
    recipe: Recipe | None = None

    @abstractmethod
    def suggested(self) -> tuple[str, ...]:
        """The variants that its build recommends, or cannot tell apart from those."""

    @abstractmethod
    def made(self, names: Sequence[str], packages: Sequence[str]) -> Baseline:
        """The baseline's artifacts of these variants; `packages` run the candidate's artifacts."""

    def changes(self, candidate: Recipe) -> list[Change]:
        """What keeps the two sides from being independent of each other, besides the terms."""
        return []


@contextmanager
def opened(
    reference: str,
    recipe: Path,
    artifacts: Path,
    store: Store,
    observer: Observer,
    settings: BuildSettings,
    options: GateRun,
    folder: Path,
) -> Iterator[Origin]:
    """The origin that a reference stands for, as long as the block runs; a commit is checked out.

    It is called before anything is built, so that a wrong name fails at once. Raises `UsageError` and
    `InputError`.
    """
    if not reference.startswith(_GIT):
        with baselines.fetch(reference, artifacts) as pack:
            held = baselines.load(pack, reference, store, trust=options.trust)
        yield _Saved(_confined(held), options)
        return
    revision = reference.removeprefix(_GIT)
    with baselines.checked_out(recipe, revision, store) as there:
        origin = reference if revision.startswith(there.commit[:7]) else ""
        origin = origin or f"{reference} ({there.commit[:10]})"
        yield _Commit(origin, there, store, observer, settings, options, folder)


def _confined(held: Baseline) -> Baseline:
    """The baseline with what this store made of somebody's file marked as such."""
    confined = {
        name: variant
        if variant.artifact.foreign or not is_from_file(variant.made_by)
        else replace(
            variant,
            artifact=opened_as(variant.artifact, from_file=True, trust=variant.artifact.trusted),
        )
        for name, variant in held.variants.items()
    }
    return replace(held, variants=confined)


class _Saved(Origin):
    """A build that was packed, with its report."""

    def __init__(self, held: Baseline, options: GateRun) -> None:
        self._held, self._options = held, options
        record = held.report.judged_by if held.report is not None else None
        try:
            self.terms = None if record is None else Terms.model_validate(record)
        except ValueError:  # of an optcli that knew other settings
            self.terms = None

    def suggested(self) -> tuple[str, ...]:
        return () if self._held.report is None else suggested_by(self._held.report)

    def made(self, names: Sequence[str], packages: Sequence[str]) -> Baseline:
        held = ", ".join(self._held.variants) or "nothing"
        absent = {
            name: f"the saved baseline does not hold this variant, only {held}"
            for name in names
            if name not in self._held.variants
        }
        baseline, python = replace(self._held, absent=absent), self._options.baseline_python
        if python is None:
            return baseline
        there = interpreter_of(python)
        environment = {**baseline.environment, "versions": versions_in(there, packages)}
        return replace(baseline, environment=environment, interpreter=there)


@dataclass
class _Commit(Origin):
    """The recipe as it was at a commit, built through the same store: equal steps are not repeated."""

    _origin: str
    _there: CheckedOut
    _store: Store
    _observer: Observer
    _settings: BuildSettings
    _options: GateRun
    _folder: Path
    _unreadable: str = ""

    def __post_init__(self) -> None:
        try:
            recipe = load(self._there.recipe, self._options.overrides)
            self.recipe = with_labels(recipe, self._store)
            self.terms = terms_of(self.recipe, self._store.digests)
        except _ITS_OWN as error:  # a recipe that this optcli refuses, or data that are gone
            self.recipe, self._unreadable = None, self._first_line(error)

    def suggested(self) -> tuple[str, ...]:
        if self.recipe is None:
            return ()
        request = self._request(())
        try:
            if self._options.baseline_python is None:
                return other_interpreter.suggested(request, self._observer)
            return other_interpreter.suggested_with(self._python(), request, self._log("suggest"))
        except _ITS_OWN as error:
            self.recipe, self._unreadable = None, self._first_line(error)
            return ()

    def made(self, names: Sequence[str], packages: Sequence[str]) -> Baseline:
        baseline = Baseline("", {}, (), {}, None, dict.fromkeys(names, self._unreadable))
        if self.recipe is not None:
            try:
                baseline = self._built(names)
            except _ITS_OWN as error:
                baseline = replace(baseline, absent=dict.fromkeys(names, self._first_line(error)))
        absent = {
            name: f"the variant could not be built as it was at {self._origin}: {why}"
            for name, why in baseline.absent.items()
        }
        return replace(baseline, origin=self._origin, absent=absent)

    def _built(self, names: Sequence[str]) -> Baseline:
        request = self._request(names)
        if self._options.baseline_python is None:
            return other_interpreter.build(request, self._observer)
        return other_interpreter.build_with(self._python(), request, self._observer, self._log("build"))

    def changes(self, candidate: Recipe) -> list[Change]:
        changes = in_submodules(candidate, self._there, self._store.digests)
        if self.recipe is not None:
            changes += unversioned(self.recipe, self._there, self._store.digests)
        if self._options.baseline_python is None:
            # Both sides run in today's libraries: what other ones change is not seen.
            changed = self._there.changed_requirements()
            if changed:
                changes.append(Change(kind="libraries", place="requirements", files=tuple(changed)))
        return changes

    def _request(self, names: Sequence[str]) -> other_interpreter.BuildRequest:
        return other_interpreter.BuildRequest(
            self._there.recipe,
            tuple(self._options.overrides),
            tuple(names),
            self._store.root,
            self._folder / "baseline",
            self._settings,
            self._store.remote_place,
        )

    def _python(self) -> str:
        assert self._options.baseline_python is not None
        return interpreter_of(self._options.baseline_python)

    def _log(self, what: str) -> Path:
        return self._folder / "logs" / f"baseline.{what}.log"

    def _first_line(self, error: OptcliError) -> str:
        """The first line, without the place of the worktree."""
        return first_line(error).replace(f"{self._there.worktree}/", "")


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


def _named(recipe: Recipe, digests: FileDigests) -> Iterator[tuple[_Kind, str, Sequence[Path]]]:
    """Every file that decides an artifact or a judgement, by the part of the recipe that names it."""
    yield "untracked-model", "recipe", recipe.read_from
    noting = _Noting(digests)
    # A pointer of git-lfs is no model that can be read: then there is only the file itself.
    with suppress(OptcliError, OSError):
        source_of(recipe).ingredients(noting)
    weights = recipe.model.weights
    plain = (recipe.model.source.partition(":")[2], weights and weights.file)
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


def _as_committed(today: Path, committed: Path) -> bool:
    """Whether the commit has a file as it is today: code on PYTHONPATH comes from today's checkout."""
    if Path(os.path.realpath(committed)) == today:  # a link to today's
        return False
    try:
        return filecmp.cmp(today, committed, shallow=False)
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
