"""One file with artifacts and their report: a tar archive whose first member says what it holds.

    manifest.json              schema, inputs, variants with their runners, the digest of every file
    report.json                the report of the build that made them
    artifacts/<variant>/...    the files of each artifact

A pack is data, and some artifacts are code (AOTInductor packages, a network's own Python files). So a
pack that this store did not write is loaded only where the person says that they trust it.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, Field

from optcli.artifact import Artifact, Format
from optcli.digest import files_below, of_bytes, of_file
from optcli.errors import InputError, TrustError
from optcli.results import Report
from optcli.settings import TensorSpec
from optcli.store import Store, disk

SCHEMA = 1
KIND = "baseline"
_WRITTEN = "baseline-written"
_MANIFEST, _REPORT, _ARTIFACTS = "manifest.json", "report.json", "artifacts"
_LARGEST_MANIFEST_BYTES = 64 * 1024**2
# Formats whose files are, or may hold, code that runs when they are opened.
_CODE = frozenset({Format.TORCH, Format.AOTI, Format.TENSORRT, Format.TENSORRT_RTX})


class _Packed(BaseModel):
    """A variant in the manifest; `files` are digests by path below the artifact."""

    artifact: dict[str, Any]
    runner: str
    options: dict[str, Any]
    made_by: tuple[dict[str, Any], ...]
    files: dict[str, str]


class _Manifest(BaseModel):
    schema_version: int = Field(SCHEMA, alias="schema")
    recipe: str
    inputs: tuple[TensorSpec, ...]
    environment: dict[str, Any]
    report: str
    variants: dict[str, _Packed]


@dataclass(frozen=True)
class Kept:
    """One variant of a baseline: its artifact, and the runner that it is measured in.

    `made_by` holds each step with the ingredients of its key, the source first.
    """

    artifact: Artifact
    runner: str
    options: dict[str, Any]
    made_by: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Baseline:
    """What a candidate is compared with; `origin` says in words where it comes from.

    `report` holds what was measured when it was made, on the machine that `environment` describes.
    `absent` are variants that should be here and are not, each with the reason. `interpreter` is the
    Python that runs it, where it has its own; `environment` then names the libraries of that one.
    """

    origin: str
    variants: dict[str, Kept]
    inputs: tuple[TensorSpec, ...]
    environment: dict[str, Any]
    report: Report | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    interpreter: str | None = None


def save(
    path: Path,
    variants: Mapping[str, Kept],
    inputs: Sequence[TensorSpec],
    report: Report,
    store: Store,
) -> Path:
    """Write a pack, whole or not at all; this store remembers having written it.

    Raises `StoreError` where the disk is full or read-only, `InputError` where an artifact's files
    are no longer what the report speaks of.
    """
    members: dict[str, Path] = {}
    packed = {}
    for name, kept in variants.items():
        files = {}
        for file in files_below(kept.artifact.path):
            inside = file.relative_to(kept.artifact.path).as_posix()
            members[f"{_ARTIFACTS}/{name}/{inside}"] = file
            files[inside] = of_file(file)
        record = kept.artifact.to_record()
        del record["path"]
        packed[name] = _Packed(
            artifact=record,
            runner=kept.runner,
            options=kept.options,
            made_by=kept.made_by,
            files=files,
        )
    text = report.to_json().encode()
    manifest = _Manifest(
        schema=SCHEMA,
        recipe=report.recipe.name,
        inputs=tuple(inputs),
        environment=report.environment,
        report=of_bytes(text),
        variants=packed,
    )
    with disk.failures(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.part")
        try:
            with tarfile.open(fresh, "w") as archive:
                _add(archive, _MANIFEST, manifest.model_dump_json(by_alias=True, indent=1).encode())
                _add(archive, _REPORT, text)
                for inside, file in members.items():
                    archive.add(file, inside, recursive=False, filter=_plain)
            key = of_file(fresh)
            disk.sync(fresh)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    with store.work(_WRITTEN, key) as work:
        store.put(_WRITTEN, key, work, {"recipe": report.recipe.name}, {"pack": key})
    return path


def load(path: Path, origin: str, store: Store, *, trust: bool = False) -> Baseline:
    """Check a pack and put its artifacts into the store.

    Raises `InputError` for a file that is missing, damaged or of a newer schema, `TrustError` where
    it holds code and neither this store wrote it nor `trust` says so.
    """
    try:
        key = of_file(path)
    except OSError as error:
        raise InputError(
            f"the baseline cannot be read: {error.strerror or error}",
            place=str(path),
            hint="`optcli baseline ls` lists those that are here",
        ) from error
    with _opened(path) as archive:
        manifest = _manifest(archive, path)
        _require_trust(manifest, path, store, key, trust)
        known = store.get(KIND, key)
        if known is None:
            with store.lock(KIND, key), store.work(KIND, key) as work:
                _unpack(archive, manifest, work, path)
                known = store.put(KIND, key, work, {}, {"pack": key})
    try:
        return _baseline(manifest, known.path, origin)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"its manifest cannot be read ({error})") from error


def _baseline(manifest: _Manifest, root: Path, origin: str) -> Baseline:
    variants = {
        name: Kept(
            Artifact.from_record({**one.artifact, "path": str(root / _ARTIFACTS / name)}),
            one.runner,
            one.options,
            one.made_by,
        )
        for name, one in manifest.variants.items()
    }
    report = Report.load(root / _REPORT)
    return Baseline(origin, variants, manifest.inputs, manifest.environment, report)


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as archive:
            yield archive
    except (tarfile.TarError, EOFError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error) or "it ends too early") from error


def _manifest(archive: tarfile.TarFile, path: Path) -> _Manifest:
    """The first member, checked for its schema."""
    first = archive.next()
    if first is None or first.name != _MANIFEST or first.size > _LARGEST_MANIFEST_BYTES:
        raise _damaged(path, f"it does not begin with a {_MANIFEST}")
    stream = archive.extractfile(first)
    try:
        found = json.loads(stream.read() if stream else b"")
        schema = found["schema"]
        if schema == SCHEMA:
            return _Manifest.model_validate(found)
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its {_MANIFEST} cannot be read") from error
    raise InputError(
        f"the baseline has schema {schema}, this optcli reads {SCHEMA}",
        place=str(path),
        hint="use the optcli that wrote it, or save the baseline again",
    )


def _require_trust(manifest: _Manifest, path: Path, store: Store, key: str, trust: bool) -> None:
    code = sorted(n for n, one in manifest.variants.items() if one.artifact.get("format") in _CODE)
    if code and not trust and store.get(_WRITTEN, key) is None:
        raise TrustError(
            f"code in the baseline would run here ({', '.join(code)}), and this store did not write it",
            place=str(path),
            hint="add --trust if you know who made it",
        )


def _unpack(archive: tarfile.TarFile, manifest: _Manifest, out: Path, path: Path) -> None:
    """Write exactly the files that the manifest names, each with the digest it gives."""
    wanted = {_REPORT: manifest.report}
    for name, one in manifest.variants.items():
        wanted |= {f"{_ARTIFACTS}/{name}/{inside}": sha for inside, sha in one.files.items()}
    for member in archive:
        if member.name == _MANIFEST:
            continue
        expected = wanted.pop(member.name, None)
        if expected is None or not member.isfile() or ".." in PurePosixPath(member.name).parts:
            raise _damaged(path, f"it holds {member.name!r}, which its manifest does not name")
        stream = archive.extractfile(member)
        assert stream is not None
        target = out / member.name
        with disk.failures(out):
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(stream, file)
        if of_file(target) != expected:
            raise _damaged(path, f"{member.name} is not as it was packed")
    if wanted:
        raise _damaged(path, f"{next(iter(wanted))} is missing")


def _damaged(path: Path, what: str) -> InputError:
    return InputError(
        f"this is no sound baseline: {what}",
        place=str(path),
        hint="copy it again from where it was made, or save it again with `optcli baseline save`",
    )


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(data)
    archive.addfile(about, io.BytesIO(data))


def _plain(about: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without owner, time and mode: the same artifacts make the same pack."""
    about.uid = about.gid = 0
    about.uname = about.gname = ""
    about.mtime = 0
    about.mode = 0o644
    return about
