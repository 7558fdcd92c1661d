"""One file with artifacts and their report: a tar archive whose first member says what it holds.

    manifest.json              schema, inputs, variants with their runners, the digest of every file
    report.json                the report of the build that made them
    artifacts/<variant>/...    the files of each artifact

A pack is data, and some artifacts are code (AOTInductor packages, a network's own Python files). So a
pack that this store did not write is loaded only where the person says that they trust it. The format
of an artifact is recognized by its files, not taken from the manifest. Nothing in a pack names a
program, and unpacked it takes no more of the disk than the pack itself.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optcli.artifact import CODE, UNPROVEN, Artifact
from optcli.errors import InputError, OptcliError, StoreError, TrustError, raised_as, strerror
from optcli.files import regular_files
from optcli.files.digest import files_below, of_bytes, of_file
from optcli.gate.baselines import manifest as manifests
from optcli.gate.baselines.manifest import SCHEMA, Manifest, ManifestVariant
from optcli.gate.baselines.places import SPARE_BYTES
from optcli.models.formats.recognition import recognized
from optcli.results import Report
from optcli.settings import TensorSpec
from optcli.store import Store, disk

KIND = "baseline"
_WRITTEN = "baseline-written"
_MANIFEST, _REPORT, _ARTIFACTS = "manifest.json", "report.json", "artifacts"
_LARGEST_MANIFEST_BYTES = 64 * 1024**2
_PIECE_BYTES = 1024**2


@dataclass(frozen=True)
class BaselineVariant:
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
    variants: dict[str, BaselineVariant]
    inputs: tuple[TensorSpec, ...]
    environment: dict[str, Any]
    report: Report | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    interpreter: str | None = None


def save(
    path: Path,
    variants: Mapping[str, BaselineVariant],
    inputs: Sequence[TensorSpec],
    report: Report,
    store: Store,
    *,
    own: bool = True,
) -> Path:
    """Write a pack, whole or not at all; this store remembers having written it, where it is its `own`.

    It is not where an artifact was fetched from a remote store, or made of what was.

    Raises `StoreError` where the disk is full or read-only, `InputError` where an artifact's files
    are no longer what the report speaks of.
    """
    members: dict[str, Path] = {}
    packed = {}
    for name, variant in variants.items():
        files = {}
        for file in files_below(variant.artifact.path):
            inside = file.relative_to(variant.artifact.path).as_posix()
            members[f"{_ARTIFACTS}/{name}/{inside}"] = file
            files[inside] = of_file(file)
        packed[name] = ManifestVariant(
            artifact=manifests.described(variant.artifact),
            runner=variant.runner,
            options=variant.options,
            made_by=variant.made_by,
            files=files,
        )
    text = report.to_json().encode()
    manifest = Manifest(
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
    if own:
        with store.work(_WRITTEN, key) as work:
            store.put(_WRITTEN, key, work, {"recipe": report.recipe.name}, {"pack": key})
    return path


def load(path: Path, origin: str, store: Store, *, trust: bool = False) -> Baseline:
    """Check a pack and put its artifacts into the store.

    Raises `InputError` for a file that is missing, damaged or of a newer schema, `TrustError` where
    it holds code and neither this store wrote it nor `trust` says so, or where what it holds was made
    under `--trust`. What this store did not write is opened in workers that can only read.
    """
    message = "the baseline cannot be read"
    hint = "`optcli baseline ls` lists those that are here"
    with raised_as(InputError, message, of=OSError, reason=strerror, place=str(path), hint=hint):
        size = regular_files.check(path).st_size
        key = of_file(path)
    own = store.get(_WRITTEN, key) is not None
    with _opened(path) as archive:
        manifest = _manifest(archive, path)
        if not own and not trust:
            is_code = {name: one.artifact.format in CODE for name, one in manifest.variants.items()}
            _require_trust([name for name in is_code if is_code[name]], path)
        if not trust:
            _require_proven(manifest, path)
        entry = store.get(KIND, key)
        if entry is None:
            with store.lock(KIND, key), store.work(KIND, key) as work:
                _require_room(work, size)
                _unpack(archive, manifest, work, path)
                _check_formats(manifest, work, path)
                entry = store.put(KIND, key, work, {}, {"pack": key})
    try:
        return _baseline(manifest, entry.path, origin, own=own, trust=trust)
    except (OptcliError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(path, f"its report cannot be read ({str(error)[:200]})") from error


def _baseline(manifest: Manifest, root: Path, origin: str, *, own: bool, trust: bool) -> Baseline:
    variants = {
        name: BaselineVariant(
            _artifact(packed, root / _ARTIFACTS / name, foreign=not own, trust=trust),
            packed.runner,
            packed.options if own else packed.options_from_elsewhere(),
            packed.made_by,
        )
        for name, packed in manifest.variants.items()
    }
    report = Report.load(root / _REPORT)
    return Baseline(origin, variants, manifest.inputs, manifest.environment, report)


def _artifact(packed: ManifestVariant, path: Path, *, foreign: bool, trust: bool) -> Artifact:
    about = packed.artifact
    return Artifact(
        about.key,
        about.format,
        path,
        about.precision,
        about.size_bytes,
        about.digest,
        about.facts,
        foreign and about.format not in CODE,
        trust,
    )


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as archive:
            yield archive
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise _damaged(path, str(error) or "it ends too early") from error


def _manifest(archive: tarfile.TarFile, path: Path) -> Manifest:
    """The first member, checked for its schema."""
    first = archive.next()
    if first is None or first.name != _MANIFEST or first.size > _LARGEST_MANIFEST_BYTES:
        raise _damaged(path, f"it does not begin with a {_MANIFEST}")
    _require_plain(archive, first, path)
    stream = archive.extractfile(first)
    try:
        manifest_or_schema = manifests.read(stream.read() if stream else b"")
    except ValueError as error:
        raise _damaged(path, f"its {_MANIFEST} cannot be read ({error})") from error
    if isinstance(manifest_or_schema, Manifest):
        return manifest_or_schema
    raise InputError(
        f"the baseline has schema {manifest_or_schema}, this optcli reads {SCHEMA}",
        place=str(path),
        hint="use the optcli that wrote it, or save the baseline again",
    )


def _require_trust(names: Sequence[str], path: Path) -> None:
    if names:
        raise TrustError(
            f"code in the baseline would run here ({', '.join(sorted(names))}), and this store did not "
            "write it",
            place=str(path),
            hint="add --trust if you know who made it",
        )


def _require_proven(manifest: Manifest, path: Path) -> None:
    """What was made under `--trust` says so in its facts. The scan of foreign files ignores them."""
    for name, packed in manifest.variants.items():
        doubts = packed.artifact.facts.get(UNPROVEN)
        if doubts:
            raise TrustError(
                f"{name} was made with --trust, of a model that could run code: {str(doubts)[:200]}",
                place=str(path),
                hint="add --trust if you know who made the model",
            )


def _require_room(work: Path, size: int) -> None:
    """Raise `StoreError` where the disk has no room for as much as the pack itself holds."""
    free = shutil.disk_usage(work).free
    if size + SPARE_BYTES > free:
        raise StoreError(
            f"the baseline needs {size / 1e6:.0f} MB, {free / 1e6:.0f} MB are free",
            place=str(work),
            hint="make room (`optcli cache gc`), or choose another place with --store",
        )


def _require_plain(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """A member is a whole file: no hole in it is filled, no header says it in another way."""
    headers = {*member.pax_headers, *archive.pax_headers} - {"path", "size"}
    if not member.isreg() or member.issparse() or headers:
        raise _damaged(path, f"it holds {member.name[:200]!r}, which is no plain file")


def _unpack(archive: tarfile.TarFile, manifest: Manifest, out: Path, path: Path) -> None:
    """Write exactly the files that the manifest names, each with the digest it gives."""
    digests = {_REPORT: manifest.report}
    for name, packed in manifest.variants.items():
        digests |= {f"{_ARTIFACTS}/{name}/{inside}": sha for inside, sha in packed.files.items()}
    for member in archive:
        if member.name == _MANIFEST and member.offset == 0:
            continue
        expected = digests.pop(member.name, None)
        if expected is None:
            raise _damaged(path, f"it holds {member.name[:200]!r}, which its manifest does not name")
        _require_plain(archive, member, path)
        if _written(archive, member, out) != expected:
            raise _damaged(path, f"{member.name} is not as it was packed")
    if digests:
        raise _damaged(path, f"{next(iter(digests))} is missing")


def _written(archive: tarfile.TarFile, member: tarfile.TarInfo, out: Path) -> str:
    """Write a member below `out`; gives the digest of what was written."""
    stream = archive.extractfile(member)
    assert stream is not None
    target, digest = out / member.name, hashlib.sha256()
    with disk.failures(out):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            while piece := stream.read(_PIECE_BYTES):
                file.write(piece)
                digest.update(piece)
    return digest.hexdigest()


def _check_formats(manifest: Manifest, root: Path, path: Path) -> None:
    """Every artifact is of the format that it says, by its files."""
    for name, packed in manifest.variants.items():
        actual, declared = recognized(root / _ARTIFACTS / name), packed.artifact.format
        if actual != declared:
            what = f"holds {actual}" if actual else "holds files of no one format"
            raise _damaged(path, f"{name} says that it is {declared}, and {what}")


def _damaged(path: Path, what: str) -> InputError:
    return InputError(
        f"this is no sound baseline: {what}",
        place=str(path),
        hint="copy it again from where it was made, or save it again with `optcli baseline save`",
    )


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without owner, time and mode: the same artifacts make the same pack."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    member.mode = 0o644
    return member
