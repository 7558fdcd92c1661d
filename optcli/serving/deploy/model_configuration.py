"""Triton's `config.pbtxt`: written through its protobuf message, read back, compared with the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.environment import pip_install
from optcli.errors import InputError, MissingError, UsageError
from optcli.results.plan import Configuration
from optcli.scaffold.inspection.findings import Tensor
from optcli.serving.deploy.backends import Backend
from optcli.serving.deploy.interface import Interface
from optcli.settings import TensorSpec, batch_range

FILE = "config.pbtxt"
_TYPES = {
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    **{f"{s}int{bits}": f"TYPE_{s.upper()}INT{bits}" for s in ("", "u") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class ModelBatching:
    """How many requests a server may put into one call.

    `largest` is 0 where the model's first size is no batch that varies: a request then brings the whole
    tensor. `why` says why.
    """

    largest: int
    why: str = ""

    @property
    def skipped(self) -> int:
        """How many sizes of a shape config.pbtxt leaves out: Triton adds the batch itself."""
        return 1 if self.largest else 0


def messages() -> Any:
    """Triton's own definition of config.pbtxt. Raises `MissingError` without tritonclient."""
    try:
        from tritonclient.grpc import model_config_pb2
    except ImportError as error:
        raise MissingError(
            "tritonclient, which has the form of config.pbtxt, is not installed",
            place="--target triton",
            hint=pip_install("serve"),
        ) from error
    return model_config_pb2


def batching_of(
    inputs: Sequence[TensorSpec],
    interface: Interface,
    planned: int,
    place: str,
    server: str = "Triton",
) -> ModelBatching:
    """The server's largest batch: the plan's. Raises `UsageError` where the model cannot take it."""
    varies = [spec.batch_symbol is not None for spec in inputs]
    why = ""
    if not all(varies):
        names = ", ".join(s.name for s, each in zip(inputs, varies, strict=True) if not each)
        why = f"the first size of {names} is fixed"
    elif len({spec.batch_symbol for spec in inputs}) > 1:
        why = "the first sizes of the inputs vary independently"
    elif interface.follows_batch is False:
        why = "the outputs and the inputs have different numbers of rows"
    if why and planned > 1:
        raise UsageError(
            f"the plan has batches of up to {planned}, and {server} cannot batch this model: {why}",
            place=place,
            hint="plan with --batch 1, or give every input a first size `batch` and build again",
        )
    if why:
        return ModelBatching(0, why)
    sizes = batch_range(inputs)
    least, most, what, where = sizes.min, sizes.max, "model", "the range under the recipe's `inputs`"
    if interface.rows:
        least, most = interface.rows
        what, where = "engine's profile", "that one of `profiles` of tensorrt_engine"
    if not least <= planned <= most:
        raise UsageError(
            f"the plan has batches of up to {planned}, and the {what} takes {least} to {most}",
            place=place,
            hint=f"widen {where} and build again, or plan with --batch",
        )
    if least > 1:
        raise UsageError(
            f"the {what} takes at least {least} rows, and {server} sends single requests as well",
            place=place,
            hint=f"let {where} begin at a batch of 1, and build again",
        )
    return ModelBatching(planned)


