"""What the sources of networks that a library knows by name share: torchvision and timm."""

from __future__ import annotations

import re
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from optcli import environment
from optcli.artifact import Format
from optcli.errors import MissingError, first_line
from optcli.files.digest import FileDigests
from optcli.models.formats import torch_build
from optcli.models.sources import Source, _network
from optcli.settings.references import is_weights_file

RANDOM = f"random (seed {torch_build.SEED})"


class LibrarySource(Source):
    """A network by its name in `library`; `weights` is a file or an entry of the library.

    `names` is what such a name looks like, `wanted` says it in words.
    """

    format: ClassVar[Format] = Format.TORCH
    library: ClassVar[str]
    names: ClassVar[str]
    wanted: ClassVar[str]

    def problems(self) -> list[tuple[str, str, str]]:
        problems = []
        if not re.fullmatch(self.names, self.target):
            wrong = f"{self.target!r} is not the name of a {self.library} model"
            problems.append(("source", wrong, f"wanted {self.wanted}"))
        if self._has_file():
            problems += _network.weights_problems(self.folder, str(self.weights))
        elif self.weights_key:
            wrong = f"{self.weights} is no file in which {self.weights_key!r} could be"
            problems.append(("weights", wrong, "leave the key out, or name a file"))
        return problems

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        weights: dict[str, Any] = {"random": torch_build.SEED}
        if (file := self._file()) is not None:
            weights = {**_network.weights_ingredients(self, digests), **self._of_file(file)}
        elif self.weights is not None:
            weights = self._of_entry(self.weights)
        return {
            "kind": self.library,
            "name": self.target,
            "arguments": self.arguments,
            "weights": weights,
            "versions": environment.versions(["torch", self.library]),
        }

    @abstractmethod
    def _of_entry(self, weights: str) -> dict[str, Any]:
        """What belongs to the key for weights of the library's own."""

    def _of_file(self, file: Path) -> dict[str, Any]:
        """What belongs to the key for a file beside its digest."""
        return {}

    def _has_file(self) -> bool:
        """Whether `weights` means a file and not what the library knows."""
        return self.weights is not None and is_weights_file(self.weights, self.folder)

    def _file(self) -> Path | None:
        return _network.weights_path(self.folder, str(self.weights)) if self._has_file() else None


def not_here(weights: object, error: Exception, hint: str) -> MissingError:
    """The error for weights that are neither in a cache nor can be fetched."""
    return MissingError(
        f"the weights {weights} are not on this machine and cannot be downloaded: {first_line(error)}",
        place="model.weights",
        hint=hint,
    )
