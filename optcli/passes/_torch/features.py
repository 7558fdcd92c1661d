"""Matching what a network computes inside to what its teacher computes there, block by block.

As in "FitNets: Hints for Thin Deep Nets" (Romero et al., 2015), without extra layers: only outputs of
equal shape are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optcli.models.formats import torch_modules

if TYPE_CHECKING:
    import torch

    from optcli.passes._torch.examples import Examples
    from optcli.passes._torch.learning import Call


@dataclass(frozen=True)
class Features:
    """The blocks whose outputs are matched by name, and how much of the loss their distance is.

    `skipped` are those whose outputs differ in shape. Outputs are taken inside `taken`.
    """

    names: tuple[str, ...]
    skipped: tuple[str, ...]
    weight: float
    _student: dict[str, torch.Tensor] = field(default_factory=dict)
    _teacher: dict[str, torch.Tensor] = field(default_factory=dict)

    @contextmanager
    def taken(self, student: torch.nn.Module, teacher: torch.nn.Module) -> Iterator[None]:
        """Inside, both networks leave the outputs of the blocks here whenever they compute a batch."""
        with (
            _outputs_of(student, self.names, self._student),
            _outputs_of(teacher, self.names, self._teacher),
        ):
            yield

    def loss(self) -> torch.Tensor:
        """The weighted distance in the batch that both have computed last, a scalar.

        The mean over blocks of the mean squared difference, as a fraction of the teacher's mean square.
        """
        from torch.nn import functional

        distances = []
        for name in self.names:
            # A copy: inference tensors cannot be kept for a backward pass.
            wanted = self._teacher[name].float().clone()
            size = wanted.square().mean().clamp_min(1e-12)
            distances.append(functional.mse_loss(self._student[name].float(), wanted) / size)
        self._student.clear()
        self._teacher.clear()
        return self.weight * sum(distances[1:], distances[0]) / len(distances)


def matched(
    student: tuple[torch.nn.Module, Call],
    teacher: tuple[torch.nn.Module, Call],
    batch: Examples,
    weight: float,
) -> Features:
    """Which blocks of a network and its teacher can be compared, found on a batch; changes no weight.

    A block is a module with parts of its own in a Sequential, ModuleList or ModuleDict, such as a
    residual block or a transformer layer, and where there is none of these, a part of the network. The
    block before removed ones gives what they give: it is compared with the last of them.
    """
    import torch

    names = _blocks(teacher[0])
    mine: dict[str, torch.Tensor] = {}
    theirs: dict[str, torch.Tensor] = {}
    here = {name for name, _ in torch_modules.named_modules(student[0])}
    names = [name for name in names if name in here]
    with torch.no_grad():
        for (model, call), outputs in ((student, mine), (teacher, theirs)):
            torch_modules.evaluating(model)
            with _outputs_of(model, names, outputs):
                call(batch)
    last = {id(value): name for name, value in mine.items()}
    common = [name for name, value in mine.items() if last[id(value)] == name and name in theirs]
    same = [name for name in common if mine[name].shape == theirs[name].shape]
    return Features(tuple(same), tuple(name for name in common if name not in same), weight)


def _blocks(model: torch.nn.Module) -> list[str]:
    """The outermost blocks of a network, by name: see `matched`."""
    from torch import nn

    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    modules = dict(torch_modules.named_modules(model))

    def among(kinds: tuple[type, ...]) -> list[str]:
        names: list[str] = []
        for name, module in modules.items():
            own = name and not isinstance(module, containers) and any(torch_modules.children(module))
            parent = modules[name.rpartition(".")[0]] if name else None
            if own and isinstance(parent, kinds) and _is_outside(name, names):
                names.append(name)
        return names

    return among(containers) or among((type(model),))


def _is_outside(name: str, names: Sequence[str]) -> bool:
    return not any(name.startswith(f"{other}.") for other in names)


@contextmanager
def _outputs_of(
    model: torch.nn.Module, names: Sequence[str], outputs: dict[str, torch.Tensor]
) -> Iterator[None]:
    """Inside, the modules leave their outputs where those are tensors of numbers; in order of calls."""
    import torch

    def taking(name: str) -> Callable[..., None]:
        def take(module: Any, given: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.is_floating_point():
                outputs.pop(name, None)
                outputs[name] = output

        return take

    hooks = [model.get_submodule(name).register_forward_hook(taking(name)) for name in names]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
