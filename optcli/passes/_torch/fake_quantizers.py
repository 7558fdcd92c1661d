"""Fake quantizers: modules that round values as integers will, in a network that trains.

The step between two integers is learned with the weights, as in Esser et al., "Learned Step Size
Quantization" (2020). It begins at what calibration found.

`onnx_of_trained` writes such a network as an ONNX model that runtimes compute on integers. The exporter
writes what the network does: weights are rounded at every call, and batch norms stand behind
convolutions. ONNX Runtime takes an integer kernel only where weights are integers already and a
convolution's result goes into QuantizeLinear at once. What is done about it here is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from optcli.models.formats import torch_modules
from optcli.models.onnx_graphs.graph import (
    add_initializer,
    array,
    maker,
    read,
    remove_unread,
    remove_unread_initializers,
    written,
)
from optcli.models.onnx_graphs.operators import PRODUCTS
from optcli.models.onnx_graphs.quantized import along
from optcli.passes import Job
from optcli.passes._quantization.integer_chains import close_integer_chains, keep_floats
from optcli.passes._torch.onnx_exporting import (
    onnx_of_program,
    program_of,
    quiet_exporters,
    require_names,
)
from optcli.passes._torch.tracing import example, flat, plain_attention

if TYPE_CHECKING:
    import torch
    from onnx import ModelProto
    from onnx_ir import Model, Node

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


def onnx_of_trained(model: torch.nn.Module, job: Job, outputs: Sequence[str]) -> ModelProto:
    """The ONNX model of a network with fake quantizers, in evaluation mode; its weights get rounded.

    Raises `StepError`, and whatever the exporter raises.
    """
    function = flat(model, job.inputs)
    with plain_attention():
        round_weights(model, lambda: function(*example(job.inputs, small=True)))
    with quiet_exporters(), as_onnx(model):
        exported = onnx_of_program(program_of(function, job), job.inputs, outputs)
    require_names(exported, [spec.name for spec in job.inputs], outputs)
    graph = read(exported)
    keep_integer_weights(graph)
    fold_batch_norms(graph)
    close_integer_chains(graph)
    keep_floats(graph)
    remove_unread_initializers(graph)
    return written(graph)


# Products whose results have their channels where batch norms look for them.
_NORMED = PRODUCTS - {"MatMul"}


def keep_integer_weights(model: Model) -> int:
    """Replace weights that are rounded at each call by their integers; returns how many were."""
    import numpy as np
    import onnx_ir

    changed = 0
    for node in list(model.graph):
        if node.op_type != "QuantizeLinear":
            continue
        weight, scale, zero_point = (array(value) for value in node.inputs)
        if weight is None or scale is None or zero_point is None:
            continue
        axis = node.attributes.get_int("axis", 1)
        limits = np.iinfo(zero_point.dtype)
        low = -limits.max if limits.min < 0 else 0  # either sign of a signed one fits
        steps = np.rint(weight / along(scale, weight.ndim, axis))
        integers = steps + along(zero_point, weight.ndim, axis).astype(np.float32)
        name = f"{node.outputs[0].name}_kept"
        weights_name = add_initializer(
            model.graph, name, integers.clip(low, limits.max).astype(zero_point.dtype)
        )
        onnx_ir.convenience.replace_all_uses_with(node.outputs[0], weights_name)
        remove_unread(node)
        changed += 1
    for node in list(model.graph):
        back = maker(node.inputs[0], "DequantizeLinear") if node.op_type == "Transpose" else None
        if back is not None and array(back.inputs[0]) is not None:
            _turn(model, node, back)
    return changed


def _turn(model: Model, node: Node, back: Node) -> None:
    """Have the weights lie as Transpose, behind their DequantizeLinear, would put them."""
    import onnx_ir

    weight, (scale, zero_point) = array(back.inputs[0]), back.inputs[1:]
    assert weight is not None
    order = list(node.attributes.get_ints("perm", tuple(reversed(range(weight.ndim)))))
    turned = add_initializer(model.graph, f"{node.outputs[0].name}_integers", weight.transpose(order))
    axis = order.index(back.attributes.get_int("axis", 1) % weight.ndim)
    floats = onnx_ir.Value(
        name=f"{node.outputs[0].name}_floats", type=node.outputs[0].type, shape=node.outputs[0].shape
    )
    model.graph.insert_before(
        node,
        onnx_ir.node(
            "DequantizeLinear",
            [turned, scale, zero_point],
            {"axis": axis},
            outputs=[floats],
            name=floats.name,
        ),
    )
    onnx_ir.convenience.replace_all_uses_with(node.outputs[0], floats)
    remove_unread(node)
    remove_unread(back)


def fold_batch_norms(model: Model) -> int:
    """Multiply the scales of integer weights by the batch norm behind them; returns how many were.

    A channel that the batch norm multiplies by a negative number gets weights of the other sign: they
    reach from -127 to 127.
    """
    folded = 0
    for node in list(model.graph):
        product = maker(node.inputs[0], *_NORMED) if node.op_type == "BatchNormalization" else None
        if product is None or node.outputs[0].is_graph_output():
            continue
        if len(product.outputs[0].uses()) == 1 and not product.outputs[0].is_graph_output():
            folded += _fold(model, product, node)
    return folded


def _fold(model: Model, product: Node, norm: Node) -> bool:
    """Whether a batch norm could be folded into the product whose result it alone reads."""
    import numpy as np
    import onnx_ir

    back = maker(product.inputs[1], "DequantizeLinear")
    weight, scale, zero_point = map(array, back.inputs) if back is not None else (None, None, None)
    bias = array(product.inputs[2]) if len(product.inputs) > 2 else np.zeros(1)
    numbers = [array(value) for value in norm.inputs[1:5]]
    if back is None or weight is None or scale is None or zero_point is None or bias is None:
        return False
    known = [each.astype(np.float64) for each in numbers if each is not None]
    if len(known) < len(numbers):
        return False
    gamma, beta, mean, variance = known
    factor = gamma / np.sqrt(variance + norm.attributes.get_float("epsilon", 1e-5))
    if scale.shape != factor.shape or zero_point.any():
        return False
    axis = back.attributes.get_int("axis", 1)
    sign = np.sign(factor).astype(weight.dtype)
    # A channel that is multiplied by nothing needs a scale nevertheless.
    scales = np.where(sign == 0, scale, scale * np.abs(factor)).astype(np.float32)
    name = product.outputs[0].name
    inputs = [
        add_initializer(model.graph, f"{name}_weight", weight * along(sign, weight.ndim, axis)),
        add_initializer(model.graph, f"{name}_scale", scales),
        back.inputs[2],
    ]
    floats = onnx_ir.Value(name=f"{name}_floats")
    dequantize = onnx_ir.node(
        "DequantizeLinear", inputs, {"axis": axis}, outputs=[floats], name=floats.name
    )
    model.graph.insert_before(product, dequantize)
    shift = ((bias - mean) * factor + beta).astype(np.float32)
    product.resize_inputs(3)
    product.replace_input_with(1, floats)
    product.replace_input_with(2, add_initializer(model.graph, f"{name}_bias", shift))
    onnx_ir.convenience.replace_all_uses_with(norm.outputs[0], product.outputs[0])
    for unread in (norm, back):
        remove_unread(unread)
    return True
