"""What passes that build engines share: options, the build in a child process, sidecar, facts."""

from __future__ import annotations

import importlib.util
import io
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli import environment
from optcli.artifact import OUTPUT_TAIL, Artifact, Format
from optcli.errors import StepError, did_you_mean
from optcli.models.engines import EngineError, building, child, driver, sidecar
from optcli.models.engines.job import EngineJob as Build
from optcli.models.engines.job import Profile, check_profiles, profile_of_inputs, profile_of_shapes
from optcli.models.engines.process import JobChannel
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.graph import array, read
from optcli.models.onnx_graphs.protobuf import input_shapes
from optcli.models.onnx_graphs.quantized import behind
from optcli.passes import Job, Made, Pass, Role
from optcli.passes._tensorrt.precision import EnginePrecision, Keep, PreparedNetwork, prepare
from optcli.passes._tensorrt.record import facts, gpu_here, written
from optcli.settings import Patterns, SymbolRange, TensorSpec, batch_range

if TYPE_CHECKING:
    from onnx import ModelProto

_LISTED = 3

_TIMEOUT_S = 300.0

# Where the input channels of a weight lie.
_INPUT_AXES = {"Conv": 1, "Gemm": 0, "MatMul": -2}

WEIGHTS = "weights"

_DESCRIBE_S = 120.0

_VERBOSITY = {"detailed": "DETAILED", "names": "LAYER_NAMES_ONLY", "none": "NONE"}

Pool = Literal[
    "tactic_dram", "tactic_shared_memory", "dla_managed_sram", "dla_local_dram", "dla_global_dram"
]

Ranges = Mapping[str, SymbolRange]
Wish = Literal["inputs", "seen"] | tuple[dict[str, SymbolRange], ...]

# As many samples as tell which sizes there are.
_MOST_SAMPLES = 512


