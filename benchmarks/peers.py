"""The same network by hand: as the libraries' own documentation makes, opens and calls it.

Shared by `by_hand.py` and `tune_peers.py`. A method's name begins with `onnx`, that is ONNX Runtime,
with `openvino`, or is made of a PyTorch module: one of `FROM_TORCH`. Each takes two threads. What makes
a file raises ValueError where that is not there afterwards, or has no quantized nodes where INT8 was
asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import checked
import numpy as np

THREADS = 2
ROUND_S = 0.03
EDGE = ("litert", "litert-int8", "executorch", "executorch-int8")
FROM_TORCH = ("torchscript", "compile", "aoti", "pt2e-aoti", *EDGE)
FILES = {"openvino": "model.xml", "onnx": "model.onnx", "litert": "model.tflite"}
FILES |= {"executorch": "model.pte"}


def file_of(method: str) -> str:
    """The name of the file that a method's artifact lies in."""
    return FILES.get(method.partition("-")[0], "model.pt2")


def quantizes(method: str) -> bool:
    """Whether a method makes an INT8 model."""
    return "int8" in method or method in ("onnx-nncf", "pt2e-aoti")


def batches(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Whole batches of so many rows, in order; a rest that fills none is left out."""
    return [rows[at : at + size] for at in range(0, len(rows) - size + 1, size)]


def from_torch(method: str, model: Any, rows: np.ndarray, size: int, path: Path) -> None:
    """One of `FROM_TORCH` of a module, for one batch size; `rows` calibrate.

    `compile` is the module itself, which `opened` compiles.
    """
    path.unlink(missing_ok=True)
    _from_torch(method, model, rows, size, path)
    checked.model(path, quantized=quantizes(method))


def _from_torch(method: str, model: Any, rows: np.ndarray, size: int, path: Path) -> None:
    import torch

    if method == "compile":
        torch.save(model, path)
        return
    x = torch.from_numpy(rows[:size].copy())
    if method.startswith("litert"):
        _litert(method, model, rows, x, path)
        return
    if method.startswith("executorch"):
        _executorch(method, model, rows, x, path)
        return
    if method == "torchscript":
        with torch.no_grad():
            torch.jit.freeze(torch.jit.trace(model, x)).save(str(path))
        return
    if method == "pt2e-aoti":
        import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
        with torch.no_grad():
            prepared = prepare_pt2e(torch.export.export(model, (x,), strict=True).module(), quantizer)
            for batch in batches(rows, size):
                prepared(torch.from_numpy(batch.copy()))
            model = convert_pt2e(prepared)
    with torch.no_grad():
        program = torch.export.export(model, (x,), strict=method == "pt2e-aoti")
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(path), inductor_configs={"freezing": True}
        )


def _litert(method: str, model: Any, rows: np.ndarray, x: Any, path: Path) -> None:
    import litert_torch

    litert_torch.convert(model, (x,)).export(str(path))
    if method == "litert-int8":
        from ai_edge_quantizer import quantizer, recipe

        made = quantizer.Quantizer(str(path), recipe.static_wi8_ai8())
        ((key, names),) = _interpreter(path).get_signature_list().items()
        feeds = [{names["inputs"][0]: batch} for batch in batches(rows, len(x))]
        ranges = made.calibrate({key: feeds})
        path.unlink()
        made.quantize(ranges).export_model(str(path))


def _executorch(method: str, model: Any, rows: np.ndarray, x: Any, path: Path) -> None:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    if method == "executorch-int8":
        from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        configured = xnnpack.XNNPACKQuantizer()
        configured.set_global(xnnpack.get_symmetric_quantization_config(is_per_channel=True))
        with torch.no_grad():
            prepared = prepare_pt2e(torch.export.export(model, (x,), strict=True).module(), configured)
            for batch in batches(rows, len(x)):
                prepared(torch.from_numpy(batch.copy()))
            model = convert_pt2e(prepared)
        if not any("quantize" in str(node.target) for node in model.graph.nodes):
            raise ValueError("it has no quantized nodes, and INT8 was asked for")
    with torch.no_grad():
        program = torch.export.export(model, (x,))
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    path.write_bytes(lowered.to_executorch().buffer)


def export(model: Any, x: np.ndarray, path: Path, *, dynamic: bool = False) -> None:
    """A module as an ONNX file with input `x` and output `y`; its batch is that of `x`, or any."""
    import torch

    path.unlink(missing_ok=True)
    shapes = {"dynamic_shapes": ({0: torch.export.Dim("N")},)} if dynamic else {}
    torch.onnx.export(
        model, (torch.from_numpy(x.copy()),), str(path), input_names=["x"], output_names=["y"],
        dynamo=True, external_data=False, verbose=False, **shapes,
    )  # fmt: skip
    checked.model(path)


def with_batch(source: Path, size: int, path: Path) -> None:
    """A copy of an ONNX file whose batch is fixed at so many."""
    import onnx

    model = onnx.load(source)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = size
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.shape.dim[0].Clear()
    onnx.save(model, path)
    checked.model(path)


def from_onnx(
    method: str, start: Path, rows: np.ndarray, size: int, path: Path, *, attends: bool
) -> None:
    """ONNX Runtime's or NNCF's INT8, or `openvino` with or without, of an ONNX file; `rows` calibrate.

    `attends`: the network is a transformer, which NNCF's documentation wants to be told.
    """
    path.unlink(missing_ok=True)
    _from_onnx(method, start, rows, size, path, attends)
    checked.model(path, quantized=quantizes(method))


def _from_onnx(
    method: str, start: Path, rows: np.ndarray, size: int, path: Path, attends: bool
) -> None:
    import onnx

    name = onnx.load(start, load_external_data=False).graph.input[0].name
    feeds = [{name: batch} for batch in batches(rows, size)]
    if method == "onnx-int8":
        _static_int8(start, path, feeds)
        return
    import nncf
    import openvino

    transformer = {"model_type": nncf.ModelType.TRANSFORMER} if attends else {}
    if method == "onnx-nncf":
        onnx.save(nncf.quantize(onnx.load(start), nncf.Dataset(feeds), **transformer), path)
        return
    converted = openvino.convert_model(start)
    if method.startswith("openvino-int8"):
        converted = nncf.quantize(converted, nncf.Dataset(feeds), **transformer)
    openvino.save_model(converted, str(path), compress_to_fp16=False)


def _static_int8(start: Path, path: Path, feeds: list[dict[str, np.ndarray]]) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter(feeds)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rest, None)

    ready = path.parent / "ready.onnx"
    quant_pre_process(str(start), str(ready), skip_symbolic_shape=True)
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(
        str(ready), str(path), Reader(), quant_format=QuantFormat.QDQ, per_channel=True, **kinds
    )


def opened(
    method: str, path: Path, *, precision: str | None = "f32"
) -> Callable[[np.ndarray], np.ndarray]:
    """A call of what was made by hand: a batch to its first output.

    `precision` is OpenVINO's hint. None leaves it alone: it then computes in bfloat16 where the CPU has
    it, as it does for `openvino-bf16`.
    """
    if method.startswith("onnx"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        # Else its threads spin on for a while into the next one's turn.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda x: session.run(None, {name: x})[0]
    if method.startswith("openvino"):
        import openvino

        settings = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY"}
        if precision is not None and method != "openvino-bf16":
            settings["INFERENCE_PRECISION_HINT"] = precision
        compiled = openvino.compile_model(str(path), "CPU", settings)
        return lambda x: compiled([x])[0]
    if method.startswith("litert"):
        return _of_interpreter(_interpreter(path))
    import torch

    if method.startswith("executorch"):
        from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
        from executorch.runtime import Runtime

        _unsafe_reset_threadpool(THREADS)
        loaded = Runtime.get().load_program(path).load_method("forward")
        return lambda x: loaded.execute([torch.from_numpy(x)])[0].numpy()
    if method == "pt2e-aoti":
        import torchao.quantization.pt2e  # noqa: F401
    torch.set_num_threads(THREADS)
    if method == "compile":
        return of_module(torch.compile(torch.load(path, weights_only=False)))
    load: Any = torch.jit.load if method == "torchscript" else torch._inductor.aoti_load_package
    return of_module(load(str(path)))


def _interpreter(path: Path) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(str(path), num_threads=THREADS)


def _of_interpreter(interpreter: Any) -> Callable[[np.ndarray], np.ndarray]:
    interpreter.allocate_tensors()
    taken, given = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    (scale, zero), (out_scale, out_zero) = taken["quantization"], given["quantization"]

    def call(x: np.ndarray) -> np.ndarray:
        if scale:
            x = np.clip(np.round(x / np.float32(scale)) + zero, -128, 127).astype(taken["dtype"])
        interpreter.set_tensor(taken["index"], x)
        interpreter.invoke()
        y = interpreter.get_tensor(given["index"])
        return (y.astype(np.float32) - out_zero) * np.float32(out_scale) if out_scale else y

    return call


def of_module(model: Any) -> Callable[[np.ndarray], np.ndarray]:
    """A call of a PyTorch model."""
    import torch

    def call(x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            found = model(torch.from_numpy(x))
        return np.asarray(found[0] if isinstance(found, list | tuple) else found)

    return call


def taken(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def usual(call: Callable[[], Any]) -> float:
    """Seconds of a call, the median of those within 0.3 s, at least three."""
    end = time.perf_counter() + 0.3
    times = [taken(call) for _ in range(3)]
    while time.perf_counter() < end:
        times.append(taken(call))
    return median(times[2:])


def turn(call: Callable[[], Any], count: int) -> float:
    """Seconds of a call, the median of so many in a row."""
    call()  # the first one brings the model back into the caches
    return median(taken(call) for _ in range(count))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and the ends of the middle half."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return median(ordered), ordered[quarter], ordered[-1 - quarter]


def interval(values: Sequence[float]) -> list[float]:
    """What holds the median in 95 of 100 cases, by the ranks of the values."""
    ordered = sorted(values)
    rank = max(0, int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5))
    return [ordered[rank], ordered[-1 - rank]]
