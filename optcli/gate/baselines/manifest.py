"""The manifest, first member of a baseline's pack, checked against the forms that `save` writes.

A pack can come from anybody. What it says of itself is checked here, before anything of it is used:
names that are folders, digests, formats, runners with their options, and facts of known kinds.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from optcli import runners
from optcli.artifact import Artifact, Format
from optcli.errors import UsageError
from optcli.files import digest, regular_files
from optcli.settings import TensorSpec

SCHEMA = 1
_MOST_FILES = 100_000
_VARIANT = re.compile(r"[^/\\\x00-\x1f]{1,200}")

_Key = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Word = Annotated[str, Field(pattern=r"^[\w.+ -]{0,100}$")]


class Described(BaseModel):
    """An artifact without its place."""

    model_config = ConfigDict(extra="ignore")

    key: _Key
    format: Format
    precision: _Word
    size_bytes: int = Field(ge=0)
    digest: _Key
    facts: dict[str, Any]


class ManifestVariant(BaseModel):
    """A variant in the manifest; `files` are digests by path below the artifact."""

    artifact: Described
    runner: _Word
    options: dict[str, Any]
    made_by: tuple[dict[str, Any], ...]
    files: dict[str, _Key]

    @field_validator("files")
    @classmethod
    def _are_inside(cls, files: dict[str, str]) -> dict[str, str]:
        for name in files:
            path = PurePosixPath(name)
            odd = path.is_absolute() or ".." in path.parts or not name.isprintable() or "\\" in name
            if odd or str(path) != name:
                raise ValueError(f"a file is called {name[:80]!r}")
        if len({name.casefold() for name in files}) != len(files):
            raise ValueError("two files have one name")
        return files

    @field_validator("made_by")
    @classmethod
    def _have_names(cls, steps: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for step in steps:
            if not all(isinstance(step.get(name), str) for name in ("step", "key")):
                raise ValueError("a step has no name or no key")
        return steps

    @model_validator(mode="after")
    def _fits(self) -> ManifestVariant:
        if digest.of_value(sorted(self.files.items())) != self.artifact.digest:
            raise ValueError("the digest of an artifact is not that of its files")
        try:
            kind = runners.find(self.runner)
        except UsageError as error:
            raise ValueError(error.message) from error
        if self.artifact.format not in kind.runs:
            raise ValueError(f"the runner {self.runner} does not run {self.artifact.format}")
        kind.model_validate(self.options)
        return self

    def options_from_elsewhere(self) -> dict[str, Any]:
        """The runner's options without those that name a program or a place of one machine."""
        return runners.options_from_elsewhere(self.runner, self.options)


class Manifest(BaseModel):
    """The pack's contents: variants by name, the digest of its report, where it was made."""

    schema_version: int = Field(SCHEMA, alias="schema")
    recipe: str = Field(max_length=1000)
    inputs: tuple[TensorSpec, ...]
    environment: dict[str, Any]
    report: _Key
    variants: dict[str, ManifestVariant]

    @model_validator(mode="after")
    def _is_whole(self) -> Manifest:
        for name in self.variants:
            if not _VARIANT.fullmatch(name) or name in (".", ".."):
                raise ValueError(f"a variant is called {name[:80]!r}")
        if len({name.casefold() for name in self.variants}) != len(self.variants):
            raise ValueError("two variants have one name")
        if sum(len(variant.files) for variant in self.variants.values()) > _MOST_FILES:
            raise ValueError("it names too many files")
        cpu, versions = self.environment.get("cpu", {}), self.environment.get("versions", {})
        flags = cpu.get("flags", []) if isinstance(cpu, dict) else None
        if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
            raise ValueError("what it says of the CPU is odd")
        if not isinstance(versions, dict):
            raise ValueError("what it says of versions is odd")
        if not isinstance(self.environment.get("machine", {}), dict):
            raise ValueError("what it says of its machine is odd")
        return self


def described(artifact: Artifact) -> Described:
    """An artifact as a manifest describes it."""
    return Described.model_validate(asdict(artifact))


def read(text: bytes) -> Manifest | int:
    """The manifest, or its schema where that is another one. Raises `ValueError`."""
    try:
        record = regular_files.parsed_json(text)
        schema = record["schema"]
        if schema != SCHEMA:
            return int(schema)
        return Manifest.model_validate(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part)[:80] for part in first["loc"])
        raise ValueError(f"{place}: {first['msg'][:200]}") from error
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError("it is none of ours") from error
