"""`optcli gate`: is the model slower, bigger or worse than before? Blocks the merge if it is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from optcli.cli import options, reports, show
from optcli.cli.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from optcli.results.gate import GateReport


@dataclass(frozen=True)
class GateOptions:
    """What `optcli gate` alone takes."""

    reference: str = options.option(
        "--baseline",
        required=True,
        metavar="NAME|FILE|URL|git:REV",
        help="What to compare with: a saved baseline, its file or URL, or the recipe at a commit.",
    )
    only: tuple[str, ...] = options.option(
        "--variant",
        multiple=True,
        help="Judge this variant; may be repeated. Default: those that the recipe or the baseline marks"
        " `gate: true`, else those that they recommend.",
    )
    baseline_python: Path | None = options.option(
        "--baseline-python",
        type=click.Path(path_type=Path, exists=True),
        metavar="VENV",
        help="Run the baseline in this virtual environment (or Python), to judge new library versions.",
    )
    accept: tuple[str, ...] = options.option(
        "--accept",
        multiple=True,
        metavar="KIND,...",
        help="Allow that this changed since the baseline, such as evaluation,bar. Kinds: evaluation,"
        " preparation, postprocess, metric, code, bar, rule, threads, runner, variants, inputs,"
        " libraries, untracked-model, untracked-data, committed, terms.",
    )
    on_inconclusive: Literal["fail", "pass"] | None = options.option(
        "--on-inconclusive",
        type=click.Choice(["fail", "pass"]),
        help="What an inconclusive result counts as; default: exit code 5. `pass` holds for noise"
        " alone: what was not compared, or changed without --accept, still gives 5.",
    )
    ray: str | None = options.option(
        "--ray",
        metavar="auto|HOST:PORT",
        help="The Ray cluster of the devices that gate.devices names: the one here, or that of an"
        " address.",
    )
    confirm: bool | None = options.option(
        "--confirm/--no-confirm",
        default=None,
        help="Measure a failing variant once more; it fails only if both runs fail.",
    )
    history: Path | None = options.option(
        "--history",
        type=options.OUT_FILE,
        help="Append the figures to this file; `optcli history` shows them.",
    )
    markdown: Path | None = options.option(
        "--markdown", type=options.OUT_FILE, help="Write a comment for a pull request."
    )
    junit: Path | None = options.option("--junit", type=options.OUT_FILE, help="Write JUnit XML.")
    gitlab_metrics: Path | None = options.option(
        "--gitlab-metrics", type=options.OUT_FILE, help="Write a metrics report for GitLab."
    )
    benchmark_json: Path | None = options.option(
        "--benchmark-json", type=options.OUT_FILE, help="Write JSON for github-action-benchmark."
    )


@click.command(
    "gate",
    epilog=options.examples(
        "optcli gate recipe.yaml --baseline git:main",
        "optcli gate recipe.yaml --baseline released --markdown comment.md --junit gate.xml",
    ),
)
@options.recipe
@options.group("given", GateOptions)
@click.option(
    "--trust",
    is_flag=True,
    help="Run code in a baseline or a model from elsewhere, where you know who made it.",
)
@options.store
@options.remote
@options.artifacts
@options.overrides
@options.jobs_here
@options.timeout("step")
@options.output
def command(
    recipe: Path,
    given: GateOptions,
    trust: bool,
    store: Path | None,
    artifacts: Path | None,
    overrides: tuple[str, ...],
    jobs: int | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Compare RECIPE's variants with a baseline: optcli measures both now, on this machine, in turns.

    The exit code is 0 if all pass, 1 if something became worse beyond its limit, 5 if the measurement
    cannot tell.
    """
    from optcli.gate.origins import GateRun
    from optcli.gate.running import gate
    from optcli.gate.terms import accepted
    from optcli.pipeline.execute import usual_jobs
    from optcli.report import gate as shown
    from optcli.report import markdown_text

    with Progress() as progress:
        report = gate(
            recipe,
            given.reference,
            options.settings_of(
                GateRun,
                given,
                overrides=overrides,
                jobs=jobs or usual_jobs(),
                timeout_s=timeout,
                trust=trust,
                accept=accepted(given.accept),
            ),
            store=options.opened(store),
            artifacts=reports.root_to_write(artifacts),
            observer=progress,
        )
    document = shown.document(report)
    if given.markdown is not None:
        options.write(given.markdown, markdown_text.markdown(document))
    forms: dict[Path | None, Callable[[GateReport], str]] = {
        given.junit: shown.junit,
        given.gitlab_metrics: shown.gitlab_metrics,
        given.benchmark_json: shown.benchmark_json,
    }
    for path, form in forms.items():
        if path is not None:
            options.write(path, form(report))
    show(report, document, as_json=as_json)
    _tell_github(report)
    return report.exit_code


def _tell_github(report: GateReport) -> None:
    """Annotations and the step's summary, where GitHub Actions runs this."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    from optcli.report import gate as shown
    from optcli.report.markdown_text import markdown

    # Workflow commands are read from both streams; stdout may be somebody's JSON.
    for line in shown.github_annotations(report):
        click.echo(line, err=True)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as stream:
            stream.write(markdown(shown.document(report)))
