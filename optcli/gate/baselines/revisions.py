"""A recipe as it was at a commit: checked out in a worktree that stands where the repository stands.

Recipes name data by relative paths, and data is seldom committed. So the worktree lies in a mirror of
the folders around the repository, with links to all that is not of the commit:

    <store>/revisions/<commit>/home/me/project/     the worktree
    <store>/revisions/<commit>/home/me/project/data -> /home/me/project/data     ignored by git
    <store>/revisions/<commit>/home/me/datasets     -> /home/me/datasets         beside it

Its place is the same each time, so that the digests of data files are remembered.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from optcli.errors import InputError, MissingError, UsageError
from optcli.files import folders, regular_files
from optcli.store import Store, disk

_KIND = "revision"
# Folders that tools make for one checkout; no recipe names them.
_NOT_LINKED = frozenset({".venv", "venv", "node_modules", "__pycache__", ".git"})


# A checkout runs no program: hooks and monitors may be named by a path into the worktree, and so be
# files of the commit. What is in submodules would have to be fetched.
_NOTHING_RUNS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "submodule.recurse": "false",
}
_FILTER = re.compile(r"(filter\..*)\.(?:smudge|process)", re.DOTALL)
# The one filter that is let be: it is installed beside git, and large files are lacking without it.
_LARGE_FILES = ("git-lfs ", "git lfs ")

# Files that say which libraries are installed, wherever they lie in the repository.
_REQUIREMENTS = (
    "*requirements*.txt",
    "*requirements*.in",
    "*requirements*.lock",
    "requirements/*",
    "*/requirements/*",
    "*constraints*.txt",
    "[!.]*.lock",  # a hidden one is a lock of a program, such as optcli's own
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
    "pixi.toml",
    "pylock*.toml",
    "Pipfile",
    "environment*.yml",
    "environment*.yaml",
    "conda-lock*.yml",
    ".python-version",
    ".tool-versions",
    "Dockerfile*",
    "*.dockerfile",
)
# Another file that a line of such a file includes.
_INCLUDED = re.compile(r"(?:-r|-c|--requirement|--constraint)[ =]*(\S+)")
# The parts of a pyproject.toml that name libraries; the rest are settings of other tools.
_DEPENDENCIES = (
    ("project", "dependencies"),
    ("project", "optional-dependencies"),
    ("project", "requires-python"),
    ("dependency-groups",),
    ("tool", "poetry", "dependencies"),
    ("tool", "poetry", "group"),
    ("tool", "uv"),
    ("tool", "pdm"),
    ("tool", "pixi"),
)


@dataclass(frozen=True)
class CheckedOut:
    """A commit in a worktree: `recipe` there, the repository it was taken from at `top`."""

    recipe: Path
    commit: str
    worktree: Path
    top: Path

    def submodules(self) -> list[str]:
        """Folders of submodules, then and now: a worktree has them empty."""
        then = _git(self.top, "ls-tree", "-r", "-z", self.commit).split("\0")
        now = _git(self.top, "ls-files", "--stage", "-z").split("\0")
        return sorted({line.partition("\t")[2] for line in (*then, *now) if line[:6] == "160000"})

    def changed_requirements(self) -> list[str]:
        """Files of requirements and locks whose demands on libraries are not those of the commit."""
        then = _git(self.top, "ls-tree", "-r", "-z", "--name-only", self.commit).split("\0")
        now = _git(self.top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        files = {*then, *now.split("\0")}
        named = {name for name in files if _is_requirements(name)}
        while more := {other for name in named for other in self._included(name)} & files - named:
            named |= more
        # What the commit did not have may be linked into its worktree.
        before = {name: _demands(self.worktree / name) if name in then else None for name in named}
        return sorted(name for name in named if before[name] != _demands(self.top / name))

    def _included(self, name: str) -> list[str]:
        """Files that a requirements file of either side takes in, by their paths in the repository."""
        names = []
        for side in (self.worktree, self.top):
            demands = _demands(side / name)
            for line in demands if isinstance(demands, list) else ():
                match = _INCLUDED.match(str(line))
                if match is not None:
                    names.append(os.path.normpath(os.path.join(os.path.dirname(name), match[1])))
        return names


@contextmanager
def checked_out(recipe: Path, revision: str, store: Store) -> Iterator[CheckedOut]:
    """The recipe and the commit (40 hex digits) of a revision, as long as the block runs.

    Raises `UsageError` where the recipe lies in no repository or the revision is unknown, `InputError`
    where the recipe was not there yet, `MissingError` without git.
    """
    recipe = recipe.absolute()
    top, commit = commit_of(recipe, revision)
    inside = _inside(recipe, top)
    mirror = store.root / "revisions" / commit
    worktree = mirror / top.relative_to(top.anchor)
    with store.lock(_KIND, commit):
        try:
            with disk.failures(store.root):
                _remove(top, worktree, mirror)
                worktree.parent.mkdir(parents=True, exist_ok=True)
            add = ("worktree", "add", "--detach", "--force", str(worktree), commit)
            _git(top, *add, settings=_without_filters(top))
            if not (worktree / inside).is_file():
                raise InputError(
                    f"the recipe did not exist at {revision} ({commit[:10]})",
                    place=inside.as_posix(),
                    hint="name a later revision, or save a baseline with `optcli baseline save`",
                )
            with disk.failures(store.root):
                _link_what_is_not_of_the_commit(top, worktree)
                _link_neighbours(top, worktree)
            yield CheckedOut(worktree / inside, commit, worktree, top)
        finally:
            _remove(top, worktree, mirror)


def _inside(recipe: Path, top: Path) -> Path:
    """Where the recipe lies in the repository, by its name: a link is compared with what had its name.

    Only what leads to the repository may be a link. Raises `UsageError` where a link from outside leads
    to the recipe.
    """
    named = Path(os.path.abspath(recipe))
    for above in named.parents:
        if above.exists() and above.samefile(top):
            return named.relative_to(above)
    raise UsageError(
        "a link from outside of its repository leads to the recipe",
        place=str(recipe),
        hint=f"name the recipe by its path below {top}",
    )


def commit_of(recipe: Path, revision: str) -> tuple[Path, str]:
    """The repository that a recipe lies in, and the commit of a revision of it.

    Raises as `checked_out` does.
    """
    folder = recipe.absolute().parent
    top = Path(_git(folder, "rev-parse", "--show-toplevel", wanted=f"git:{revision}"))
    try:
        return top, _git(top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except InputError as error:
        raise UsageError(
            f"git does not know the revision {revision!r}",
            place=str(top),
            hint="fetch it first; in CI check out with the whole history (`fetch-depth: 0`)",
        ) from error


def _is_requirements(name: str) -> bool:
    """Whether a file of the repository says which libraries are installed."""
    base = name.rpartition("/")[2]
    return any(fnmatch(name if "/" in each else base, each) for each in _REQUIREMENTS)


def committed(place: Path) -> bool:
    """Whether git holds the file, or anything in the folder: who writes commits can have written it."""
    folder = next(each for each in (place, *place.parents) if each.is_dir())
    try:
        done = _run(folder, "ls-files", "-z", "--", str(place))
    except FileNotFoundError:
        return False
    return done.returncode == 0 and bool(done.stdout)


def committed_link(place: Path) -> Path | None:
    """The link that git holds and that leads to a place: who writes commits chose where that is.

    None where there is none.
    """
    for each in (place, *place.parents):
        if each.is_symlink():
            with suppress(FileNotFoundError):  # without git nothing here is of a commit
                if _run(each.parent, "ls-files", "-z", "--", f":(literal){each.name}").stdout:
                    return each
    return None


def _demands(file: Path) -> Any:
    """What a file demands of libraries, for comparing; None where there is no such file."""
    try:
        text = regular_files.read(file).decode(errors="surrogateescape")
    except OSError:
        return None
    if file.name == "pyproject.toml":
        return _of_pyproject(text)
    lines = (line.partition(" #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _of_pyproject(text: str) -> Any:
    import tomllib

    try:
        record = tomllib.loads(text)
    except ValueError:
        return text
    demands = []
    for path in _DEPENDENCIES:
        value: Any = record
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        demands.append(value)
    return demands


def _link_what_is_not_of_the_commit(top: Path, worktree: Path) -> None:
    listed = _git(top, "ls-files", "-z", "--others", "--directory", "--no-empty-directory")
    for name in filter(None, listed.split("\0")):
        there = worktree / name.rstrip("/")
        if not _NOT_LINKED.intersection(there.parts[-1:]) and _is_free(there, worktree):
            there.symlink_to(top / name.rstrip("/"))


def _is_free(place: Path, worktree: Path) -> bool:
    """Whether a link can be made at a place, in folders of the worktree that are made for it.

    It cannot where the commit has something there, or a link or a file on the way.
    """
    above = list(place.parents)
    for folder in reversed(above[: above.index(worktree)]):
        if not os.path.lexists(folder):
            folder.mkdir()
        elif not stat.S_ISDIR(folder.lstat().st_mode):
            return False
    return not os.path.lexists(place)


def _link_neighbours(top: Path, worktree: Path) -> None:
    """Beside the worktree, and beside each folder above it, what lies beside the original."""
    original, copy = top, worktree
    while original != original.parent:
        for neighbour in original.parent.iterdir():
            there = copy.parent / neighbour.name
            if neighbour != original and not os.path.lexists(there):
                there.symlink_to(neighbour)
        original, copy = original.parent, copy.parent


def _remove(top: Path, worktree: Path, mirror: Path) -> None:
    if worktree.exists():
        _run(top, "worktree", "remove", "--force", str(worktree))
    folders.remove(mirror)
    _run(top, "worktree", "prune")


def _without_filters(top: Path) -> dict[str, str]:
    """Settings by which no filter runs that a `.gitattributes` of the commit names."""
    done = _run(top, "config", "-z", "--get-regexp", r"^filter\..*\.(smudge|process)$")
    settings = {}
    for line in done.stdout.split("\0"):
        name, _, command = line.partition("\n")
        match = _FILTER.fullmatch(name)
        if match is not None and not command.startswith(_LARGE_FILES):
            off = {"smudge": "", "process": "", "required": "false"}
            settings.update({f"{match[1]}.{key}": value for key, value in off.items()})
    return settings


def _run(
    folder: Path, *arguments: str, settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # A hook runs with variables that would lead git elsewhere.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    settings = {**_NOTHING_RUNS, **(settings or {})}
    environment["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (name, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    # Names of files need not be UTF-8.
    texts = (os.fsdecode(text) for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(command, done.returncode, *texts)


def _git(
    folder: Path, *arguments: str, wanted: str = "", settings: Mapping[str, str] | None = None
) -> str:
    try:
        done = _run(folder, *arguments, settings=settings)
    except FileNotFoundError as error:
        raise MissingError(
            "git is not installed", place=wanted or "git", hint="install git, or name another baseline"
        ) from error
    if done.returncode == 0:
        return done.stdout.removesuffix("\n")
    lines = done.stderr.strip().splitlines()
    if "not a git repository" in done.stderr:
        raise UsageError(
            "the recipe does not lie in a git repository",
            place=str(folder),
            hint="name a saved baseline, a file or a URL instead of git:REVISION",
        )
    raise InputError(
        f"git {arguments[0]} failed: {lines[-1] if lines else f'exit code {done.returncode}'}",
        place=str(folder),
        hint="try the same command in a shell",
    )