@dataclass(frozen=True)
class ServedModel:
    """What config.pbtxt is made of; `instances` are those on one machine, `queue` its longest queue.

    `preferred` are batch sizes that the model was compiled for; `late_ms` the wait after which a
    request is rejected, None: none is.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    interface: Interface
    backend: Backend
    batching: ModelBatching
    instances: int
    wait_ms: float
    queue: int
    late_ms: float | None
    preferred: tuple[int, ...] = ()


def instances_of(one: Configuration) -> int:
    """Instances of Triton on one machine: it runs one call at a time in each."""
    return -(-one.instances // one.machines) * one.concurrency


def message(served: ServedModel) -> Any:
    """The protobuf message `inference.ModelConfig`."""
    kinds = messages()
    backend, batching = served.backend, served.batching
    config = kinds.ModelConfig(
        name=served.name,
        platform=backend.platform,
        backend=backend.backend,
        max_batch_size=batching.largest,
        default_model_filename=backend.file,
    )
    for spec in served.inputs:
        tensor = Tensor(name=spec.name, dtype=spec.dtype, shape=spec.shape)
        config.input.add(**_declared(tensor, batching, kinds))
    for tensor in _outputs(served):
        config.output.add(**_declared(tensor, batching, kinds))
    group = config.instance_group.add(
        count=served.instances,
        kind=kinds.ModelInstanceGroup.KIND_GPU if backend.gpu else kinds.ModelInstanceGroup.KIND_CPU,
    )
    if backend.gpu:
        # Of the GPUs that the server is started with, which is one.
        group.gpus.append(0)
    if backend.profile:
        group.profile.append(str(backend.profile))
    if backend.graphs:
        config.optimization.cuda.graphs = True
    queue = config.dynamic_batching.default_queue_policy
    queue.max_queue_size = served.queue
    if served.late_ms is not None:
        queue.timeout_action = kinds.ModelQueuePolicy.REJECT
        queue.default_timeout_microseconds = max(1, round(served.late_ms * 1000))
    if served.batching.largest > 1 and served.wait_ms > 0:
        config.dynamic_batching.max_queue_delay_microseconds = round(served.wait_ms * 1000)
    config.dynamic_batching.preferred_batch_size.extend(served.preferred)
    for name, value in sorted(backend.parameters.items()):
        config.parameters[name].string_value = value
    if backend.level is not None:
        config.optimization.graph.level = backend.level
    device = "gpu" if backend.gpu else "cpu"
    for name, options in backend.accelerators.items():
        accelerators = config.optimization.execution_accelerators
        getattr(accelerators, f"{device}_execution_accelerator").add(name=name, parameters=options)
    for size in warmed(served):
        _warm_up(config, served, size, kinds)
    return config


def warmed(served: ServedModel) -> list[int]:
    """Batch sizes of the warm-up: 1, the powers of two below the largest batch, and that itself.

    A backend that pads runs the largest batch alone.
    """
    largest = max(1, served.batching.largest)
    if served.backend.pads:
        return [largest]
    powers = [2**exponent for exponent in range(largest.bit_length()) if 2**exponent < largest]
    return sorted({*powers, *served.preferred, largest})


def _warm_up(config: Any, served: ServedModel, size: int, kinds: Any) -> None:
    request = config.model_warmup.add(name=f"batch-{size}", batch_size=size, count=2)
    for spec in served.inputs:
        shape = spec.concrete(spec.batch_range().min)[served.batching.skipped :]
        tensor = request.inputs[spec.name]
        tensor.data_type = kinds.DataType.Value(_TYPES[spec.dtype])
        tensor.dims.extend(shape)
        # Random integers could lie outside of what an index may be.
        if spec.dtype.startswith("float"):
            tensor.random_data = True
        else:
            tensor.zero_data = True


def _outputs(served: ServedModel) -> Iterator[Tensor]:
    """The outputs as the files declare them; where these leave a rank open, as they were computed."""
    computed = {tensor.name: tensor for tensor in served.interface.computed}
    for tensor in served.interface.outputs:
        seen = computed.get(tensor.name)
        if tensor.shape is None and seen is not None and seen.shape is not None:
            yield tensor.model_copy(update={"shape": tuple(None for _ in seen.shape)})
        else:
            yield tensor


def _declared(tensor: Tensor, batching: ModelBatching, kinds: Any) -> dict[str, Any]:
    if tensor.shape is None or tensor.dtype not in _TYPES:
        what = "the number of its sizes" if tensor.shape is None else f"its type {tensor.dtype}"
        raise InputError(
            f"{tensor.name!r} cannot be declared for Triton: {what} is not known to it",
            place=FILE,
            hint="export the model with declared outputs of a usual type",
        )
    sizes = tensor.shape[batching.skipped :]
    dims = [size if isinstance(size, int) else -1 for size in sizes]
    if not dims and not batching.largest:
        raise InputError(
            f"{tensor.name!r} is a scalar, which Triton does not support in a model without batches",
            place=FILE,
            hint="let the network give it a size of 1",
        )
    return {
        "name": tensor.name,
        "data_type": kinds.DataType.Value(_TYPES[tensor.dtype]),
        # Triton wants one size at least: a scalar in each row is a row of one.
        **({"dims": dims} if dims else {"dims": [1], "reshape": {"shape": []}}),
    }


def write(config: Any, path: Path, comments: Sequence[str]) -> None:
    """Write the message as text, with comments above it."""
    from google.protobuf import text_format

    lines = [f"# {line}\n" for comment in comments for line in comment.splitlines()]
    path.write_text("".join(lines) + text_format.MessageToString(config), encoding="utf-8")


def read(path: Path) -> Any:
    """The message in a config.pbtxt. Raises `InputError` where Triton could not read it."""
    from google.protobuf import text_format

    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), messages().ModelConfig())
    except (OSError, ValueError, text_format.ParseError) as error:
        raise InputError(
            f"this is no config.pbtxt: {error}", place=str(path), hint="deploy again"
        ) from error


def require_match(config: Any, interface: Interface, place: str) -> None:
    """Raise `InputError` where a configuration is not that of a model's own inputs and outputs.

    Names and types must be the same, and each size that the model fixes. With batches, the model's
    first size must vary. Outputs are also compared with what a call gave.
    """
    wrong = [
        *_differences("input", config.input, interface.inputs, config),
        *_differences("output", config.output, interface.outputs, config),
        *_differences("computed output", config.output, interface.computed or None, config, ran=True),
    ]
    if wrong:
        raise InputError(
            f"{FILE} does not fit the model: {'; '.join(wrong)}",
            place=place,
            hint="the model's file is not the one that the recipe's `inputs` describe: build again",
        )


def _differences(
    what: str, declared: Any, tensors: Sequence[Tensor] | None, config: Any, *, ran: bool = False
) -> Iterator[str]:
    if tensors is None:
        return
    by_name: Mapping[str, Any] = {each.name: each for each in declared}
    names = {tensor.name for tensor in tensors}
    if by_name.keys() != names:
        yield f"{what}s are {_listed(by_name)}, and the model has {_listed(names)}"
        return
    kinds = messages()
    for tensor in tensors:
        one = by_name[tensor.name]
        kind = kinds.DataType.Name(one.data_type)
        if tensor.dtype != "unknown" and _TYPES.get(tensor.dtype) != kind:
            yield f"{what} {tensor.name} is {kind}, and the model has {tensor.dtype}"
        if tensor.shape is None:
            continue
        dims = list(one.reshape.shape if one.HasField("reshape") else one.dims)
        batched = config.max_batch_size > 0
        sizes = list(tensor.shape[1:] if batched else tensor.shape)
        if batched and not ran and (not tensor.shape or isinstance(tensor.shape[0], int)):
            yield f"{what} {tensor.name} has the fixed shape {_sizes(tensor.shape)}, wanted a batch"
        elif len(dims) != len(sizes) or not all(map(_fits, dims, sizes)):
            yield f"{what} {tensor.name} has sizes {dims}, and the model has {_sizes(sizes)}"


def _fits(declared: int, size: int | str | None) -> bool:
    return declared == -1 or not isinstance(size, int) or declared == size


def _sizes(shape: Sequence[int | str | None]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
