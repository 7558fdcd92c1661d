"""Networks of the user's own: `python:models/digits.py:DigitsNet`, `python:package.module:make`.

The callable is a class or function that returns an `nn.Module`; `arguments` are passed to it by name.
The code and every local module it imports are copied into the artifact, so that a later edit does
not change an old artifact.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from optcli import environment
from optcli.artifact import Format
from optcli.environment import Needs
from optcli.errors import InputError, shown_path
from optcli.files import regular_files
from optcli.files.digest import FileDigests
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_build, torch_weights
from optcli.models.sources import Source, SourceFacts, _network
from optcli.settings import TensorSpec, user_code

if TYPE_CHECKING:
    import torch

_CODE_SUFFIXES = (".py", ".pyc", ".pyi", ".so", ".pyd", ".dll")
# What installers write beside a package: the interpreter finds entry points and versions by it.
_INSTALLERS = (".egg-info", ".dist-info")
_METADATA = ("entry_points.txt", "METADATA", "PKG-INFO", "RECORD", "top_level.txt")
_WRITING = os.O_WRONLY | os.O_RDWR
# A file that the code opens by itself is in no key: after a change of it optcli would reuse an old
# result. An audit hook sees such files.
# An audit hook cannot be taken away again: there is one, which tells whoever watches.
_watching: list[list[str]] = []
_hooked: list[bool] = []


class PythonSource(Source):
    """A network that a Python file or module makes."""

    format: ClassVar[Format] = Format.TORCH
    needs: ClassVar[Needs] = Needs(("torch",))

    def problems(self) -> list[tuple[str, str, str]]:
        problems = []
        problem = user_code.problem(self.target, self.folder)
        if problem is not None:
            problems.append(("source", *problem))
        if self.weights is not None:
            problems += _network.weights_problems(self.folder, self.weights)
        return problems

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        weights: dict[str, Any] = {"random": torch_build.SEED}
        if self.weights is not None:
            weights = _network.weights_ingredients(self, digests)
        return {
            "kind": "python",
            "code": user_code.digest(self.target, self.folder, digests),
            "arguments": self.arguments,
            "weights": weights,
            "versions": environment.versions(["torch"]),
        }

    def write(self, out: Path, inputs: Sequence[TensorSpec]) -> SourceFacts:
        code = out / torch_format.CODE
        code.mkdir(parents=True)
        source = {
            "kind": "python",
            "reference": user_code.copy(self.target, self.folder, code),
            "arguments": self.arguments,
        }
        weights = f"random (seed {torch_build.SEED})"
        if self.weights is not None:
            # Before the user's code runs: weights that cannot be trusted stop everything.
            path = _network.weights_path(self.folder, self.weights)
            checkpoint = torch_weights.read_checkpoint(path, self.weights_key)
        with _watched() as opened:
            model = self._built(source, code)
        self._refuse_unseen(opened, out)
        if self.weights is not None:
            key = checkpoint.load_into(model, self._classes(source, code))
            weights = _network.named_weights(path, key)
        facts = {
            "source": f"python:{Path(user_code.parse(self.target).file_or_module).name}"
            f":{user_code.parse(self.target).name}",
            "weights": weights,
        }
        return _network.write(model, out, source, inputs, facts)

    def _refuse_unseen(self, opened: Sequence[str], out: Path) -> None:
        """Raise `InputError` where the network has read a file that no key holds."""
        recipe_files = [_network.weights_path(self.folder, self.weights)] if self.weights else []
        folders = (self.folder, Path.cwd())
        project_files = _project_files(opened, folders, recipe_files)
        unseen = [path for path in project_files if not path.is_relative_to(os.path.realpath(out))]
        if unseen:
            raise InputError(
                f"the network reads {shown_path(unseen[0])} while it is made: another file there"
                " would not be noticed",
                place=f"python:{self.target}",
                hint="give weights by `model.weights`, numbers by `model.arguments`",
            )

    def _built(self, source: dict[str, Any], code: Path) -> torch.nn.Module:
        """The network from the copy of the code; errors name the user's files, not the copy's."""
        try:
            return torch_build.build(source, code)
        except InputError as error:
            copied, own = str(code), str(user_code.closure(self.target, self.folder).root)
            texts = (error.message, error.place, error.hint)
            message, place, hint = (text.replace(copied, own) for text in texts)
            raise type(error)(message, place=place, hint=hint) from error

    def _classes(self, source: dict[str, Any], code: Path) -> str:
        """The argument that sets the number of classes, if the callable has one."""
        builder = user_code.load(source["reference"], code)
        try:
            names = list(inspect.signature(builder).parameters)
        except (TypeError, ValueError):
            return ""
        return next((name for name in names if "classes" in name), "")


@contextmanager
def _watched() -> Iterator[list[str]]:
    """The paths, as they were given, of all that this process opens to read as long as the block runs.

    By Python's own `open` and `os.open`; what a library opens in C is not seen.
    """
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_note_opened)
    paths: list[str] = []
    _watching.append(paths)
    try:
        yield paths
    finally:
        _watching.remove(paths)


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _watching:
        return
    path, _, flags = arguments
    if isinstance(path, str | bytes | os.PathLike) and not (flags or 0) & _WRITING:
        for paths in _watching:
            paths.append(os.fsdecode(path))


def _project_files(
    paths: Sequence[str], folders: Sequence[Path], recipe_files: Sequence[Path]
) -> list[Path]:
    """Which of these are files of a person's project: below one of its folders, and no code.

    What is hidden (`.cache`, `.venv`) or installed is not the project's. `recipe_files` are those
    that the recipe names.
    """
    tops = [Path(os.path.realpath(folder)) for folder in folders]
    named = {os.path.realpath(path) for path in recipe_files}
    files: dict[Path, None] = {}
    for path in map(os.path.realpath, paths):
        inside = [Path(path).relative_to(top).parts for top in tops if Path(path).is_relative_to(top)]
        hidden = any(part.startswith(".") or part == "site-packages" for i in inside for part in i)
        metadata = Path(path).parent.name.endswith(_INSTALLERS) and Path(path).name in _METADATA
        other = hidden or path in named or path.endswith(_CODE_SUFFIXES) or metadata
        if inside and not other and regular_files.is_file(path):
            files[Path(path)] = None
    return list(files)
