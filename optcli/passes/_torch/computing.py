"""How a network is computed while it trains on a CPU: memory layout, precision, threads.

Images with their channels last and products in bfloat16 are what CPUs are quickest at, but not every
network takes the one (a `view` that wants contiguous memory) or stays itself in the other. So both are
tried on a few samples first, against the plain way. Not every network gains from bfloat16, either: see
`bfloat16`. What decides are facts of the network, of its batches and of the CPU; nothing is timed, so
that the same training on the same CPU gives the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from optcli import environment
from optcli.errors import StepError
from optcli.models.formats import torch_modules
from optcli.passes._torch import bfloat16
from optcli.passes._torch.examples import Examples
from optcli.passes._torch.learning import caller
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch

    from optcli.passes._torch.learning import Call

Autocast = Literal["auto", "bf16", "off"]

# What another layout may change, by rounding alone, as a fraction of the norm.
_SAME = 1e-3
# What bfloat16 may change: its products have 8 bits, of which a sound network's outputs lose about one
# in a hundred, and the direction of its gradient less than one in twenty.
_MOST_OUTPUT_ERROR, _LEAST_COSINE = 0.1, 0.95
_TRIAL_SAMPLES = 8
# Instructions for products in bfloat16: those of x86, where training with them was measured.
_INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}


def resolved(autocast: Autocast, device: str) -> str:
    """`bf16` where training computes products in it, else `off`; imports nothing heavy.

    `auto` is `bf16` on a CPU that has instructions for it and says so: where they are emulated, it
    would only be slower and less exact.
    """
    if autocast != "auto":
        return autocast
    here = _INSTRUCTIONS & set(environment.cpu()["flags"])
    return "bf16" if device == "cpu" and here else "off"


@dataclass(frozen=True)
class Computing:
    """How to compute: see `chosen`. `reasons` say why channels last or autocast is left out."""

    device: str
    channels_last: bool = False
    autocast: bool = False
    reasons: tuple[str, ...] = ()

    def calling(self, model: torch.nn.Module, inputs: Sequence[TensorSpec]) -> Call:
        """The network as a function; autocast works while it is in training mode only."""
        return caller(
            model, inputs, self.device, channels_last=self.channels_last, autocast=self.autocast
        )

    def lay_out(self, model: torch.nn.Module) -> None:
        """Put the network's weights into the layout."""
        _lay_out(model, last=self.channels_last)

    def facts(self) -> dict[str, Any]:
        """For the report."""
        return {"channels_last": self.channels_last, "autocast": "bf16" if self.autocast else None}


def chosen(
    model: torch.nn.Module,
    inputs: Sequence[TensorSpec],
    examples: Examples,
    device: str,
    *,
    autocast: Autocast,
    channels_last: bool | None,
) -> Computing:
    """How to compute a network, found by trying it on a batch in evaluation mode; changes no weight.

    `channels_last` None: where the network has convolutions over images; `autocast` "auto": where this
    CPU and the network gain. The network is left in the layout that was found.
    """
    plain = Computing(device)
    try_layout = _has_convolutions(model) if channels_last is None else channels_last
    try_layout = try_layout and device == "cpu"
    casting = resolved(autocast, device) == "bf16"
    if not try_layout and not casting:
        return plain
    reasons: list[str] = []
    if casting and device == "cpu" and not _torch_has_bf16():
        reasons.append("autocast: PyTorch sees no bfloat16 instructions on this CPU")
        casting = False
    batch = _first(examples)
    if casting and autocast == "auto":
        casting = _gains(model, inputs, examples)
    reference = _trial(plain, model, inputs, batch)
    computing = plain
    if reference is None:  # what is wrong with it, training says
        return plain
    if try_layout:
        computing = Computing(device, channels_last=True)
        computing.lay_out(model)
        if not _agree(_trial(computing, model, inputs, batch), reference, _SAME, 1 - _SAME):
            reasons.append("channels_last: the network does not take it")
            computing = plain
            computing.lay_out(model)
    if casting:
        cast = Computing(device, channels_last=computing.channels_last, autocast=True)
        if _agree(_trial(cast, model, inputs, batch), reference, _MOST_OUTPUT_ERROR, _LEAST_COSINE):
            computing = cast
        else:
            reasons.append("autocast: bfloat16 changes the network's gradient too much")
    return Computing(device, computing.channels_last, computing.autocast, tuple(reasons))


