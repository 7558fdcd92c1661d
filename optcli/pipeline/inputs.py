"""What a step reads: copies of its inputs, so that a pass which changes them harms no other step.

Read-only files do not stop a pass that runs as root. A change in the store itself would be noticed only
after other steps have read it. A copy costs little beside a pass (nothing on file systems that share
blocks), and a changed copy tells which pass changed it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from optcli import digest
from optcli.artifact import Artifact
from optcli.errors import OptcliError, StepError, raised_as, strerror
from optcli.store import disk

_HINT = "read `source.path` only; write into `job.out`, or copy what must be changed"


@dataclass(frozen=True)
class _Copied:
    """One file of an input: the copy, its digest's source, and what the system knew of it."""

    copy: Path
    original: Path
    mark: tuple[int, ...]


class Inputs:
    """The artifacts handed to one step, by name; each is a copy."""

    def __init__(self, artifacts: Mapping[str, Artifact], folder: Path) -> None:
        self._files: list[_Copied] = []
        self._folders: dict[Path, Path] = {}
        self.artifacts = {name: self._copied(artifact, folder) for name, artifact in artifacts.items()}

    def _copied(self, artifact: Artifact, folder: Path) -> Artifact:
        copy = folder / artifact.key[:16]
        if copy not in self._folders:  # the origin of a first pass is its source as well
            self._folders[copy] = artifact.path
            for name, original in disk.plain_files(artifact.path).items():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                _copy(original, copy / name)
                (copy / name).chmod(0o444)
                self._files.append(_Copied(copy / name, original, _mark(copy / name)))
            copy.mkdir(parents=True, exist_ok=True)
        return replace(artifact, path=copy)

    def check(self) -> None:
        """See that the step left its inputs as they were. Raises `StepError` naming the first change.

        Contents are read only of files whose size, times or inode are not what they were.
        """
        for file in self._files:
            name = file.copy.name
            message = f"it removed or replaced {name} of its input"
            with raised_as(StepError, message, of=OSError, reason=strerror, hint=_HINT):
                same = _mark(file.copy) == file.mark
                same = same or digest.of_file(file.copy) == digest.of_file(file.original)
            if not same:
                raise StepError(f"it changed {name} of its input", hint=_HINT)
        copies = {file.copy for file in self._files}
        for folder in self._folders:
            for path in digest.files_below(folder):
                if path not in copies:
                    raise StepError(f"it wrote {path.name} into the folder of its input", hint=_HINT)

    @contextmanager
    def named_as_kept(self) -> Iterator[None]:
        """Errors of the block name the inputs where they are kept, not the copies, which go."""
        try:
            yield
        except OptcliError as error:
            for copy, original in self._folders.items():
                texts = (error.message, error.place, error.hint)
                named = (text.replace(str(copy), str(original)) for text in texts)
                error.message, error.place, error.hint = named
            raise


def _copy(original: Path, copy: Path) -> None:
    """Copy a file, sharing its blocks where the file system can."""
    with suppress(OSError, AttributeError), original.open("rb") as source, copy.open("wb") as target:
        left = os.fstat(source.fileno()).st_size
        while left:
            done = os.copy_file_range(source.fileno(), target.fileno(), left)
            if not done:
                break
            left -= done
        if not left:
            return
    shutil.copyfile(original, copy)


def _mark(path: Path) -> tuple[int, ...]:
    status = path.lstat()
    return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