class EnginePass(Pass):
    """Builds an engine of one product; `product` is the name of its Python module."""

    accepts: ClassVar[tuple[Format, ...]] = (Format.ONNX,)
    uses: ClassVar[tuple[Role, ...]] = ("calibration",)
    device_bound: ClassVar[bool] = True
    uses_batch_sizes: ClassVar[bool] = True
    product: ClassVar[str]

    precision: EnginePrecision = Field(
        "fp32",
        description="what to compute in, whichever version: `fp32`, `tf32` (10-bit products), "
        "`fp16`, `bf16`, `int8` or `fp8` (of a model that was quantized before), `best`",
    )
    ignored_types: tuple[str, ...] = Field((), description="nodes that stay in fp32, by type")
    ignored_names: tuple[str, ...] = Field((), description="nodes that stay in fp32, by name")
    ignored_patterns: Patterns = Field(
        (), description="nodes that stay in fp32, by regular expression over the whole name"
    )
    profiles: Wish = Field(
        "inputs",
        description="optimization profiles: one from the recipe's `inputs`; `seen`: from the batch "
        "sizes measured and the sizes of calibration samples; or a list of `{batch: {min, opt, max}}`",
    )
    workspace_mib: int | None = Field(
        None, ge=1, description="memory for the workspace of kernels, in MiB; default: all of the GPU's"
    )
    memory_pools_mib: dict[Pool, Annotated[int, Field(ge=1)]] = Field(
        {}, description="limits of TensorRT's other memory pools, in MiB, by name"
    )
    optimization_level: int | None = Field(
        None, ge=0, le=5, description="how long to look for kernels: 0 shortest, 5 longest; default 3"
    )
    aux_streams: int | None = Field(
        None, ge=0, description="streams besides the main one that layers may run on; 0: none"
    )
    sparse_weights: bool = Field(
        False, description="use 2:4 sparse kernels where weights have the pattern (pass `sparsify`)"
    )
    refit: Literal["none", "any", "identical"] = Field(
        "none",
        description="weights can be replaced later: by `any`, or by `identical` ones only: faster",
    )
    strip_weights: bool = Field(
        False, description="leave the weights out of the plan; they are put back in when it is opened"
    )
    verbosity: Literal["detailed", "names", "none"] = Field(
        "detailed", description="what the engine can tell of its layers"
    )
    max_seconds: float = Field(3600.0, gt=0, description="time limit of the build")

    @model_validator(mode="after")
    def _stripped_weights_can_return(self) -> Self:
        if self.strip_weights and self.refit == "any":
            raise ValueError("`strip_weights` puts the same weights back in: use `refit: identical`")
        return self

    def roles(self) -> tuple[Role, ...]:
        return self.uses if self.profiles == "seen" else ()

    def interpreter(self) -> str | None:
        """The Python that has the product; None: this one."""
        return None

    def requires(self) -> environment.Needs:
        needs = self.needs
        here = tuple(name for name in needs.packages if name != self.product)
        return environment.Needs(here, needs.gpu, (self.product,), self.interpreter())

    def bound_to(self) -> dict[str, Any]:
        version = environment.version_in(self.interpreter(), self.product)
        return {"product": self.product, "version": version, "gpu": gpu_here()}

    def flags(self) -> dict[str, bool]:
        """Builder flags of the product's own, by name."""
        return {}

    def settings(self, job: Job, version: str) -> dict[str, Any]:
        """Fields of a build that only this product has."""
        return {}

    def compatible(self) -> tuple[str, ...]:
        """Other versions or GPUs that the plan runs on, as the sidecar names them."""
        return ()

    def check_source(self, source: Artifact, job: Job) -> tuple[str, ...]:
        return checked(source, job, self.precision, self._keep(), self.profiles)

    def run(self, source: Artifact, job: Job) -> Made:
        try:
            with tempfile.TemporaryDirectory(dir=job.work_folder, prefix="engine-") as folder:
                return self._run(source, job, Path(folder))
        except EngineError as error:
            raise StepError(error.message, place=error.place, hint=error.hint) from error

    def _run(self, source: Artifact, job: Job, folder: Path) -> Made:
        python = self.interpreter()
        here = child.run(
            "optcli.models.engines.bindings:describe",
            {"product": self.product},
            python=python,
            timeout_s=_DESCRIBE_S,
        )
        job.progress(None, f"preparing the model for {here['title']}")
        prepared = prepare(
            source.path,
            folder,
            precision=self.precision,
            keep=self._keep(),
            strongly_typed=here["strong_typing"],
            product=here["title"],
            job=job,
            left_out=(
                *source.facts.get("kept_in_floating_point", ()),
                *source.facts.get(OUTPUT_TAIL, ()),
            ),
        )
        build = self._build(prepared, job, here)
        result = child.run(
            "optcli.models.engines.building:build",
            asdict(build),
            python=python,
            timeout_s=self.max_seconds,
            on_event=lambda event: _heard(event, job),
        )
        if self.strip_weights:
            shutil.copytree(folder, job.out / WEIGHTS)
        about = written(
            source.path / onnx_format.FILE,
            job.out / sidecar.PLAN,
            prepared,
            build,
            result,
            compatible=self.compatible(),
            stripped=self.strip_weights,
            settings=self.model_dump(mode="json", exclude={"python"}),
        )
        sidecar.write(job.out, about)
        return Made(prepared.precision, {**prepared.facts, **facts(about, prepared, result)})

    def _keep(self) -> Keep:
        return Keep(self.ignored_names, self.ignored_types, self.ignored_patterns)

    def _build(self, prepared: PreparedNetwork, job: Job, here: Mapping[str, Any]) -> Build:
        """The build that the child is to do, its profiles checked against the model."""
        profiles = _checked_profiles(prepared.path.parent, job, self.profiles)
        mib = {name.upper(): size for name, size in self.memory_pools_mib.items()}
        if self.workspace_mib is not None:
            mib["WORKSPACE"] = self.workspace_mib
        return Build(
            product=self.product,
            onnx=str(prepared.path),
            plan=str(job.out / sidecar.PLAN),
            profiles=profiles,
            batch_sizes=job.batch_sizes,
            strongly_typed=here["strong_typing"],
            flags={**prepared.flags, **self._flags(prepared, job), **self.flags()},
            kept=prepared.kept,
            pools={name: size << 20 for name, size in mib.items()},
            optimization_level=self.optimization_level,
            aux_streams=self.aux_streams,
            verbosity=_VERBOSITY[self.verbosity],
            **self.settings(job, here["version"]),
        )

    def _flags(self, prepared: PreparedNetwork, job: Job) -> dict[str, bool]:
        flags = {}
        if self.refit != "none" or self.strip_weights:
            flags["REFIT" if self.refit == "any" else "REFIT_IDENTICAL"] = True
        if self.strip_weights:
            flags["STRIP_PLAN"] = True
        if self.sparse_weights:
            sparse, total = two_of_four(onnx_format.open(prepared.path.parent))
            job.warn(
                f"{sparse} of {total} weights are 2:4 sparse"
                + ("" if sparse else ": `sparse_weights` changes nothing, `sparsify` makes them so")
            )
            flags["SPARSE_WEIGHTS"] = sparse > 0
        return flags


