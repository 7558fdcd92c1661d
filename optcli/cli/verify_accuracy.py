"""`optcli verify-accuracy`: what each artifact costs in accuracy; of a build, or of model files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from optcli.cli import options, reports
from optcli.cli.progress import Progress
from optcli.errors import ExitCode, UsageError
from optcli.results import Report, Verdict
from optcli.results.outcomes import ACCURACY_VERDICTS


@dataclass(frozen=True)
class VerificationOptions:
    """What `optcli verify-accuracy` alone takes."""

    baseline: Path | None = options.option(
        "--baseline",
        type=options.PATH,
        help="The file that the others are compared with; default: the first.",
    )
    recipe: Path | None = options.option(
        "--recipe",
        type=options.FILE,
        help="For files: the recipe that gives inputs, data, metric and postprocess.",
    )
    predictions: Path | None = options.option(
        "--predictions",
        type=options.FILE,
        help="Judge what another machine answered: outputs (.npz), COCO's results (.json), classes"
        " (.csv).",
    )
    name: str | None = options.option(
        "--name", help="With --predictions: what the report calls them; default: the file's name."
    )
    partial: bool = options.option(
        "--partial", is_flag=True, help="With --predictions: judge the samples that it answers."
    )
    write_inputs: Path | None = options.option(
        "--write-inputs",
        type=options.OUT_FILE,
        metavar="FILE.npz",
        help="Write the prepared evaluation samples of --recipe with their ids, for another machine.",
    )
    runners: tuple[str, ...] = options.option(
        "--runner", multiple=True, metavar="NAME", help="Run files in this runner; may be repeated."
    )
    remeasure: bool = options.option("--remeasure", is_flag=True, help="Evaluate files again.")
    jobs: int = options.option(
        "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes for each file."
    )
    per_class: bool = options.option(
        "--per-class", is_flag=True, help="Show the metric of every class, too."
    )
    as_markdown: bool = options.option("--markdown", is_flag=True, help="Print Markdown.")
    junit: Path | None = options.option(
        "--junit", type=options.OUT_FILE, help="Write JUnit XML for a CI system."
    )
    layers: str | None = options.option(
        "--layers",
        metavar="[VARIANT]",
        is_flag=False,
        flag_value="",
        help="Show where the error starts, of this variant or of all; rejected ones always show it.",
    )
    no_layers: bool = options.option(
        "--no-layers", is_flag=True, help="Do not show where the error starts, for any variant."
    )


@click.command(
    "verify-accuracy",
    epilog=options.examples(
        "optcli verify-accuracy recipe.yaml --layers",
        "optcli verify-accuracy --predictions phone.npz --recipe recipe.yaml",
    ),
)
@click.argument("where", nargs=-1, type=options.PATH, metavar="[RECIPE|REPORT|FILE...]")
@options.group("given", VerificationOptions)
@options.trust
@options.timeout("file")
@options.overrides
@options.store
@options.remote
@options.artifacts
@options.output
def command(
    where: tuple[Path, ...],
    given: VerificationOptions,
    trust: bool,
    timeout: float,
    overrides: tuple[str, ...],
    store: Path | None,
    artifacts: Path | None,
    as_json: bool,
) -> int:
    """Show what each artifact costs in accuracy, with its verdicts.

    Without files it reads a report: that of the last build, of a RECIPE's last build, or a REPORT file.
    It evaluates nothing again, and can judge by another bar (--set accuracy.max_drop=0.02). It
    evaluates model FILEs, or artifacts' folders, with the data and the metric of --recipe. With
    --predictions it judges what a phone, an NPU or a server answered, against the recipe's baseline.

    The exit code is 1 if a blocking verdict rejects, and 5 if a blocking verdict is inconclusive.
    Advice does not change it.

    For a rejected variant, optcli compares each layer with that of the float network, on 8 samples. The
    table shows the noise that each layer adds by itself, the worst first, and one thing to try. This
    takes up to a minute a variant, and the store keeps the result; --no-layers leaves it out. Then
    `optcli tune --from VARIANT` looks for options that keep the accuracy.
    """
    if given.no_layers and given.layers is not None:
        raise UsageError(
            "found --layers and --no-layers", place="--no-layers", hint="leave one of them out"
        )
    # A recipe or a report after --layers is no variant.
    if given.layers is not None and Path(given.layers).suffix in (*reports.RECIPES, ".json"):
        where, given = (*where, Path(given.layers)), replace(given, layers="")
    if given.predictions is None and (given.name is not None or given.partial):
        option = "--name" if given.name is not None else "--partial"
        raise UsageError(
            f"found {option} without --predictions", place=option, hint="--predictions FILE"
        )
    common: dict[str, Any] = {
        "overrides": overrides,
        "trust": trust,
        "remeasure": given.remeasure,
        "timeout_s": timeout,
    }
    files = given.baseline is not None or given.recipe is not None or len(where) > 1
    if given.predictions is not None or given.write_inputs is not None:
        if where or given.baseline is not None or given.recipe is None:
            raise UsageError(
                "answers and inputs of another machine go with --recipe, and with no files",
                place="--predictions" if given.predictions else "--write-inputs",
                hint="optcli verify-accuracy --predictions FILE --recipe RECIPE",
            )
        if given.write_inputs is not None:
            _write_inputs(given.recipe, given.write_inputs, overrides)
        if given.predictions is None:
            return ExitCode.DONE
        report, code = _of_answers(given, given.predictions, given.recipe, store, common)
    elif files:
        report, code = _of_files(given, where, store, common)
    else:
        place = reports.find(where[0] if where else None, artifacts)
        report, code = _of_build(given, place, store, common)
    _show(report, given, as_json=as_json)
    return code


def _write_inputs(recipe: Path, out: Path, overrides: Sequence[str]) -> None:
    from optcli.pipeline.verification.inputs import write

    with Progress() as progress:
        count = write(recipe, out, overrides=overrides, observer=progress)
    click.echo(f"{count} samples are in {out}", err=True)


def _of_answers(
    given: VerificationOptions,
    predictions: Path,
    recipe: Path,
    store: Path | None,
    common: dict[str, Any],
) -> tuple[Report, ExitCode]:
    """What another machine answered, against the recipe's baseline."""
    from optcli.pipeline.verification.answers import verify_answers

    with Progress() as progress:
        report = verify_answers(
            predictions,
            recipe,
            name=given.name,
            partial=given.partial,
            jobs=given.jobs,
            store=options.opened(store),
            observer=progress,
            **common,
        )
    return report, ExitCode(report.exit_code)


