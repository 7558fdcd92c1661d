"""Into engines of TensorRT: what the sidecar says of a sound plan, which opens on its own GPU only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.models.engines import TITLES
from optcli.models.engines.sidecar import Sidecar
from optcli.models.formats import exporter_metadata
from optcli.models.formats.tensorrt import PRODUCT, check_product
from optcli.scaffold.inspection.findings import operators
from optcli.settings import TensorSpec

_ALONE = (
    "this engine has no engine.json beside it: neither its version nor its GPU is known, so that it is"
    " not run; build it with a recipe: `tensorrt_engine` after `export_onnx`, or from an ONNX file"
)


def look(path: Path, inputs: Sequence[TensorSpec], product: str = PRODUCT) -> dict[str, Any]:
    """Findings of the engine in a folder. Raises `InputError` where plan and sidecar do not fit.

    Of a plan alone it is known what its exporter wrote in front of it.
    """
    if not path.is_dir():
        return {"metadata": exporter_metadata.of_engine(path), "notes": [_ALONE]}
    about = check_product(path, product)
    return {
        "precision": about.precision,
        "inputs": list(about.inputs) or None,
        "outputs": list(about.outputs) or None,
        **_layers(about),
        "notes": [*_origin(about), *_profiles(about)],
    }


def _layers(about: Sidecar) -> dict[str, Any]:
    """Layers by type and precision: those of the engine, else those that the parser saw."""
    layers, title = about.layers, "layers of the engine"
    if not layers:
        layers, title = (
            about.network,
            "layers of the parsed network (no GPU was there to inspect the engine)",
        )
    counts = Counter((each["type"] or "layer", each["precision"] or "?") for each in layers)
    return {"operators": operators(counts), "operators_are": title} if counts else {}


def _origin(about: Sidecar) -> list[str]:
    title = f"{TITLES[about.product]} {about.version}"
    where = f"on {about.gpu} (compute capability {about.compute_capability}, driver {about.driver})"
    built_by = f"built by {title} {where if about.gpu else 'without a GPU'}"
    if about.targets:
        built_by += f" for {', '.join(about.targets)}"
    notes = [built_by, f"builder flags: {', '.join(about.flags) or 'none'}"]
    if about.compatible:
        notes.append(f"compatible with other versions or GPUs: {', '.join(about.compatible)}")
    if about.stripped:
        notes.append("the plan holds no weights: they lie beside it, and are added when it is opened")
    if about.layers:
        moved = sum(each["reformat"] for each in about.layers)
        notes.append(f"{moved} of {len(about.layers)} layers only change how a tensor lies in memory")
    return notes


def _profiles(about: Sidecar) -> list[str]:
    notes = []
    for number, profile in enumerate(about.profiles):
        ranges = (
            f"{name} "
            + " to ".join("x".join(map(str, bounds[end])) for end in ("min", "max"))
            + f", best at {'x'.join(map(str, bounds['opt']))}"
            for name, bounds in profile.items()
        )
        notes.append(f"optimization profile {number}: {'; '.join(ranges)}")
    return notes
