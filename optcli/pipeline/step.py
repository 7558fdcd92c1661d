"""What a build's worker processes do: one step each. Also the command that repeats one step.

    python -m optcli.pipeline.step CALL.json FOLDER

carries out the call that a build has recorded beside the step's log and leaves its files in FOLDER.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from optcli import data, environment, passes
from optcli.artifact import CODE, SCANNED, UNPROVEN, Artifact, Format, own_inputs
from optcli.data import Preparation
from optcli.data.preset import resolved
from optcli.data.reaches import far_apart
from optcli.data.steps import written_out
from optcli.errors import (
    InputError,
    MissingError,
    StepError,
    StoreError,
    TrustError,
    first_line,
    raised_as,
)
from optcli.files.sample_cache import MEMORY_BYTES, SHARED_BYTES, CachedSampleSet, CachingSampleSet
from optcli.models import formats, sources
from optcli.observer import Silent
from optcli.passes import Job, Made, Pass, Role, Traits
from optcli.pipeline import check
from optcli.pipeline.comparison_process import ComparisonProcess, comparing
from optcli.pipeline.messages import (
    DataRequest,
    PassRequest,
    SampleCounts,
    SourceFindings,
    SourceRequest,
    StepNews,
    WrittenArtifact,
)
from optcli.sample import SampleSet
from optcli.settings import user_code
from optcli.store.disk import plain_files
from optcli.workers import Channel, messages

PROBE_SAMPLES = 16
_CALIBRATION_BYTES = 256 << 20


class _Reporting(Silent):
    """Sends what a pass says to the build."""

    def __init__(self, channel: Channel | None) -> None:
        self._channel = channel

    def progress(self, step: str, fraction: float | None, message: str) -> None:
        if self._channel is not None:
            self._channel.send(StepNews(progress=(fraction, message)))

    def warned(self, step: str, message: str) -> None:
        if self._channel is not None:
            self._channel.send(StepNews(warned=message))


def make_source(request: SourceRequest, channel: Channel | None) -> WrittenArtifact:
    """Write the model as it comes from its source, and see that it runs on real samples."""
    inputs, out = request.inputs, request.out
    source = sources.find(request.kind).model_validate(request.source)
    written = source.write(out, inputs)
    _plain(out)
    if source.format != Format.TORCH:  # whose check is to open it, as `usable` does below
        formats.check(source.format, out, trust=source.trust)
    facts = {"outputs": list(written.outputs), **(written.facts or {})}
    facts |= _unproven(source.format, out, trust=source.trust)
    artifact = Artifact("", source.format, out, written.precision, 0, "", facts, trusted=source.trust)
    first = check.usable(artifact, inputs, request.probe, request.threads)
    for message in first.notes:
        _Reporting(channel).warned("", message)
    return WrittenArtifact(source.format, written.precision, {**facts, **first.facts})


def make_artifact(request: PassRequest, channel: Channel | None) -> WrittenArtifact:
    """Run a pass; check what it wrote, against its parent where the pass is a conversion."""
    source = request.parent
    job = _job(request, channel)
    observer = job.observer
    _seed_everything(job.seed)
    attempts = configured_pass(request.traits, request.folder).attempts()
    failures: list[str] = []
    with comparing(request, attempts) as comparison:
        for number, attempt in enumerate(attempts, start=1):
            try:
                made = _attempt(attempt, source, job, request.probe, comparison)
                break
            except Exception as error:
                if number == len(attempts) or isinstance(error, MissingError):
                    raise
                traceback.print_exc()  # into the step's log
                failures.append(f"{attempt!r}: {error}")
                next_one = attempts[number]
                observer.warned(
                    "", f"{attempt!r} did not work ({first_line(error)[:200]}); trying {next_one!r}"
                )
                shutil.rmtree(job.out)
                job.out.mkdir()
    for samples in (job.calibration, job.training, job.validation):
        if isinstance(samples, CachingSampleSet):
            samples.finish()
    facts = {**source.facts, **made.facts, **({"tried_before": failures} if failures else {})}
    made_format = attempt.produces(source.format)
    facts = {**_unproven(made_format, job.out, trust=source.trusted), **facts}
    if source.foreign and source.format in SCANNED and made_format in CODE:
        # Compiled, it is no longer held to its memory: whoever opens this must trust the program.
        facts.setdefault(UNPROVEN, [f"it was compiled from a program from elsewhere ({source.format})"])
    return WrittenArtifact(made_format, made.precision or source.precision, facts)


def check_source(request: PassRequest, channel: Channel | None) -> SourceFindings:
    """Ask a pass that cannot run here what it can say of its source."""
    configured = configured_pass(request.traits, request.folder)
    return SourceFindings(tuple(configured.check_source(request.parent, _job(request, channel))))


def _job(request: PassRequest, channel: Channel | None) -> Job:
    roles = {role: _cached(request, role) for role in request.traits.uses}
    inputs = own_inputs(request.parent.facts, request.inputs)
    if roles and inputs != request.inputs:
        raise StepError(
            "the model before this pass prepares its images itself, and samples are prepared already",
            hint="put embed_preparation behind the passes that read samples",
        )
    return Job(
        out=request.out,
        inputs=inputs,
        postprocess=None if request.postprocess is None else request.postprocess.detector,
        parts=request.parts,
        preparation=None if request.prepare is None else _written_out(request.prepare),
        origin=request.origin,
        observer=_Reporting(channel),
        step=request.step,
        device=str(request.traits.options.get("device", "cpu")),
        threads=request.threads,
        seed=request.seed,
        batch_sizes=request.batch_sizes,
        scratch=request.scratch,
        cache=request.cache,
        temporary=request.temporary,
        calibration=roles.get("calibration"),
        training=roles.get("training"),
        validation=roles.get("validation"),
    )


def _written_out(prepare: Preparation) -> dict[str, Any]:
    steps = resolved(prepare)
    return {**written_out(steps), "layout": steps.layout}


def prepare_data(request: DataRequest, channel: Channel | None) -> SampleCounts:
    """Open every data role, see that evaluation is disjoint from the rest, keep samples for checks.

    One sample of each role is prepared: what is wrong with all of them is known before any work.
    """
    import numpy as np

    inputs = request.inputs
    roles = {role: data.open(of, request.folder, inputs) for role, of in request.data.items()}
    data.disjoint(roles)
    for role, other, how in data.two_preparations(request.data, presets=True):
        raise InputError(
            f"{role} prepares images otherwise than {other}: {'; '.join(how)}",
            place=f"data.{role}.prepare",
            hint=data.ONE_PREPARATION,
        )
    firsts = {role: samples[0] for role, samples in roles.items() if len(samples)}
    if request.metric and "evaluation" in firsts and firsts["evaluation"].target is None:
        raise InputError(
            f"{request.metric} needs labels, and the evaluation set has none",
            place="data.evaluation",
            hint="label the samples, or remove `accuracy:`: then outputs alone are compared",
        )
    # Latency is measured on these samples, and of all roles the gate compares what evaluation reads.
    order = ("evaluation", "calibration", "validation", "training")
    probed = roles[next(role for role in order if role in roles)]
    count = min(PROBE_SAMPLES, len(probed))
    rows = [probed[index * len(probed) // count] for index in range(count)]
    arrays = {spec.name: np.stack([row.inputs[spec.name] for row in rows]) for spec in inputs}
    np.savez(request.out / "probe.npz", **arrays)  # type: ignore[arg-type]
    odd = []
    if calibration := request.data.get("calibration"):
        compared = "evaluation" in roles and not calibration.allow_difference
        odd = far_apart(roles["calibration"], rows if compared else ())
    return SampleCounts({role: len(samples) for role, samples in roles.items()}, tuple(odd))


def configured_pass(traits: Traits, folder: Path) -> Pass:
    """The pass that the traits describe, from optcli itself or from the user's code."""
    if traits.reference is None:
        return passes.find(traits.name).model_validate(traits.options)
    kind: Any = user_code.load(traits.reference, folder)
    configured: Pass = kind.model_validate(traits.options)
    return configured


