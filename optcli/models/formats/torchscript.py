"""TorchScript: `model.pt`, a zip with tensors and with code in TorchScript's own language.

torch reads it without Python's pickle, and its code can call operators alone. A few of those read or
write files, so one from elsewhere is opened in a confined worker, or where the person trusts it. The
code is not judged: `scan` reads the members and whose operators it calls. The network takes one tensor
per input, and gives whatever `flatten_outputs` can name.
"""

from __future__ import annotations

import importlib
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, first_line
from optcli.models.formats import torch_archive
from optcli.models.formats.torch_archive import Scan
from optcli.models.formats.torch_calls import Arguments, bound, short
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch

FILE = "model.pt"

# Packages that bring the operators of their name.
_LIBRARIES = frozenset({"torchvision"})
_CODE = re.compile(r"code/[\w./]+\.py")
# Operators, and objects of classes that libraries bring.
_CALL = re.compile(r"\b(?:ops|torch\.classes)\.(\w+)\.(\w+)")


def doubts(folder: Path) -> tuple[str, ...]:
    """What a person must trust in it. Where there is any, `open` needs `trust`."""
    return tuple(scan(folder / FILE).doubts)


def open(folder: Path, device: str = "cpu", *, trust: bool = False) -> torch.jit.ScriptModule:
    """The network, in evaluation mode on a device, once its archive is known to be sound.

    With `trust` libraries of operators that it names are imported. Raises `InputError` where it is no
    sound model, `TrustError` where it calls operators of such a library.
    """
    return read(folder / FILE, device, trust=trust)


def read(path: Path, device: str = "cpu", *, trust: bool = False) -> torch.jit.ScriptModule:
    """As `open`, from a file of any name."""
    import torch

    findings = scan(path)
    findings.require(path, "TorchScript file", trust=trust)
    for package in sorted(findings.namespaces):
        importlib.import_module(package)
    if trust:
        findings.bring_unknown()
    try:
        with quiet():
            model = torch.jit.load(os.fspath(path), map_location=device)
        return model.eval()
    except Exception as error:
        raise findings.unreadable(path, "TorchScript file", "torch.jit.save", error) from error


def save(model: torch.jit.ScriptModule, folder: Path) -> None:
    """Write a network."""
    import torch

    with quiet():
        torch.jit.save(model, os.fspath(folder / FILE))


def arguments(model: torch.jit.ScriptModule, inputs: Sequence[TensorSpec]) -> Arguments:
    """How to call the network: by name if every input is a parameter of `forward`, else in order."""
    return bound([spec.name for spec in inputs], parameters(model))


def parameters(model: torch.jit.ScriptModule) -> list[str]:
    """The names of the parameters of `forward`."""
    return [argument.name for argument in model.forward.schema.arguments[1:]]


def required(model: torch.jit.ScriptModule) -> list[str]:
    """Those of the parameters that have no default."""
    arguments = model.forward.schema.arguments[1:]
    return [argument.name for argument in arguments if not argument.has_default_value()]


def precision(model: torch.jit.ScriptModule) -> str:
    """What it computes in, found from its operators and their packed or plain weights.

    `int8` where convolutions or matrix products work on packed integer weights, `int8-dynamic` where
    they scale activations as they come, else the types of the weights as in `formats.torch.precision`.
    """
    kinds: set[str] = set()
    for node in nodes(model.inlined_graph):
        space, _, name = node.kind().partition("::")
        if space == "quantized" and name.startswith(("conv", "linear")) and "pack" not in name:
            integers = "int8-dynamic" if "dynamic" in name else "int8"
            kinds.add("fp16" if name.endswith("fp16") else integers)
    if kinds:
        return "+".join(sorted(kinds))
    tensors = [value for value in model.state_dict().values() if value.is_floating_point()]
    tensors += [value for value in _constants(model.inlined_graph) if value.is_floating_point()]
    sizes: dict[Any, int] = {}
    for value in tensors:
        sizes[value.dtype] = sizes.get(value.dtype, 0) + value.numel()
    # Scales and other small constants do not say what is computed in.
    large = [dtype for dtype, size in sizes.items() if size * 100 >= sum(sizes.values())]
    return "+".join(sorted(map(short, large))) or "fp32"


def nodes(block: Any) -> Iterator[Any]:
    """Every node of a graph, those of the blocks inside others too."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes(inner)


def _constants(graph: Any) -> Iterator[torch.Tensor]:
    """The tensors that freezing made part of the graph."""
    for node in graph.findAllNodes("prim::Constant"):
        if node.hasAttribute("value") and node.kindOf("value") == "t":
            yield node.t("value")


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the deprecation warnings that every call of torch.jit repeats: the pass says it once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def reason(error: Exception) -> str:
    """What went wrong: the message alone, without the interpreter's traceback before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [line for line in lines if line.startswith(("RuntimeError:", "torch.jit.Error:"))]
    return messages[-1].partition(":")[2].strip() if messages else first_line(error)


def scan(path: Path) -> Scan:
    """Read a file without loading it; the namespaces are packages whose operators it calls.

    Raises `InputError` for what is no TorchScript file, or can be read in two ways.
    """
    findings = Scan()
    with torch_archive.opened(path, "a TorchScript file") as archive:
        members = torch_archive.below_top(archive, path)
        if "constants.pkl" not in members:
            raise InputError(
                "this is not a TorchScript file: the archive holds no TorchScript",
                place=str(path),
                hint="save it with torch.jit.save(torch.jit.script(model), FILE)",
            )
        for member, name in members.items():
            if _CODE.fullmatch(member):
                for space, operator in _CALL.findall(archive.read(name).decode()):
                    findings.call(space, operator, _LIBRARIES)
    return findings
