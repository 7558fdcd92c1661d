"""What INT8 costs YOLOX-nano, operator by operator: mAP of its ways and parts, and where the time goes.

    python benchmarks/int8_operators.py --shared FOLDER --out FILE [--images 60] [--minutes 2]
    python benchmarks/int8_operators.py --shared FOLDER --out FILE --times

The first command builds the network with every quantizer, then with one part of it in INT8 and the rest
in FP32, and judges all by mAP on the same photographs. The second, for a quiet machine, adds to the
same file the time of operators by OpenVINO's counters, in FP32, bfloat16 and INT8, at batch 1 and 8.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import safetensors.torch
from yolox import YoloxNano, convolutions, weights

from optcli import build
from optcli.results import Report

HERE = Path(__file__).resolve().parent
PREPARE = {"letterbox": {"size": 416, "fill": 114, "align": "top_left"}, "channel_order": "bgr"}
WHOLE = {"least_layer_sqnr": None}
OPENVINO = ["export_onnx", "to_openvino"]
WAYS: dict[str, list[Any]] = {
    "openvino": OPENVINO,
    "openvino-nncf": [*OPENVINO, "quantize_nncf"],
    "openvino-nncf-performance": [*OPENVINO, {"quantize_nncf": {"preset": "performance"}}],
    "openvino-nncf-exact-bias": [*OPENVINO, {"quantize_nncf": {"fast_bias_correction": False}}],
    "nncf": ["export_onnx", "quantize_nncf"],
    "nncf-all": ["export_onnx", {"quantize_nncf": WHOLE}],
    "ort": ["export_onnx", "quantize_onnxruntime"],
    "ort-all": ["export_onnx", {"quantize_onnxruntime": WHOLE}],
    "ort-percentile": ["export_onnx", {"quantize_onnxruntime": {"method": "percentile", **WHOLE}}],
    "ort-per-tensor": ["export_onnx", {"quantize_onnxruntime": {"per_channel": False, **WHOLE}}],
}
# Calls that are counted, and those before them.
CALLS, WARM = 60, 10


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, help="where what is built stays; default: nowhere")
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=2.0, help="of quantization-aware training")
    parser.add_argument("--times", action="store_true", help="time operators, and judge nothing")
    given = parser.parse_args()
    rows = json.loads(given.out.read_text()) if given.out.is_file() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        state = weights(given.shared / "models" / "yolox_nano.onnx")
        safetensors.torch.save_file(state, str(folder / "weights.safetensors"))
        work = _Work(folder, given.store or folder / "store", given.shared.absolute(), given.images)
        if given.times:
            rows["times"] = work.times()
        else:
            rows["ways"] = work.judged({**WAYS, **_aware(given.minutes)})
            rows["parts"] = work.judged(dict(work.of_parts()))
    given.out.write_text(json.dumps(rows, indent=1) + "\n")


def _aware(minutes: float) -> dict[str, list[Any]]:
    options = {"to": "openvino", "epochs": 100, "max_minutes": minutes, "validate_epochs": False}
    return {"openvino-aware": [{"quantize_aware": {**options, "batch_size": 8}}]}


class _Work:
    """Builds variants of the network."""

    def __init__(self, folder: Path, store: Path, shared: Path, images: int) -> None:
        self.folder, self._store, self._shared, self._images = folder, store, shared, images

    def build(self, variants: dict[str, Any]) -> Report:
        """The report of these variants beside FP32, without latency."""
        photographs = f"coco:{self._shared}/datasets/coco_tiny_val"
        others = f"imagefolder:{self._shared}/datasets/imagenet_1000/images"
        parts = {"calibration": (0.0, 0.25, 20), "evaluation": (0.25, 1.0, self._images)}
        roles = {
            role: {"source": photographs, "split": {"seed": 0, "from": a, "to": b}, "samples": count}
            for role, (a, b, count) in parts.items()
        }
        roles["training"] = {"source": others, "samples": 500}
        recipe = {
            "version": 1,
            "name": "operators",
            "model": {
                "source": f"python:{HERE / 'yolox.py'}:YoloxNano",
                "weights": str(self.folder / "weights.safetensors"),
            },
            "inputs": [
                {
                    "name": "images",
                    "shape": ["batch", 3, 416, 416],
                    "batch": {"min": 1, "opt": 8, "max": 8},
                }
            ],
            "data": {role: {**each, "prepare": PREPARE} for role, each in roles.items()},
            "postprocess": {"yolox": {}},
            "accuracy": {"metric": "map", "max_drop": 0.99},
            "latency": {"mode": "off"},
            "variants": {"fp32": ["export_onnx"], **variants},
        }
        path = self.folder / "recipe.yaml"
        path.write_text(json.dumps(recipe))
        return build(path, store=self._store, artifacts=self.folder / "artifacts")

    def judged(self, variants: dict[str, Any]) -> list[dict[str, Any]]:
        """MAP of each variant, and what it loses; printed as well."""
        rows = []
        for name, variant in self.build(variants).variants.items():
            if variant.accuracy is None:
                rows.append({"variant": name, "reason": variant.reason})
                continue
            found = variant.accuracy
            row = {"variant": name, "map": found.value, "lost": found.baseline - found.value}
            rows.append({**row, "images": found.samples})
            print(f"{name:28} {found.value:.4f} {found.value - found.baseline:+.4f}", flush=True)
        return rows

    def of_parts(self) -> Iterator[tuple[str, list[Any]]]:
        """A variant for each part: it alone in INT8, whatever its layers lose."""
        self.build({})
        graph = onnx.load(str(next(self.folder.glob("artifacts/**/fp32/*.onnx")))).graph
        readers: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in node.input:
                readers.setdefault(name, []).append(node)
        layers = [node for node in graph.node if node.op_type == "Conv"]
        members: dict[str, list[str]] = {}
        for node, (name, layer) in zip(layers, convolutions(YoloxNano()), strict=True):
            gates = [each for each in readers[node.output[0]] if each.op_type in ("Sigmoid", "Mul")]
            names = [node.name, *(each.name for each in gates)]
            place = name.partition(".")[0]
            kind = "1 x 1" if layer.kernel_size == (1, 1) else "stem"
            kind = "depthwise" if layer.groups > 1 else kind
            if layer.out_channels in (1, 4, 80):
                kind = "predictions"
            members.setdefault(f"all {kind}", []).extend(names)
            where = place if place.startswith("dark") or place == "heads" else "neck"
            if place != "stem" and kind != "predictions":
                members.setdefault(where, []).extend(names)
            if kind == "depthwise" and name.startswith("dark2.0"):
                members.setdefault("the first depthwise", []).extend(names)
        for part, names in members.items():
            yield part, ["export_onnx", {"quantize_onnxruntime": {"names": names, **WHOLE}}]

    def times(self) -> list[dict[str, Any]]:
        """Microseconds a call in each kind of operator, by precision and batch size."""
        self.build({name: WAYS[name] for name in ("openvino", "openvino-nncf")})
        models = {
            name: next(self.folder.glob(f"artifacts/**/{name}/*.xml"))
            for name in ("openvino", "openvino-nncf")
        }
        rows = []
        for batch in (1, 8):
            for label, name, precision in (
                ("fp32", "openvino", "f32"),
                ("bf16", "openvino", "bf16"),
                ("int8", "openvino-nncf", "f32"),
                ("int8 with bf16", "openvino-nncf", "bf16"),
            ):
                by_kind, call_us = _counted(models[name], precision, batch)
                rows.append({"precision": label, "batch": batch, "call_us": call_us, "us": by_kind})
                listed = ", ".join(f"{kind} {us:.0f}" for kind, us in by_kind.items())
                print(f"batch {batch} {label:15} {call_us:8.0f} us a call: {listed}", flush=True)
        return rows


def _counted(path: Path, precision: str, batch: int) -> tuple[dict[str, float], float]:
    """Microseconds by kind of operator and the median of whole calls, by OpenVINO's counters."""
    import time

    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    model.reshape([batch, 3, 416, 416])
    hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": 2}
    request = core.compile_model(model, "CPU", {**hints, "PERF_COUNT": True}).create_infer_request()
    image = np.random.default_rng(0).uniform(0, 255, (batch, 3, 416, 416)).astype(np.float32)
    calls_us, sums = [], dict[str, list[float]]()
    for call in range(WARM + CALLS):
        began = time.perf_counter()
        request.infer([image])
        calls_us.append(1e6 * (time.perf_counter() - began))
        if call < WARM:
            continue
        us: dict[str, float] = {}
        for each in request.profiling_info:
            kind = _kind(each)
            us[kind] = us.get(kind, 0.0) + each.real_time.total_seconds() * 1e6
        for kind, spent in us.items():
            sums.setdefault(kind, []).append(spent)
    medians = {kind: float(np.median(each)) for kind, each in sums.items()}
    ordered = dict(sorted(medians.items(), key=lambda each: -each[1]))
    return {k: us for k, us in ordered.items() if us >= 1}, float(np.median(calls_us[WARM:]))


def _kind(counter: Any) -> str:
    """What an operator does, and in which precision."""
    kind, how = counter.node_type, counter.exec_type
    precision = how.rpartition("_")[2]
    if kind in ("Convolution", "GroupConvolution"):
        kind = "depthwise" if "dw" in how else "convolution"
    return f"{kind} {precision}"


if __name__ == "__main__":
    main()
