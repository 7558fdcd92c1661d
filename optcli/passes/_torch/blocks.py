"""Whole blocks of a network that can be removed: which there are, what each costs, which to remove.

A block can be removed where its output is its first input plus something, or a part of that input
joined with something: then its input can stand for its output. See "Residual Networks Behave Like
Ensembles of Relatively Shallow Networks" (Veit, Wilber, Belongie, 2016). A network that has no such
block still has modules that keep the shape; training has more to win back without them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.errors import StepError, raised_as
from optcli.models.formats import torch_modules, torch_transforms
from optcli.models.formats.torch_calls import arguments, example_inputs
from optcli.passes._torch.examples import ExampleSet, spread
from optcli.passes._torch.learning import caller
from optcli.passes._torch.tracing import plain_attention
from optcli.settings import TensorSpec, batch_range

if TYPE_CHECKING:
    import torch

    from optcli.passes._torch.examples import Examples
    from optcli.passes._torch.learning import Outputs

# What starting one operator costs, in multiply-accumulates: a small network's time is that of its
# operators as much as that of its products. An assumption of the ranking alone.
_MACS_PER_OPERATOR = 100_000
_BATCH = 16
# A block is tried again where it may be so much better than its change before says.
_LIKELY = 0.9

# Steps of a backward pass that hand a value on: a path of these alone is a shortcut where a sum lies on
# it, or a concatenation with what was computed.
_HANDING_ON = {
    *("CloneBackward0", "AliasBackward0", "ToCopyBackward0", "NativeDropoutBackward0"),
    *("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "PermuteBackward0"),
    *("TransposeBackward0", "ReluBackward0", "HardtanhBackward0", "LeakyReluBackward0"),
    *("GeluBackward0", "SiluBackward0", "HardswishBackward0", "NativeLayerNormBackward0"),
    *("SplitBackward0", "SplitWithSizesBackward0", "SliceBackward0"),
}
_SUM, _CONCATENATION = "AddBackward0", "CatBackward0"


@dataclass(frozen=True)
class Block:
    """A block that can be removed; `macs` are the multiply-accumulates of one sample."""

    name: str
    macs: int
    operators: int

    @property
    def cost(self) -> int:
        """What it costs to compute, in multiply-accumulates: its own, and so many per operator."""
        return self.macs + _MACS_PER_OPERATOR * self.operators


@dataclass(frozen=True)
class Removal:
    """A block that goes; `change` is the relative change of the outputs without it and those before."""

    block: Block
    change: float


def removable(model: torch.nn.Module, inputs: Sequence[TensorSpec]) -> dict[str, Block]:
    """The blocks of a network that can be removed by name, in the order in which they are computed.

    Each has weights, is called once, gives a tensor of the shape of its first input, and holds a
    shortcut from one to the other. Where no module does, those are taken that have parts, multiply and
    keep the shape: batch norms are folded anyway. Of blocks within blocks, the inner ones are taken.
    """
    modules = dict(torch_modules.named_modules(model))
    with_parts = {name for name, module in modules.items() if any(torch_modules.children(module))}
    names = [
        name
        for name, module in modules.items()
        if name
        and next(torch_modules.parameters(module), None) is not None
        # PyTorch's own layers hold no shortcut, and keeping their inputs takes memory.
        and (name in with_parts or not type(module).__module__.startswith("torch.nn."))
    ]
    size = min(2, batch_range(inputs).max)
    calls = _calls(model, inputs, names, size)
    chosen = {name: call for name, call in calls.items() if _has_shortcut(*call)}
    if not chosen:
        chosen = {
            name: call
            for name, call in calls.items()
            if name in with_parts and _counted(name, call, size).macs
        }
    return {
        name: _counted(name, call, size)
        for name, call in chosen.items()
        if not any(other.startswith(f"{name}.") for other in chosen)
    }


def remove_named(model: torch.nn.Module, names: Sequence[str], inputs: Sequence[TensorSpec]) -> None:
    """Remove modules, in place. Raises `StepError` for one whose input cannot stand for its output."""
    size = min(2, batch_range(inputs).max)
    calls = _calls(model, inputs, names, size)
    others = [name for name in names if name not in calls]
    if others:
        raise StepError(
            f"{', '.join(others[:3])} cannot be removed: wanted a module that is called once and gives "
            "one tensor of the shape of its first input",
            hint="name blocks in `remove` that change neither the size nor the width",
        )
    torch_transforms.remove_blocks(model, torch_transforms.record_of_blocks(names))
    hint = "name other modules in `remove`"
    with raised_as(StepError, f"the network does not run without {', '.join(names)}", hint=hint):
        _calls(model, inputs, (), size)


@contextmanager
def without(model: torch.nn.Module, name: str) -> Iterator[torch.nn.Module]:
    """The network without a block; afterwards the block is there again. Gives what stands for it."""
    block = model.get_submodule(name)
    stand_in = torch_transforms.passing(block)
    torch_transforms.replace_module(model, name, stand_in)
    try:
        yield stand_in
    finally:
        torch_transforms.replace_module(model, name, block)


class OutputChange:
    """How much the outputs on some samples differ from those of `model` at the start."""

    def __init__(
        self,
        model: torch.nn.Module,
        examples: ExampleSet,
        inputs: Sequence[TensorSpec],
        most_samples: int,
    ) -> None:
        """Compute the outputs as they are."""
        positions = spread(len(examples), most_samples)
        fixed = max((s for spec in inputs if isinstance(s := spec.shape[0], int)), default=1)
        size = fixed if fixed > 1 else min(_BATCH, len(positions))
        whole = -(-len(positions) // size) * size
        # The last batch is filled up: a network may have one batch size only.
        filled = [positions[index % len(positions)] for index in range(whole)]
        self.samples = len(positions)
        self._model, self._inputs = model, inputs
        self._batches: list[Examples] = list(examples.batches(filled, size))
        self._outputs = [self._computed(model, batch) for batch in self._batches]

    def __call__(self, model: torch.nn.Module | None = None) -> float | None:
        """The norm of the change by that of the outputs, the mean over outputs; None where it fails.

        It is that of the network as it now is, or of another one.

        A network fails that does not run, or whose outputs have other names, shapes or types.
        """
        changes: dict[str, float] = defaultdict(float)
        norms: dict[str, float] = defaultdict(float)
        for batch, wanted in zip(self._batches, self._outputs, strict=True):
            try:
                outputs = self._computed(model or self._model, batch)
            except StepError:
                return None
            if _kinds(outputs) != _kinds(wanted):
                return None
            for name, value in wanted.items():
                if value.is_floating_point():
                    changes[name] += float((outputs[name] - value).double().square().sum())
                    norms[name] += float(value.double().square().sum())
        ratios = [(changes[name] / norm) ** 0.5 for name, norm in norms.items() if norm > 0]
        change = sum(ratios) / max(1, len(ratios))
        return change if math.isfinite(change) else None

    def _computed(self, model: torch.nn.Module, batch: Examples) -> Outputs:
        import torch

        with torch.no_grad():
            return caller(torch_modules.evaluating(model), self._inputs, "cpu")(batch)


def remove_weakest(
    model: torch.nn.Module,
    blocks: Collection[Block],
    count: int | Callable[[int], int],
    change: Callable[[], float | None],
    note: Callable[[float, str], None],
) -> list[Removal]:
    """Remove blocks one after the other, in place: each time the one with the least change by cost.

    The change of the network without it, and without those before, is divided by the cost of all that
    is removed. Removals interact, so after every removal the blocks that are left are tried anew, those
    that changed least first, until one is better than the next is likely to be. `count` is the number
    to remove, or makes it of the number that can be removed. Raises `StepError` where there are too
    few.
    """
    removals: list[Removal] = []
    left = {block.name: block for block in blocks}
    own: dict[str, float] = {}
    wanted = count if isinstance(count, int) else 1
    change_before, spent = 0.0, 0

    def likely(name: str) -> float:
        """The change by cost without this block, too, where changes are independent of each other."""
        return math.hypot(change_before, own.get(name, 0.0)) / (spent + left[name].cost)

    while len(removals) < wanted:
        trials: list[Removal] = []
        best, most = math.inf, len(left)
        for index, name in enumerate(sorted(left, key=likely)):
            if own and likely(name) * _LIKELY > best:
                break
            note((len(removals) + index / most) / wanted, f"trying without {name}")
            with without(model, name) as stand_in:
                seen: list[object] = []
                stand_in.register_forward_hook(lambda *_, seen=seen: seen.append(None))
                changed = change()
            if changed is None or not seen:
                left.pop(name)
                continue
            trials.append(Removal(left[name], changed))
            best = min(best, changed / (spent + left[name].cost))
        if not removals and not isinstance(count, int):
            wanted = count(len(trials)) if trials else 1
        if len(left) < wanted - len(removals):
            raise _too_few(len(left) + len(removals), wanted)
        for trial in trials:
            own[trial.block.name] = math.sqrt(max(0.0, trial.change**2 - change_before**2))
        chosen = min(trials, key=lambda trial: trial.change / (spent + trial.block.cost))
        name = chosen.block.name
        torch_transforms.remove_blocks(model, torch_transforms.record_of_blocks([name]))
        removals.append(chosen)
        change_before, spent = chosen.change, spent + chosen.block.cost
        left.pop(name)
    return removals


def _too_few(available: int, wanted: int) -> StepError:
    """The error of a network that has fewer blocks to remove than were asked for."""
    if not available:
        return StepError(
            "no block of this network can be removed: wanted modules with parts of their own that are "
            "called once and keep the shape of their input",
            hint="prune channels alone (`ratio`), shorten `keep`, or name modules in `remove`",
        )
    return StepError(
        f"{wanted} blocks are to be removed, and only {available} can be",
        hint=f"lower `blocks` to {available} or less, or shorten `keep`",
    )


_Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _calls(
    model: torch.nn.Module, inputs: Sequence[TensorSpec], names: Collection[str], size: int
) -> dict[str, _Call]:
    """Of some modules those that are called once and keep the shape, with their arguments, in order."""
    import torch
    from torch import nn

    uses = Counter(id(each) for _, each in nn.Module.named_modules(model, remove_duplicate=False))
    calls: dict[str, _Call] = {}
    called: Counter[str] = Counter()

    def hook(name: str) -> Callable[..., None]:
        def take(
            module: nn.Module, given: tuple[Any, ...], options: dict[str, Any], output: Any
        ) -> None:
            called[name] += 1
            if given and _is_same_kind(given[0], output):
                calls[name] = (module, given, options)

        return take

    modules = dict(torch_modules.named_modules(model))
    hooks = [
        modules[name].register_forward_hook(hook(name), with_kwargs=True)
        for name in names
        if uses[id(modules[name])] == 1
    ]
    try:
        positional, keyword = arguments(model, inputs).split(example_inputs(inputs, size))
        with torch.no_grad(), plain_attention():
            model(*positional, **keyword)
    finally:
        for each in hooks:
            each.remove()
    return {name: call for name, call in calls.items() if called[name] == 1}


def _is_same_kind(given: Any, output: Any) -> bool:
    import torch

    return (
        isinstance(given, torch.Tensor)
        and isinstance(output, torch.Tensor)
        and given.is_floating_point()
        and (given.shape, given.dtype) == (output.shape, output.dtype)
    )


def _has_shortcut(module: Any, given: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether the first input reaches the output by a sum or a concatenation, without a weight.

    The other side must be computed from the input: `x + 3` and `x + weights` are no shortcuts. A module
    that cannot be called by itself, or with gradients, is taken to have none.
    """
    import torch

    leaf = given[0].detach().clone().requires_grad_()
    output = None
    with suppress(Exception), torch.enable_grad(), plain_attention():
        # A copy: a block may compute in place.
        output = module(leaf.clone(), *given[1:], **options)
    if not isinstance(output, torch.Tensor) or output.grad_fn is None:
        return False
    seen: set[tuple[Any, bool]] = set()
    ahead = [(output.grad_fn, False)]
    while ahead:
        node, summed = ahead.pop()
        if (node, summed) in seen:
            continue
        seen.add((node, summed))
        if getattr(node, "variable", None) is leaf:
            if summed:
                return True
            continue
        nexts = [each for each, _ in node.next_functions if each is not None]
        if node.name() in (_SUM, _CONCATENATION):
            reaching = [_reaches(each, leaf) for each in nexts]
            ahead += [
                (each, True)
                for index, each in enumerate(nexts)
                if any(reaching[:index] + reaching[index + 1 :])
            ]
        elif node.name() in _HANDING_ON:
            ahead += [(each, summed) for each in nexts[:1]]
    return False


def _reaches(node: Any, leaf: torch.Tensor) -> bool:
    seen: set[Any] = set()
    ahead = [node]
    while ahead:
        node = ahead.pop()
        if getattr(node, "variable", None) is leaf:
            return True
        if node not in seen:
            seen.add(node)
            ahead += [each for each, _ in node.next_functions if each is not None]
    return False


def _counted(name: str, call: _Call, size: int) -> Block:
    """Count what a block computes. Operators that only look at memory in another way do not count."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    operators = 0

    class OperatorCounting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal operators
            operators += not function.is_view
            return function(*args, **(kwargs or {}))

    module, given, options = call
    copy = given[0].detach().clone()
    with (
        torch.no_grad(),
        plain_attention(),
        FlopCounterMode(display=False) as flops,
        OperatorCounting(),
    ):
        module(copy, *given[1:], **options)
    return Block(name, flops.get_total_flops() // (2 * size), operators)


def _kinds(outputs: Outputs) -> dict[str, Any]:
    return {name: (value.shape, value.dtype) for name, value in outputs.items()}
