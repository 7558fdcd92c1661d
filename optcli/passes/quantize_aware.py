"""Quantization-aware training: train a network further with the roundings of INT8 in it."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from optcli.artifact import OUTPUT_TAIL, Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, raised_as
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.models.formats import torch_modules
from optcli.passes import Job, Made, Role
from optcli.passes._quantization import output_tails
from optcli.passes._quantization.graph_quantizers import saturates, this_cpu
from optcli.passes._quantization.trainable_graphs import trainable_network
from optcli.passes._torch.computing import Autocast
from optcli.passes._torch.examples import spread
from optcli.passes._torch.fake_quantizers import onnx_of_trained
from optcli.passes._torch.learning import Judge, Teacher, caller
from optcli.passes._torch.networks import matching, network, require_fp32, sparsity_masks
from optcli.passes._torch.onnx_exporting import parts_of_program, program_of, quiet_exporters
from optcli.passes._torch.pace import training_facts
from optcli.passes._torch.tracing import flat
from optcli.passes._torch.training import Training
from optcli.passes.finetune import Finetune
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.to_openvino import ToOpenvino
from optcli.settings import batch_range

if TYPE_CHECKING:
    import numpy as np
    import torch

    from optcli.passes._torch.checkpoint import TrainingProgress
    from optcli.passes._torch.learning import Call

    Arrays = dict[str, np.ndarray]

_RATES = {"adamw": 1e-4, "sgd": 1e-3}
_COMPARED = 8
_NOT_EXPORTED = "the network cannot be exported to ONNX"
_EXPORT_HINT = "the log shows the line of the network that torch.export cannot follow"

# Where fake quantizers round to one integer a runtime may round to the next, at every layer. Of a
# detector's many rows the worst then differs much: the root of the mean square counts as well.
_TOLERANCE, _MEAN_TOLERANCE, _MANY = 0.2, 0.3, 10_000


class QuantizeAware(Finetune):
    """Quantizes to INT8 and trains on with the roundings in it, where calibration alone costs too much.

    It begins where quantization after training ends: ranges come from the calibration samples. Then
    weights and ranges are trained on labels, on the answers of the FP32 network that this pass got (its
    teacher), or on both. Calibration alone is judged first; then, as in `finetune`, the best epoch is
    kept, and a build that was killed goes on. It trains on the CPU, in FP32.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH,)
    needs: ClassVar[Needs] = Needs(
        ("torch", "nncf", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "openvino", "torchao")
    )
    uses: ClassVar[tuple[Role, ...]] = ("calibration", "training", "validation")

    # Options of fine-tuning that do not go with fake quantizers: bfloat16 is no finer than INT8.
    device: ClassVar[Literal["cpu"]] = "cpu"  # type: ignore[misc]
    autocast: ClassVar[Autocast] = "off"  # type: ignore[misc]
    channels_last: ClassVar[bool | None] = False  # type: ignore[misc]
    reestimate_batchnorm: ClassVar[bool] = False  # type: ignore[misc]
    # Blocks of a quantized network give other values than the teacher's: its outputs are compared.
    feature_weight: ClassVar[float] = 0.0  # type: ignore[misc]
    augment: ClassVar[Literal["off"]] = "off"  # type: ignore[misc]

    epochs: int = Field(3, ge=1, description="how many times to train on all training data")
    learning_rate: float | None = Field(
        None, gt=0, description="learning rate after the warm-up, from which it falls along a cosine; "
        "default: 0.0001 for adamw, 0.001 for sgd",
    )  # fmt: skip
    to: Literal["onnx", "openvino"] = Field("onnx", description="what is written")
    samples: int = Field(300, ge=1, description="the most calibration samples to use")
    preset: Literal["performance", "mixed"] | None = Field(
        None,
        description="`performance`: symmetric; `mixed`: asymmetric activations; default: as "
        "`quantize_nncf` chooses",
    )
    model_type: Literal["auto", "none", "transformer"] = Field(
        "auto",
        description="`transformer` keeps what attention is sensitive to in floating point; `auto`: "
        "where there is attention",
    )
    output_tail: output_tails.OutputTail = "float"
    ignored_modules: tuple[str, ...] = Field(
        (), description="modules to keep in floating point: names or patterns such as `layer4.*`"
    )

    def produces(self, source: Format) -> Format:
        return Format(self.to)

    def requires(self) -> Needs:
        packages = self.needs.packages  # NNCF imports torchao, too
        return Needs(tuple(name for name in packages if name != "openvino" or self.to == "openvino"))

    def roles(self) -> tuple[Role, ...]:
        return ("calibration", *super().roles())

    def bound_to(self) -> dict[str, Any]:
        # Where sums of 8-bit products saturate, weights or activations get 7 bits.
        return {"quantizer": this_cpu(), "saturates": saturates(this_cpu())}

    def _run(self, source: Artifact, job: Job) -> Made:
        import torch

        torch.manual_seed(job.seed)
        require_fp32(source)
        model = network(source)
        examples = self._examples("training", job)
        loss = self._loss(source, examples)
        examples, held_out = self._divided(examples, job)
        taught = caller(model, job.inputs, "cpu")
        loss = self._by_parts(loss, taught, examples, job)
        judge = self._judge(job, loss, taught if loss.weight else None)
        stopping = self._stopping(held_out, (model, taught), loss, job)
        trained, calibration_facts = self._calibrated(source, model, job)
        rate = self.learning_rate or _RATES[self.optimizer]
        call = caller(trained, job.inputs, "cpu")
        training = Training(
            model=trained,
            call=call,
            examples=examples,
            judge=judge,
            loss=loss,
            teacher=Teacher(taught, len(examples)) if loss.weight else None,
            optimizer=self._optimizer(trained, call, self._few(examples, job), rate),
            epochs=self.epochs,
            batch_size=self._batch_size(job),
            learning_rate=rate,
            clip_norm=self.clip_norm,
            patience=self.patience,
            settle=False,
            seed=job.seed,
            zeros=sparsity_masks(trained, source),
            max_seconds=self.max_minutes and 60 * self.max_minutes,
            stopping=stopping,
            own_layers=self._own_layers(trained, call, examples, job),
        )
        progress = training.run(job)
        trained.load_state_dict(progress.best_state)
        torch_modules.evaluating(trained)
        if progress.best_epoch == 0:
            job.warn(
                "no epoch was better on the validation data: the network is as calibration left it"
            )
        feed, wanted = _answers(training, job)
        counts = self._write(trained, source, job)
        error = require_agreement(self.produces(source.format), job.out, feed, wanted)
        facts = {
            **calibration_facts,
            "quantized_operators": counts,
            "largest_error_of_export": error,
            "quantization_aware_training": training_facts(progress, training)
            | _accuracy_of_floats(judge, model, taught, progress),
        }
        return Made(precision="int8", facts=facts)

    def _calibrated(
        self, source: Artifact, model: torch.nn.Module, job: Job
    ) -> tuple[torch.nn.Module, dict[str, Any]]:
        """A calibrated network that can be trained, and the facts of its calibration."""
        names = [name for name, _ in torch_modules.named_modules(model) if name]
        ignored = matching(self.ignored_modules, names, "ignored_modules")
        # Exported in FP32 first: it tells what kind of network it is, and whether it can be exported at
        # all, which should not be found out after the training.
        with tempfile.TemporaryDirectory(dir=job.work_folder) as folder:
            floats = self._exported_floats(model, source, job, Path(folder))
            ready = QuantizeNncf(
                preset=self.preset, model_type=self.model_type, samples=self.samples, smooth_quant=False
            ).ready(floats, job)
        half_range = saturates(this_cpu())
        quantized, tail = trainable_network(
            model, job, ready.feeds, ready.arguments, ignored, half_range, self.output_tail
        )
        return (
            quantized,
            {
                "engine": "nncf",
                "preset": ready.resolved.preset,
                "model_type": ready.resolved.model_type,
                "reduce_range": half_range,
                "calibration_samples": ready.feeds.samples,
                "calibration_batch_size": ready.feeds.batch_size,
                OUTPUT_TAIL: tail,
            },
        )

    def _exported_floats(
        self, model: torch.nn.Module, source: Artifact, job: Job, folder: Path
    ) -> Artifact:
        job.progress(None, "exporting the network in FP32")
        with raised_as(StepError, _NOT_EXPORTED, hint=_EXPORT_HINT), quiet_exporters():
            program = program_of(flat(model, job.inputs), job)
            model, weights = parts_of_program(program, job.inputs, source.facts["outputs"])
            onnx_format.save(model, folder, weights=weights)
        return replace(source, format=Format.ONNX, path=folder)

    def _write(self, trained: torch.nn.Module, source: Artifact, job: Job) -> dict[str, int]:
        """Write the trained network; how many operators of a type compute on integers."""
        job.progress(None, "exporting the trained network")
        with raised_as(StepError, _NOT_EXPORTED, hint=_EXPORT_HINT):
            model = onnx_of_trained(trained, job, source.facts["outputs"])
        if self.to == "onnx":
            onnx_format.save(model, job.out)
            return _counted(QuantizeNncf.quantized_operators(model))
        with tempfile.TemporaryDirectory(dir=job.work_folder) as folder:
            onnx_format.save(model, Path(folder))
            ToOpenvino().run(replace(source, format=Format.ONNX, path=Path(folder)), job)
        return _counted(QuantizeNncf.quantized_operators(openvino_format.open(job.out)))


