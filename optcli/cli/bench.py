"""`optcli bench`: model files that no recipe built, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from optcli.cli import options, show
from optcli.cli.progress import Progress


@click.command(
    "bench",
    epilog=options.examples(
        "optcli bench before.onnx after.onnx --samples images.npz",
        'optcli bench model.onnx --input "image:float32[batch,3,224,224]" --batch-size 8',
    ),
)
@click.argument("files", nargs=-1, required=True, type=options.PATH, metavar="FILE...")
@options.inputs
@click.option(
    "--batch-size",
    "batch_sizes",
    multiple=True,
    type=click.IntRange(1),
    help="Images in a call; may be repeated.  [default: 1]",
)
@click.option(
    "--threads", type=click.IntRange(1), help="How many threads compute.  [default: the usable cores]"
)
@click.option(
    "--mode",
    type=click.Choice(["quick", "table"]),
    default="quick",
    show_default=True,
    help="`quick`: three launches. `table`: five launches, each after a warm-up until calls are steady;"
    " it takes minutes, and its figures can be cited.",
)
@click.option(
    "--runner", metavar="NAME", help="Run all files in this runner.  [default: that of each format]"
)
@click.option(
    "--samples",
    type=options.FILE,
    metavar="FILE.npz",
    help="Real inputs: arrays called like the inputs, [samples, ...]; default: random ones.",
)
@click.option(
    "--on",
    metavar="DEVICE",
    help="Measure on this device, by ssh: a name of your configuration, or user@host.",
)
@options.trust
@options.store
@options.output
def command(
    files: tuple[Path, ...],
    inputs: tuple[str, ...],
    batch_sizes: tuple[int, ...],
    threads: int | None,
    mode: Literal["quick", "table"],
    runner: str | None,
    samples: Path | None,
    on: str | None,
    trust: bool,
    store: Path | None,
    as_json: bool,
) -> int:
    """Measure FILEs side by side; each is compared with the first.

    A FILE is an .onnx, .ort, .pt2 (exported or AOTInductor), OpenVINO .xml or TorchScript file (.pt,
    .ptl, .torchscript), or the folder of an artifact. optcli finds the inputs by looking into the file;
    their values are random unless --samples says otherwise. It measures speed alone, and does not
    compare outputs.
    """
    from optcli.pipeline.model_files.measuring import bench
    from optcli.report.build import document
    from optcli.scaffold import InputText

    with Progress() as progress:
        report = bench(
            files,
            inputs=tuple(InputText.read(text) for text in inputs),
            batch_sizes=batch_sizes or (1,),
            threads=threads,
            mode=mode,
            runner=runner,
            samples=samples,
            trust=trust,
            store=store,
            on=on,
            observer=progress,
        )
    show(report, document(report), as_json=as_json)
    return report.exit_code
