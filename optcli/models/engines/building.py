"""An engine from an ONNX model: parse, configure, build, write. Runs in a process of its own.

The same calls for every TensorRT from 8.6 to 11.4 and for TensorRT-RTX; what one version lacks is found
out by asking its module, never by its number. `find_coverage` only parses: which nodes are taken.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from optcli.models.engines import EngineError, driver, inspection, messages
from optcli.models.engines.bindings import Bindings, enum_name, load
from optcli.models.engines.job import EngineJob, check_profiles, is_dynamic
from optcli.models.engines.process import JobChannel

_FLOATS = ("FLOAT", "HALF", "BF16")


def build(record: dict[str, Any], talk: JobChannel) -> dict[str, Any]:
    """Build what an `EngineJob` says in its record; gives what the sidecar and a report need.

    Keys: `product`, `version`, `device` (None without a GPU), `flags` that were set, `network`
    (`inspection.network`), `engine` (`inspection.described`, None where it cannot be opened here),
    `seconds`, `plan_bytes`, `timing_cache` (bytes before and after, None without one), `python`.
    Raises `EngineError` with TensorRT's own last words.
    """
    job = EngineJob(**record)
    bindings = load(job.product)
    devices = driver.devices() if driver.present() else ()
    if not bindings.rtx and not devices:
        # Its Builder would end the process.
        raise driver.absence() or EngineError("no GPU was found", hint="run where there is one")
    logger = messages.collector(bindings.module, talk.heard)
    builder, network = _network(bindings, logger, job, talk)
    _parse(bindings, network, logger, job, talk)
    parsed = inspection.network(network)
    check_profiles(job.profiles, parsed["inputs"], job.batch_sizes)
    config, cache = configure(bindings, builder, network, job, talk)
    talk.progress(None, f"{bindings.title} builds")
    began = time.monotonic()
    plan = _serialized(bindings, builder, network, config, talk)
    seconds = time.monotonic() - began
    Path(job.plan).write_bytes(memoryview(plan))
    plan_bytes = os.path.getsize(job.plan)
    set_flags = [
        name
        for name in bindings.members("BuilderFlag")
        if config.get_flag(bindings.member("BuilderFlag", name))
    ]
    return {
        "product": bindings.product,
        "version": bindings.version,
        "device": asdict(devices[0]) if devices else None,
        "flags": set_flags,
        "network": parsed,
        "engine": _inspected(bindings, logger, plan) if devices else None,
        "seconds": round(seconds, 3),
        "plan_bytes": plan_bytes,
        "timing_cache": cache.keep(config) if cache else None,
        "python": sys.version.split()[0],
    }


def _network(bindings: Bindings, logger: Any, job: EngineJob, talk: JobChannel) -> tuple[Any, Any]:
    """A builder and an empty network, typed by the model where that is wanted and needs saying."""
    flags = 0
    creation = "NetworkDefinitionCreationFlag"
    if bindings.has(creation, "EXPLICIT_BATCH"):  # demanded by 8.6, ignored by 10, gone from 11
        flags |= 1 << int(bindings.member(creation, "EXPLICIT_BATCH"))
    if job.strongly_typed and bindings.weak_typing:
        flags |= 1 << int(bindings.member(creation, "STRONGLY_TYPED"))
    if not job.strongly_typed and not bindings.weak_typing:
        raise EngineError(
            f"{bindings.title} takes its types from the model alone, weak typing is gone",
            hint="convert the model to the precision that is wanted",
        )
    try:
        builder = bindings.module.Builder(logger)
    except TypeError as error:  # pybind11's way to say that it got nothing
        raise messages.explained(f"{bindings.title} cannot start its builder", talk.lines) from error
    network = builder.create_network(flags)
    if network is None:
        raise messages.explained(f"{bindings.title} makes no network", talk.lines)
    return builder, network


def _parse(bindings: Bindings, network: Any, logger: Any, job: EngineJob, talk: JobChannel) -> None:
    """Read the ONNX file into the network. Raises `EngineError` that names each node it cannot read."""
    talk.progress(None, "reading the model")
    parser = bindings.module.OnnxParser(network, logger)
    if bindings.has("OnnxParserFlag", "NATIVE_INSTANCENORM"):
        # A plugin that needs cuDNN otherwise, on 8.6; the default since 10.
        parser.set_flag(bindings.member("OnnxParserFlag", "NATIVE_INSTANCENORM"))
    if parser.parse_from_file(job.onnx):
        return
    errors = [parser_error(parser.get_error(index)) for index in range(parser.num_errors)]
    texts = "; ".join(dict.fromkeys(f"{_where(each)}{each['text']}" for each in errors[:5]))
    message = f"{bindings.title} cannot read the model: {texts}"
    cause = messages.meaning([messages.LogLine("E", each["text"]) for each in errors] or talk.lines)
    if cause:
        at = next(filter(None, map(_where, errors)), "")
        message = f"{bindings.title} cannot read the model: {at}{cause.text}"
    raise EngineError(
        message,
        place=job.onnx,
        hint=cause.hint if cause else "",
        lines=[each["text"] for each in errors],
    )


def parser_error(error: Any) -> dict[str, Any]:
    """One error of the parser: node, its number, operator and text. 8.6 knows the number only."""
    return {
        "name": error.node_name() if hasattr(error, "node_name") else "",
        "operator": error.node_operator() if hasattr(error, "node_operator") else "",
        "node": int(error.node()),
        "text": str(error.desc()).strip(),
    }


def _where(error: Mapping[str, Any]) -> str:
    if error["name"] or error["operator"]:
        return f"node {error['name'] or error['node']} ({error['operator'] or '?'}): "
    return f"node number {error['node']}: " if error["node"] >= 0 else ""


def _serialized(bindings: Bindings, builder: Any, network: Any, config: Any, talk: JobChannel) -> Any:
    try:
        plan = builder.build_serialized_network(network, config)
    except RuntimeError as error:
        raise messages.explained(f"{bindings.title} built no engine: {error}", talk.lines) from error
    if plan is None:
        raise messages.explained(f"{bindings.title} built no engine", talk.lines)
    return plan


def _inspected(bindings: Bindings, logger: Any, plan: Any) -> dict[str, Any] | None:
    """What the engine's inspector says; None where it cannot be opened on this GPU."""
    runtime = bindings.module.Runtime(logger)
    if hasattr(runtime, "engine_host_code_allowed"):
        # It was built a moment ago, by this very process.
        runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(plan)
    return None if engine is None else inspection.engine(bindings, engine)


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
    varying = [tensor for tensor in inputs if is_dynamic(list(tensor.shape))]
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

    class PhaseProgress(module.IProgressMonitor):  # type: ignore[misc]
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

    return PhaseProgress()


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


