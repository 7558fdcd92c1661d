"""What the worker of an inspection does: find the format's own module and have it look."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli import environment, outputs
from optcli.artifact import SCANNED
from optcli.errors import MissingError, OptcliError, RunnerError, first_line
from optcli.models.formats import exporter_metadata
from optcli.recipe import Recipe, load
from optcli.scaffold.inspection.findings import Findings, Tensor
from optcli.scaffold.inspection.targets import Target
from optcli.settings import TensorSpec
from optcli.workers import Channel


def look(target: Target, channel: Channel) -> Findings:
    """Look into a target, which has been resolved."""
    head = {"target": target.name, "kind": target.kind}
    if target.format == "recipe":
        return Findings.model_validate({**_recipe(target.path, target.trusted), **head})
    steps = target.about.get("made_by", [])
    inputs = [TensorSpec.model_validate(spec) for spec in (steps[0].get("inputs", []) if steps else [])]
    findings = _look(target.format, target.path, inputs, target.trusted)
    findings = _with_meanings(findings, inputs)
    recorded = {
        "precision": target.about.get("precision"),
        "made_by": steps,
        "facts": target.about.get("facts", {}),
    }
    return Findings.model_validate(
        {
            **findings,
            **head,
            "format": target.format,
            "size_bytes": findings.get("size_bytes") or size_bytes(target.path),
            **{name: value for name, value in recorded.items() if value},
        }
    )


def _recipe(path: Path, trust: bool) -> dict[str, Any]:
    recipe = load(path)
    model = recipe.model
    source = model.in_folder(recipe.folder).model_copy(update={"trust": trust})
    for absence in environment.missing(source.needs):
        raise MissingError(absence.what, place=str(path), hint=absence.hint)
    with tempfile.TemporaryDirectory() as folder:
        written = source.write(Path(folder), recipe.inputs)
        findings = _look(str(source.format), Path(folder), recipe.inputs, trust)
        size = size_bytes(Path(folder))
    if metadata := exporter_metadata.of_facts(written.facts or {}):
        findings["metadata"] = metadata
    findings = _with_meanings(findings, recipe.inputs, recipe)
    step = {
        "step": f"source {model.source}",
        "weights": model.weights and model.weights.file,
        "arguments": model.arguments,
    }
    return {
        **findings,
        "format": str(source.format),
        "size_bytes": size,
        "precision": written.precision,
        "made_by": [step],
        "facts": written.facts or {},
    }


def _with_meanings(
    findings: dict[str, Any], inputs: Sequence[TensorSpec], recipe: Recipe | None = None
) -> dict[str, Any]:
    """The findings with what each output means, as far as that is known."""
    declared = [Tensor.model_validate(each) for each in findings.get("outputs") or ()]
    specs = inputs or _specs(findings.get("inputs") or ())
    known = outputs.meanings(
        declared,
        specs,
        metadata=findings.get("metadata", {}),
        settings=recipe.outputs if recipe is not None else None,
        postprocess=recipe.postprocess if recipe is not None else None,
    )
    described = [
        {**each.model_dump(), "meaning": meaning.words or None}
        for each, meaning in zip(declared, known, strict=True)
    ]
    return {**findings, "outputs": described} if described else findings


def _specs(inputs: Sequence[dict[str, Any]]) -> list[TensorSpec]:
    """Inputs as a file declares them; none where one of them is no such input."""
    try:
        return [TensorSpec(name=each["name"], shape=each["shape"]) for each in inputs]
    except ValueError:  # names of sizes have no ranges, or a shape is not known
        return []


def _look(format: str, path: Path, inputs: Sequence[TensorSpec], trust: bool) -> dict[str, Any]:
    name = f"optcli.scaffold.inspection.{format}"
    if importlib.util.find_spec(name) is None:
        return {"notes": [f"optcli does not look into the format {format}"]}
    module = importlib.import_module(name)
    try:
        return dict(module.look(path, inputs, **({"trust": trust} if format in SCANNED else {})))
    except OptcliError:
        raise
    except ImportError as error:
        raise MissingError(
            f"looking into {format} needs {error.name or 'a library that is not here'}: "
            f"{first_line(error)}",
            hint=f"pip install {error.name}" if error.name else "run `optcli doctor`",
        ) from error
    except Exception as error:
        raise RunnerError(
            f"the {format} model cannot be looked into: {type(error).__name__}: {first_line(error)}",
            place=str(path),
            hint="check that it is complete and was made by the library version installed here",
        ) from error


def size_bytes(path: Path) -> int:
    """Size of a file, or of all files below a folder but what optcli writes about them."""
    if path.is_file():
        return path.stat().st_size
    files = [each for each in path.rglob("*") if each.is_file() and each.name != "artifact.json"]
    return sum(each.stat().st_size for each in files)