def _attempt(
    attempt: Pass,
    source: Artifact,
    job: Job,
    probe: Path | None,
    comparison: ComparisonProcess | None,
) -> Made:
    made = _reported(attempt.run(source, job))
    _plain(job.out)
    made_format = attempt.produces(source.format)
    child = replace(source, format=made_format, path=job.out, facts={**source.facts, **made.facts})
    if comparison is not None:  # it may do what the pass could do: it need not wait for the check
        comparison.begin(child)
    try:
        formats.check(made_format, job.out, trust=source.trusted)
    except TrustError:  # who knows the network can say so
        raise
    except InputError as error:  # not the user's file: the pass is to blame
        text = f"the files that it wrote are not a valid {made_format.value} model: {error.message}"
        hint = "the library that wrote them is to blame: try other options, or another version of it"
        raise StepError(text, place=error.place, hint=hint) from error
    if attempt.tolerance is None:
        return made
    job.progress(None, "comparing with its parent")
    checked = comparison.result() if comparison is not None else None
    if checked is None:
        checked = check.against_parent(child, source, job.inputs, probe, attempt.tolerance, job.threads)
    return Made(made.precision, {**made.facts, "checked_against_parent": checked})


def _unproven(format: Format, out: Path, *, trust: bool) -> dict[str, Any]:
    """What a person had to trust in the files written: a fact that later steps read.

    Without `trust` there is nothing of the kind: the check has refused it.
    """
    doubts = formats.doubts(format, out) if trust else ()
    return {UNPROVEN: list(doubts)} if doubts else {}


