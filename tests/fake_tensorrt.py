"""A TensorRT that runs on the fake driver of `fake_libcuda.c`: what an execution needs of one.

A plan is JSON: the inputs and outputs, the profiles, and what is computed (each output is twice the
input of the same place, plus one for each call of `scale`). Its surface is held against that of the
real bindings in test_execution_surface.py. It runs on any Python from 3.10 on, in any process.
"""

from __future__ import annotations

import ctypes
import enum
import json
import os
import sys

import numpy as np

__version__ = "10.16.1.11"
MS = 1.5  # what computing takes on the fake GPU


class DataType(enum.Enum):
    FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8, BF16, INT64, INT4 = range(10)


class TensorIOMode(enum.Enum):
    NONE, INPUT, OUTPUT = range(3)


class TensorLocation(enum.Enum):
    DEVICE, HOST = range(2)


class ILogger:
    class Severity(enum.Enum):
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self):
        pass


class IOutputAllocator:
    def __init__(self):
        self.made = True


class Runtime:
    def __init__(self, logger):
        self._logger = logger
        self.engine_host_code_allowed = False

    def deserialize_cuda_engine(self, serialized_engine):
        try:
            plan = json.loads(bytes(serialized_engine))
        except ValueError:
            self._logger.log(
                ILogger.Severity.ERROR,
                "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion "
                "plan.header.size == blobSize failed.)",
            )
            return None
        if plan.get("crash"):
            self._logger.log(ILogger.Severity.ERROR, "Error Code 1: Cuda Runtime (cudaError 700: x)")
            os.abort()
        if plan.get("hang"):
            import time

            time.sleep(600)
        if plan.get("host_code") and not self.engine_host_code_allowed:
            self._logger.log(ILogger.Severity.ERROR, "engine_host_code_allowed is not set")
            return None
        return ICudaEngine(plan, self._logger)


class ICudaEngine:
    def __init__(self, plan, logger):
        self._plan, self._logger = plan, logger
        self._tensors = {each["name"]: each for each in plan["tensors"]}
        self.num_io_tensors = len(plan["tensors"])
        self.num_optimization_profiles = len(plan["profiles"])
        self.num_layers = 7
        self.num_aux_streams = 1

    def get_tensor_name(self, index):
        return self._plan["tensors"][index]["name"]

    def get_tensor_mode(self, name):
        return TensorIOMode[self._tensors[name]["mode"]]

    def get_tensor_dtype(self, name):
        return DataType[self._tensors[name].get("dtype", "FLOAT")]

    def get_tensor_shape(self, name):
        return list(self._tensors[name]["shape"])

    def get_tensor_location(self, name):
        return TensorLocation[self._tensors[name].get("location", "DEVICE")]

    def get_tensor_profile_shape(self, name, profile_index):
        return [list(each) for each in self._plan["profiles"][profile_index][name]]

    def create_execution_context(self, *settings):
        context = IExecutionContext(self._plan, self, self._logger)
        context._settings = settings
        return context


class Refitter:
    def __init__(self, engine, logger):
        self._engine, self._fits = engine, False

    def refit_cuda_engine(self):
        self._engine._plan["stripped"] = not self._fits
        return self._fits

    def get_missing_weights(self):
        return ["conv.weight"]


class _Problem:
    def desc(self):
        return "conv.weight has another shape"


class OnnxParserRefitter:
    """A model that says `other` does not fit, one that says `some` has not all weights."""

    num_errors = 1

    def __init__(self, refitter, logger):
        self._refitter = refitter

    def refit_from_file(self, model):
        with open(model) as file:
            text = file.read()
        self._refitter._fits = text != "some"
        return text != "other"

    def get_error(self, index):
        return _Problem()