def _counted(operators: dict[str, str]) -> dict[str, int]:
    """How many there are of a type. Raises `StepError` where there is none."""
    if not operators:
        raise StepError(
            "nothing in this network was quantized: convolutions, linear layers and products can be",
            hint="take fewer modules out with ignored_modules, or drop the pass",
        )
    return dict(sorted(Counter(operators.values()).items()))


def _answers(training: Training, job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the trained network is given, and what it gives, for a few training samples."""
    import torch

    span = batch_range(job.inputs)
    size = max(span.min, min(_COMPARED, span.max))
    few = spread(len(training.examples), size)
    batch = training.examples.batch([few[index % len(few)] for index in range(size)])
    with torch.no_grad():
        outputs = training.call(batch)
    feed = {name: value.numpy() for name, value in batch.feed.items()}
    return feed, {name: value.numpy() for name, value in outputs.items()}


def _accuracy_of_floats(
    judge: Judge | None, model: torch.nn.Module, call: Call, progress: TrainingProgress
) -> dict[str, Any]:
    """The network before it was quantized, judged on the same samples."""
    if judge is None or progress.before is None:
        return {}
    return {"validation_accuracy_in_fp32": judge(model, call).share}


def require_agreement(format: Format, folder: Path, feed: Arrays, wanted: Arrays) -> float:
    """The largest difference to the trained network's outputs, as a fraction of the largest value.

    `wanted` are the outputs by name, in order, for `feed`. Raises `StepError` above the tolerance.
    """
    import numpy as np

    outputs = _outputs_of(format, folder, feed)
    worst = 0.0
    for (name, right), values in zip(wanted.items(), outputs, strict=True):
        if right.shape != values.shape:
            raise StepError(
                f"the output {name!r} has the shape {list(values.shape)}, the trained network's has "
                f"{list(right.shape)}",
                hint="the exporter is wrong for this network: set `to:` to another format",
            )
        largest = float(np.abs(right).max(initial=0.0)) or 1.0
        error = float(np.abs(right - values).max(initial=0.0)) / largest
        mean_error = np.linalg.norm(right - values) / (np.linalg.norm(right) or 1.0)
        if not error <= _TOLERANCE and (right.size < _MANY or not mean_error <= _MEAN_TOLERANCE):
            raise StepError(
                f"the artifact does not compute what was trained: the output {name!r} differs by "
                f"{error:.2g} of its largest value, allowed are {_TOLERANCE:g}",
                hint="the exporter is wrong for this network: set `to:` to another format",
            )
        worst = max(worst, error)
    return worst


def _outputs_of(format: Format, folder: Path, feed: Arrays) -> list[np.ndarray]:
    if format == Format.ONNX:
        return list(onnx_format.session(folder / onnx_format.FILE).run(None, feed))
    compiled = openvino_format.core().compile_model(
        openvino_format.open(folder), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return [compiled(feed)[port] for port in compiled.outputs]
