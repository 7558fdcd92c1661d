"""Measure model files side by side: artifacts that no recipe built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from optcli import environment, runners
from optcli.artifact import Format
from optcli.errors import ExitCode, MissingError, UsageError
from optcli.files import folders
from optcli.files.digest import of_value
from optcli.measure import latency
from optcli.measure.latency import Candidate, Measured
from optcli.observer import Observer, Silent
from optcli.pipeline import measurement_lock, reporting
from optcli.pipeline.model_files.laying_out import SamplesRequest
from optcli.pipeline.model_files.opening import Opened, find, open_all
from optcli.results import Latency, RecipeSummary, Report, flags
from optcli.settings import TensorSpec
from optcli.settings.latency import LatencySettings
from optcli.store import Store
from optcli.workers import run

NAME = "bench"


def bench(
    files: Sequence[Path],
    *,
    inputs: tuple[TensorSpec, ...] = (),
    batch_sizes: Sequence[int] = (1,),
    threads: int | None = None,
    mode: Literal["quick", "table"] = "quick",
    runner: str | None = None,
    samples: Path | None = None,
    trust: bool = False,
    store: Path | None = None,
    observer: Observer | None = None,
) -> Report:
    """Measure files in one comparison, the first being the baseline; the report's form is a build's.

    `inputs` are found by looking where none are given; `samples` is an .npz with arrays `[n, ...]` by
    their names, else inputs are random. `runner` runs all of them, by default each format's own.
    `trust` lets code run that is not from the own `store`. A file that fails costs its row. Raises
    `UsageError`, `InputError`, `TrustError` and, for a runtime or GPU that is not here, `MissingError`.
    """
    began = environment.now()
    observer = observer or Silent()
    targets = find(files, Store(Store.default_root(store)), trust=trust)
    for target in targets:
        _require_runtime(_runner(Format(target.format), runner, target.path), target.path)
    with folders.temporary("bench") as scratch:
        opened, specs = open_all(targets, Path(scratch), inputs, max(batch_sizes))
        for each in opened:
            for note in each.notes:
                observer.warned(each.name, note)
        if samples is not None:
            _require_samples(samples, specs, observer)
        settings = LatencySettings.model_validate(
            {"mode": mode, "batch_sizes": tuple(sorted(set(batch_sizes))), "threads": threads}
        )
        with measurement_lock.acquired(NAME, observer):
            measured = latency.measure(
                [replace(_candidate(each, runner), names=each.own_names(specs)) for each in opened],
                opened[0].name,
                specs,
                samples.absolute() if samples is not None else None,
                settings,
                Path(scratch) / "logs",
                0,
                observer,
            )
        return _report(opened, measured, settings, runner, began)


def _runner(format: Format, asked: str | None, path: Path) -> str:
    name = asked or runners.DEFAULTS.get(format)
    if name is None:
        raise UsageError(
            f"no runner here runs {format}", place=str(path), hint="see the README's table of runners"
        )
    if format not in runners.find(name).runs:
        takes = ", ".join(runners.find(name).runs)
        raise UsageError(
            f"the runner {name} runs {takes}, found {format}",
            place=str(path),
            hint="leave --runner out: each format has its own",
        )
    return name


def _require_runtime(name: str, path: Path) -> None:
    """Raise `MissingError` unless the runner's packages and its GPU are here."""
    for missing in environment.missing(runners.find(name)().requires()):
        raise MissingError(missing.what, place=str(path), hint=missing.hint)


def _candidate(opened: Opened, runner: str | None) -> Candidate:
    name = _runner(opened.artifact.format, runner, opened.path)
    return Candidate(opened.name, opened.artifact, name)


def _require_samples(path: Path, specs: tuple[TensorSpec, ...], observer: Observer) -> None:
    if not path.is_file():
        raise UsageError("there is no such file", place=str(path), hint="an .npz of samples")
    request = SamplesRequest(path, specs)
    names = run(
        "optcli.pipeline.model_files.laying_out:check_samples", request, tuple[str, ...], timeout_s=60.0
    )
    lacking = [spec.name for spec in specs if spec.name not in names]
    if lacking:
        observer.warned(NAME, f"{path.name} has no {', '.join(lacking)}: random")


def _report(
    opened: Sequence[Opened],
    measured: Measured,
    settings: LatencySettings,
    runner: str | None,
    began: str,
) -> Report:
    rows = latency.to_results(measured)
    baseline = opened[0].name
    variants = {}
    packages: set[str] = set()
    for each in opened:
        candidate = _candidate(each, runner)
        packages |= set(runners.find(candidate.runner).needs.packages)
        read_back = measured.opened.get(each.name)
        effective: dict[str, Any] = dict(read_back.effective) if read_back else {}
        if each.artifact.precision == effective.get("precision") == "unknown":
            effective["precision"] = "n/a"
        mine = tuple(_over(baseline, row, measured.failures) for row in rows.get(each.name, ()))
        variants[each.name] = reporting.ran(
            each.artifact,
            str(each.path),
            {"name": candidate.runner, "requested": {"threads": settings.threads}, **effective},
            measured.failures.get(each.name),
            latency=mine,
            verdicts=latency.verdicts(
                mine,
                settings,
                None,
                baseline,
                is_baseline=each.name == baseline,
                beside=rows.get(baseline, ()),
            ),
        )
    judged = (verdict for variant in variants.values() for verdict in variant.verdicts)
    return reporting.report(
        RecipeSummary(name=NAME, path="", digest=of_value([each.artifact.digest for each in opened])),
        baseline,
        variants,
        packages=packages,
        started=began,
        code=reporting.exit_code(judged, [ExitCode.FAILED] * len(measured.failures)),
        protocol=latency.protocol(measured),
    )


def _over(baseline: str, row: Latency, failures: Mapping[str, str]) -> Latency:
    """The row, without a speed-up over a baseline that failed on the way."""
    if baseline not in failures or row.speedup is None:
        return row
    doubts = (*row.flags, flags.no_speedup("baseline-failed", baseline))
    return row.model_copy(update={"speedup": None, "flags": doubts})
