"""`optcli inspect`: what a model holds."""

from __future__ import annotations

from pathlib import Path

import click

from optcli.cli import options, reports, show


@click.command(
    "inspect", epilog=options.examples("optcli inspect model.onnx", "optcli inspect onnx-int8 --json")
)
@click.argument("target")
@options.artifacts
@options.trust
@options.store
@options.output
def command(
    target: str, artifacts: Path | None, trust: bool, store: Path | None, as_json: bool
) -> None:
    """Show what TARGET holds: inputs, outputs, operators by precision, parameters, operations, size.

    TARGET is an artifact's folder, a model file (.onnx, .ort, .pt2, .xml, TorchScript, weights), a
    recipe, or a variant of the last build: VARIANT or RECIPE/VARIANT. Operations are
    multiply-accumulates of convolutions and matrix products at the smallest batch.
    """
    from optcli.pipeline.model_files.opening import require_trusted_code, trusting
    from optcli.scaffold import inspection
    from optcli.store import Store

    model = inspection.resolve(target, reports.nearest(artifacts))
    model = trusting(model, Store(Store.default_root(store)), trust=trust)
    require_trusted_code(model)
    findings = inspection.look_into(model)
    show(findings, inspection.document(findings), as_json=as_json)
