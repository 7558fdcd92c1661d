"""An engine from an ONNX model: parse, configure, build, write. Runs in a process of its own.

The same calls for every TensorRT from 8.6 to 11.4 and for TensorRT-RTX; what one version lacks is found
out by asking its module, never by its number.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from optcli.models.engines import EngineError, driver, inspection, messages, profiles
from optcli.models.engines.bindings import Bindings, load
from optcli.models.engines.configuring import configure
from optcli.models.engines.job import EngineJob
from optcli.models.engines.process import JobChannel


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
    profiles.check(job.profiles, parsed["inputs"], job.batch_sizes)
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
