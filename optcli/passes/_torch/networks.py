"""The network of a torch artifact, for a pass that changes it or exports it.

Opening it, finding the modules that a recipe names, quantizing its linear layers as a transform that
comes back from its record, and naming the layer that a converter refuses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from optcli.artifact import Artifact, Format
from optcli.errors import OptcliError, StepError, counted, did_you_mean, first_line, raised_as
from optcli.models.formats import exported as exported_format
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_compiled, torch_modules, torch_transforms
from optcli.models.formats.torch_calls import arguments, example_inputs
from optcli.passes import Job, Made
from optcli.passes._torch.tracing import flat
from optcli.settings import TensorSpec, batch_range

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

# Of an error, those that may say which operator it is about.
_LINES = 3
# A line of the network, as converters name it and as a traced node does.
_PLACE = re.compile(r"([^\s\"'(]+\.py):(\d+)")
_IN_STACK = re.compile(r'File "([^"]+\.py)", line (\d+)')


def network(source: Artifact, *, eager: bool = False) -> torch.nn.Module:
    """The network in floating point, as Python code, in evaluation mode on the CPU.

    `eager`: layers that `engine: eager` has quantized may be in it. Raises `StepError` for a network
    that is compiled or quantized: what was kept of the one would be lost, and exporters cannot read
    torchao's weights, or quietly make floating-point numbers of them again.
    """
    require_uncompiled(source)
    for record in torch_format.read(source.path).transforms:
        if record["name"] == torch_transforms.QUANTIZE and not (eager and record["engine"] == "eager"):
            raise StepError(
                "the network is quantized already, in a way that PyTorch alone can run",
                hint="put the pass that quantizes last or before torch_compile; for ONNX put it behind "
                "export_onnx, for aot_inductor use quantize_pt2e",
            )
    return torch_format.open(source.path)


def function_of(source: Artifact, inputs: Sequence[TensorSpec]) -> torch.nn.Module:
    """A network, or an exported program, as a function of one tensor per input, in their order."""
    if source.format == Format.EXPORTED:
        program = exported_format.open(source.path, trust=source.trusted)
        return program.module(check_guards=False)
    return flat(network(source), inputs)


def require_uncompiled(source: Artifact) -> None:
    """Raise `StepError` for a network that torch_compile made: its compiled code would be lost."""
    transforms = torch_format.read(source.path).transforms
    if torch_compiled.Compilation.of(transforms) is not None:
        raise StepError(
            "the network is compiled already", hint="put torch_compile last, and use it only once"
        )


def matching(patterns: Sequence[str], names: Iterable[str], option: str) -> set[str]:
    """The modules that a pattern fits, as shells match files.

    Raises `StepError` for a pattern that fits none: a misspelt name must not go unnoticed.
    """
    available = sorted(names)
    modules: set[str] = set()
    for pattern in patterns:
        fitting = {name for name in available if fnmatchcase(name, pattern)}
        if not fitting:
            raise StepError(
                f"`{option}: {pattern}` fits no module of the network",
                hint=did_you_mean(pattern, available, lists="`network.named_modules()`"),
            )
        modules |= fitting
    return modules


def within(name: str, modules: Iterable[str]) -> bool:
    """Whether a module is one of `modules` or lies inside one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


@contextmanager
def by_layer(refused: str, trace: Callable[[], ExportedProgram], hint: str) -> Iterator[None]:
    """What a converter raises becomes a `StepError`: `refused`, its reason, and where that comes from.

    `trace` gives the network as a program, in which the operators that the reason names are looked for.
    """
    try:
        yield
    except OptcliError:
        raise
    except Exception as error:
        reason, callers = first_line(error).rstrip(".:"), dict[str, set[str]]()
        message = "\n".join(list(filter(None, str(error).splitlines()))[:_LINES])
        with suppress(Exception):  # what cannot be converted may be impossible to trace as well
            program = trace()
            callers = _callers(message, program) or _callers(message, program.run_decompositions())
        named = [
            f"{operator} is called by {', '.join(sorted(modules)) or 'the network itself'}"
            for operator, modules in sorted(callers.items())
        ]
        raise StepError("; ".join([f"{refused}: {reason}", *named]), hint=hint) from error


def module_of(node: torch.fx.Node) -> str:
    """The module of the network that a node comes from; empty for the network itself."""
    paths = [str(path) for path, _ in node.meta.get("nn_module_stack", {}).values()]
    return paths[-1].removeprefix("L['self'].") if paths else ""


