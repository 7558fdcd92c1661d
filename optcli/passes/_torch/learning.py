"""What training is made of: calling a network, loss, teacher, judge, batch norms.

`Features` matches what a network computes inside to what its teacher computes there, block by block, as
in "FitNets: Hints for Thin Deep Nets" (Romero et al., 2015), without extra layers: only outputs of
equal shape are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optcli.errors import StepError, first_line
from optcli.models.formats import torch_modules
from optcli.models.formats.torch_calls import arguments, flatten_outputs
from optcli.models.formats.torch_calls import channels_last as images_last
from optcli.passes._torch.bfloat16 import casting
from optcli.passes._torch.examples import Examples, ExampleSet, spread
from optcli.passes._torch.part_losses import PartLosses
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch

    Outputs = dict[str, torch.Tensor]
    Call = Callable[[Examples], Outputs]

# What a teacher's answers may take in memory; beyond it they are computed again.
_KEPT_BYTES = 256 << 20
# Samples that say how far apart answers are, and what these may take in memory.
_ANSWERS, _ANSWERS_BYTES = 32, 64 << 20


@dataclass(frozen=True)
class Score:
    """How good a network is on the validation samples; `share` is the better measure where it is known.

    `share` is top-1 on labels, or without labels the share of samples on which the teacher agrees.
    """

    loss: float
    share: float | None

    def beats(self, other: Score | None) -> bool:
        """Whether this is better: by share, then by loss."""
        if other is None:
            return True
        own_share, other_share = self.share or 0.0, other.share or 0.0
        return own_share > other_share or (own_share == other_share and self.loss < other.loss)


def caller(
    model: torch.nn.Module,
    inputs: Sequence[TensorSpec],
    device: str,
    *,
    channels_last: bool = False,
    autocast: bool = False,
    always: bool = False,
) -> Call:
    """The network as a function from a batch to its outputs by name. Raises `StepError`.

    `autocast` computes products in bfloat16 in training mode, with `always` in evaluation mode too.
    """
    import torch

    call = arguments(model, inputs)
    cast = casting(model, device) if autocast else nullcontext

    def run(batch: Examples) -> Outputs:
        feed = {name: value.to(device) for name, value in batch.feed.items()}
        if channels_last:
            feed = {name: images_last(value) for name, value in feed.items()}
        positional, keyword = call.split(feed)
        try:
            if not autocast or not (always or model.training):
                return flatten_outputs(model(*positional, **keyword))
            with cast():
                outputs = flatten_outputs(model(*positional, **keyword))
            # A loss is a small difference of large sums: 8 bits are too few for it.
            return {
                name: value.float() if value.dtype == torch.bfloat16 else value
                for name, value in outputs.items()
            }
        except Exception as error:
            mode = "training" if model.training else "evaluation"
            raise StepError(
                f"the network fails in {mode} mode on a batch of {len(batch.positions)}: "
                f"{type(error).__name__}: {first_line(error)}",
                hint="try another batch_size; a forward() that wants targets cannot be trained here",
            ) from error

    return run


@dataclass(frozen=True)
class Loss:
    """Cross-entropy on labels and the distance to a teacher, `weight` of the second.

    The distance is the Kullback-Leibler divergence of the softened logits, times the temperature's
    square (Hinton, Vinyals, Dean, "Distilling the Knowledge in a Neural Network", 2015), or that of
    every output by its parts: `part_losses`.
    """

    output: str
    weight: float
    temperature: float
    label_smoothing: float
    part_losses: PartLosses | None = None

    def __call__(
        self, outputs: Outputs, labels: torch.Tensor | None, taught: Outputs | None
    ) -> torch.Tensor:
        """The loss of a batch, a scalar. Raises `StepError` where labels do not fit the outputs."""
        parts = []
        if self.weight < 1 and labels is not None:
            parts.append((1 - self.weight) * self._labelled(self.logits(outputs), labels))
        if taught is not None and self.weight > 0:
            parts.append(self.weight * self._taught(outputs, taught))
        return sum(parts[1:], parts[0])

    def logits(self, outputs: Outputs) -> torch.Tensor:
        """The output that holds the classes' scores; trailing dimensions of size 1 are taken off."""
        # In training mode some networks give other names, with the main output first.
        scores = outputs.get(self.output, next(iter(outputs.values())))
        if scores.ndim > 2 and all(size == 1 for size in scores.shape[2:]):
            return scores.flatten(1)
        return scores

    def _labelled(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from torch.nn import functional

        classes = logits.shape[1] if logits.ndim > 1 else 0
        if not classes or logits.shape[:1] + logits.shape[2:] != labels.shape:
            raise StepError(
                f"labels of shape {list(labels.shape)} do not fit the output {self.output!r} of shape "
                f"{list(logits.shape)}, wanted a score per class",
                hint="name the output with the classes in `output`, or set `distillation_weight: 1`",
            )
        if int(labels.max()) >= classes:
            raise StepError(
                f"label {int(labels.max())} is out of range: the network has {classes} classes",
                hint="the labels must be the class numbers that the network was trained with",
            )
        return functional.cross_entropy(
            logits, labels.to(logits.device), label_smoothing=self.label_smoothing
        )

    def _taught(self, outputs: Outputs, taught: Outputs) -> torch.Tensor:
        from torch.nn import functional

        if self.part_losses is not None:
            return self.part_losses(outputs, taught)
        student, teacher = self.logits(outputs), self.logits(taught)
        soft = [functional.log_softmax(x.float() / self.temperature, dim=1) for x in (student, teacher)]
        divergence = functional.kl_div(soft[0], soft[1], reduction="none", log_target=True)
        return divergence.sum(1).mean() * self.temperature**2


def some_answers(call: Call, examples: ExampleSet, size: int) -> Outputs:
    """What a network answers to a few samples, evenly spaced; a batch has `size` of them."""
    import torch

    found: list[Outputs] = []
    with torch.no_grad():
        for batch in examples.batches(spread(len(examples), _ANSWERS), min(size, len(examples))):
            found.append(call(batch))
            sizes = [sum(value.nbytes for value in each.values()) for each in found]
            if sum(sizes) + sizes[-1] > _ANSWERS_BYTES:
                break
    return {name: torch.cat([each[name] for each in found]) for name in found[0]}


def training_mode(model: torch.nn.Module, *, own_layers: bool) -> None:
    """Put a network into training mode; with `own_layers` only what is PyTorch's own in it."""
    if not own_layers:
        model.train()
        return
    torch_modules.evaluating(model)
    for module in torch_modules.modules(model):
        if type(module).__module__.startswith("torch.nn."):
            module.training = True


def changes_in_training(model: torch.nn.Module, call: Call, batch: Examples) -> bool:
    """Whether a network gives other outputs in training mode, or fails: detectors' heads often do.

    Changes nothing, and leaves the network in evaluation mode.
    """
    import torch

    state = {name: value.clone() for name, value in torch_modules.state(model).items()}
    shapes: list[list[Any]] = []
    with torch.no_grad():
        torch_modules.evaluating(model)
        shapes.append([value.shape for value in call(batch).values()])
        training_mode(model, own_layers=False)
        try:
            shapes.append([value.shape for value in call(batch).values()])
        except StepError:
            shapes.append([])
    model.load_state_dict(state)
    torch_modules.evaluating(model)
    return shapes[0] != shapes[1]


class Teacher:
    """A trained network whose answers to `samples` are remembered, as long as they fit into memory."""

    def __init__(self, call: Call, samples: int, kept_bytes: int = _KEPT_BYTES) -> None:
        self._call = call
        self._samples = samples
        self._kept_bytes = kept_bytes
        self._places: dict[int, int] = {}
        self._rows: Outputs | None = None

    def __call__(self, batch: Examples) -> Outputs:
        """The answers to a batch. They depend on each sample alone: the teacher is not training."""
        import torch

        places = [self._places.get(position, -1) for position in batch.positions]
        if self._rows is not None and -1 not in places:
            chosen = torch.tensor(places)
            return {name: rows[chosen] for name, rows in self._rows.items()}
        with torch.inference_mode():
            outputs = self._call(batch)
        outputs = {name: value.clone() for name, value in outputs.items()}
        self._keep(batch, outputs)
        return outputs

    def _keep(self, batch: Examples, outputs: Outputs) -> None:
        """Keep the answers that there is room for; those of another shape than the first are not."""
        import torch

        if self._rows is None:
            size_bytes = sum(value[0].nbytes for value in outputs.values())
            room = min(self._samples, self._kept_bytes // max(1, size_bytes))
            self._rows = {
                name: torch.empty((room, *value.shape[1:]), dtype=value.dtype, device=value.device)
                for name, value in outputs.items()
            }
        fits = all(
            name in outputs and outputs[name].shape[1:] == rows.shape[1:]
            for name, rows in self._rows.items()
        )
        room = len(next(iter(self._rows.values())))
        for index, position in enumerate(batch.positions):
            place = len(self._places)
            if fits and position not in self._places and place < room:
                self._places[position] = place
                for name, rows in self._rows.items():
                    rows[place] = outputs[name][index]


@dataclass(frozen=True)
class Judge:
    """Says how good a network is on a set of samples."""

    examples: ExampleSet
    batch_size: int
    loss: Loss
    teacher: Teacher | None

    def __call__(
        self, model: torch.nn.Module, call: Call, seen: Callable[[int], None] = lambda _: None
    ) -> Score:
        """The score of a network, which is put into evaluation mode.

        `seen` is called after every batch with the number of its samples.
        """
        import torch

        torch_modules.evaluating(model)
        total, right, counted = 0.0, 0, 0
        with torch.no_grad():
            for batch in self.examples.batches(range(len(self.examples)), self.batch_size):
                outputs = call(batch)
                taught = self.teacher(batch) if self.teacher is not None else None
                total += len(batch.positions) * float(self.loss(outputs, batch.labels, taught))
                hits = self._hits(outputs, batch.labels, taught)
                right, counted = right + int(hits.sum()), counted + hits.numel()
                seen(len(batch.positions))
        return Score(total / len(self.examples), right / counted if counted else None)

    def _hits(
        self, outputs: Outputs, labels: torch.Tensor | None, taught: Outputs | None
    ) -> torch.Tensor:
        """Which samples are right: by their labels, else by the teacher; none where neither says."""
        import torch

        logits = self.loss.logits(outputs)
        if labels is None and taught is not None and self.loss.part_losses is None:
            labels = self.loss.logits(taught).argmax(1).cpu()
        if labels is None or logits.shape[:1] + logits.shape[2:] != labels.shape:
            return torch.zeros(0)
        return logits.argmax(1).cpu() == labels


def reestimate_batchnorm(model: torch.nn.Module, call: Call, batches: Iterable[Examples]) -> int:
    """Set the running means and variances of all batch norms to their averages over some batches.

    No weight changes, and everything else behaves as in use. Gives the number of batch norms. As
    `torch.optim.swa_utils.update_bn` does it.
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    norms = [
        part
        for part in torch_modules.modules(model)
        if isinstance(part, _BatchNorm) and part.track_running_stats
    ]
    if not norms:
        return 0
    momenta = [norm.momentum for norm in norms]
    torch_modules.evaluating(model)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over batches
        norm.train()
    try:
        with torch.no_grad():
            for batch in batches:
                call(batch)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        torch_modules.evaluating(model)
    return len(norms)


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
    of_student: dict[str, torch.Tensor] = {}
    of_teacher: dict[str, torch.Tensor] = {}
    here = {name for name, _ in torch_modules.named_modules(student[0])}
    names = [name for name in names if name in here]
    with torch.no_grad():
        for (model, call), outputs in ((student, of_student), (teacher, of_teacher)):
            torch_modules.evaluating(model)
            with _outputs_of(model, names, outputs):
                call(batch)
    last = {id(value): name for name, value in of_student.items()}
    common = [
        name for name, value in of_student.items() if last[id(value)] == name and name in of_teacher
    ]
    same = [name for name in common if of_student[name].shape == of_teacher[name].shape]
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