def _plain(out: Path) -> None:
    """Raise `StepError` for what the store does not take. Opening a pipe would block for ever."""
    try:
        plain_files(out)
    except StoreError as error:
        raise StepError(f"in what it wrote: {error.message}", hint=error.hint) from error


def _reported(made: Any) -> Made:
    """What `run` returned, if it is what a pass must return."""
    if not isinstance(made, Made):
        raise StepError(
            f"run() returned {made!r}, wanted a Made", hint="end it with `return Made(facts={...})`"
        )
    message = "the facts are not plain JSON data"
    hint = "write float(x), int(x) or array.tolist()"
    with raised_as(StepError, message, of=(TypeError, ValueError), reason=str, hint=hint):
        json.dumps(made.facts)
    return made


def _cached(request: PassRequest, role: Role) -> SampleSet:
    """The samples of a role as they were prepared before, or kept from now on.

    What trains goes through them again and again. What calibrates may hold no more memory than it does.
    """
    prepared = request.prepared.get(role)
    if prepared is not None:
        return CachedSampleSet(prepared)
    samples = data.open(request.data[role], request.folder, request.inputs)
    if request.keep is None:
        return samples
    calibrates = role == "calibration"
    return CachingSampleSet(
        samples,
        request.keep / role / "part-0",
        shared_bytes=_CALIBRATION_BYTES if calibrates else SHARED_BYTES,
        memory_bytes=0 if calibrates else MEMORY_BYTES,
        threads=environment.usable_cores(),
    )


def _seed_everything(seed: int) -> None:
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:  # loaded by the fork server, for the passes that need it
        import torch

        torch.manual_seed(seed)


def main() -> None:
    """Repeat one recorded call in this process: `python -m optcli.pipeline.step CALL.json FOLDER`."""
    call = json.loads(Path(sys.argv[1]).read_text())
    out = Path(sys.argv[2])
    out.mkdir(parents=True)
    answer = repeated(call, out)
    sys.stdout.write(json.dumps(messages.to_record(answer), indent=2) + "\n")


def repeated(call: dict[str, Any], out: Path) -> Any:
    """Carry out a recorded call here; it writes into `out`. Gives what its function gives."""
    function = globals()[call["function"].partition(":")[2]]
    kind, _ = messages.types_of(function)
    return function(replace(messages.read(kind, call["message"]), out=out), None)


if __name__ == "__main__":
    main()