def _callers(message: str, program: ExportedProgram) -> dict[str, set[str]]:
    """The modules that call operators which are named in an error, or whose line is, by operator."""
    callers: dict[str, set[str]] = {}
    lines = {*_PLACE.findall(message)}
    for node in program.graph.nodes:
        # `aten.grid_sampler.default`; errors write `aten::grid_sampler` or 'grid_sampler' as well.
        parts = str(node.target).split(".")
        if node.op != "call_function" or len(parts) != 3:
            continue
        written_at = _IN_STACK.findall(node.meta.get("stack_trace") or "")[-1:]
        if re.search(rf"[.:'\"`]{re.escape(parts[1])}(?!\w)", message) or lines & {*written_at}:
            modules = callers.setdefault(f"{parts[0]}.{parts[1]}", set())
            modules.update(filter(None, [module_of(node)]))
    return callers


def quantize_layers(
    source: Artifact,
    job: Job,
    kind: Literal["dynamic", "weights"],
    names: Sequence[str],
    ignored_names: Sequence[str],
    engine: torch_transforms.Engine = "torchao",
    per_channel: bool = True,
    group_size: int | None = None,
) -> Made:
    """Quantize the linear layers that are named (all, where none is) and write the artifact.

    Raises `StepError` where there is none: convolutions cannot be quantized in this way.
    """
    require_uncompiled(source)
    require_fp32(source)
    model = torch_format.open(source.path)
    layers = _layers(model, engine, names, ignored_names, group_size)
    record = {
        "name": torch_transforms.QUANTIZE,
        "engine": engine,
        "kind": kind,
        "modules": layers,
        "per_channel": per_channel,
        "group_size": group_size,
    }
    hint = "the log names the layer: keep it with `ignored_names`"
    with raised_as(StepError, f"{engine} cannot quantize this network", hint=hint):
        model = torch_transforms.quantize(model, record)
        _run_once(model, job)
    description = torch_format.read(source.path).after(record)
    torch_format.save(model, job.out, description, source.path / torch_format.CODE)
    facts: dict[str, Any] = {"engine": engine, "quantized_operators": {"Linear": len(layers)}}
    others = _convolutions(model)
    if others:
        facts["kept_in_fp32"] = dict(others)
        job.warn(
            f"{counted(sum(others.values()), 'convolution stays', 'convolutions stay')} in fp32: this"
            " pass quantizes linear layers alone"
        )
    return Made(precision=torch_transforms.quantized_precision(model), facts=facts)


def require_fp32(source: Artifact) -> None:
    """Raise `StepError` for a model that is in another precision already."""
    if source.precision != "fp32":
        raise StepError(
            f"the model is {source.precision}, wanted fp32",
            hint="quantize the FP32 model that it was made from",
        )


def _layers(
    model: torch.nn.Module,
    engine: torch_transforms.Engine,
    names: Sequence[str],
    ignored_names: Sequence[str],
    group_size: int | None,
) -> list[str]:
    modules = [name for name, _ in torch_modules.named_modules(model) if name]
    named = matching(names, modules, "names")
    ignored = matching(ignored_names, modules, "ignored_names")
    possible = torch_transforms.linear_layers(model, engine)
    layers = [
        name for name in possible if (not names or within(name, named)) and not within(name, ignored)
    ]
    if group_size is not None:
        sizes = {name: model.get_submodule(name).in_features for name in layers}
        layers = [name for name in layers if sizes[name] % group_size == 0]
    if not layers:
        raise StepError(
            f"nothing can be quantized: of {len(possible)} linear layers none is left"
            if possible
            else "nothing can be quantized: the network has no linear layers, and convolutions stay "
            "in floating point",
            hint="change names, ignored_names or group_size"
            if possible
            else "quantize with quantize_pt2e, or after export_onnx with quantize_nncf",
        )
    return layers


def _convolutions(model: torch.nn.Module) -> Counter[str]:
    import torch

    kinds = (torch.nn.modules.conv._ConvNd,)
    return Counter(
        type(module).__name__ for module in torch_modules.modules(model) if isinstance(module, kinds)
    )


def _run_once(model: torch.nn.Module, job: Job) -> None:
    """Call the network, so that none is stored that does not run."""
    import torch

    feed = example_inputs(job.inputs, batch_range(job.inputs).min)
    positional, keyword = arguments(model, job.inputs).split(feed)
    with torch.no_grad():
        model(*positional, **keyword)


def sparsity_masks(model: torch.nn.Module, source: Artifact) -> dict[str, torch.Tensor]:
    """Where the weights that `sparsify` thinned out may be other than zero, by the weight's name."""
    names = source.facts.get("sparsity", {}).get("layers", {})
    return {
        name: (v != 0).to(v.dtype) for name, v in torch_modules.named_parameters(model) if name in names
    }
