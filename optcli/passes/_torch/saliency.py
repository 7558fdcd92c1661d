"""What every weight is worth to the loss, to first order, found on calibration samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optcli.artifact import Artifact
from optcli.errors import StepError
from optcli.models.formats import torch_modules
from optcli.passes import Job
from optcli.passes._torch.examples import ExampleSet, spread
from optcli.passes._torch.learning import Loss, caller

if TYPE_CHECKING:
    import torch

    from optcli.passes._torch.learning import Outputs


def weigh_by_loss(
    model: torch.nn.Module, source: Artifact, job: Job, most_samples: int
) -> dict[str, Any]:
    """Give every parameter a `grad` with |weight · grad| = the mean of |w · dL/dw| over samples.

    That is the first-order Taylor estimate of what the loss would change by without the weight
    (Molchanov et al., "Importance Estimation for Neural Network Pruning", CVPR 2019). The mean is over
    magnitudes, since the gradients themselves add up to nothing in a trained network. The loss is
    cross-entropy where the samples have labels that fit the first output, else half the energy of all
    outputs. Gives what the facts should say. Raises `StepError` where a gradient is not finite.
    """
    import torch

    examples = ExampleSet(job.calibration, "calibration", kept_bytes=0)
    positions = spread(len(examples), most_samples)
    size = max((s for spec in job.inputs if isinstance(s := spec.shape[0], int)), default=1)
    call = caller(torch_modules.evaluating(model), job.inputs, "cpu")
    output = (source.facts.get("outputs") or ["output"])[0]
    loss = Loss(output, 0.0, 1.0, 0.0, "logits")
    labelled = examples.labelled and _fits(loss, examples, call(examples.batch(positions[:1] * size)))
    worth = {name: torch.zeros_like(value) for name, value in torch_modules.named_parameters(model)}
    for index in range(0, len(positions), size):
        batch = examples.batch([positions[(index + i) % len(positions)] for i in range(size)])
        model.zero_grad()
        outputs = call(batch)
        (loss(outputs, batch.labels, None) if labelled else _energy(outputs)).backward()
        for name, value in torch_modules.named_parameters(model):
            if value.grad is not None:
                worth[name] += (value.detach() * value.grad).abs()
        job.progress(0.1 * index / len(positions), f"gradients of {index + size} samples")
    if not all(bool(torch.isfinite(value).all()) for value in worth.values()):
        raise StepError(
            "the loss has no finite gradient on the calibration samples",
            hint="take another importance: `magnitude` needs no gradients",
        )
    for name, value in torch_modules.named_parameters(model):
        tiny = torch.finfo(value.dtype).tiny
        value.grad = worth[name] / value.detach().abs().clamp_min(tiny) / len(positions)
    kind = "cross-entropy" if labelled else "output energy"
    return {"calibration_samples": len(positions), "loss": kind}


def _fits(loss: Loss, examples: ExampleSet, outputs: Outputs) -> bool:
    """Whether the first output holds a score per class for labels such as the samples have."""
    labels = examples.batch([0]).labels
    logits = loss.logits(outputs)
    return labels is not None and logits.ndim > 1 and labels.shape[1:] == logits.shape[2:]


def _energy(outputs: Outputs) -> torch.Tensor:
    parts = [value.square().mean() / 2 for value in outputs.values() if value.is_floating_point()]
    return sum(parts[1:], parts[0])
