"""What the sources of networks in Python share: weights, a first call, and writing the artifact.

`LibrarySource` is a network that a library knows by its name: torchvision or timm.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from optcli import environment
from optcli.artifact import Format
from optcli.errors import InputError, InputsError, MissingError, OptcliError, excerpt, first_line
from optcli.files.digest import FileDigests
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_build, torch_modules
from optcli.models.formats.torch_calls import Arguments, arguments, example_inputs, flatten_outputs
from optcli.models.sources import Source, SourceFacts, _file
from optcli.settings import TensorSpec, batch_range, batched
from optcli.settings.references import WEIGHTS_SUFFIXES, is_weights_file

if TYPE_CHECKING:
    import torch

RANDOM = f"random (seed {torch_build.SEED})"


class OutputsOfBatchError(InputError):
    """A network gives other outputs for another batch size, as one of a list of images does."""


def write(
    model: torch.nn.Module,
    out: Path,
    source: dict[str, Any],
    inputs: Sequence[TensorSpec],
    facts: dict[str, Any],
) -> SourceFacts:
    """Call the network once, write it, and say what its outputs are. Raises `InputError`."""
    import torch

    refuse_lazy(model)
    _refuse_not_finite(model)
    outputs = call_names(model, inputs)
    _refuse_random(model, inputs)
    description = torch_format.Description(source=source, inputs=tuple(inputs), outputs=outputs)
    torch_format.save(model, out, description)
    count = sum(value.numel() for value in torch_modules.parameters(model))
    return SourceFacts(
        outputs=outputs,
        precision=torch_format.precision(model),
        facts={**facts, "parameters": count, "torch": torch.__version__},
    )


def call_names(
    model: torch.nn.Module, inputs: Sequence[TensorSpec], call: Arguments | None = None
) -> tuple[str, ...]:
    """The outputs' names, found by calling the network at its two smallest batch sizes up to 2.

    `call` says how to call it where its `forward` does not.
    """
    call = call or arguments(model, inputs)
    allowed = batch_range(inputs) if inputs else None
    low, high = (allowed.min, allowed.max) if allowed else (1, 1)
    sizes = sorted({max(low, min(size, high)) for size in (1, 2)}, reverse=True)
    names_by_size = [tuple(_call(model, call, inputs, size)) for size in sizes]
    first = batched(inputs)
    if first is not None and any(names != names_by_size[0] for names in names_by_size):
        raise OutputsOfBatchError(
            f"the outputs depend on the batch size: {len(names_by_size[0])} at batch {sizes[0]}, "
            f"{len(names_by_size[1])} at batch {sizes[1]}",
            place=f"inputs.{first.name}",
            hint=f"fix the batch: shape: {[1, *first.shape[1:]]}",
        )
    if not names_by_size[0]:
        raise InputError(
            "the model returns no tensor", hint="return a tensor, a dict or a tuple of tensors"
        )
    return names_by_size[0]


def _call(
    model: torch.nn.Module, call: Arguments, inputs: Sequence[TensorSpec], size: int
) -> dict[str, torch.Tensor]:
    import torch

    feed = example_inputs(inputs, size)
    positional, keyword = call.split(feed)
    try:
        with torch.no_grad():
            return flatten_outputs(model(*positional, **keyword))
    except OptcliError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{name} {value.dtype} {list(value.shape)}" for name, value in feed.items())
        require_tensors(model, feed)
        reason = str(error).strip().splitlines() or [""]
        raise InputsError(
            f"the model does not take the recipe's inputs ({shapes.replace('torch.', '')}): "
            f"{type(error).__name__}: {reason[0]}",
            place="inputs",
            hint="correct shape and dtype under inputs; list several in their order, or by their names",
        ) from error


def _refuse_random(model: torch.nn.Module, inputs: Sequence[TensorSpec]) -> None:
    """Raise `InputError` that names the module where one input gives two answers, as dropout does."""
    import torch

    size = batch_range(inputs).min if inputs else 1
    first, second = (_call(model, arguments(model, inputs), inputs, size) for _ in range(2))
    if all(
        torch.allclose(second[name], value, 1e-3, 1e-3, equal_nan=True) for name, value in first.items()
    ):
        return
    runs = [_digests(model, inputs, size) for _ in range(2)]
    names = (a[0] for a, b in zip(*runs, strict=False) if a[:2] == b[:2] and a[2] != b[2])
    name = next(names, "")
    module = dict(torch_modules.named_modules(model))[name]
    where = f"{name} ({type(module).__name__})" if name else f"the forward of {type(module).__name__}"
    raise InputError(
        f"the same input gives two answers: {where} draws at random",
        place=f"model.source, {name}" if name else "model.source",
        hint="dropout that is always on, say: write F.dropout(x, p, training=self.training), or"
        " nn.Dropout, which evaluation switches off",
    )


def _digests(
    model: torch.nn.Module, inputs: Sequence[TensorSpec], size: int
) -> list[tuple[str, int, int]]:
    """For each call of a module its name, and what it was given and gave, the innermost first."""
    import torch

    seen: list[tuple[str, int, int]] = []

    def digest(values: Any) -> int:
        tensors = flatten_outputs({"values": values}).values()
        return hash(tuple(value.detach().cpu().numpy().tobytes() for value in tensors))

    def note(name: str) -> Any:
        return lambda _, given, made: seen.append((name, digest(given), digest(made)))

    handles = [m.register_forward_hook(note(name)) for name, m in torch_modules.named_modules(model)]
    try:
        with torch.no_grad():
            _call(model, arguments(model, inputs), inputs, size)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def require_tensors(model: torch.nn.Module, feed: dict[str, torch.Tensor]) -> None:
    """Raise `InputsError` where a network takes a container of its inputs in place of them."""
    import torch

    containers: dict[str, Any] = {
        "a dict of its inputs": {},  # it asks for a key
        "a list of its inputs": [*feed.values()],
        "a list of images without the batch dimension": [each[0] for each in feed.values()],
    }
    for container, value in containers.items():
        asks = ""
        try:
            with torch.no_grad():
                takes = bool(flatten_outputs(model(value)))
        except KeyError as error:
            # A tensor's index is no text.
            takes = value == {} and isinstance(error.args[0], str)
            asks = f" (it asks for {error})"
        except Exception:  # whatever a network raises: it does not take this
            takes = False
        if takes:
            raise InputsError(
                f"the network's forward takes {container}{asks}, and can be given tensors only",
                place="inputs",
                hint="wrap it: a module whose forward takes each tensor as an argument and passes on"
                f" {container}",
            )


def refuse_lazy(model: torch.nn.Module) -> None:
    """Raise `InputError` for layers whose weights the first call makes: no key would hold them."""
    from torch.nn.parameter import is_lazy

    lazy = [name for name, value in torch_modules.named_parameters(model) if is_lazy(value)]
    if lazy:
        raise InputError(
            f"the network has lazy layers, whose sizes no call has set yet: {excerpt(', '.join(lazy))}",
            place="model.source",
            hint="call it once where it is made, as in `net(torch.zeros(1, 3, 224, 224))`",
        )


def _refuse_not_finite(model: torch.nn.Module) -> None:
    """Raise `InputError` for NaN anywhere, and infinity in what was trained; a mask may be infinite."""
    trained = {name for name, _ in torch_modules.named_parameters(model)}
    for name, value in (*torch_modules.named_parameters(model), *torch_modules.named_buffers(model)):
        if not value.is_floating_point():
            continue
        if _has_finite_extremes(value):
            continue
        wrong = ~value.isfinite() if name in trained else value.isnan()
        if count := int(wrong.sum()):
            raise InputError(
                f"the weights hold NaN or infinity: {name}, {count} of {value.numel()} values",
                place="model.weights",
                hint="the training diverged or the file is damaged: use another checkpoint",
            )


def _has_finite_extremes(value: torch.Tensor) -> bool:
    """Whether one quick pass shows that all values are finite. False where it cannot be made."""
    import torch

    if value.dtype not in (torch.float32, torch.float64) or value.layout != torch.strided:
        return False
    if not value.numel():
        return True
    low, high = value.aminmax()
    return bool(low.isfinite() and high.isfinite())


def weights_path(folder: Path, weights: str) -> Path:
    """A weights file that a recipe names, relative to its folder."""
    return (folder / weights).absolute()


def weights_problems(folder: Path, weights: str) -> list[tuple[str, str, str]]:
    """What is wrong with a weights file as far as a look at the folder can tell."""
    missing = _file.absent(weights_path(folder, weights), WEIGHTS_SUFFIXES)
    return [] if missing is None else [("weights", *missing)]


def weights_ingredients(source: Source, digests: FileDigests) -> dict[str, Any]:
    """What belongs to a key for a file of weights: its content, and which of the weights in it."""
    file = weights_path(source.folder, str(source.weights))
    return {"file": digests.of(file), **({"key": source.weights_key} if source.weights_key else {})}


def named_weights(file: Path, key: str) -> str:
    """A file of weights for the artifact's facts, with the key of those that were taken from it."""
    return f"{file.name} ({key})" if key else file.name


