"""The builder's configuration: flags, memory pools, profiles, timing cache, progress."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.models.engines import EngineError, messages, profiles
from optcli.models.engines.bindings import Bindings, enum_name
from optcli.models.engines.process import JobChannel

if TYPE_CHECKING:
    from optcli.models.engines.job import EngineJob

_FLOATS = ("FLOAT", "HALF", "BF16")


def configure(
    bindings: Bindings, builder: Any, network: Any, job: EngineJob, talk: JobChannel
) -> tuple[Any, TimingCache | None]:
    """The configuration that a job asks for, and the timing cache that it uses.

    Raises `EngineError` for what this version does not have.
    """
    config = builder.create_builder_config()
    for name, enabled in job.flags.items():
        _flag(bindings, config, name, enabled)
    for pool, size_bytes in job.pools.items():
        config.set_memory_pool_limit(bindings.member("MemoryPoolType", pool), size_bytes)
    if job.optimization_level is not None:
        config.builder_optimization_level = job.optimization_level
    if job.aux_streams is not None:
        config.max_aux_streams = job.aux_streams
    config.profiling_verbosity = bindings.member("ProfilingVerbosity", job.verbosity)
    if job.hardware != "none":
        level = bindings.member("HardwareCompatibilityLevel", job.hardware.upper())
        config.hardware_compatibility_level = level
    _own_kernels(bindings, config)
    _targets(bindings, config, job.targets)
    _keep(bindings, network, job.kept)
    _profiles(bindings, builder, network, config, job, talk)
    if bindings.has("IProgressMonitor", "phase_start") and bindings.has(
        "IBuilderConfig", "progress_monitor"
    ):
        config.progress_monitor = progress_monitor(bindings.module, talk)
    cache = None
    if job.timing_cache is not None and bindings.rtx:
        talk.warn(f"{bindings.title} compiles on the machine that runs: it has no timing cache")
    elif job.timing_cache is not None:
        cache = TimingCache(Path(job.timing_cache), config)
    return config, cache


def _flag(bindings: Bindings, config: Any, name: str, enabled: bool) -> None:
    if not bindings.has("BuilderFlag", name):
        if enabled:
            raise EngineError(
                f"{bindings.title} has no builder flag {name}",
                hint="leave the option out, or use a version that has it",
            )
        return
    flag = bindings.member("BuilderFlag", name)
    if enabled:
        config.set_flag(flag)
    else:
        config.clear_flag(flag)


def _own_kernels(bindings: Bindings, config: Any) -> None:
    """Keep 8.6 to TensorRT's own kernels, as later versions do: no cuBLAS or cuDNN is needed then."""
    if not bindings.has("TacticSource", "CUDNN"):
        return
    own = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
    config.set_tactic_sources(sum(1 << int(bindings.member("TacticSource", name)) for name in own))
    core = "DISABLE_EXTERNAL_TACTIC_SOURCES_FOR_CORE_0805"
    if bindings.has("PreviewFeature", core):
        config.set_preview_feature(bindings.member("PreviewFeature", core), True)


def _targets(bindings: Bindings, config: Any, targets: Sequence[str]) -> None:
    """The GPU architectures of a TensorRT-RTX engine."""
    if not targets:
        return
    chosen = [bindings.member("ComputeCapability", name) for name in targets]
    config.num_compute_capabilities = len(chosen)
    for index, target in enumerate(chosen):
        if not config.set_compute_capability(target, index):
            raise EngineError(
                f"{bindings.title} does not build for {targets[index]}",
                hint=f"one of: {', '.join(bindings.members('ComputeCapability'))}",
            )


def _keep(bindings: Bindings, network: Any, kept: Sequence[str]) -> None:
    """Bind layers to FP32, where flags decide precision. Layers carry the names of their ONNX nodes."""
    if not kept:
        return
    remaining, single = set(kept), bindings.member("DataType", "FLOAT")
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.name not in remaining:
            continue
        remaining.discard(layer.name)
        layer.precision = single
        for output in range(layer.num_outputs):
            if enum_name(layer.get_output(output).dtype) in _FLOATS:
                layer.set_output_type(output, single)
    if remaining:
        named = ", ".join(sorted(remaining)[:5])
        raise EngineError(
            f"no layer of the parsed network is called {named}", hint="name nodes as the model does"
        )


def _profiles(
    bindings: Bindings, builder: Any, network: Any, config: Any, job: EngineJob, talk: JobChannel
) -> None:
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    varying = [tensor for tensor in inputs if profiles.is_dynamic(list(tensor.shape))]
    if not varying:
        return
    for number, profile in enumerate(job.profiles):
        engine_profile = builder.create_optimization_profile()
        for tensor in varying:
            bounds = profile[tensor.name]
            engine_profile.set_shape(tensor.name, *(bounds[name] for name in ("min", "opt", "max")))
        if config.add_optimization_profile(engine_profile) < 0:
            raise messages.explained(
                f"{bindings.title} takes no optimization profile {number}", talk.lines
            )


def progress_monitor(module: Any, talk: JobChannel) -> Any:
    """A progress monitor for the module's builder: phases lie in each other, each with its steps."""

    class Progress(module.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)
            self.phases: dict[str, tuple[str | None, int, int]] = {}
            self.said_at, self.highest = 0.0, 0.0

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.phases[phase_name] = (parent_phase, int(num_steps), 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            if phase_name in self.phases:
                parent, steps, _ = self.phases[phase_name]
                self.phases[phase_name] = (parent, steps, int(step) + 1)
                self._say(phase_name)
            return True

        def phase_finish(self, phase_name: str) -> None:
            self.phases.pop(phase_name, None)

        def _say(self, phase_name: str) -> None:
            fraction, now = _fraction(self.phases, phase_name), time.monotonic()
            self.highest = max(self.highest, fraction)
            if now - self.said_at >= 0.2:
                self.said_at = now
                talk.progress(self.highest, phase_name)

    return Progress()


def _fraction(phases: dict[str, tuple[str | None, int, int]], name: str) -> float:
    """How far the outermost phase is, counting what the ones inside it have done of their step."""
    inner, current, seen = 0.0, name, set()
    while current in phases and current not in seen:
        seen.add(current)
        parent, steps, done = phases[current]
        inner = min(1.0, (done + inner) / max(1, steps))
        current = parent or ""
    return inner


class TimingCache:
    """How long kernels took, kept from build to build; one of another device or version is refused."""

    def __init__(self, path: Path, config: Any) -> None:
        self._path = path
        blob = path.read_bytes() if path.is_file() else b""
        self._before = len(blob)
        self._cache = config.create_timing_cache(blob)
        if not config.set_timing_cache(self._cache, False) and blob:
            self._before = 0
            self._cache = config.create_timing_cache(b"")
            config.set_timing_cache(self._cache, False)

    def keep(self, config: Any) -> dict[str, int]:
        """Write what the build has added, whole or not at all; gives the bytes `before` and `after`."""
        content = bytes(memoryview(config.get_timing_cache().serialize()))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=self._path.parent, prefix=".timing-")
        with os.fdopen(number, "wb") as file:
            file.write(content)
        os.replace(name, self._path)
        return {"before": self._before, "after": len(content)}
