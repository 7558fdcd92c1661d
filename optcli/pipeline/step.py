"""What a build's worker processes do: one step each. Also the command that repeats one step.

    python -m optcli.pipeline.step CALL.json FOLDER

carries out the call that a build has recorded beside the step's log and leaves its files in FOLDER.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optcli import data, environment, formats, passes, regular_files, sources, user_code
from optcli.artifact import UNPROVEN, Artifact, Format
from optcli.data import DataSettings
from optcli.errors import InputError, StepError, StoreError, TrustError
from optcli.kept_samples import MEMORY_BYTES, SHARED_BYTES, Keeping, KeptSet
from optcli.observer import Silent
from optcli.passes import Job, Made, Pass, Traits
from optcli.pipeline import check
from optcli.sample import SampleSet
from optcli.settings import TensorSpec
from optcli.store.disk import plain_files
from optcli.workers import Channel

PROBE_SAMPLES = 16
_CALIBRATION_BYTES = 256 << 20


class _Reporting(Silent):
    """Sends what a pass says to the build."""

    def __init__(self, channel: Channel | None) -> None:
        self._channel = channel

    def progress(self, step: str, fraction: float | None, message: str) -> None:
        if self._channel is not None:
            self._channel.send({"progress": [fraction, message]})

    def warned(self, step: str, message: str) -> None:
        if self._channel is not None:
            self._channel.send({"warned": message})


def make_source(payload: dict[str, Any], channel: Channel | None) -> dict[str, Any]:
    """Write the model as it comes from its source, and see that it runs on real samples."""
    inputs = _inputs(payload)
    out = Path(payload["out"])
    source = sources.find(payload["kind"]).model_validate(payload["source"])
    written = source.write(out, inputs)
    _plain(out)
    if source.format != Format.TORCH:  # whose check is to open it, as `usable` does below
        formats.check(source.format, out, trust=source.trust)
    facts = {"outputs": list(written.outputs), **(written.facts or {})}
    facts |= _unproven(source.format, out, trust=source.trust)
    artifact = Artifact("", source.format, out, written.precision, 0, "", facts, trusted=source.trust)
    for message in check.usable(artifact, inputs, _probe(payload), payload["threads"]):
        _Reporting(channel).warned("", message)
    return {"format": source.format.value, "precision": written.precision, "facts": facts}


def make_artifact(payload: dict[str, Any], channel: Channel | None) -> dict[str, Any]:
    """Run a pass; check what it wrote, against its parent where the pass is a conversion."""
    traits = Traits.from_record(payload["traits"])
    source = Artifact.from_record(payload["parent"])
    job = _job(payload, traits, channel)
    observer = job.observer
    _seed_everything(job.seed)
    attempts = configured_pass(traits, Path(payload["folder"])).attempts()
    failures: list[str] = []
    for number, attempt in enumerate(attempts, start=1):
        try:
            made = _attempt(attempt, source, job, _probe(payload))
            break
        except Exception as error:
            if number == len(attempts):
                raise
            traceback.print_exc()  # into the step's log
            failures.append(f"{attempt!r}: {error}")
            next_one = attempts[number]
            observer.warned("", f"{attempt!r} did not work ({_first_line(error)}); trying {next_one!r}")
            _empty(job.out)
    for samples in (job.calibration, job.training, job.validation):
        if isinstance(samples, Keeping):
            samples.finish()
    facts = {**source.facts, **made.facts, **({"tried_before": failures} if failures else {})}
    made_format = attempt.produces(source.format)
    facts = {**_unproven(made_format, job.out, trust=source.trusted), **facts}
    return {
        "format": made_format.value,
        "precision": made.precision or source.precision,
        "facts": facts,
    }


def check_source(payload: dict[str, Any], channel: Channel | None) -> dict[str, Any]:
    """Ask a pass that cannot run here what it can say of its source: `findings`, a sentence each."""
    traits = Traits.from_record(payload["traits"])
    source = Artifact.from_record(payload["parent"])
    configured = configured_pass(traits, Path(payload["folder"]))
    findings = configured.check_source(source, _job(payload, traits, channel))
    return {"findings": list(findings), "facts": {}}


def _job(payload: dict[str, Any], traits: Traits, channel: Channel | None) -> Job:
    folder, inputs = Path(payload["folder"]), _inputs(payload)
    roles = {role: _kept(payload, role, folder, inputs) for role in traits.uses}
    return Job(
        out=Path(payload["out"]),
        inputs=inputs,
        origin=Artifact.from_record(payload["origin"]),
        observer=_Reporting(channel),
        step=payload["step"],
        device=str(traits.options.get("device", "cpu")),
        threads=payload["threads"],
        seed=payload["seed"],
        batch_sizes=tuple(payload["batch_sizes"]),
        scratch=Path(payload["scratch"]) if payload.get("scratch") else None,
        cache=Path(payload["cache"]) if payload.get("cache") else None,
        temporary=Path(payload["temporary"]) if payload.get("temporary") else None,
        calibration=roles.get("calibration"),
        training=roles.get("training"),
        validation=roles.get("validation"),
    )


def prepare_data(payload: dict[str, Any], channel: Channel | None) -> dict[str, Any]:
    """Open every data role, see that evaluation is disjoint from the rest, keep samples for checks.

    One sample of each role is prepared: what is wrong with all of them is known before any work.
    """
    import numpy as np

    inputs, folder = _inputs(payload), Path(payload["folder"])
    roles = {role: _samples(settings, folder, inputs) for role, settings in payload["data"].items()}
    data.disjoint(roles)
    firsts = {role: samples[0] for role, samples in roles.items() if len(samples)}
    if payload["metric"] and "evaluation" in firsts and firsts["evaluation"].target is None:
        raise InputError(
            f"{payload['metric']} needs labels, and the evaluation set has none",
            place="data.evaluation",
            hint="label the samples, or remove `accuracy:`: then outputs alone are compared",
        )
    # Latency is measured on these samples, and of all roles the gate compares what evaluation reads.
    order = ("evaluation", "calibration", "validation", "training")
    probed = roles[next(role for role in order if role in roles)]
    count = min(PROBE_SAMPLES, len(probed))
    rows = [probed[index * len(probed) // count] for index in range(count)]
    arrays = {spec.name: np.stack([row.inputs[spec.name] for row in rows]) for spec in inputs}
    np.savez(Path(payload["out"]) / "probe.npz", **arrays)  # type: ignore[arg-type]
    return {"samples": {role: len(samples) for role, samples in roles.items()}}


def configured_pass(traits: Traits, folder: Path) -> Pass:
    """The pass that the traits describe, from optcli itself or from the user's code."""
    if traits.reference is None:
        return passes.find(traits.name).model_validate(traits.options)
    kind: Any = user_code.load(traits.reference, folder)
    configured: Pass = kind.model_validate(traits.options)
    return configured