def _of_files(
    given: VerificationOptions, where: tuple[Path, ...], store: Path | None, common: dict[str, Any]
) -> tuple[Report, ExitCode]:
    """Model files; the others are compared with the first."""
    from optcli.pipeline.verification.model_files import verify

    first = given.baseline
    if given.recipe is None:
        raise UsageError(
            "model files need a recipe that names the evaluation data, and none is given",
            place="--recipe",
            hint="--recipe RECIPE gives inputs, data, metric and postprocess",
        )
    named = [*([first] if first else []), *(path for path in where if path != first)]
    if not named:
        raise UsageError("no files are named", place="FILE", hint="a.onnx b.onnx c.xml")
    with Progress() as progress:
        report = verify(
            named,
            given.recipe,
            wanted=given.runners,
            jobs=given.jobs,
            layers=given.layers,
            rejected=not given.no_layers,
            store=options.opened(store),
            observer=progress,
            **common,
        )
    return report, ExitCode(report.exit_code)


def _of_build(
    given: VerificationOptions,
    place: reports.FoundReport,
    store: Path | None,
    common: dict[str, Any],
) -> tuple[Report, ExitCode]:
    """The report of a build, with the layers of its rejected variants."""
    from optcli.pipeline import report_files
    from optcli.pipeline.reporting import exit_code
    from optcli.pipeline.verification.answers import rejudged
    from optcli.pipeline.verification.layers import with_layers

    report, path = place.report, place.path
    if not any(variant.accuracy is not None for variant in report.variants.values()):
        raise UsageError(
            "the build judged no accuracy",
            place=str(path),
            hint="give the recipe data.evaluation and accuracy, then build again",
        )
    report = rejudged(report, path, common["overrides"])
    judged = (verdict for variant in report.variants.values() for verdict in _own(variant.verdicts))
    code = exit_code(judged)
    with Progress() as progress:
        report = with_layers(
            report,
            path,
            given.layers,
            rejected=not given.no_layers,
            store=options.opened(place.own_store(store)),
            from_elsewhere=place.is_from_elsewhere,
            observer=progress,
            **common,
        )
        # It lies among the artifacts that it describes, and is no copy of it elsewhere.
        if path.name == "report.json" and any(path.parent.glob("*/artifact.json")):
            layers = {n: {"layers": v.layers} for n, v in report.variants.items() if v.layers}
            report_files.add(path.parent, layers, progress)
    return report, code


def _own(verdicts: tuple[Verdict, ...]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.name in ACCURACY_VERDICTS]


def _show(report: Report, given: VerificationOptions, *, as_json: bool) -> None:
    from optcli.report import accuracy, markdown_text, terminal

    if given.junit is not None:
        options.write(given.junit, accuracy.junit(report))
    if as_json:
        variants = {
            name: {
                "status": variant.status,
                "reason": variant.reason,
                "accuracy": variant.accuracy and variant.accuracy.model_dump(mode="json"),
                "verdicts": [each.model_dump(mode="json") for each in _own(variant.verdicts)],
                "layers": variant.layers and variant.layers.model_dump(mode="json"),
            }
            for name, variant in report.variants.items()
            if variant.accuracy is not None or variant.status == "failed"
        }
        click.echo(json.dumps({"baseline": report.baseline, "variants": variants}, indent=2))
        return
    document = accuracy.document(report, per_class=given.per_class)
    form = markdown_text.markdown if given.as_markdown else terminal.text
    click.echo(form(document), nl=False)