def find_coverage(job: dict[str, Any], talk: JobChannel) -> dict[str, Any]:
    """What `coverage` finds; the job has `product`, `onnx` (a path) and `nodes` (name, operator)."""
    bindings = load(job["product"])
    logger = messages.collector(bindings.module, talk.heard)
    refused = coverage(bindings.module, logger, job["onnx"], [tuple(node) for node in job["nodes"]])
    return {"parser": bindings.title, "refused": refused}


def coverage(module: Any, logger: Any, path: str, nodes: list[tuple[str, str]]) -> list[dict[str, str]]:
    """The nodes that the parser refuses, each with `node`, `operator` and `why`.

    These are the nodes of operators that it does not know at all, and the node at which parsing stops.
    `tensorrt` needs a driver for this; without one it ends the process.
    """
    builder = module.Builder(logger)
    flag = getattr(module.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    # 8.6 takes no ONNX model without this flag; 10 ignores it, 11 no longer has it.
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    parser = module.OnnxParser(network, logger)
    unknown = {operator for _, operator in nodes if not parser.supports_operator(operator)}
    refused = [
        {"node": name, "operator": operator, "why": "the parser knows no such operator"}
        for name, operator in nodes
        if operator in unknown
    ]
    if not parser.parse_from_file(path):
        for index in range(parser.num_errors):
            error = _refusal(parser.get_error(index), nodes)
            if error["node"] not in {each["node"] for each in refused} or not error["node"]:
                refused.append(error)
    return refused


def _refusal(error: Any, nodes: list[tuple[str, str]]) -> dict[str, str]:
    """A parser's error with the node's name; before 10 it has its number alone."""
    record = parser_error(error)
    index, why = record["node"], record["text"].partition("\n")[0]
    name, operator = record["name"], record["operator"]
    if not hasattr(error, "node_name") and 0 <= index < len(nodes):
        name, operator = nodes[index]
    return {"node": name, "operator": operator, "why": why}
