"""TorchScript: `model.pt`, a zip with tensors and with code in TorchScript's own language.

torch reads it without Python's pickle, and its code can call torch's operators alone. A few of those
read or write files, so the code is scanned before anything of it is loaded. The network takes one
tensor per input, and gives whatever `flatten_outputs` can name.
"""

from __future__ import annotations

import importlib
import io
import os
import tokenize
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, TrustError, first_line
from optcli.formats.torch_calls import Arguments, bound
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch

FILE = "model.pt"

# Operators that reach beyond tensors, by whatever they are called on.
_FORBIDDEN = frozenset({"save", "from_file", "load"})
# Whose operators may be called, and the package that brings them where torch itself does not.
_NAMESPACES = {
    **dict.fromkeys(("prim", "aten", "quantized", "_quantized", "mkldnn", "mkldnn_prepacked")),
    **dict.fromkeys(("onednn", "prepacked", "sparse", "profiler")),
    "torchvision": "torchvision",
}
_CLASSES = frozenset({"quantized", "mkldnn", "sparse", "rnn", "xnnpack"})


def check(folder: Path) -> None:
    """Raise `InputError` where it is no sound model, `TrustError` where it could touch files."""
    open(folder)


def open(folder: Path, device: str = "cpu") -> torch.jit.ScriptModule:
    """The network, in evaluation mode on a device, once its code is known to be harmless."""
    return read(folder / FILE, device)


def read(path: Path, device: str = "cpu") -> torch.jit.ScriptModule:
    """As `open`, from a file of any name."""
    import torch

    for package in sorted(scan(path)):
        importlib.import_module(package)
    try:
        with quiet():
            model = torch.jit.load(os.fspath(path), map_location=device)
        return model.eval()
    except Exception as error:
        raise InputError(
            f"torch cannot read this TorchScript file: {first_line(error)}",
            place=str(path),
            hint="write it again with torch.jit.save of this version of torch",
        ) from error


def save(model: torch.jit.ScriptModule, folder: Path) -> None:
    """Write a network."""
    import torch

    with quiet():
        torch.jit.save(model, os.fspath(folder / FILE))


def scan(path: Path) -> set[str]:
    """Read the code of a file without loading it; gives the packages whose operators it calls.

    Raises `TrustError` for an operator that reaches beyond tensors or is not known, `InputError` for
    what is no TorchScript file.
    """
    packages: set[str] = set()
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            if not any(name.endswith("/constants.pkl") for name in members):
                raise ValueError("the archive holds no TorchScript")
            for name in members:
                if name.endswith(".py"):
                    packages |= _scanned(archive.read(name).decode(), path)
    except (OSError, ValueError, zipfile.BadZipFile, tokenize.TokenError, SyntaxError) as error:
        raise InputError(
            f"this is not a TorchScript file: {first_line(error)}",
            place=str(path),
            hint="save it with torch.jit.save(torch.jit.script(model), FILE)",
        ) from error
    return packages


def _scanned(code: str, path: Path) -> set[str]:
    """The packages that a member's code needs; every use of `torch` and `ops` must be a plain call."""
    skipped = (tokenize.NL, tokenize.COMMENT, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type not in skipped
    ]
    words = [token.string for token in tokens]
    packages: set[str] = set()
    for index, token in enumerate(tokens):
        after = words[index + 1 : index + 6]
        if token.type == tokenize.STRING and token.string.strip("\"'") in _FORBIDDEN:
            raise _refused(f"names {token.string}", path)
        if token.type != tokenize.NAME:
            continue
        if token.string in _FORBIDDEN and after[:1] == ["("]:
            raise _refused(f"calls {token.string}()", path)
        starts = index == 0 or words[index - 1] != "."
        if token.string == "torch" and starts:
            # Written otherwise it could be given another name.
            if after[:1] != ["."] or after[2:3] != ["("]:
                raise _refused("does something unusual with `torch`", path)
        elif token.string == "ops" and starts:
            if after[:1] != ["."] or after[2:3] != ["."] or after[4:5] != ["("]:
                raise _refused("does something unusual with `ops`", path)
            if after[1] not in _NAMESPACES:
                raise _refused(f"calls the operator {after[1]}.{after[3]}, which torch lacks", path)
            package = _NAMESPACES[after[1]]
            packages |= {package} if package else set()
        elif words[index - 2 : index] == ["torch", "."] and token.string == "classes":
            _require_class(after[1:2], path)
    return packages


def _require_class(space: list[str], path: Path) -> None:
    if space and space[0] not in _CLASSES:
        raise _refused(f"makes an object of {space[0]}, which torch lacks", path)


def _refused(what: str, path: Path) -> TrustError:
    return TrustError(
        f"the code of this TorchScript file {what}: it could do more than compute",
        place=str(path),
        hint="take the file from a place you trust, or write it again from its network",
    )


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
    for node in _nodes(model.inlined_graph):
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
    return "+".join(sorted(_short(dtype) for dtype in large)) or "fp32"


def _short(dtype: torch.dtype) -> str:
    names = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
    name = str(dtype).removeprefix("torch.")
    return names.get(name, name)


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _constants(graph: Any) -> Iterator[torch.Tensor]:
    """The tensors that freezing made part of the graph."""
    for node in _nodes(graph):
        if (
            node.kind() == "prim::Constant"
            and node.hasAttribute("value")
            and node.kindOf("value") == "t"
        ):
            yield node.t("value")


@contextmanager
def quiet() -> Iterator[None]:
    """Without the deprecations that every call of torch.jit repeats: the pass says it once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def reason(error: Exception) -> str:
    """What went wrong, out of the interpreter's account of where it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("RuntimeError:", "torch.jit.Error:"))]
    return told[-1].partition(":")[2].strip() if told else first_line(error)
