"""A bare loop over one TensorRT engine with a CUDA graph: what optcli's own times are compared with.

    python benchmarks/gpu_bare_loop.py model.plan 8 [tensorrt|tensorrt_rtx]

Prints the median time of a launch on the device in milliseconds, as JSON: of each second of two. Runs
on Python 3.10 with TensorRT 8.6, too: the standard library, NumPy and CUDA's driver are all it needs.
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from optcli.models.engines.driver import Buffer, CudaEvent, CudaGraph, Gpu, Stream

WARM_UP, LAUNCHES = 50, 300
ELEMENT_BYTES = {
    "FLOAT": 4, "HALF": 2, "BF16": 2, "INT8": 1, "UINT8": 1, "FP8": 1, "BOOL": 1, "INT32": 4,
    "INT64": 8,
}  # fmt: skip


def median_ms(trt: Any, plan: Path, batch_size: int) -> float:
    """Milliseconds on the device, between events around each launch; inputs are zeros."""
    gpu = Gpu()
    stream, start, stop = Stream(gpu), CudaEvent(gpu), CudaEvent(gpu)
    log = trt.Logger(trt.Logger.ERROR)
    runtime = trt.Runtime(log)
    engine = runtime.deserialize_cuda_engine(plan.read_bytes())
    context = engine.create_execution_context()
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    for name in names:
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            shape = tuple(engine.get_tensor_shape(name))
            context.set_input_shape(name, (batch_size if shape[0] < 0 else shape[0], *shape[1:]))
    buffers = []
    for name in names:
        count = math.prod(tuple(context.get_tensor_shape(name)))
        buffer = Buffer(gpu)
        size = count * ELEMENT_BYTES[engine.get_tensor_dtype(name).name]
        buffer.reserve(size)
        buffer.array((buffer.size_bytes,), np.dtype("uint8"))[:] = 0
        buffer.to_device(size, stream)
        context.set_tensor_address(name, buffer.address)
        buffers.append(buffer)

    def enqueue() -> None:
        if not context.execute_async_v3(stream.address):
            raise RuntimeError("TensorRT did not run the engine")

    enqueue()
    stream.synchronize()
    graph = CudaGraph(gpu, stream, enqueue)
    times = []
    for number in range(WARM_UP + LAUNCHES):
        # One ahead: while it computes the rest is put into the stream, so that the processor's way
        # to the GPU lies outside of the events.
        graph.launch(stream)
        start.record(stream)
        graph.launch(stream)
        stop.record(stream)
        stream.synchronize()
        if number >= WARM_UP:
            times.append(stop.since_ms(start))
    return statistics.median(times)


def main() -> None:
    """Time the engine at one batch size."""
    plan, batch_size = Path(sys.argv[1]), int(sys.argv[2])
    trt = importlib.import_module(sys.argv[3] if len(sys.argv) > 3 else "tensorrt")
    print(json.dumps({"p50_ms": median_ms(trt, plan, batch_size), "version": trt.__version__}))


if __name__ == "__main__":
    main()
