"""The one form of the reports of a build, of `bench` and of `verify-accuracy`.

It is in this room because a report joins what accuracy, latency and the environment say, and because
both other verbs may import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from optcli import environment
from optcli.artifact import Artifact
from optcli.errors import ExitCode, OptcliError
from optcli.recipe import Recipe
from optcli.report.recommendation import Advice
from optcli.results import (
    Accuracy,
    ArtifactSummary,
    Latency,
    RecipeSummary,
    Report,
    VariantReport,
    Verdict,
)
from optcli.workers import confinement


def report(
    recipe: RecipeSummary,
    baseline: str,
    variants: dict[str, VariantReport],
    *,
    packages: Iterable[str],
    started: str,
    code: ExitCode,
    reason: str = "",
    advice: Advice | None = None,
    protocol: dict[str, Any] | None = None,
    machine: Mapping[str, Any] | None = None,
    judged_by: dict[str, Any] | None = None,
) -> Report:
    """A report that ends now; `packages` are those whose versions it names.

    Without `advice` nothing is recommended. `reason` is why it ended with `code`. What only builds
    say: `machine` of the machine, `judged_by` of what a later gate compares with.
    """
    advice = advice or Advice(recommended=None, sentence="", by_batch={})
    return Report(
        recipe=recipe,
        environment={
            **environment.describe(sorted(packages)),
            **({"machine": machine} if machine is not None else {}),
            "confinement": str(confinement.available()),
        },
        baseline=baseline,
        recommended=advice.recommended,
        recommendation=advice.sentence,
        recommendations=advice.by_batch,
        started=started,
        finished=environment.now(),
        exit_code=int(code),
        exit_reason=reason,
        protocol=protocol or {},
        judged_by=judged_by,
        variants=variants,
    )


def recipe_summary(recipe: Recipe) -> RecipeSummary:
    """Which recipe a report is about."""
    return RecipeSummary(name=recipe.name, path=str(recipe.path), digest=recipe.digest)


def artifact_summary(artifact: Artifact, path: str) -> ArtifactSummary:
    """What a report says of an artifact; `path` is where the report says that it lies."""
    return ArtifactSummary(
        key=artifact.key,
        format=artifact.format.value,
        path=path,
        precision=artifact.precision,
        size_bytes=artifact.size_bytes,
        digest=artifact.digest,
    )


def ran(
    artifact: Artifact,
    path: str,
    runner: dict[str, Any],
    problem: OptcliError | str | None,
    *,
    status: Literal["built", "cached", "skipped"] = "built",
    reason: str | None = None,
    latency: tuple[Latency, ...] = (),
    accuracy: Accuracy | None = None,
    verdicts: tuple[Verdict, ...] = (),
) -> VariantReport:
    """The report of an artifact that was to be run: failed where there was a `problem`.

    `path` is where the report says that it lies, `runner` holds its name, settings and what was read
    back; `status` and `reason` hold where nothing failed.
    """
    return VariantReport(
        status="failed" if problem else status,
        reason=str(problem) if problem else reason,
        artifact=artifact_summary(artifact, path),
        runner=runner,
        latency=latency,
        accuracy=accuracy,
        verdicts=verdicts,
    )


def exit_code(verdicts: Iterable[Verdict], failures: Iterable[ExitCode] = ()) -> ExitCode:
    """The exit code of blocking verdicts and failures; all of them count, whatever a recipe marks."""
    outcomes = (ExitCode.of(each.outcome) for each in verdicts if each.blocking)
    return ExitCode.first_of([*failures, *outcomes])
