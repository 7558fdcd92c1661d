"""What answers shards with an artifact that is opened once, and a worker of Ray Data that does so."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
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
ATTEMPTS = 3
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


@dataclass(frozen=True)
class ShardResult:
    """What became of a shard: counts of images, the first reason of a failure, and Unix times in s."""

    name: str
    answered: int
    failed: int
    first_failure: str
    began: float
    ended: float


class ShardAnswering:
    """An artifact that was opened, and answers shards."""

    def __init__(self, work: ShardWork, artifact: Artifact) -> None:
        self._work = work
        self._runner: Runner | ConfinedModel
        if artifact.foreign:  # this process reads and writes elsewhere: it cannot be confined
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

    def answer(self, shard: Shard) -> ShardResult:
        """Answer the images of a shard and write its files."""
        began = time.time()

        def read(image: Stored) -> bytes:
            return storage.read(self._place, image.path, image.offset, image.size)

        answered = self._answering.answer(shard.images, read)
        self._work.output.keep(shard.name, answered.rows, answered.failures)
        first = next((f"{k}: {v}" for k, v in answered.failures.items()), "")
        counts = len(answered.rows), len(answered.failures)
        return ShardResult(shard.name, *counts, first, began, time.time())


class ShardWorker:
    """What Ray Data keeps in an actor. A row is a shard: its `name` and its `images` as JSON."""

    def __init__(self, work: ShardWork, files: Any) -> None:
        import ray

        if isinstance(files, ray.ObjectRef):
            files = ray.get(files)
        _require_versions(work.versions)
        self._run = work.run
        self._folder = tempfile.TemporaryDirectory(prefix="optcli-infer-")
        artifact = unpacked(work.artifact, files, Path(self._folder.name))
        self._shards = ShardAnswering(work, artifact)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        results: dict[str, list[Any]] = {}
        for name, listed in zip(batch["name"], batch["images"], strict=True):
            attempt = _Attempt(f"{self._run}-{name}")
            images = tuple(Stored(*each) for each in json.loads(str(listed)))
            result = self._shards.answer(Shard(str(name), images))
            attempt.succeeded()
            for key, value in asdict(result).items():
                results.setdefault(key, []).append(value)
        return results


class _Attempt:
    """Counts how often a shard was begun on this machine: Ray restarts a worker that died, for ever."""

    def __init__(self, name: str) -> None:
        self._file = Path(tempfile.gettempdir()) / f"optcli-infer-{name}"
        before = self._file.stat().st_size if self._file.exists() else 0
        if before >= ATTEMPTS:
            self._file.unlink()
            raise died(before, name)
        with self._file.open("ab") as file:
            file.write(b".")

    def succeeded(self) -> None:
        self._file.unlink(missing_ok=True)


def died(times: int, shard: str) -> StepError:
    """The error for a shard at which workers died."""
    hint = (
        "run the command again: it continues; if a worker dies again, look at memory and at the images"
    )
    return StepError(f"the worker died {times} times at this shard", place=shard, hint=hint)


def packed(artifact: Artifact) -> dict[str, bytes]:
    """The files of an artifact, by their path in its folder."""
    return {
        path.relative_to(artifact.path).as_posix(): path.read_bytes()
        for path in sorted(artifact.path.rglob("*"))
        if path.is_file()
    }


def unpacked(artifact: Artifact, files: Files, folder: Path) -> Artifact:
    """The artifact with its files in a folder of this machine."""
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
    *,
    workers: int,
    cores: int,
    variables: Mapping[str, str],
) -> Iterator[ShardResult]:
    """What workers of a cluster tell of each shard, in the order in which they end.

    Ray has been started. `cores` are those of one worker, `variables` its environment. Raises the
    error of a worker.
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
        fn_constructor_args=(work, ray.put(packed(work.artifact))),
        batch_size=1,
        compute=ActorPoolStrategy(size=min(workers, len(rows)), max_tasks_in_flight_per_actor=2),
        num_cpus=cores,
        runtime_env={"env_vars": dict(variables)},
    )
    try:
        yield from (ShardResult(**row) for row in done.iter_rows())
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
