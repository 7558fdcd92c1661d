"""Measure model files side by side: artifacts that no recipe built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from optcli import environment, runners
from optcli.artifact import Format
from optcli.errors import ExitCode, MissingError, UsageError
from optcli.files import folders
from optcli.files.digest import FileDigests, of_value
from optcli.measure import latency
from optcli.measure.latency import Candidate, LatencyOrder, Measured
from optcli.observer import Observer, Silent
from optcli.pipeline import reporting
from optcli.pipeline.model_files.laying_out import SamplesRequest
from optcli.pipeline.model_files.opening import Opened, find, open_all
from optcli.pipeline.places import HERE, Place
from optcli.pipeline.remote_devices.devices import looking
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
    on: str | None = None,
    observer: Observer | None = None,
) -> Report:
    """Measure files in one comparison, the first being the baseline; the report's form is a build's.

    `inputs` are found by looking where none are given; `samples` is an .npz with arrays `[n, ...]` by
    their names, else inputs are random. `runner` runs all of them, by default each format's own.
    `trust` lets code run that is not from the own `store`. `on` names the device that measures: one of
    the user's configuration, or user@host; None: this machine. A file that fails costs its row. Raises
    `UsageError`, `InputError`, `TrustError`, and `MissingError` for a runtime or GPU that is not there.
    """
    began = environment.now()
    observer = observer or Silent()
    targets = find(files, Store(Store.default_root(store)), trust=trust)
    names = {target.path: _runner(Format(target.format), runner, target.path) for target in targets}
    with ExitStack() as stack:
        place = stack.enter_context(_place(on, names, observer))
        scratch = stack.enter_context(folders.temporary("bench"))
        opened, specs = open_all(targets, Path(scratch), inputs, max(batch_sizes))
        for each in opened:
            for note in each.notes:
                observer.warned(each.name, note)
        if samples is not None:
            _require_samples(samples, specs, observer)
        settings = LatencySettings.model_validate(
            {"mode": mode, "batch_sizes": tuple(sorted(set(batch_sizes))), "threads": threads}
        )
        order = LatencyOrder(
            candidates=tuple(
                replace(_candidate(each, runner), names=each.own_names(specs)) for each in opened
            ),
            baseline=opened[0].name,
            inputs=specs,
            feeds=samples.absolute() if samples is not None else None,
            settings=settings,
            seed=0,
        )
        measured = place.measure(NAME, order, Path(scratch) / "logs", observer)
        return _report(opened, measured, settings, runner, began, place)


@contextmanager
def _place(on: str | None, runners_by_file: Mapping[Path, str], observer: Observer) -> Iterator[Place]:
    """The machine that measures, which has what the runners need. Raises `MissingError`."""
    if on is None:
        for path, name in runners_by_file.items():
            for missing in environment.missing(runners.find(name)().requires()):
                raise MissingError(missing.what, place=str(path), hint=missing.hint)
        yield HERE
        return
    from optcli.pipeline.on_ssh.devices import SshDevice
    from optcli.pipeline.on_ssh.hosts import host_named

    name, host = host_named(on)
    needs = {str(path): runners.find(each)().requires() for path, each in runners_by_file.items()}
    device = SshDevice(name, host, looking(needs, runners_by_file.values()), FileDigests())
    try:
        device.connect(observer)
        for file in needs:
            for missing in device.lacking(file):
                raise MissingError(f"{missing.what} on {name}", place=file, hint=missing.hint)
        yield device
    finally:
        device.close()


def _runner(format: Format, wanted: str | None, path: Path) -> str:
    name = wanted or runners.DEFAULTS.get(format)
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
    place: Place,
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
        verdicts_here = tuple(
            _over(baseline, row, measured.failures).model_copy(update={"device": place.name})
            for row in rows.get(each.name, ())
        )
        variants[each.name] = reporting.ran(
            each.artifact,
            str(each.path),
            {"name": candidate.runner, "requested": {"threads": settings.threads}, **effective},
            measured.failures.get(each.name),
            latency=verdicts_here,
            verdicts=latency.verdicts(
                verdicts_here,
                settings,
                None,
                baseline,
                is_baseline=each.name == baseline,
                others=rows.get(baseline, ()),
            ),
        )
    judged = (verdict for variant in variants.values() for verdict in variant.verdicts)
    report = reporting.report(
        RecipeSummary(name=NAME, path="", digest=of_value([each.artifact.digest for each in opened])),
        baseline,
        variants,
        packages=packages,
        started=began,
        code=reporting.exit_code(judged, [ExitCode.FAILED] * len(measured.failures)),
        protocol=latency.protocol(measured),
    )
    if place.is_here:
        return report
    return report.model_copy(
        update={"environment": place.description(sorted(packages)), "device": place.name}
    )


def _over(baseline: str, row: Latency, failures: Mapping[str, str]) -> Latency:
    """The row, without a speed-up over a baseline that failed on the way."""
    if baseline not in failures or row.speedup is None:
        return row
    doubts = (*row.flags, flags.no_speedup("baseline-failed", baseline))
    return row.model_copy(update={"speedup": None, "flags": doubts})
