"""Runtimes of a Ray bundle: which file opens an artifact there, and with which settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optcli.artifact import ROUTES, Artifact, Format
from optcli.environment import usable_cores
from optcli.errors import InputError
from optcli.measure.latency.measured_curve import MeasuredCurve
from optcli.models.formats import aoti, onnx, openvino, ort, torchscript
from optcli.models.formats.aoti import Routes
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.settings import TensorSpec

_USER_CODE = "it needs the model's own Python: deploy a variant with"
_INSTEAD = {
    Format.TORCH: f"{_USER_CODE} export_onnx, torchscript or aot_inductor",
    Format.EXPORTED: "deploy a variant with aot_inductor or export_onnx",
    Format.TENSORRT: "--target triton serves it",
}


@dataclass(frozen=True)
class BundleRuntime:
    """How a bundle runs an artifact.

    `model` is the module of the bundle's files that becomes `model.py`. `file` is the artifact's file,
    `platform` the protocol's name for the runtime, `package` the one that brings it. `forms`: it
    compiles the model for batch sizes. `settings` are what it opens the artifact with: the runner's own
    `session` among them. `environment` are variables that are set before the runtime is imported.
    `notes` say what differs from what was measured.
    """

    model: str
    file: str
    platform: str
    package: str
    forms: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def runtime_of(built: BuiltVariant) -> BundleRuntime:
    """The runtime for a variant. Raises `InputError` for what cannot run in a bundle."""
    place = str(built.artifact.path)
    runtime = _RUNTIMES.get((built.artifact.format, built.runner_name))
    if runtime is None:
        raise InputError(
            f"a bundle cannot run the format {built.artifact.format} in the runner {built.runner_name}",
            place=place,
            hint=_INSTEAD.get(built.artifact.format, "deploy a variant with export_onnx"),
        )
    runner: Any = built.runner
    elsewhere = getattr(runner, "provider", "cpu") != "cpu"
    elsewhere |= str(getattr(runner, "device", "cpu")).lower() not in ("cpu", "auto")
    if elsewhere or runner.requires().gpu or str(built.effective.get("provider")).startswith("cuda"):
        raise InputError(
            "the variant computes on another device, and bundles are written for the CPU",
            place=place,
            hint="--target triton serves it, or measure the variant with a runner on the CPU",
        )
    apart = {name: now for name, now in runner.beside_others().items() if getattr(runner, name) != now}
    served = runner.model_copy(update={"threads": threads_of(built), **apart})
    notes = [
        f"replicas share the cores of a machine: `{name}` is {str(now).lower()} in the bundle, and was"
        f" {str(getattr(runner, name)).lower()} when the variant was measured"
        for name, now in apart.items()
    ]
    return replace(
        runtime,
        settings={"session": served.session(), **runtime.settings},
        environment=served.environment(),
        notes=tuple(notes),
    )


def threads_of(built: BuiltVariant) -> int:
    """The threads of one call, as they were measured."""
    threads = built.effective.get("threads")
    return threads if isinstance(threads, int) and threads > 0 else usable_cores()


@dataclass(frozen=True)
class ServedForms:
    """What a bundle compiles a model for, and where it sends a batch.

    `sizes` are compiled by themselves; none where one form computes all batches. `padded_from` has for
    each of them the smallest batch that is padded to it. Other batches go to the form for any size,
    which a bundle has with `any_size`.
    """

    sizes: tuple[int, ...] = ()
    padded_from: Mapping[int, int] = field(default_factory=dict)
    any_size: bool = True

    def settings(self) -> dict[str, Any]:
        """The same as settings of a bundle."""
        return {
            "batch_sizes": list(self.sizes),
            "padded_from": {str(size): first for size, first in self.padded_from.items()},
            "any_size": self.any_size,
        }


def served_forms(built: BuiltVariant, largest: int, known: MeasuredCurve | None) -> ServedForms:
    """The forms of the variant as it was measured, as far as batches of up to `largest` need them.

    `known` is the measured curve, by which a plan decides: the bundle pads where the curve does.
    Without one, every batch below a compiled size is padded.
    """
    compiled = built.effective.get("compiled_batch_sizes") or ()
    if built.effective.get("shapes") != "static" or largest < 1 or not compiled:
        return ServedForms()
    pads = known is None and built.effective.get("can_pad") is not False
    padded_from = {size: 1 if pads else size for size in compiled}
    if known is not None:
        padded_from |= {size: first for first, size in known.curve.padded}

    def form_of(rows: int) -> int | None:
        larger = min((size for size in compiled if size >= rows), default=None)
        return None if larger is None or padded_from[larger] > rows else larger

    forms = {form_of(rows) for rows in range(1, largest + 1)}
    sizes = tuple(sorted(size for size in forms if size is not None))
    return ServedForms(sizes, {size: padded_from[size] for size in sizes}, None in forms)


def found_in(artifact: Artifact, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Settings that only the opened artifact shows; for a worker."""
    if artifact.format == Format.ONNX:
        from optcli.models.onnx_graphs.protobuf import input_shapes

        shapes = input_shapes(onnx.outline(artifact.path))
        firsts = (shapes[spec.name][0] for spec in inputs if spec.batch_symbol is not None)
        return {"batch_names": sorted({size for size in firsts if isinstance(size, str)})}
    if artifact.format == Format.TORCHSCRIPT:
        from optcli.models.formats import torchscript

        model = torchscript.open(artifact.path, trust=artifact.trusted)
        call = torchscript.arguments(model, inputs)
        scanned = torchscript.scan(artifact.path / torchscript.FILE)
        return {
            "positional": list(call.positional),
            "keyword": list(call.keyword),
            "imports": sorted(scanned.namespaces),
            "optimize_for_inference": bool(artifact.facts.get("optimize_for_inference")),
        }
    if artifact.format == Format.AOTI:
        recorded = artifact.facts.get(ROUTES)
        names = list(aoti.models(artifact.path))
        routes = Routes.of_names(names) if recorded is None else Routes.from_record(recorded)
        return {"routes": routes.to_record()}
    return {}


_ONNXRUNTIME = BundleRuntime(
    "model_onnxruntime", onnx.FILE, "onnxruntime_onnx", "onnxruntime", True, {"batch_names": []}
)
_OPENVINO = BundleRuntime("model_openvino", openvino.FILE, "openvino", "openvino", True)
_TORCHSCRIPT = BundleRuntime("model_torchscript", torchscript.FILE, "pytorch_torchscript", "torch")
_AOTI = BundleRuntime("model_aoti", aoti.FILE, "pytorch_aoti", "torch")
_RUNTIMES = {
    (Format.ONNX, "onnxruntime"): _ONNXRUNTIME,
    (Format.ORT, "onnxruntime"): replace(_ONNXRUNTIME, file=ort.FILE),
    (Format.ONNX, "openvino"): replace(_OPENVINO, file=onnx.FILE),
    (Format.OPENVINO, "openvino"): _OPENVINO,
    (Format.TORCHSCRIPT, "torchscript"): _TORCHSCRIPT,
    (Format.AOTI, "aoti"): _AOTI,
}
