"""Products in bfloat16 while a network trains: which networks gain from them, and what stays in FP32.

Measured on an EPYC with AVX512_BF16 and PyTorch 2.15, forward and backward, in processor time:

- Linear layers and dense convolutions are up to 4 and 2 times as fast in bfloat16. They gain nothing
  where a value is the sum of few products, because the casts around them cost as much as the products.
- A convolution with one or two channels in a group takes up to 3 times as long in bfloat16, and with a
  stride up to 100 times.
- The gradient of attention takes 3 times as long for some 64 positions, and longer for fewer.
- Each call costs some 0.1 ms more. A call of few products does not earn that back.

So attention and convolutions with few channels in a group are computed in FP32 amidst the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from optcli.models.formats import torch_modules

if TYPE_CHECKING:
    import torch
    from torch.overrides import TorchFunctionMode

# Convolutions with fewer channels in a group than this stay in FP32 on a CPU.
_LEAST_GROUP = 4
# Sums of fewer products than this are no faster in bfloat16.
_LEAST_PRODUCTS = 32
# A network gains if a value takes so many products on average, and a call so many. Networks of
# depthwise convolutions have up to 65 products a value and gain nothing, SqueezeNet has 86 and gains.
_PRODUCTS_A_VALUE, _PRODUCTS_A_CALL = 75, 2_000_000


def gains(run: Callable[[], object], times: float) -> bool:
    """Whether training gains from bfloat16, by the products that `run`, a forward pass, computes.

    `times`: so many times as many samples are in a step of the training as `run` computes.
    """
    with counting() as work:
        run()
    enough = work.wide >= _PRODUCTS_A_VALUE * work.values
    return enough and work.wide > 0 and work.wide * times >= _PRODUCTS_A_CALL * work.calls


def casting(model: torch.nn.Module, device: str) -> Callable[[], AbstractContextManager[None]]:
    """What to call a network within, so that it computes its products in bfloat16."""
    import torch

    kind = device.partition(":")[0]
    convolutions = torch.nn.modules.conv._ConvNd
    narrow = kind == "cpu" and any(
        isinstance(module, convolutions) and _is_narrow(module.weight, module.groups)
        for module in torch_modules.modules(model)
    )

    @contextmanager
    def cast() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.autocast(kind, torch.bfloat16))
            if kind == "cpu":
                stack.enter_context(_attention_in_fp32())
            if narrow:  # it looks at every call
                stack.enter_context(_narrow_in_fp32())
            yield

    return cast


def _is_narrow(weight: torch.Tensor, groups: int) -> bool:
    return groups > 1 and weight.shape[1] < _LEAST_GROUP


def _in_fp32(function: Callable[..., Any], args: Any, named: Any) -> Any:
    import torch

    def exact(value: Any) -> Any:
        return value.float() if torch.is_tensor(value) and value.is_floating_point() else value

    with torch.autocast("cpu", enabled=False):
        return function(*map(exact, args), **{name: exact(value) for name, value in named.items()})


@contextmanager
def _attention_in_fp32() -> Iterator[None]:
    """Within it, attention is computed in FP32.

    By its name in `torch.nn.functional`, because PyTorch's own multi-head attention hides from modes
    what it calls.
    """
    from torch.nn import functional

    given = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = lambda *args, **named: _in_fp32(given, args, named)
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = given


def _narrow_in_fp32() -> TorchFunctionMode:
    """Within it, convolutions with few channels in a group are computed in FP32."""
    import torch
    from torch.overrides import TorchFunctionMode

    convolutions = {
        *(torch.conv1d, torch.conv2d, torch.conv3d),
        *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
    }

    class NarrowInFP32(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            named = kwargs or {}
            # input, weight, bias, stride, padding, dilation or output padding, groups
            if func not in convolutions or len(args) < 2:
                return func(*args, **named)
            groups = args[6] if len(args) > 6 else named.get("groups", 1)
            if _is_narrow(args[1], groups):
                return _in_fp32(func, args, named)
            return func(*args, **named)

    return NarrowInFP32()


class ComputedProducts:
    """What was computed: `wide` are the products that are quicker in bfloat16."""

    wide = values = calls = 0

    def add(self, products: int, values: int, *, narrow: bool = False) -> None:
        self.values += values
        self.calls += 1
        if not narrow and products >= _LEAST_PRODUCTS * values:
            self.wide += products


@contextmanager
def counting() -> Iterator[ComputedProducts]:
    """Counts what is computed within it."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten, work = torch.ops.aten, ComputedProducts()
    products = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1}
    attention = aten._scaled_dot_product_flash_attention_for_cpu

    class WorkCounting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            output = func(*args, **(kwargs or {}))
            operation = func.overloadpacket
            if operation in products:
                work.add(output.numel() * args[products[operation]].shape[-1], output.numel())
            elif operation is aten.convolution:
                taken, weight, transposed, groups = args[0], args[1], args[6], args[8]
                tensor = taken if transposed else output
                narrow = _is_narrow(weight, groups)
                work.add(tensor.numel() * weight[0].numel(), output.numel(), narrow=narrow)
            elif operation is attention:
                query, key = args[:2]
                scores = query.numel() // query.shape[-1] * key.shape[-2]
                work.add(0, output[0].numel() + scores, narrow=True)
            return output

    with WorkCounting():
        yield work
