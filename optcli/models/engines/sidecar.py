"""`engine.json` beside a plan: what built it, for which GPU, from which model. Checked before loading.

A plan fits one product, mostly one version of it, and one GPU architecture. TensorRT itself reports
a mismatch late and unclearly; the sidecar reports it first and names both sides.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from optcli.models.engines import TITLES, EngineError

PLAN = "model.plan"
FILE = "engine.json"
SCHEMA = 1
_MOST_BYTES = 256 * 1024 * 1024
_REBUILD = "build it again here: `optcli build` with the recipe that made it"


@dataclass(frozen=True)
class Sidecar:
    """What stands beside a plan.

    `cuda` is the CUDA version of the driver; it, `driver`, `gpu` and `compute_capability` are None
    where the engine was built without a GPU. `targets` are the compute capabilities that
    TensorRT-RTX built for; `compatible` says what the plan was made to survive: `version`,
    `ampere_plus` or `same_compute_capability`. `profiles` hold, per input, the shapes `min`, `opt`
    and `max`. `layers` are those of the engine as its inspector gave them (`name`, `type`,
    `precision`, `tactic`, `reformat`), none where it could not be opened; `network` holds `type` and
    `precision` of each that the parser saw. `flags` are TensorRT's builder flags, `stripped`
    whether the plan holds no weights. Digests are SHA-256 of files.
    """

    product: str
    version: str
    plan_sha256: str
    plan_bytes: int
    onnx_sha256: str
    precision: str
    cuda: str | None = None
    driver: str | None = None
    gpu: str | None = None
    compute_capability: str | None = None
    targets: tuple[str, ...] = ()
    compatible: tuple[str, ...] = ()
    profiles: tuple[Mapping[str, Any], ...] = ()
    inputs: tuple[Mapping[str, Any], ...] = ()
    outputs: tuple[Mapping[str, Any], ...] = ()
    layers: tuple[Mapping[str, Any], ...] = ()
    network: tuple[Mapping[str, Any], ...] = ()
    flags: tuple[str, ...] = ()
    stripped: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    os: str = field(default_factory=lambda: f"{platform.system()} {platform.machine()}")
    python: str = field(default_factory=lambda: sys.version.split()[0])


@dataclass(frozen=True)
class LoadingEnvironment:
    """What an engine would be loaded with; the GPU's values are None where there is none."""

    product: str
    version: str
    gpu: str | None = None
    compute_capability: str | None = None
    driver: str | None = None


def write(folder: Path, about: Sidecar) -> None:
    """Write `engine.json`, with a digest of its own content."""
    content = {"schema": SCHEMA, **asdict(about)}
    text = json.dumps({**content, "sha256": _own_digest(content)}, indent=1, sort_keys=True)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def read(folder: Path) -> Sidecar:
    """The sidecar in a folder, and that it is as it was written. Raises `EngineError`."""
    path = folder / FILE
    try:
        content = json.loads(_text(path))
        noted = content.pop("sha256")
    except FileNotFoundError as error:
        what = f"there is no {FILE} beside the engine: what built it, and for which GPU, is not known"
        raise _refused(what, path) from error
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise _refused(f"{FILE} cannot be read: {error}", path) from error
    if content.get("schema") != SCHEMA:
        raise _refused(f"{FILE} has schema {content.get('schema')!r}, wanted {SCHEMA}", path)
    if noted != _own_digest(content):
        what = f"{FILE} was changed after it was written: what it says of the engine cannot be trusted"
        raise _refused(what, path)
    names = {each.name for each in fields(Sidecar)}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in content.items()
        if name in names
    }
    return Sidecar(**values)


def check_plan(folder: Path) -> Sidecar:
    """The sidecar, and that the plan beside it is the one it describes. Raises `EngineError`."""
    about, path = read(folder), folder / PLAN
    if not path.is_file():
        raise _refused(f"there is no {PLAN}", path)
    size = path.stat().st_size
    if size != about.plan_bytes:
        what = "truncated" if size < about.plan_bytes else "another file"
        mismatch = f"the engine is {what}: {size} bytes, and {FILE} says {about.plan_bytes}"
        raise _refused(mismatch, path)
    if sha256_of(path) != about.plan_sha256:
        what = f"the engine is not the one that {FILE} describes: its content was changed"
        raise _refused(what, path)
    return about


def check_here(about: Sidecar, here: LoadingEnvironment, place: str = "") -> str | None:
    """Whether an engine may be loaded with what is here.

    Gives the model of GPU that it was built on where another one is here: it may be slower there.

    Raises `EngineError` that names both sides where product, version or GPU differ.
    """
    built, now = (f"{TITLES.get(side.product, side.product)} {side.version}" for side in (about, here))
    if about.product != here.product:
        raise _refused(f"{built} built this engine, and {now} would run it", place)
    if about.version != here.version and "version" not in about.compatible:
        raise _refused(f"{built} built this engine, and {now} is here", place)
    if "version" in about.compatible and _numbers(here.version) < _numbers(about.version):
        what = f"{built} built this engine to run in later versions too, and {now} is older"
        raise _refused(what, place)
    if here.gpu is None:
        return None
    _check_gpu(about, here, place)
    return about.gpu if about.gpu != here.gpu else None


def _check_gpu(about: Sidecar, here: LoadingEnvironment, place: str) -> None:
    capability = here.compute_capability or "?"
    there = f"{here.gpu} (compute capability {capability})"
    if about.targets and "CURRENT" not in about.targets:
        if f"SM{capability.replace('.', '')}" not in about.targets:
            raise EngineError(
                f"the engine was built for {', '.join(about.targets)}, and here is {there}",
                place=place,
                hint=f"name it in `compute_capabilities`, or {_REBUILD}",
            )
        return
    same = about.compute_capability in (None, capability)
    ampere = "ampere_plus" in about.compatible and _numbers(capability) >= (8, 0)
    if not same and not ampere:
        built = f"{about.gpu} (compute capability {about.compute_capability})"
        raise _refused(f"the engine was built on {built}, and here is {there}", place)


def _refused(what: str, place: str | Path) -> EngineError:
    return EngineError(what, place=os.fspath(place), hint=_REBUILD)


def _text(path: Path) -> str:
    """The content of a regular file that is not too large: a link may lead to `/dev/zero`."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
        raise OSError(f"wanted a regular file of at most {_MOST_BYTES} bytes")
    return path.read_text(encoding="utf-8")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _own_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
