"""Open an engine and run it: shapes to a profile, addresses of inputs and outputs, an own stream.

`open_here` reads the sidecar, then opens the driver, and TensorRT's Runtime last. Written against what
TensorRT 8.6 to 11 and TensorRT-RTX have in common. Inputs are copied from pinned memory, outputs into
it; the region `device` lies between two events around computing alone.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.models.engines import EngineError, driver, messages, sidecar
from optcli.models.engines.bindings import Bindings, dimensions, load
from optcli.models.engines.driver import CudaError, Gpu, Stream
from optcli.models.engines.messages import LogLine
from optcli.models.engines.running.graphs import Graphs
from optcli.models.engines.running.slots import Slot, slots_of

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]

# Where a pass leaves the model of a stripped plan, below the engine's folder.
_WEIGHTS_MODEL = Path("weights") / "model.onnx"


@dataclass(frozen=True)
class Range:
    """What one profile takes of one input, dimension by dimension."""

    min: Shape
    opt: Shape
    max: Shape

    def holds(self, shape: Shape) -> bool:
        """Whether a shape lies within."""
        return len(shape) == len(self.min) and all(
            low <= size <= high for low, size, high in zip(self.min, shape, self.max, strict=True)
        )

    def __str__(self) -> str:
        if self.min == self.max:
            return str(list(self.min))
        return f"{list(self.min)} to {list(self.max)}"


Profile = Mapping[str, Range]

_KEPT_LINES = 200


class EngineExecution:
    """One engine, opened on one GPU.

    >>> execution = Execution(bindings, plan, Gpu(0))
    >>> execution.bind({"image": image}); execution.execute(); execution.fetch()["logits"]

    Never made before `Gpu` was: without a driver TensorRT's Runtime ends the process. Raises
    `EngineError` with TensorRT's own words where it refuses the plan. `profile` fixes the optimization
    profile; `host_code` lets a version-compatible plan run the code that it carries; `weights` is the
    ONNX model whose weights a stripped plan needs; `kernel_cache` a file in which TensorRT-RTX keeps
    the kernels that it compiles when it opens an engine. `heard` gets every line of its log. `notes`
    is for whoever opened it: plain data beside the engine.
    """

    def __init__(
        self,
        bindings: Bindings,
        plan: bytes,
        gpu: Gpu,
        *,
        cuda_graphs: str = "auto",
        profile: int | None = None,
        host_code: bool = False,
        weights: Path | None = None,
        kernel_cache: Path | None = None,
        heard: Callable[[LogLine], None] | None = None,
    ) -> None:
        self._bindings, self._gpu, self._wanted_profile = bindings, gpu, profile
        self._lines: deque[LogLine] = deque(maxlen=_KEPT_LINES)
        self._cache_file = kernel_cache
        self._cache: Any = None
        self._settings: Any = None
        self._heard = heard
        self._log = messages.collector(bindings.module, self._keep)
        self.notes: dict[str, Any] = {}
        self._runtime: Any = None
        self._engine: Any = self._deserialized(plan, host_code)
        if weights is not None:
            refit(bindings, self._engine, self._log, self._lines, weights)
        self.stream = Stream(gpu)
        self._graphs = Graphs(gpu, self.stream, cuda_graphs)
        self._context: Any = self._new_context()
        self._slots = slots_of(bindings, self._engine, gpu)
        self._inputs = [slot for slot in self._slots if slot.is_input]
        self._outputs = [slot for slot in self._slots if not slot.is_input]
        self._profiles = profiles_of(self._engine, [slot.name for slot in self._inputs])
        self._profile = 0
        # With one profile, a context has it from the start; of several, the first call chooses.
        self._profile_set = len(self._profiles) == 1
        self._shapes: dict[str, tuple[int, ...]] | None = None

    @property
    def inputs(self) -> dict[str, np.dtype[Any]]:
        """The engine's inputs and what their elements are held as."""
        return {slot.name: slot.element.stored for slot in self._inputs}

    def bind(self, feed: Mapping[str, np.ndarray]) -> None:
        """Copy one batch to the GPU, without waiting for it. Raises `EngineError` for wrong inputs."""
        try:
            shapes = {slot.name: feed[slot.name].shape for slot in self._inputs}
        except KeyError as error:
            names = ", ".join(slot.name for slot in self._inputs)
            raise EngineError(f"the engine takes the inputs {names}, and {error} is missing") from None
        on_host = {slot.name: feed[slot.name] for slot in self._inputs if slot.on_host}
        if shapes != self._shapes or on_host:
            # Where it is half done nothing of it may be used.
            self._shapes = None
            self._reshape(shapes, on_host)
            self._shapes = shapes
        for slot in self._inputs:
            if not slot.on_host:
                slot.store(feed[slot.name])
                slot.buffer.to_device(slot.size_bytes, self.stream)

    def execute(self) -> None:
        """Compute, and copy what was computed into pinned memory; returns when it is there."""
        if self._shapes is None:
            raise EngineError("nothing was bound", hint="bind inputs first")
        try:
            self._graphs.run(self._enqueue)
            for slot in self._outputs:
                if not slot.varies and not slot.on_host:
                    slot.buffer.to_host(slot.size_bytes, self.stream)
            self.stream.synchronize()
            self._copy_varying()
        except CudaError as error:
            raise messages.explained(error.message, list(self._lines), hint=error.hint) from error
        self._graphs.after_a_call(self._enqueue)

    def fetch(self) -> dict[str, np.ndarray]:
        """Copies of the outputs of the last `execute`, by name, in the engine's order."""
        return {slot.name: slot.load() for slot in self._outputs}

    def device_ms(self) -> float:
        """Milliseconds on the GPU of the last `execute`: computing alone, without copies."""
        return self._graphs.device_ms()

    def describe(self) -> dict[str, Any]:
        """What runs here: product, version, GPU, profiles, CUDA graphs and why not, streams."""
        device = self._gpu.device
        return {
            "product": self._bindings.product,
            "version": self._bindings.version,
            "gpu": device.name,
            "compute_capability": device.compute_capability,
            "driver": device.driver,
            "cuda": device.cuda,
            "profiles": len(self._profiles),
            "profile": self._profile if self._wanted_profile is None else self._wanted_profile,
            "cuda_graphs": self._graphs.state,
            "device_times": self._graphs.timed,
            "streams": 1 + int(getattr(self._engine, "num_aux_streams", 0)),
            "layers": int(self._engine.num_layers),
        }

    def close(self) -> None:
        """Let go of TensorRT's objects before the GPU's; a second time nothing happens."""
        if self._engine is None:
            return
        if self._cache is not None and self._cache_file is not None:
            self._cache_file.write_bytes(bytes(self._cache.serialize()))
        self._graphs.drop()
        self._context = self._settings = self._engine = self._runtime = self._cache = None
        self._slots, self._inputs, self._outputs = [], [], []
        self._gpu.close()

    def _deserialized(self, plan: bytes, host_code: bool) -> Any:
        self._runtime = self._bindings.module.Runtime(self._log)
        if host_code:
            self._runtime.engine_host_code_allowed = True
        engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise self._failed(f"{self._bindings.title} cannot load the engine")
        return engine

    def _new_context(self) -> Any:
        """An execution context; in TensorRT-RTX with its own CUDA graphs and kernel cache."""
        if not self._bindings.has("CudaGraphStrategy", "WHOLE_GRAPH_CAPTURE"):
            context = self._engine.create_execution_context()
        else:
            # Kept for as long as the context: nobody says that it copies them.
            settings = self._settings = self._engine.create_runtime_config()
            strategy = "DISABLED" if self._graphs.mode == "off" else "WHOLE_GRAPH_CAPTURE"
            settings.cuda_graph_strategy = self._bindings.member("CudaGraphStrategy", strategy)
            self._graphs.built_in = True
            if self._cache_file is not None:
                self._cache = settings.create_runtime_cache()
                if self._cache_file.is_file():
                    # One that does not fit is refused by itself, and written anew.
                    self._cache.deserialize(self._cache_file.read_bytes())
                settings.set_runtime_cache(self._cache)
            context = self._engine.create_execution_context(settings)
        if context is None:
            raise self._failed(f"{self._bindings.title} cannot make an execution context")
        return context

    def _reshape(
        self, shapes: Mapping[str, tuple[int, ...]], on_host: Mapping[str, np.ndarray]
    ) -> None:
        """Profile, shapes and addresses for a new kind of batch; recorded graphs are void."""
        self._graphs.drop()
        self._choose_profile(shapes)
        for slot in self._inputs:
            if not self._context.set_input_shape(slot.name, shapes[slot.name]):
                takes = self._profiles[self._profile][slot.name]
                raise self._failed(
                    f"TensorRT refuses the shape {list(shapes[slot.name])} of the input {slot.name!r}:"
                    f" profile {self._profile} takes {takes}"
                )
            slot.place(self._context, shapes[slot.name])
            if slot.on_host:
                slot.store(on_host[slot.name])
        try:
            missing = self._context.infer_shapes()
        except RuntimeError as error:
            raise self._failed(f"TensorRT finds no shapes for these inputs: {error}") from error
        if missing:
            raise self._failed(f"sizes are not known of {', '.join(missing)}")
        for slot in self._outputs:
            slot.place(self._context, dimensions(self._context.get_tensor_shape(slot.name)))
        self._graphs.forbid(_without_graphs(self._slots))

    def _choose_profile(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        index = choose(self._profiles, shapes, self._wanted_profile)
        if self._profile_set and index == self._profile:
            return
        if not self._context.set_optimization_profile_async(index, self.stream.address):
            raise self._failed(f"TensorRT refuses optimization profile {index}")
        self.stream.synchronize()
        self._profile, self._profile_set = index, True

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(self.stream.address):
            raise self._failed("TensorRT could not run the engine")

    def _copy_varying(self) -> None:
        varying = [slot for slot in self._outputs if slot.varies]
        for slot in varying:
            slot.buffer_of_varying().to_host(slot.size_bytes, self.stream)
        if varying:
            self.stream.synchronize()

    def _keep(self, line: LogLine) -> None:
        self._lines.append(line)
        if self._heard is not None:
            self._heard(line)

    def _failed(self, message: str) -> EngineError:
        return messages.explained(message, list(self._lines))


def _without_graphs(slots: Sequence[Slot]) -> str:
    """Why these inputs and outputs cannot be part of a CUDA graph; empty where they can."""
    for slot in slots:
        if slot.varies:
            return f"the sizes of {slot.name} depend on the data"
        if slot.on_host:
            return f"{slot.name} is read or written by the processor"
    return ""


def profiles_of(engine: Any, inputs: Sequence[str]) -> tuple[Profile, ...]:
    """The ranges of every input, by optimization profile."""
    profiles = []
    for index in range(max(1, int(engine.num_optimization_profiles))):
        profile = {}
        for name in inputs:
            shape = engine.get_tensor_shape(name)
            varies = -1 in (dimensions(shape) or ())
            shapes = engine.get_tensor_profile_shape(name, index) if varies else [shape] * 3
            profile[name] = Range(*(tuple(dimensions(each) or ()) for each in shapes))
        profiles.append(profile)
    return tuple(profiles)


def choose(profiles: Sequence[Profile], shapes: Mapping[str, Shape], wanted: int | None = None) -> int:
    """The profile for these shapes: the one `wanted`, else the one whose best shapes are nearest.

    Raises `EngineError` that names the shapes and what the profiles take.
    """
    if wanted is not None and wanted >= len(profiles):
        raise EngineError(
            f"there is no optimization profile {wanted}: the engine has {len(profiles)}",
            hint="leave `profile` out: it is chosen by the shapes",
        )
    able = [wanted] if wanted is not None else range(len(profiles))
    fitting = [
        index
        for index in able
        if all(profiles[index][name].holds(shape) for name, shape in shapes.items())
    ]
    if not fitting:
        raise _outside(profiles, shapes, able)
    return min(fitting, key=lambda index: _distance(profiles[index], shapes))


def _distance(profile: Profile, shapes: Mapping[str, Shape]) -> float:
    """How far these shapes are from those that the profile was tuned for, in powers of e."""
    return sum(
        abs(math.log(max(1, size) / max(1, best)))
        for name, shape in shapes.items()
        for size, best in zip(shape, profile[name].opt, strict=True)
    )


def _outside(
    profiles: Sequence[Profile], shapes: Mapping[str, Shape], able: Sequence[int]
) -> EngineError:
    name = next(
        name for name in shapes if any(not profiles[index][name].holds(shapes[name]) for index in able)
    )
    takes = "; ".join(f"profile {index} takes {profiles[index][name]}" for index in able)
    return EngineError(
        f"the input {name!r} has shape {list(shapes[name])}, and no optimization profile holds that:"
        f" {takes}",
        hint="widen the range under the recipe's `inputs`, and build again",
    )


def refit(bindings: Bindings, engine: Any, log: Any, lines: Sequence[LogLine], model: Path) -> None:
    """Put the weights of an ONNX model into an engine. Raises `EngineError` where one is not there."""
    if not bindings.has("OnnxParserRefitter"):
        raise EngineError(
            f"{bindings.title} cannot put weights into an engine, wanted TensorRT 10 or newer",
            hint="build it again without `strip_weights`",
        )
    if not model.is_file():
        raise EngineError(
            "the engine holds no weights, and the model that has them is not beside it",
            place=os.fspath(model),
            hint="copy the whole folder of the engine, or build it again",
        )
    refitter = bindings.module.Refitter(engine, log)
    parser = bindings.module.OnnxParserRefitter(refitter, log)
    if not parser.refit_from_file(os.fspath(model)):
        errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise _failed("the weights do not fit the engine", errors, lines, model)
    if not refitter.refit_cuda_engine():
        raise _failed("the engine lacks weights", refitter.get_missing_weights(), lines, model)


def _failed(what: str, details: Sequence[str], lines: Sequence[LogLine], model: Path) -> EngineError:
    named = f": {', '.join(details[:5])}" if details else ""
    return messages.explained(
        f"{what}{named}", lines, place=os.fspath(model), hint="build the engine again"
    )


def open_here(
    job: Mapping[str, Any], heard: Callable[[LogLine], None] | None = None
) -> EngineExecution:
    """The engine in a folder, ready to run in this process.

    `job` is plain data: `folder`, `product`, and optionally `device` (the GPU's number), `cuda_graphs`,
    `profile`, `kernel_cache`. Raises `EngineError` that names both sides where the engine was built by
    or for something else; its `hint` is to build it again.
    """
    folder = Path(job["folder"])
    about = sidecar.check_plan(folder)
    bindings = load(job["product"])
    place = os.fspath(folder / sidecar.PLAN)
    # Errors that need no GPU to be seen come first.
    sidecar.check_here(about, sidecar.LoadingEnvironment(bindings.product, bindings.version), place)
    device = driver.require(int(job.get("device") or 0))
    here = sidecar.LoadingEnvironment(
        bindings.product,
        bindings.version,
        gpu=device.name,
        compute_capability=device.compute_capability,
        driver=device.driver,
    )
    built_on = sidecar.check_here(about, here, place)
    cache = job.get("kernel_cache")
    if cache and not Path(cache).absolute().parent.is_dir():
        raise EngineError(
            "there is no folder for the file of kernels", place=cache, hint="make it first"
        )
    execution = EngineExecution(
        bindings,
        (folder / sidecar.PLAN).read_bytes(),
        Gpu(device.index),
        cuda_graphs=job.get("cuda_graphs") or "auto",
        profile=job.get("profile"),
        host_code="version" in about.compatible,
        weights=folder / _WEIGHTS_MODEL if about.stripped else None,
        kernel_cache=Path(cache) if cache else None,
        heard=heard,
    )
    execution.notes = {"precision": about.precision, "built_on": built_on}
    return execution
