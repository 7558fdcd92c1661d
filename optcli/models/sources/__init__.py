"""Sources: one file is one kind of place a model comes from.

`torchvision:resnet50` is read by `torchvision.py` in this folder. A source writes the first artifact of
every variant: format `torch` for networks in Python, `onnx` for an ONNX file.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from optcli.artifact import Format
from optcli.environment import Needs
from optcli.files import registry
from optcli.files.digest import FileDigests
from optcli.settings import Settings, TensorSpec


@dataclass(frozen=True)
class SourceFacts:
    """What a source says about the artifact it wrote: the names of its outputs, in order, and more."""

    outputs: tuple[str, ...]
    precision: str = "fp32"
    facts: dict[str, Any] | None = None


class Source(Settings):
    """A model, wherever it is. Paths are absolute or relative to `folder`, the recipe's own."""

    format: ClassVar[Format]
    needs: ClassVar[Needs] = Needs()
    # A file from anywhere, of a format that holds no code: it is opened in a worker that can only read.
    foreign: ClassVar[bool] = False
    # Whether `revision` and `download` mean something.
    pinned: ClassVar[bool] = False

    target: str = Field(description="what stands behind the colon")
    weights: str | None = None
    weights_key: str = Field(default="", description="which of the weights in the file")
    arguments: dict[str, Any] = Field(default_factory=dict)
    folder: Path
    revision: str | None = None
    download: bool = False
    # Said on the command line alone: a recipe cannot, and no key knows of it.
    trust: bool = Field(default=False, description="the person knows who made the file")

    @property
    def kind(self) -> str:
        """What stands before the colon: the name of the source's file."""
        return type(self).__module__.rpartition(".")[2]

    @classmethod
    def format_of(cls, target: str) -> Format:
        """The format of what is written for a target."""
        return cls.format

    def concrete(self) -> Source:
        """The source that reads the target: itself, unless it only knows where that lies."""
        return self

    @abstractmethod
    def problems(self) -> list[tuple[str, str, str]]:
        """What is wrong, without a heavy import: (`source`|`weights`|`arguments`, message, hint)."""

    @abstractmethod
    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        """Everything that decides the model, by content: never a path or a place. Plain JSON data."""

    @abstractmethod
    def write(self, out: Path, inputs: Sequence[TensorSpec]) -> SourceFacts:
        """Write the artifact into an empty folder, in a worker. Raises `InputError` for a bad model."""

    def class_names(self) -> tuple[str, ...] | None:
        """What the weights' library calls the classes, in their order; in a worker, it imports that."""
        return None


def names() -> tuple[str, ...]:
    """The kinds of source: what may stand before the colon."""
    return registry.names(__name__)


def named(
    source: str,
    folder: Path,
    weights: str | None = None,
    arguments: dict[str, Any] | None = None,
    **where: Any,
) -> Source:
    """The source that a recipe writes as `KIND:WHAT`; `where` has other fields of the source.

    Raises `UsageError` for an unknown kind, `MissingError` for what is not on this machine.
    """
    kind, _, target = source.partition(":")
    fields = {"target": target, "weights": weights, "arguments": arguments or {}, "folder": folder}
    return find(kind)(**fields, **where).concrete()


def find(name: str) -> type[Source]:
    """The class of a kind of source. Raises `UsageError` for an unknown one."""
    return registry.find(__name__, name, Source)  # type: ignore[type-abstract]