class IExecutionContext:
    last = None

    def __init__(self, plan, engine, logger):
        self._plan, self.engine, self._logger = plan, engine, logger
        self._profile, self._shapes, self._addresses, self._allocators = 0, {}, {}, {}
        self._asked, self._given = {}, {}  # bytes and sizes of outputs that depended on the data
        self._kept, self._settings = [], ()
        self.calls, self.switches = 0, []
        IExecutionContext.last = self

    def set_optimization_profile_async(self, profile_index, stream_handle):
        assert stream_handle, "the default stream"
        self._profile = profile_index
        self.switches.append(profile_index)
        return True

    def set_input_shape(self, name, shape):
        shape = tuple(shape)
        if -1 in self.engine.get_tensor_shape(name):
            low, _, high = self.engine.get_tensor_profile_shape(name, self._profile)
            fits = all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))
        else:
            fits = tuple(self.engine.get_tensor_shape(name)) == shape
        if fits:
            self._shapes[name] = shape
        return fits

    def infer_shapes(self):
        return [each["name"] for each in self._of("INPUT") if each["name"] not in self._shapes]

    def get_tensor_shape(self, name):
        each = self.engine._tensors[name]
        if each["mode"] == "INPUT":
            return list(self._shapes[name])
        if each.get("varies"):
            # 8.6 remembers the size that the last call gave.
            last = self._given.get(name) if self._plan.get("old") else None
            return last or [-1, *each["shape"][1:]]
        return list(self._shapes[self._of("INPUT")[self._of("OUTPUT").index(each)]["name"]])

    def set_tensor_address(self, name, memory):
        self._addresses[name] = memory
        return memory != 0

    def get_max_output_size(self, name):
        given = self.engine._tensors[name]
        if given.get("unbounded"):
            return -1
        taken = self._of("INPUT")[self._of("OUTPUT").index(given)]
        return 4 * int(np.prod(self._shapes[taken["name"]]))

    def set_output_allocator(self, name, output_allocator):
        assert output_allocator.made, "the base class was not initialized"
        self._allocators[name] = output_allocator
        return True

    def execute_async_v3(self, stream_handle):
        if self._plan.get("synchronizes"):  # what no graph can hold
            _cuda().cuStreamSynchronize(ctypes.c_void_p(stream_handle))
        if self._plan.get("fails") or self._plan.get("stripped"):
            self._logger.log(ILogger.Severity.ERROR, "IExecutionContext::enqueueV3: Error Code 1: no")
            return False
        self.calls += 1
        work = _WORK(self._work(dict(self._addresses), dict(self._shapes), stream_handle))
        self._kept.append(work)  # a graph calls it later
        return _cuda().fake_enqueue(ctypes.c_void_p(stream_handle), work, None, MS) == 0

    def _work(self, addresses, shapes, stream):
        """Computing with the addresses and shapes of now, as a recorded kernel does."""
        pairs = list(zip(self._of("INPUT"), self._of("OUTPUT"), strict=True))

        def compute(_):
            for taken, given in pairs:
                values = _at(addresses[taken["name"]], shapes[taken["name"]], taken)
                if given.get("varies"):
                    self._give_varying(given, values, stream)
                    continue
                made = _at(addresses[given["name"]], shapes[taken["name"]], given)
                if given.get("dtype") == "BF16":
                    made[...] = values  # bits as they are
                elif given.get("dtype") == "BOOL":
                    made[...] = values > 0
                else:
                    made[...] = 2 * values

        return compute

    def _give_varying(self, given, values, stream):
        """The positive values only: how many there are depends on them."""
        found = np.ascontiguousarray(values[values > 0])
        allocator = self._allocators[given["name"]]
        self._given[given["name"]] = list(found.shape)
        if self._plan.get("old") and self._addresses.get(given["name"]):
            # 8.6 asks where no address is known, and takes that of its first call for good.
            room = self._asked.get(given["name"], found.nbytes)  # here it writes no further
            ctypes.memmove(self._addresses[given["name"]], found.ctypes.data, min(found.nbytes, room))
            allocator.notify_shape(given["name"], list(found.shape))
            return
        ask = getattr(allocator, "reallocate_output_async", None)
        size = max(1, found.nbytes)
        if ask is not None and not self._plan.get("old"):
            address = ask(given["name"], 0, size, 256, stream)
        else:
            address = allocator.reallocate_output(given["name"], 0, size, 256)
        if not address:
            return
        if found.nbytes:
            ctypes.memmove(address, found.ctypes.data, found.nbytes)
        self._addresses[given["name"]], self._asked[given["name"]] = address, size
        allocator.notify_shape(given["name"], list(found.shape))

    def _of(self, mode):
        return [each for each in self._plan["tensors"] if each["mode"] == mode]


_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_TYPES = {"FLOAT": "f4", "HALF": "f2", "INT8": "i1", "INT32": "i4", "BOOL": "?", "UINT8": "u1"}
_TYPES |= {"BF16": "u2", "INT64": "i8", "FP8": "u1"}


def _at(address, shape, tensor):
    dtype = np.dtype(_TYPES[tensor.get("dtype", "FLOAT")])
    raw = (ctypes.c_ubyte * max(1, int(np.prod(shape)) * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype, int(np.prod(shape))).reshape(shape)


def _cuda():
    found = ctypes.CDLL(os.environ.get("FAKE_CUDA", "libcuda.so.1"))
    found.fake_enqueue.argtypes = (ctypes.c_void_p, _WORK, ctypes.c_void_p, ctypes.c_double)
    return found


class IRuntimeConfig:
    """As `fake_tensorrt_rtx` has it."""

    cuda_graph_strategy = None

    def create_runtime_cache(self):
        return IRuntimeCache()

    def set_runtime_cache(self, cache):
        self.cache = cache
        return True


class IRuntimeCache:
    def deserialize(self, blob):
        self.blob = bytes(blob)
        return True

    def serialize(self):
        return b"kernels"


def as_rtx():
    """The same module as TensorRT-RTX: graphs are its own, contexts take settings."""
    import types

    class CudaGraphStrategy(enum.Enum):
        DISABLED, WHOLE_GRAPH_CAPTURE = range(2)

    class RtxEngine(ICudaEngine):
        def create_runtime_config(self):
            return IRuntimeConfig()

    class RtxRuntime(Runtime):
        def deserialize_cuda_engine(self, serialized_engine):
            found = super().deserialize_cuda_engine(serialized_engine)
            return found and RtxEngine(found._plan, found._logger)

    rtx = types.ModuleType("tensorrt_rtx")
    rtx.__dict__.update(sys.modules[__name__].__dict__)
    rtx.__dict__.update(
        __version__="1.7.1.116",
        CudaGraphStrategy=CudaGraphStrategy,
        ICudaEngine=RtxEngine,
        Runtime=RtxRuntime,
    )
    return rtx
