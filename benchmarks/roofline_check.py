"""Whether `optcli roofline` agrees with loops that share nothing with it: run by hand.

    .venv/bin/python benchmarks/roofline_check.py [--threads 2] [--seconds 2] [--turns 3]

Matrix products of several sizes in bare loops of NumPy, PyTorch and ONNX Runtime, each in a process of
its own, taking turns with the roofline's own measurement so that a busy machine is busy for both. Says
for each precision how the fastest loop compares with the roofline's peak; exit code 1 where the peak is
more than 10 % below a loop, or the same library more than 10 % apart.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import checked

SIDES = (384, 512, 768, 1024)


def loop(library: str, precision: str, side: int, seconds: float) -> float:
    """Operations a second of the fastest call."""
    import numpy as np

    rng = np.random.default_rng(1)
    if library == "numpy":
        a, b, c = (rng.random((side, side), dtype=np.float32) for _ in range(3))

        def call():
            np.matmul(a, b, out=c)

    elif library == "torch":
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        if precision == "int8":
            x, y = (torch.randint(-99, 99, (side, side), dtype=torch.int8) for _ in range(2))

            def call():
                torch._int_mm(x, y)

        else:
            dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
            x, y, z = (torch.rand(side, side).to(dtype) for _ in range(3))

            def call():
                torch.mm(x, y, out=z)

    else:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper

        kinds = {"fp32": (np.float32, np.float32, "MatMul", TensorProto.FLOAT)}
        kinds["int8"] = (np.uint8, np.int8, "MatMulInteger", TensorProto.INT32)
        given, held, operator, made = kinds[precision]
        x = (rng.random((side, side)) * 100).astype(given)
        w = (rng.random((side, side)) * 100).astype(held)
        taken = helper.np_dtype_to_tensor_dtype(x.dtype)
        graph = helper.make_graph(
            [helper.make_node(operator, ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", taken, [side, side])],
            [helper.make_tensor_value_info("y", made, [side, side])],
            [numpy_helper.from_array(w, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)

        def call():
            session.run(None, {"x": x})

    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best


def alone(threads: int, *arguments: object) -> float:
    """`loop` in a fresh process whose threads are set before any import."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    command = [sys.executable, __file__, "--loop", *map(str, arguments)]
    who = f"the loop of {' '.join(map(str, arguments))}"
    rate = checked.answer(who, command, env=environment)
    checked.figures(who, {"the rate": rate}, "the rate")
    return float(rate)


def main() -> int:
    """Measure in turns, compare, and say so."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--loop", nargs=4)
    asked = parser.parse_args()
    if asked.loop:
        library, precision, side, seconds = asked.loop
        print(loop(library, precision, int(side), float(seconds)))
        return 0
    from optcli.environment import computes_in
    from optcli.observer import Silent
    from optcli.roofline import measure

    loops: dict[tuple[str, str], float] = {}
    peaks: dict[tuple[str, str], float] = {}
    precisions = ["fp32", "int8", *(["bf16"] if computes_in("bf16") else [])]
    for _ in range(asked.turns):
        for precision in precisions:
            for library in ("numpy", "torch", "onnxruntime"):
                if (library, precision) in {
                    ("numpy", "int8"),
                    ("numpy", "bf16"),
                    ("onnxruntime", "bf16"),
                }:
                    continue
                found = [alone(asked.threads, library, precision, s, asked.seconds / 4) for s in SIDES]
                loops[library, precision] = max([*found, loops.get((library, precision), 0.0)])
        for rate in measure(None, Silent()).rates:
            if rate.operation == "matmul" and rate.threads == asked.threads:
                at = (rate.library, rate.precision)
                peaks[at] = max(peaks.get(at, 0.0), rate.per_s)
    wrong = 0
    rows = []
    for precision in precisions:
        best = max(loops[at] for at in loops if at[1] == precision)
        peak = max(peaks[at] for at in peaks if at[1] == precision)
        rows.append({"precision": precision, "loop": best, "peak": peak, "peak over loop": peak / best})
        wrong += peak < 0.9 * best
    for at in sorted(loops.keys() & peaks.keys()):
        rows.append({"library": at[0], "precision": at[1], "peak over loop": peaks[at] / loops[at]})
        wrong += abs(peaks[at] / loops[at] - 1) > 0.1
    print(json.dumps({"threads": asked.threads, "load": os.getloadavg(), "compared": rows}, indent=2))
    return int(wrong > 0)


if __name__ == "__main__":
    checked.told(main)
