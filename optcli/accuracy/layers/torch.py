"""Layer by layer in PyTorch networks: modules that go by the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from optcli.accuracy.layers.measured import MeasuredLayers, Sums, weight_errors
from optcli.artifact import Artifact
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_calls, torch_modules
from optcli.results.layers import LayerError
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor
    from torch.nn import Module

    Feed = Mapping[str, np.ndarray]
    # What a module gave at each of its calls, by its name.
    Seen = dict[tuple[str, int], Tensor]


def compare(
    baseline: Artifact, child: Artifact, feeds: Sequence[Feed], inputs: Sequence[TensorSpec]
) -> MeasuredLayers:
    """Rows of activations and weights; `feeds` are batches of one shape, by names of `inputs`."""
    import torch

    floats, other = (torch_format.open(each.path) for each in (baseline, child))
    sums = Sums()
    names: dict[str, str] = {}
    with torch.no_grad():
        for feed in feeds:
            exact = _run(floats, inputs, feed, None)
            whole, own = _run(other, inputs, feed, None), _run(other, inputs, feed, exact)
            for (name, call), value in exact.items():
                tensor = name if not call else f"{name}#{call + 1}"
                reference, candidate = whole.get((name, call)), own.get((name, call))
                if reference is None or candidate is None:
                    continue
                arrays = [each.float().numpy() for each in (value, reference, candidate)]
                if sums.fits(tensor, arrays[0], arrays[1]):
                    sums.add(tensor, arrays[0], arrays[1], arrays[2])
                    names[tensor] = name
    modules = dict(torch_modules.named_modules(floats))
    rows = [sums.error(tensor, name, type(modules[name]).__name__) for tensor, name in names.items()]
    return sums.measured(rows, _weights(modules, dict(torch_modules.named_modules(other))))


def _run(model: Module, inputs: Sequence[TensorSpec], feed: Feed, exact: Seen | None) -> Seen:
    """What every innermost module gives; with `exact`, what is behind it gets that instead."""
    import torch

    seen: Seen = {}
    calls: dict[str, int] = {}

    def hook(name: str) -> Callable[..., Any]:
        def look(module: Module, given: Any, output: Any) -> Any:
            if not isinstance(output, torch.Tensor) or not output.is_floating_point():
                return None
            key = (name, calls.get(name, 0))
            calls[name] = key[1] + 1
            seen[key] = output.clone()
            replacement = exact.get(key) if exact is not None else None
            fits = replacement is not None and replacement.shape == output.shape
            return replacement.to(output.dtype).clone() if replacement is not None and fits else None

        return look

    with ExitStack() as hooks:
        for name, module in torch_modules.named_modules(model):
            # A module holds others that are called; quantized ones hold only their packed weights.
            held = (type(each).__name__ for each in torch_modules.children(module))
            innermost = hasattr(module, "weight") or all("Packed" in kind for kind in held)
            if innermost:
                hooks.callback(module.register_forward_hook(hook(name)).remove)
        call = torch_calls.arguments(model, inputs)
        positional, keyword = call.split({key: torch.from_numpy(array) for key, array in feed.items()})
        model(*positional, **keyword)
    return seen


def _weights(floats: Mapping[str, Module], child: Mapping[str, Module]) -> Iterator[LayerError]:
    for name, module in floats.items():
        exact = _values(module)
        quantized = _values(child[name]) if name in child and exact is not None else None
        yield from weight_errors(f"{name}.weight", name, type(module).__name__, exact, quantized)


def _values(module: Module) -> np.ndarray | None:
    """A module's weights as floats, whatever holds them."""
    import torch

    weight: Any = getattr(module, "weight", None)
    weight = weight() if callable(weight) and not isinstance(weight, torch.Tensor) else weight
    if not isinstance(weight, torch.Tensor):
        return None
    with suppress(RuntimeError, NotImplementedError, AttributeError):
        weight = weight.dequantize()
    with suppress(RuntimeError, NotImplementedError, TypeError):
        values: np.ndarray = weight.detach().float().numpy()
        return values
    return None
