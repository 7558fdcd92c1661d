"""How many copies of the model share the cores of this machine, and how many threads each has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from optcli import runners
from optcli.inference.probe import ProbeRequest, Timed
from optcli.latency.memory import available_bytes
from optcli.model_files.built_variant import BuiltVariant
from optcli.workers import run

# More copies are taken unless they are slower by more than this share on random inputs. Threads of one
# copy wait for each other whenever another process has one of their cores: beside Ray and decoding, a
# copy of two threads lost 14 % of ResNet-50's rate, and two copies of one thread 2 %.
_WORTH = 0.1
# Of the memory that is free.
_MOST_MEMORY = 0.5
# So many shards for each copy, so that all of them are busy nearly to the end.
_SHARDS_EACH = 4
# Measuring takes seconds: shorter runs are left with one copy.
_LEAST_RUN_S = 30.0
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Split:
    """Copies of the model with so many threads each.

    `rates` are images a second of all copies by threads, empty where only one split was measured.
    """

    copies: int
    threads: int
    rates: Mapping[int, float]


def options_of(built: BuiltVariant, split: Split) -> dict[str, object]:
    """The runner's options for one of the copies, which must not keep to the same cores."""
    options = dict(built.options)
    if split.threads != built.runner.thread_count():
        options["threads"] = split.threads
    if split.copies > 1:
        options |= built.runner.beside_others()
    return options


def measured(
    built: BuiltVariant, path: Path, *, batch_size: int, cores: int, shards: int, seconds: float
) -> Split:
    """The fastest split of the cores for a run of so many shards, which would take about `seconds`.

    Starts with the threads of the variant and halves them as long as that is worth it and memory
    suffices. Raises as runners do.
    """
    most = built.runner.thread_count()
    split = Split(max(1, cores // most), most, {})
    if seconds < _LEAST_RUN_S or built.runner.requires().gpu:
        return split
    rates: dict[int, float] = {}
    free, needed = available_bytes() * _MOST_MEMORY, 0
    for threads in _halves(most):
        copies = max(1, cores // threads)
        if rates and (copies * _SHARDS_EACH > shards or copies * needed > free):
            break
        timed = _timed(built, path, Split(copies, threads, {}), batch_size)
        needed = max(each.memory_bytes for each in timed)
        rates[threads] = together(timed, batch_size)
        if rates[threads] < (1 - _WORTH) * max(rates.values()):
            break
        split = Split(copies, threads, rates)
    return replace(split, rates=rates if len(rates) > 1 else {})


def together(timed: Sequence[Timed], batch_size: int) -> float:
    """Images a second of all copies, in the time in which each of them was at it."""
    begin = max(each.ends[0] for each in timed)
    end = min(each.ends[-1] for each in timed)
    rate = 0.0
    for each in timed:
        within = [at for at in each.ends if begin <= at <= end]
        if len(within) > 1:
            rate += (len(within) - 1) * each.calls * batch_size / (within[-1] - within[0])
    return rate


def _halves(threads: int) -> Iterator[int]:
    while threads >= 1:
        yield threads
        threads //= 2


def _timed(built: BuiltVariant, path: Path, split: Split, batch_size: int) -> list[Timed]:
    """What the copies measure, each in a process of its own."""
    options = options_of(built, split)
    kind = runners.find(built.runner_name)
    request = ProbeRequest(
        built.artifact, built.runner_name, options, built.inputs, (batch_size,), built.samples.seed
    )

    def one(number: int) -> Timed:
        return run(
            "optcli.inference.probe:repeat",
            request,
            Timed,
            log=path.parent / "logs" / f"{built.name}.infer-{number}.log",
            environment=kind.model_validate(options).environment(),
            timeout_s=_TIMEOUT_S,
            confined=() if built.artifact.foreign else None,
        )

    with ThreadPoolExecutor(split.copies) as pool:
        return list(pool.map(one, range(split.copies)))
