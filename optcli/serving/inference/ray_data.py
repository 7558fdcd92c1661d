"""Shards through Ray Data: workers of an actor pool, on this machine or in a cluster."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from optcli.errors import OptcliError, StepError, first_line
from optcli.serving.inference.listing import Shard
from optcli.serving.inference.shard_worker import ShardWorker, Work

PACKAGES = ("ray", "pyarrow", "pandas")
_MOST_BLOCKS = 20_000


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
