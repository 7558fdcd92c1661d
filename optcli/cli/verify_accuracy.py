"""`optcli verify-accuracy`: what each artifact costs in accuracy; of a build, or of model files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from optcli.cli import options, reports
from optcli.cli.progress import Progress
from optcli.errors import ExitCode, UsageError
from optcli.results import Report, Verdict
from optcli.results.outcomes import ACCURACY_VERDICTS


@click.command(
    "verify-accuracy",
    epilog=options.examples(
        "optcli verify-accuracy recipe.yaml --layers",
        "optcli verify-accuracy --predictions phone.npz --recipe recipe.yaml",
    ),
)
@click.argument("where", nargs=-1, type=options.PATH, metavar="[RECIPE|REPORT|FILE...]")
@click.option(
    "--baseline",
    type=options.PATH,
    help="The file that the others are compared with; default: the first.",
)
@click.option(
    "--recipe",
    type=options.FILE,
    help="For files: the recipe that gives inputs, data, metric and postprocess.",
)
@click.option(
    "--predictions",
    type=options.FILE,
    help="Judge what another machine answered: outputs (.npz), COCO's results (.json), classes (.csv).",
)
@click.option(
    "--name", help="With --predictions: what the report calls them; default: the file's name."
)
@click.option("--partial", is_flag=True, help="With --predictions: judge the samples that it answers.")
@click.option(
    "--write-inputs",
    type=options.OUT_FILE,
    metavar="FILE.npz",
    help="Write the prepared evaluation samples of --recipe with their ids, for another machine.",
)
@click.option("--runner", "runners", multiple=True, metavar="NAME", help="For files; may be repeated.")
@click.option("--trust", is_flag=True, help="Open files from elsewhere that run code, or could run it.")
@click.option("--remeasure", is_flag=True, help="Evaluate files again.")
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes for each file."
)
@options.timeout("file")
@click.option("--per-class", is_flag=True, help="Show the metric of every class, too.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@click.option("--junit", type=options.OUT_FILE, help="Write JUnit XML for a CI system.")
@click.option(
    "--layers",
    metavar="[VARIANT]",
    is_flag=False,
    flag_value="",
    help="Show where the error starts, of this variant or of all; rejected ones always show it.",
)
@click.option("--no-layers", is_flag=True, help="Do not show where the error starts, for any variant.")
@options.overrides
@options.store
@options.remote
@options.artifacts
@options.as_json
@options.verbose
def command(
    where: tuple[Path, ...],
    baseline: Path | None,
    recipe: Path | None,
    predictions: Path | None,
    name: str | None,
    partial: bool,
    write_inputs: Path | None,
    runners: tuple[str, ...],
    trust: bool,
    remeasure: bool,
    jobs: int,
    timeout: float,
    per_class: bool,
    as_markdown: bool,
    junit: Path | None,
    layers: str | None,
    no_layers: bool,
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
    if no_layers and layers is not None:
        raise UsageError(
            "found --layers and --no-layers", place="--no-layers", hint="leave one of them out"
        )
    if layers is not None and Path(layers).suffix in (*reports.RECIPES, ".json"):  # and no variant
        where, layers = (*where, Path(layers)), ""
    files = baseline is not None or recipe is not None or len(where) > 1
    elsewhere = predictions is not None or write_inputs is not None
    if predictions is None and (name is not None or partial):
        given = "--name" if name is not None else "--partial"
        raise UsageError(f"found {given} without --predictions", place=given, hint="--predictions FILE")
    if elsewhere and (where or baseline is not None or recipe is None):
        raise UsageError(
            "answers and inputs of another machine go with --recipe, and with no files",
            place="--predictions" if predictions else "--write-inputs",
            hint="optcli verify-accuracy --predictions FILE --recipe RECIPE",
        )
    if write_inputs is not None:
        from optcli.pipeline.verification.inputs import write

        assert recipe is not None
        with Progress() as progress:
            count = write(recipe, write_inputs, overrides=overrides, observer=progress)
        click.echo(f"{count} samples are in {write_inputs}", err=True)
        if predictions is None:
            return ExitCode.DONE
    if predictions is not None:
        from optcli.pipeline.verification.answers import verify_answers

        assert recipe is not None
        with Progress() as progress:
            report = verify_answers(
                predictions,
                recipe,
                name=name,
                partial=partial,
                overrides=overrides,
                trust=trust,
                remeasure=remeasure,
                jobs=jobs,
                timeout_s=timeout,
                store=options.opened(store),
                observer=progress,
            )
        code = ExitCode(report.exit_code)
    elif not files:
        from optcli.pipeline import report_files
        from optcli.pipeline.verification.layers import with_layers

        place = reports.find(where[0] if where else None, artifacts)
        report, code = _of_build(place, overrides)
        with Progress() as progress:
            report = with_layers(
                report,
                place.path,
                layers,
                rejected=not no_layers,
                store=options.opened(place.own_store(store)),
                from_elsewhere=place.is_from_elsewhere,
                observer=progress,
                overrides=overrides,
                remeasure=remeasure,
                trust=trust,
                timeout_s=timeout,
            )
            # It lies among the artifacts that it speaks of, and is no copy of it elsewhere.
            if place.path.name == "report.json" and any(place.path.parent.glob("*/artifact.json")):
                looked = {n: {"layers": v.layers} for n, v in report.variants.items() if v.layers}
                report_files.add(place.path.parent, looked, progress)
    else:
        from optcli.pipeline.verification.model_files import verify

        if recipe is None:
            raise UsageError(
                "model files need a recipe that names the evaluation data, and none is given",
                place="--recipe",
                hint="--recipe RECIPE gives inputs, data, metric and postprocess",
            )
        named = [*([baseline] if baseline else []), *(path for path in where if path != baseline)]
        if not named:
            raise UsageError("no files are named", place="FILE", hint="a.onnx b.onnx c.xml")
        with Progress() as progress:
            report = verify(
                named,
                recipe,
                wanted=runners,
                overrides=overrides,
                trust=trust,
                remeasure=remeasure,
                jobs=jobs,
                timeout_s=timeout,
                layers=layers,
                rejected=not no_layers,
                store=options.opened(store),
                observer=progress,
            )
        code = ExitCode(report.exit_code)
    _show(report, as_json, as_markdown, junit, per_class)
    return code


def _of_build(place: reports.FoundReport, overrides: Sequence[str]) -> tuple[Report, ExitCode]:
    from optcli.pipeline.reporting import exit_code
    from optcli.pipeline.verification.rejudging import rejudged

    report, path = place.report, place.path
    if not any(variant.accuracy is not None for variant in report.variants.values()):
        raise UsageError(
            "the build judged no accuracy",
            place=str(path),
            hint="give the recipe data.evaluation and accuracy, then build again",
        )
    report = rejudged(report, path, overrides)
    judged = (verdict for variant in report.variants.values() for verdict in _own(variant.verdicts))
    return report, exit_code(judged)


def _own(verdicts: tuple[Verdict, ...]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.name in ACCURACY_VERDICTS]


def _show(
    report: Report, as_json: bool, as_markdown: bool, junit: Path | None, per_class: bool
) -> None:
    from optcli.report import accuracy, markdown_text, terminal

    if junit is not None:
        options.write(junit, accuracy.junit(report))
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
    elif as_markdown:
        click.echo(markdown_text.markdown(accuracy.document(report, per_class=per_class)), nl=False)
    else:
        click.echo(terminal.text(accuracy.document(report, per_class=per_class)), nl=False)
