"""A worker of Ray Data: it opens the artifact once, then answers shards and writes their files."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optcli
from optcli import runners
from optcli.artifact import Artifact
from optcli.data.images import Images
from optcli.errors import MissingError, OptcliError, StepError, first_line
from optcli.outputs.postprocess import Postprocess
from optcli.runners import Runner
from optcli.serving.inference.answering import Answering
from optcli.serving.inference.confined_model import ConfinedModel
from optcli.serving.inference.listing import Shard, Stored
from optcli.serving.inference.output import Output
from optcli.serving.prediction import storage
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import numpy as np

Files = Mapping[str, bytes]
_ATTEMPTS = 3
PACKAGES = ("ray", "pyarrow", "pandas")
_MOST_BLOCKS = 20_000


@dataclass(frozen=True)
class ShardWork:
    """All that a worker needs besides the artifact's files, which travel apart.

    `images` and `postprocess` are the settings of those modules of `serving.prediction`; `postprocess`
    None: the outputs are the answers. `readers` threads read, `preparers` prepare, `in_turns` not while
    the model computes. `versions` are those of the machine that asks, `run` is a name that no other run
    has.
    """

    artifact: Artifact
    runner: str
    options: dict[str, Any]
    inputs: tuple[TensorSpec, ...]
    images: dict[str, Any]
    postprocess: dict[str, Any] | None
    input_uri: str
    output: Output
    batch_size: int
    readers: int
    preparers: int
    in_turns: bool
    versions: dict[str, str]
    run: str


class ShardWorker:
    """What Ray Data keeps in an actor. A row is a shard: its `name` and its `images` as JSON."""

    def __init__(self, work: ShardWork, files: Any) -> None:
        import ray

        if isinstance(files, ray.ObjectRef):
            files = ray.get(files)
        _require_versions(work.versions)
        self._work = work
        self._folder = tempfile.TemporaryDirectory(prefix="optcli-infer-")
        artifact = work.artifact
        if files is not None:
            artifact = unpacked(artifact, files, Path(self._folder.name))
        self._runner: Runner | ConfinedModel
        if artifact.foreign:  # Ray's own process talks to others: it cannot be confined
            self._runner = ConfinedModel(artifact, work.runner, work.options, work.inputs)
        else:
            kind = runners.find(work.runner)
            self._runner = kind.model_validate(work.options).open(artifact, work.inputs)
        prepare = Images(work.images)
        follows = Postprocess(work.postprocess) if work.postprocess is not None else None
        self._answering = Answering(
            self._runner,
            work.inputs,
            prepare,
            follows,
            batch_size=work.batch_size,
            readers=work.readers,
            preparers=work.preparers,
            in_turns=work.in_turns,
            whole=self._runner.without_batch(),
        )
        self._place = storage.place_of(work.input_uri)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        results: dict[str, list[Any]] = {}
        for name, listed in zip(batch["name"], batch["images"], strict=True):
            for key, value in self._shard(str(name), str(listed)).items():
                results.setdefault(key, []).append(value)
        return results

    def _shard(self, name: str, listed: str) -> dict[str, Any]:
        began = time.time()
        attempt = _Attempt(f"{self._work.run}-{name}")
        images = [Stored(*each) for each in json.loads(listed)]

        def read(image: Stored) -> bytes:
            return storage.read(self._place, image.path, image.offset, image.size)

        answered = self._answering.answer(images, read)
        self._work.output.keep(name, answered.rows, answered.failures)
        attempt.succeeded()
        return {
            "name": name,
            "answered": len(answered.rows),
            "failed": len(answered.failures),
            "first_failure": next((f"{k}: {v}" for k, v in answered.failures.items()), ""),
            "began": began,
            "ended": time.time(),
            "worker": f"{os.uname().nodename}-{os.getpid()}-{threading.get_ident()}",
        }


class _Attempt:
    """Counts how often a shard was begun on this machine: Ray restarts a worker that died, for ever."""

    def __init__(self, name: str) -> None:
        self._file = Path(tempfile.gettempdir()) / f"optcli-infer-{name}"
        before = self._file.stat().st_size if self._file.exists() else 0
        if before >= _ATTEMPTS:
            self._file.unlink()
            raise StepError(
                f"the worker died {before} times at this shard",
                place=name,
                hint="run the command again: it continues; if a worker dies again, look at memory and"
                " at the images",
            )
        with self._file.open("ab") as file:
            file.write(b".")

    def succeeded(self) -> None:
        self._file.unlink(missing_ok=True)


def packed(artifact: Artifact) -> dict[str, bytes]:
    """The files of an artifact, by their path in its folder."""
    return {
        path.relative_to(artifact.path).as_posix(): path.read_bytes()
        for path in sorted(artifact.path.rglob("*"))
        if path.is_file()
    }


def unpacked(artifact: Artifact, files: Files, folder: Path) -> Artifact:
    """The artifact with its files in a folder of this machine."""
    from dataclasses import replace

    for name, content in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return replace(artifact, path=folder)


def versions_of(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of optcli and of packages here; those that are not installed are left out."""
    from optcli import environment

    versions = {name: environment.version(name) for name in packages}
    return {"optcli": optcli.__version__, **{k: v for k, v in versions.items() if v is not None}}


def _require_versions(wanted: Mapping[str, str]) -> None:
    """Raise `MissingError` on a machine that would compute with something else."""
    here = versions_of(tuple(name for name in wanted if name != "optcli"))
    for name, version in wanted.items():
        if here.get(name) != version:
            raise MissingError(
                f"found {name} {here.get(name, 'not installed')}, wanted {version} as on the machine"
                " that began the run",
                place=os.uname().nodename,
                hint=f"pip install '{name}=={version}' on this node",
            )


def answered(
    shards: Sequence[Shard],
    work: ShardWork,
    files: Mapping[str, bytes] | None,
    *,
    workers: int,
    cores: int,
    variables: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    """What each worker tells of a shard, in the order in which they end. Ray has been started.

    `files` are the artifact's; None where every worker sees its folder. `cores` are those of one
    worker, `variables` its environment. Raises the error of a worker.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    rows = [
        {"name": shard.name, "images": json.dumps([astuple(image) for image in shard.images])}
        for shard in shards
    ]
    dataset = ray.data.from_items(rows, override_num_blocks=min(len(rows), _MOST_BLOCKS))
    done = dataset.map_batches(
        ShardWorker,
        fn_constructor_args=(work, ray.put(dict(files)) if files is not None else None),
        batch_size=1,
        compute=ActorPoolStrategy(size=min(workers, len(rows)), max_tasks_in_flight_per_actor=2),
        num_cpus=cores,
        runtime_env={"env_vars": dict(variables)},
    )
    try:
        yield from done.iter_rows()
    except ray.exceptions.RayError as error:
        raise _as_error(error) from error


def _as_error(error: Exception) -> OptcliError:
    """The worker's own error, where it has one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OptcliError):
            return cause
        inner = getattr(cause, "cause", None)
        cause = inner if isinstance(inner, BaseException) else cause.__cause__
    return StepError(f"a worker failed: {first_line(error)}", place="optcli infer")