def _heard(event: Mapping[str, Any], job: Job) -> None:
    if "progress" in event:
        job.progress(*event["progress"])
    elif "warned" in event:
        job.warn(event["warned"])


def two_of_four(model: ModelProto) -> tuple[int, int]:
    """How many weights of convolutions and matrix products have the pattern, and how many there are."""
    import numpy as np

    sparse = total = 0
    for node in read(model).graph:
        if node.op_type not in _INPUT_AXES or len(node.inputs) < 2:
            continue
        weights = array(behind(node.inputs[1], "Cast", "Identity"))
        if weights is None or weights.ndim < 2:
            continue
        turned = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
        weights = np.moveaxis(weights, 1 if turned else _INPUT_AXES[node.op_type], -1)
        total += 1
        if weights.shape[-1] % 4 == 0:
            fours = weights.reshape(-1, 4)
            sparse += bool(((fours != 0).sum(axis=1) <= 2).all())
    return sparse, total


def checked(
    source: Artifact, job: Job, precision: EnginePrecision, keep: Keep, wish: Wish
) -> tuple[str, ...]:
    """Findings on an engine before it is built, a sentence each.

    They are on its profiles, on the model in its precision and quantization, and on the nodes that a
    parser takes. A finding that would fail the build begins with "it would fail".
    """
    findings = [_profiles(source, job, wish)]
    with tempfile.TemporaryDirectory(dir=job.work_folder, prefix="check-") as folder:
        try:
            prepared = prepare(
                source.path,
                Path(folder),
                precision=precision,
                keep=keep,
                strongly_typed=True,
                product="TensorRT",
                job=job,
            )
        except StepError as error:
            findings.append(
                f"it would fail: {error.message}" + (f" ({error.hint})" if error.hint else "")
            )
        else:
            findings.append(prepared.facts["expectation"])
            findings.append(parsed(Path(folder), parser_here()))
    return tuple(findings)


def _profiles(source: Artifact, job: Job, wish: Wish) -> str:
    try:
        profiles = _checked_profiles(source.path, job, wish)
    except (StepError, EngineError) as error:
        return f"it would fail: {error.message}" + (f" ({error.hint})" if error.hint else "")
    return (
        "its optimization profile fits" if len(profiles) == 1 else f"its {len(profiles)} profiles fit"
    )


def parser_here() -> str | None:
    """The product whose parser works here: TensorRT with a driver, TensorRT-RTX with none; or None."""
    if driver.present() and importlib.util.find_spec("tensorrt") is not None:
        return "tensorrt"
    return "tensorrt_rtx" if importlib.util.find_spec("tensorrt_rtx") is not None else None


def parsed(source: Path, product: str | None) -> str:
    """Which nodes of the model the product's parser takes, as a sentence."""
    if product is None:
        return (
            "operators are not checked: no TensorRT whose parser works here is installed (install the "
            "extra trt-rtx)"
        )
    outline = onnx_format.outline(source)
    nodes = [[node.name, node.op_type] for node in outline.graph.node]
    job = {"product": product, "onnx": str(source / onnx_format.FILE), "nodes": nodes}
    try:
        covered = _covered(job, child.interpreter(product))
    except EngineError as error:
        return f"operators are not checked: {error.message}"
    refused = covered["refused"]
    parser = f"{covered['parser']}'s parser"
    if not refused:
        return f"{parser} takes all {len(nodes)} nodes"
    listed = "; ".join(
        f"{node['operator']} {node['node']!r}: {node['why']}" for node in refused[:_LISTED]
    )
    more = f"; and {len(refused) - _LISTED} more" if len(refused) > _LISTED else ""
    return (
        f"{parser} does not take {listed}{more}; the model has {len(nodes)} nodes, and those behind "
        "were not checked"
    )


