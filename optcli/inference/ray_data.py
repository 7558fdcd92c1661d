"""Shards through Ray Data: workers of an actor pool, on this machine or in a cluster."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.environment import Needs
from optcli.errors import MissingError, OptcliError, StepError, first_line
from optcli.inference.listing import Shard
from optcli.inference.shard_worker import ShardWorker, Work

LOCAL = "local"
_NEEDS = Needs(("ray", "pyarrow", "pandas"))
# What Ray itself takes of this machine's memory for what travels: answers stay in the workers.
_OBJECTS_BYTES = 256 * 1024**2
_MOST_BLOCKS = 20_000
# Names of Ray's sockets lie below its folder, and may have 107 characters: TMPDIR may be too deep.
_SHORT = Path("/tmp")  # noqa: S108
_PREFIX = "optcli-ray-"


def require_ray() -> None:
    """Raise `MissingError` without Ray Data."""
    absent = environment.missing(_NEEDS)
    if absent:
        raise MissingError(absent[0].what, place="optcli infer", hint="pip install 'optcli[ray]'")


@contextmanager
def started(address: str, cores: int) -> Iterator[None]:
    """Ray for as long as the context lasts: of this machine alone (`local`), or of a cluster.

    Raises `StepError` where it does not start, `MissingError` where no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # It warns of restarts of actors that Ray Data itself has set up.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    given: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": True,
    }
    # Names of sockets lie below this folder, and may have 107 characters.
    short = _SHORT if _SHORT.is_dir() else Path(tempfile.gettempdir())
    _clear(short)
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", dir=short) as own:
        if address == LOCAL:
            given |= {"num_cpus": cores, "include_dashboard": False, "_temp_dir": own}
            given |= {"object_store_memory": _OBJECTS_BYTES}
        else:
            given |= {"address": address}
        try:
            with _quiet():
                ray.init(**given)
        except ConnectionError as error:
            raise MissingError(
                f"no Ray cluster answers: {first_line(error)}",
                place=address,
                hint="`ray start --head` starts one; without --ray this machine works alone",
            ) from error
        except (RuntimeError, OSError, ValueError) as error:
            raise StepError(f"Ray does not start: {first_line(error)}", place=address) from error
        try:
            yield
        finally:
            ray.shutdown()


def _clear(folder: Path) -> None:
    """Remove what runs that were killed left: Ray's logs and sockets."""
    for path in folder.glob(f"{_PREFIX}*-*"):
        number = path.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdecimal() and not Path(f"/proc/{number}").exists() and Path("/proc/self").exists():
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing on stderr: Ray's core writes a line there to say which level of messages it writes."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def answered(
    shards: Sequence[Shard],
    work: Work,
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
        raise _told(error) from error


def _told(error: Exception) -> OptcliError:
    """The worker's own error, where it has one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OptcliError):
            return cause
        inner = getattr(cause, "cause", None)
        cause = inner if isinstance(inner, BaseException) else cause.__cause__
    return StepError(f"a worker failed: {first_line(error)}", place="optcli infer")
