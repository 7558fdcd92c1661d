"""What INT8 costs YOLOX-nano, operator by operator: mAP of its ways and parts, and where the time goes.

    python benchmarks/int8_operators.py --shared FOLDER --out FILE [--images 60] [--minutes 2]
    python benchmarks/int8_operators.py --shared FOLDER --out FILE --times

The first command builds the network with every quantizer, and judges all by mAP on the same
photographs. Then it rounds one part of the network alone to 8 bits, the rest stays in FP32: groups of
convolutions by mAP, each convolution by how far it moves the outputs. The second command, for a quiet
machine, adds to the file the time of operators by OpenVINO's counters, in FP32, bfloat16 and INT8, at
batch sizes 1 and 8.
`--ways` and `--parts` do one half of the first.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from yolox import YoloxNano, convolutions, weights

from optcli import build, data
from optcli.accuracy.decoding import Detector
from optcli.accuracy.metrics import Predictions
from optcli.accuracy.metrics.map import Map
from optcli.data import DataSettings
from optcli.passes._torch.part_losses import part_losses
from optcli.results import Report
from optcli.settings import TensorSpec
from optcli.settings.outputs import OutputPart
from optcli.settings.postprocess import PostprocessSettings

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
_KINDS = ("the first convolution", "1 x 1", "depthwise", "predictions")
_ABOUT = ("id", "target", "meta")


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, help="where what is built stays; default: nowhere")
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=2.0, help="of quantization-aware training")
    parser.add_argument("--ways", action="store_true", help="builds alone")
    parser.add_argument("--parts", action="store_true", help="parts alone")
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
            if not given.parts:
                rows["ways"] = work.judged({**WAYS, **_aware(given.minutes)})
            if not given.ways:
                rows |= Rounding(state, given.shared, given.images).measured()
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
                print(f"{name:28} {variant.reason}", flush=True)
                continue
            found = variant.accuracy
            row = {"variant": name, "map": found.value, "lost": found.baseline - found.value}
            rows.append({**row, "images": found.samples})
            print(f"{name:28} {found.value:.4f} {found.value - found.baseline:+.4f}", flush=True)
        return rows

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


class Rounding:
    """The network with parts of it rounded: inputs of convolutions and their weights.

    As `quantize_onnxruntime` does without least_layer_sqnr: the extremes of 20 photographs, one scale
    for all channels of an input, one for each output channel of a weight.
    """

    def __init__(self, state: dict[str, torch.Tensor], shared: Path, images: int) -> None:
        self.model = YoloxNano().eval()
        self.model.load_state_dict(state)
        self.layers = dict(convolutions(self.model))
        self._floats = {name: layer.weight.detach().clone() for name, layer in self.layers.items()}
        roles = [(0.0, 0.25, 20), (0.25, 1.0, images)]
        calibration, self._samples = (
            data.open(
                DataSettings.model_validate(
                    {
                        "source": f"coco:{shared.absolute()}/datasets/coco_tiny_val",
                        "split": {"seed": 0, "from": start, "to": stop},
                        "samples": count,
                        "prepare": PREPARE,
                    }
                ),
                shared,
                (TensorSpec(name="images", shape=("batch", 3, 416, 416)),),
            )
            for start, stop, count in roles
        )
        self._images = [self._samples[row] for row in range(len(self._samples))]
        self._ranges = self._seen(calibration)
        self._taught = self._outputs()

    def measured(self) -> dict[str, Any]:
        """MAP of groups of convolutions, and what each convolution does to the outputs."""
        groups = self._groups()
        every = list(self.layers)
        first = groups["the first depthwise"]
        cases = [("nothing", [], "both")]
        cases += [(name, names, "both") for name, names in groups.items()]
        cases += [("all", every, "both"), ("all", every, "weights"), ("all", every, "inputs")]
        cases += [("all but the first depthwise", [n for n in every if n not in first], "both")]
        cases += [("all, a scale per channel for depthwise", every, "per channel")]
        parts = []
        for name, names, what in cases:
            found = self._map(self._rounded(names, what))
            parts.append({"part": name, "rounded": what, "layers": len(names), "map": found})
            print(f"{name:40} {what:12} {len(names):4} {found:.4f}", flush=True)
        rows = self._taught[:8]
        parts_of = {
            "output": (
                OutputPart("boxes", 1, 0, 4),
                OutputPart("objectness", 1, 4, 5),
                OutputPart("scores", 1, 5, 85),
            )
        }
        distance = part_losses(parts_of, ("yolox", {"decoded": False}), {"output": rows})
        layers = []
        for name in every:
            moved = float(distance({"output": self._rounded([name], "both", 8)}, {"output": rows}))
            low, high = self._ranges[name]
            kind = "depthwise" if self.layers[name].groups > 1 else "dense"
            layers.append({"layer": name, "kind": kind, "moved": moved, "range": [low, high]})
        layers.sort(key=lambda each: -each["moved"])
        for each in layers[:10]:
            print(f"{each['layer']:40} {each['kind']:10} {each['moved']:.5f}", flush=True)
        return {"parts": parts, "layers": layers, "operations": self.operations()}

    def operations(self) -> list[dict[str, Any]]:
        """Products of one image and the values that they read and write, by kind of convolution."""
        kinds = {name: kind for kind in _KINDS for name in self._groups()[kind]}
        sums = {kind: [0, 0, 0] for kind in _KINDS}

        def count(name: str) -> Any:
            def hook(layer: Any, given: Any, output: Any) -> None:
                products = output[0].numel() * layer.weight[0].numel()
                row = sums[kinds[name]]
                sums[kinds[name]] = [
                    row[0] + 1,
                    row[1] + products,
                    row[2] + given[0][0].numel() + output[0].numel(),
                ]

            return hook

        hooks = [each.register_forward_hook(count(name)) for name, each in self.layers.items()]
        with torch.no_grad():
            self.model(torch.zeros(1, 3, 416, 416))
        for each in hooks:
            each.remove()
        names = ("layers", "products", "values")
        return [{"kind": kind, **dict(zip(names, row, strict=True))} for kind, row in sums.items()]

    def _groups(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name, layer in self.layers.items():
            kind = "1 x 1" if layer.kernel_size == (1, 1) else "the first convolution"
            kind = "depthwise" if layer.groups > 1 else kind
            if layer.out_channels in (1, 4, 80):
                kind = "predictions"
            groups.setdefault(kind, []).append(name)
            place = name.partition(".")[0]
            where = place if place.startswith("dark") or place in ("heads", "stem") else "neck"
            if where != "stem":
                groups.setdefault(where, []).append(name)
            if name.startswith("dark2.0") and layer.groups > 1:
                groups["the first depthwise"] = [name]
        return groups

    def _seen(self, samples: Any) -> dict[str, tuple[float, float]]:
        ranges: dict[str, tuple[float, float]] = {}

        def see(name: str) -> Any:
            def hook(layer: Any, given: Any) -> None:
                low, high = ranges.get(name, (0.0, 0.0))
                ranges[name] = (min(low, float(given[0].min())), max(high, float(given[0].max())))

            return hook

        hooks = [each.register_forward_pre_hook(see(name)) for name, each in self.layers.items()]
        with torch.no_grad():
            for row in range(len(samples)):
                self.model(torch.from_numpy(samples[row].inputs["images"])[None])
        for each in hooks:
            each.remove()
        return ranges

    def _rounded(self, names: list[str], what: str, most: int | None = None) -> torch.Tensor:
        """The outputs with these layers rounded: `both`, `weights`, `inputs` or `per channel`."""
        hooks = []
        for name in names:
            layer = self.layers[name]
            if what != "inputs":
                scale = layer.weight.detach().abs().amax((1, 2, 3), keepdim=True) / 127
                layer.weight.data = (self._floats[name] / scale).round() * scale
            if what != "weights":
                wide = what == "per channel" and layer.groups > 1
                hooks.append(layer.register_forward_pre_hook(_rounds(*self._ranges[name], wide)))
        outputs = self._outputs(most)
        for each in hooks:
            each.remove()
        for name in names:
            self.layers[name].weight.data = self._floats[name].clone()
        return outputs

    def _outputs(self, most: int | None = None) -> torch.Tensor:
        images = [torch.from_numpy(each.inputs["images"]) for each in self._images[:most]]
        batches = [torch.stack(images[at : at + 4]) for at in range(0, len(images), 4)]
        with torch.no_grad():
            return torch.cat([self.model(batch) for batch in batches])

    def _map(self, outputs: torch.Tensor) -> float:
        how = PostprocessSettings.model_validate({"yolox": {}}).detector
        decode = Detector(*how)
        decoded = [
            decode({"output": row[None].numpy()}, each.meta, (416, 416))
            for row, each in zip(outputs, self._images, strict=True)
        ]
        ids, targets, meta = ([getattr(each, name) for each in self._images] for name in _ABOUT)
        seen = Predictions(ids, targets, meta, {"output": outputs.numpy()}, decoded)
        return Map().value(Map().records(seen))


def _rounds(low: float, high: float, wide: bool) -> Any:
    """A hook that rounds the input of a layer; `wide`: each channel by its own extremes."""

    def hook(layer: Any, given: Any) -> Any:
        least, most = torch.tensor(low), torch.tensor(high)
        if wide:
            least = given[0].amin((0, 2, 3), keepdim=True).clamp_max(0)
            most = given[0].amax((0, 2, 3), keepdim=True).clamp_min(0)
        scale = ((most - least) / 255).clamp_min(1e-9)
        zero = (-least / scale).round()
        return (((given[0] / scale + zero).round().clamp(0, 255) - zero) * scale,)

    return hook


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