class LibrarySource(Source):
    """A network by its name in `library`; `weights` is a file or an entry of the library.

    `names` is what such a name looks like, `wanted` says it in words.
    """

    format: ClassVar[Format] = Format.TORCH
    library: ClassVar[str]
    names: ClassVar[str]
    wanted: ClassVar[str]

    def problems(self) -> list[tuple[str, str, str]]:
        problems = []
        if not re.fullmatch(self.names, self.target):
            wrong = f"{self.target!r} is not the name of a {self.library} model"
            problems.append(("source", wrong, f"wanted {self.wanted}"))
        if self._has_file():
            problems += weights_problems(self.folder, str(self.weights))
        elif self.weights_key:
            wrong = f"{self.weights} is no file in which {self.weights_key!r} could be"
            problems.append(("weights", wrong, "leave the key out, or name a file"))
        return problems

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        weights: dict[str, Any] = {"random": torch_build.SEED}
        if (file := self._file()) is not None:
            weights = {**weights_ingredients(self, digests), **self._of_file(file)}
        elif self.weights is not None:
            weights = self._of_entry(self.weights)
        return {
            "kind": self.library,
            "name": self.target,
            "arguments": self.arguments,
            "weights": weights,
            "versions": environment.versions(["torch", self.library]),
        }

    @abstractmethod
    def _of_entry(self, weights: str) -> dict[str, Any]:
        """What belongs to the key for weights of the library's own."""

    def _of_file(self, file: Path) -> dict[str, Any]:
        """What belongs to the key for a file beside its digest."""
        return {}

    def _has_file(self) -> bool:
        """Whether `weights` means a file and not what the library knows."""
        return self.weights is not None and is_weights_file(self.weights, self.folder)

    def _file(self) -> Path | None:
        return weights_path(self.folder, str(self.weights)) if self._has_file() else None


def not_here(weights: object, error: Exception, hint: str) -> MissingError:
    """The error for weights that are neither in a cache nor can be fetched."""
    return MissingError(
        f"the weights {weights} are not on this machine and cannot be downloaded: {first_line(error)}",
        place="model.weights",
        hint=hint,
    )