@contextmanager
def computing_with(count: int) -> Iterator[None]:
    """Compute with so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _torch_has_bf16() -> bool:
    """Whether PyTorch finds the instructions, too; it may be told to use fewer than there are."""
    import torch

    capabilities = getattr(torch.cpu, "get_capabilities", None)  # since PyTorch 2.10
    return capabilities is None or any(capabilities().get(name, False) for name in _INSTRUCTIONS)


def _lay_out(model: torch.nn.Module, *, last: bool) -> None:
    import torch

    layout = torch.channels_last if last else torch.contiguous_format
    with torch.no_grad():
        for value in (*torch_modules.parameters(model), *torch_modules.buffers(model)):
            if value.ndim == 4:
                value.data = value.data.contiguous(memory_format=layout)


def _has_convolutions(model: torch.nn.Module) -> bool:
    import torch

    kinds = torch.nn.Conv2d | torch.nn.ConvTranspose2d
    return any(isinstance(module, kinds) for module in torch_modules.modules(model))


def _gains(model: torch.nn.Module, inputs: Sequence[TensorSpec], examples: Examples) -> bool:
    """Whether training on batches like `examples` gains from bfloat16; False where it fails."""
    batch = _first(examples)
    call = caller(model, inputs, "cpu")
    torch_modules.evaluating(model)
    try:
        return bfloat16.gains(lambda: call(batch), len(examples.positions) / len(batch.positions))
    except StepError:  # what is wrong with it, training says
        return False


def _first(examples: Examples) -> Examples:
    feed = {name: value[:_TRIAL_SAMPLES] for name, value in examples.feed.items()}
    return Examples(examples.positions[:_TRIAL_SAMPLES], feed, None)


def _trial(
    computing: Computing, model: torch.nn.Module, inputs: Sequence[TensorSpec], batch: Examples
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """All outputs and the gradient of their energy, each as one vector; None where it fails.

    In evaluation mode: statistics and the random numbers of dropout stay as they are.
    """
    import torch

    call = caller(
        model,
        inputs,
        computing.device,
        channels_last=computing.channels_last,
        autocast=computing.autocast,
        always=True,
    )
    torch_modules.evaluating(model)
    values = [value for value in torch_modules.parameters(model) if value.requires_grad]
    try:
        outputs = [value.float() for value in call(batch).values() if value.is_floating_point()]
        if not outputs:
            return None
        energy = sum(value.square().mean() for value in outputs)
        gradients = torch.autograd.grad(energy, values, allow_unused=True)
    except (StepError, RuntimeError):
        return None
    with torch.no_grad():
        gradient = [
            torch.zeros(value.numel()) if part is None else part.contiguous().flatten().float().cpu()
            for part, value in zip(gradients, values, strict=True)
        ]
        return torch.cat([v.flatten().cpu() for v in outputs]), torch.cat(gradient)


def _agree(
    trial: tuple[torch.Tensor, torch.Tensor] | None,
    reference: tuple[torch.Tensor, torch.Tensor],
    most_error: float,
    least_cosine: float,
) -> bool:
    """Whether outputs and gradient are the same within the limits; False where the trial failed."""
    import torch

    if trial is None or trial[0].shape != reference[0].shape:
        return False
    error = float((trial[0] - reference[0]).norm() / reference[0].norm().clamp_min(1e-30))
    tried, exact = _direction(trial[1]), _direction(reference[1])
    cosine = float((tried * exact).sum(dtype=torch.float64))
    flat = float(reference[1].norm()) == 0
    return error <= most_error and (flat or cosine >= least_cosine)


def _direction(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient of length 1. One of a network with random weights may be as short as 1e-15."""
    import torch

    length = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    return gradient / length if length else gradient
