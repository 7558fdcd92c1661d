"""Modules that round values as integers will, in a network that trains: fake quantizers.

The step between two integers is learned with the weights, as in Esser et al., "Learned Step Size
Quantization" (2020). It begins at what calibration found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from optcli.models.formats import torch_modules

if TYPE_CHECKING:
    import torch

# What a learned number of 1 means for the logarithm of a step. AdamW moves a number by the learning
# rate, whatever it is: 0.0001 for a weight of about 0.1 is 0.1 % for a step.
_STRETCH = 10.0


def fake_quantizer(
    scale: torch.Tensor, zero_point: torch.Tensor, low: int, high: int, axis: int | None
) -> torch.nn.Module:
    """A fake quantizer to integers from `low` to `high`.

    `scale` and `zero_point` have one value, or one per channel along `axis`. The zero point stays.
    """
    module: torch.nn.Module = _fake_quantizer_class()(scale, zero_point, low, high, axis)
    return module


def is_fake_quantizer(module: torch.nn.Module) -> bool:
    """Whether a module is one that `fake_quantizer` made."""
    return isinstance(module, _fake_quantizer_class())


@contextmanager
def as_onnx(model: torch.nn.Module) -> Iterator[None]:
    """Have the fake quantizers of a network write QuantizeLinear and DequantizeLinear while exported.

    For the newer exporter of torch.onnx, the one built on torch.export.
    """
    own = [module for module in torch_modules.modules(model) if is_fake_quantizer(module)]
    for module in own:
        module.writes_onnx = True
    try:
        yield
    finally:
        for module in own:
            module.writes_onnx = False


def round_weights(model: torch.nn.Module, run: Any) -> None:
    """Replace each parameter that a fake quantizer reads by what it makes of it.

    `run` calls the network once, so that every fake quantizer sees what it reads.
    """
    import torch

    def rounded(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if isinstance(inputs[0], torch.nn.Parameter):
            inputs[0].data.copy_(output)

    own = [module for module in torch_modules.modules(model) if is_fake_quantizer(module)]
    hooks = [module.register_forward_hook(rounded) for module in own]
    try:
        with torch.no_grad():
            run()
    finally:
        for hook in hooks:
            hook.remove()


@cache
def _fake_quantizer_class() -> type[Any]:
    """The class is made at first use: a base class cannot be imported lazily."""
    import torch

    class FakeQuantizer(torch.nn.Module):  # type: ignore[misc]
        """Rounds a tensor to a grid of integers, and back; the gradient passes where nothing clips."""

        def __init__(
            self,
            scale: torch.Tensor,
            zero_point: torch.Tensor,
            low: int,
            high: int,
            axis: int | None,
        ) -> None:
            super().__init__()
            self.register_buffer("calibrated", scale.detach().float().reshape(-1).clone())
            self.register_buffer("zero_point", zero_point.detach().float().reshape(-1).clone())
            self.stretch = torch.nn.Parameter(torch.zeros_like(self.calibrated))
            self.low, self.high, self.axis = low, high, axis
            self.writes_onnx = False

        @property
        def scale(self) -> torch.Tensor:
            """The step between two integers, `[1]` or `[channels]`."""
            return self.calibrated * torch.exp(_STRETCH * self.stretch)

        @property
        def integers(self) -> torch.dtype:
            """The type that holds the integers."""
            return torch.int8 if self.low < 0 else torch.uint8

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            if self.writes_onnx:
                return self._pair(values)
            rounded: torch.Tensor = _rounding_class().apply(
                values,
                self._along(values, self.scale),
                self._along(values, self.zero_point),
                self.low,
                self.high,
            )
            return rounded

        def _along(self, values: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
            """The numbers, one per channel or one for all, in a shape that goes with the values."""
            shape = [1] * values.ndim
            if self.axis is not None:
                shape[self.axis] = -1
            return numbers.reshape(shape)

        def _pair(self, values: torch.Tensor) -> torch.Tensor:
            scale, zero_point = self.scale.detach(), self.zero_point.to(self.integers)
            attributes = {} if self.axis is None else {"axis": self.axis}
            if self.axis is None:
                scale, zero_point = scale[0], zero_point[0]
            shape = values.shape
            integers = torch.onnx.ops.symbolic(
                "QuantizeLinear",
                (values, scale, zero_point),
                attributes,
                dtype=self.integers,
                shape=shape,
            )
            return torch.onnx.ops.symbolic(
                "DequantizeLinear",
                (integers, scale, zero_point),
                attributes,
                dtype=torch.float32,
                shape=shape,
            )

    return FakeQuantizer


@cache
def _rounding_class() -> type[Any]:
    import torch

    class Rounding(torch.autograd.Function):  # type: ignore[misc]
        """Rounds to a grid. PyTorch's own learnable fake quantization takes twice as long on a CPU."""

        @staticmethod
        def forward(
            context: Any,
            values: torch.Tensor,
            scale: torch.Tensor,
            zero_point: torch.Tensor,
            low: int,
            high: int,
        ) -> torch.Tensor:
            steps = values / scale
            integers = torch.round(steps).add_(zero_point)
            inside = (integers >= low) & (integers <= high)
            integers = integers.clamp_(low, high).sub_(zero_point)
            if any(context.needs_input_grad):
                context.save_for_backward(inside, torch.sub(integers, steps.mul_(inside)))
                # The gradient of a step sums over all its values: made as large as that of a weight.
                context.factor = (values.numel() / scale.numel() * high) ** -0.5
                context.shape = scale.shape
            return integers.mul_(scale)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            inside, by_step = context.saved_tensors
            of_scale = (gradient * by_step).sum_to_size(context.shape) * context.factor
            return gradient * inside, of_scale, None, None, None

    return Rounding