def _attempt(attempt: Pass, source: Artifact, job: Job, probe: Path | None) -> Made:
    made = _told(attempt.run(source, job))
    _plain(job.out)
    made_format = attempt.produces(source.format)
    try:
        formats.check(made_format, job.out, trust=source.trusted)
    except TrustError:  # who knows the network can say so
        raise
    except InputError as error:  # not the user's file: the pass is to blame
        text = f"what it wrote is no sound {made_format.value} model: {error.message}"
        raise StepError(text, place=error.place, hint="look into the log of the step") from error
    if attempt.tolerance is None:
        return made
    job.progress(None, "comparing with its parent")
    child = replace(source, format=made_format, path=job.out, facts={**source.facts, **made.facts})
    checked = check.against_parent(child, source, job.inputs, probe, attempt.tolerance, job.threads)
    return Made(made.precision, {**made.facts, "checked_against_parent": checked})


def _unproven(format: Format, out: Path, *, trust: bool) -> dict[str, Any]:
    """What a scan could not prove of what was written: a fact, for whoever opens it later.

    Without `trust` there is nothing of the kind: the check has refused it.
    """
    doubts = formats.doubts(format, out) if trust else ()
    return {UNPROVEN: list(doubts)} if doubts else {}


def _plain(out: Path) -> None:
    """See that a step wrote regular files only: whoever opens a pipe waits for ever."""
    try:
        plain_files(out)
    except StoreError as error:
        path = Path(error.place)
        raise StepError(
            f"it wrote {path.name}, which is {_what(path)}; wanted regular files only",
            hint="write a copy of the file instead of a link, and no pipes, sockets or devices",
        ) from error


def _what(path: Path) -> str:
    return "a link" if path.is_symlink() else regular_files.kind(path.lstat().st_mode) or "a file"


def _told(made: Any) -> Made:
    """What `run` returned, if it is what a pass must return."""
    if not isinstance(made, Made):
        raise StepError(
            f"run() returned {made!r}, wanted a Made", hint="end it with `return Made(facts={...})`"
        )
    try:
        json.dumps(made.facts)
    except (TypeError, ValueError) as error:
        raise StepError(
            f"the facts are no plain data: {error}", hint="write float(x), int(x) or array.tolist()"
        ) from error
    return made


def _inputs(payload: dict[str, Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec.model_validate(spec) for spec in payload["inputs"])


def _samples(settings: dict[str, Any], folder: Path, inputs: Sequence[TensorSpec]) -> SampleSet:
    return data.open(DataSettings.model_validate(settings), folder, inputs)


def _kept(payload: dict[str, Any], role: str, folder: Path, inputs: Sequence[TensorSpec]) -> SampleSet:
    """The samples of a role as they were prepared before, or kept from now on.

    What trains goes through them again and again. What calibrates may hold no more memory than it does.
    """
    known = payload.get("prepared", {}).get(role)
    if known is not None:
        return KeptSet(Path(known))
    samples = _samples(payload["data"][role], folder, inputs)
    if "keep" not in payload:
        return samples
    calibrates = role == "calibration"
    return Keeping(
        samples,
        Path(payload["keep"]) / role / "part-0",
        shared_bytes=_CALIBRATION_BYTES if calibrates else SHARED_BYTES,
        memory_bytes=0 if calibrates else MEMORY_BYTES,
        threads=environment.usable_cores(),
    )


def _probe(payload: dict[str, Any]) -> Path | None:
    return Path(payload["probe"]) if payload["probe"] else None


def _seed_everything(seed: int) -> None:
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:  # loaded by the fork server, for the passes that need it
        import torch

        torch.manual_seed(seed)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def main() -> None:
    """Repeat one recorded call in this process: `python -m optcli.pipeline.step CALL.json FOLDER`."""
    call = json.loads(Path(sys.argv[1]).read_text())
    out = Path(sys.argv[2])
    out.mkdir(parents=True)
    made = globals()[call["function"].partition(":")[2]]({**call["payload"], "out": str(out)}, None)
    sys.stdout.write(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    main()