def _covered(job: dict[str, Any], python: str | None) -> dict[str, Any]:
    """What the parser takes, asked in a process of its own. Raises `EngineError`.

    A confined worker cannot start one. It is such a process itself, and asks by itself.
    """
    try:
        answer = child.run(
            "optcli.models.engines.building:find_coverage", job, python=python, timeout_s=_TIMEOUT_S
        )
    except EngineError as error:
        if python is not None or not isinstance(error.__cause__, PermissionError):
            raise
        return building.find_coverage(job, JobChannel(io.StringIO()))
    return dict(answer)


def _checked_profiles(folder: Path, job: Job, wish: Wish) -> list[Profile]:
    """The profiles of a job, checked against the ONNX model in a folder."""
    shapes = input_shapes(onnx_format.outline(folder))
    inputs = [{"name": name, "shape": list(shape)} for name, shape in shapes.items()]
    profiles = profiles_of(wish, job)
    check_profiles(profiles, inputs, job.batch_sizes)
    return profiles


def profiles_of(wish: Wish, job: Job) -> list[Profile]:
    """The profiles of a job. Raises `StepError` for a symbol or size that the recipe does not have."""
    if wish == "inputs":
        return [_of_ranges(job.inputs, {})]
    if wish == "seen":
        return [_seen(job)]
    return [_of_ranges(job.inputs, ranges) for ranges in wish if not isinstance(ranges, str)]


def _of_ranges(inputs: Sequence[TensorSpec], ranges: Ranges) -> Profile:
    symbols = {symbol for spec in inputs for symbol in spec.symbols}
    for name in ranges:
        if name not in symbols:
            raise StepError(
                f"`profiles` names the size {name!r}, which no input has",
                hint=did_you_mean(name, sorted(symbols)),
            )
    profile: Profile = {}
    for spec in inputs:
        spans = {**spec.ranges, **{name: ranges[name] for name in spec.symbols if name in ranges}}
        for name in spec.symbols:
            _within(name, spans[name], spec)
        plain = {name: each.model_dump() for name, each in spans.items()}
        profile |= profile_of_inputs([{"name": spec.name, "shape": spec.shape}], plain)
    return profile


def _within(name: str, wish: SymbolRange, spec: TensorSpec) -> None:
    allowed = spec.ranges[name]
    if wish.min < allowed.min or wish.max > allowed.max:
        raise StepError(
            f"`profiles` lets {name} go from {wish.min} to {wish.max}, "
            f"and the input {spec.name} from {allowed.min} to {allowed.max}",
            hint="keep the profile within the range that `inputs` gives",
        )


def _seen(job: Job) -> Profile:
    """The batch sizes to be measured, and every other size as calibration samples have it."""
    batches = sorted(set(job.batch_sizes)) or [batch_range(job.inputs).opt]
    shapes: dict[str, list[tuple[int, ...]]] = {spec.name: [] for spec in job.inputs}
    for rest in _samples(job):
        for spec in job.inputs:
            if spec.whole:
                shapes[spec.name].append(rest[spec.name])
                continue
            sizes = batches if spec.batch_symbol is not None else [int(spec.shape[0])]
            shapes[spec.name] += [(size, *rest[spec.name]) for size in sizes]
    return profile_of_shapes(shapes)


def _samples(job: Job) -> list[dict[str, tuple[int, ...]]]:
    """Shapes without the batch, of samples over the whole set."""
    samples = job.calibration
    if samples is None or not len(samples):
        raise StepError(
            "`profiles: seen` takes sizes from calibration samples, and there are none",
            hint="name them under `data: calibration`, or leave `profiles` out",
        )
    count = min(_MOST_SAMPLES, len(samples))
    distinct: dict[tuple[tuple[int, ...], ...], dict[str, tuple[int, ...]]] = {}
    for number in range(count):
        sample = samples[number * len(samples) // count]
        shapes = {spec.name: tuple(sample.inputs[spec.name].shape) for spec in job.inputs}
        distinct.setdefault(tuple(shapes.values()), shapes)
    return list(distinct.values())
