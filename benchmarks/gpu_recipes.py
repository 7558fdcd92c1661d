"""The recipes of `gpu_check.py`: which networks, in which variants, in which order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BATCH_SIZES = (1, 8, 32)
BASELINE = "eager"
LATE = ("more",)
# Networks that compute in halves, in PyTorch alone; run where they are named.
HALVES = ("resnet50_fp16", "resnet50_bf16", "mobilenet_v3_fp16")
_CODE = Path(__file__).with_name("gpu_networks.py")
_EXPORT = {"export_onnx": {"opset": 17}}  # TensorRT 8.6 knows no newer one


@dataclass(frozen=True)
class Network:
    """One network: its source, its input, the batch sizes it takes, and what judges it."""

    name: str
    target: str
    size: int
    input: str = "image"
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    judged: dict[str, Any] = field(default_factory=dict)

    @property
    def is_onnx(self) -> bool:
        return self.target.startswith("onnx:")


def torch_network(name: str, size: int, batch_sizes: tuple[int, ...] = BATCH_SIZES) -> Network:
    """One of `gpu_networks.py`."""
    return Network(name, f"python:{_CODE}:{name}", size, batch_sizes=batch_sizes)


def networks(shared: Path) -> list[Network]:
    """ResNet-50 first, since the bars are its; a trained detector where there is one below `shared`."""
    found = [
        torch_network("resnet50", 224),
        torch_network("mobilenet_v3", 224),
        torch_network("vit_b_16", 224),
        torch_network("detector", 320),
    ]
    yolox = shared / "models" / "yolox_nano.onnx"
    if yolox.is_file():
        judged = _coco(shared / "datasets" / "coco_tiny_val")
        found.append(Network("yolox_nano", f"onnx:{yolox}", 416, "images", (1,), judged))
    return found


def named(shared: Path, names: str | None) -> list[Network]:
    """The networks of these names, with commas; all of `networks` without."""
    found = networks(shared)
    if not names:
        return found
    known = [*found, *(torch_network(each, 224) for each in HALVES)]
    return [each for each in known if each.name in names.split(",")]


def _coco(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        return {}
    prepare = {"letterbox": {"size": 416, "fill": 114, "align": "top_left"}, "channel_order": "bgr"}
    common = {"source": f"coco:{folder}", "prepare": prepare}
    return {
        "data": {
            "calibration": {**common, "split": {"seed": 0, "from": 0.0, "to": 0.25}, "samples": 20},
            "evaluation": {**common, "split": {"seed": 0, "from": 0.25, "to": 1.0}, "samples": 60},
        },
        "postprocess": {"yolox": {}},
        "accuracy": {"metric": "map", "max_drop": 0.02},
    }


def stages(network: Network, *, dry: bool = False) -> dict[str, dict[str, Any]]:
    """Variants by stage, the most telling first; each stage is one build beside the baseline.

    Stages in `LATE` wait until all networks had the others. Variants whose passes this optcli does not
    have are left out.
    """
    found: dict[str, dict[str, Any]]
    if dry:
        found = {"torch": {"script": ["torchscript"]}, "more": {"layout": ["channels_last"]}}
    elif network.name in HALVES:
        found = {
            "torch": {name: each for name, each in _torch().items() if name in ("compile", "aoti")}
        }
    elif network.is_onnx:
        found = {"tensorrt": _engines([]), "more": _more([])}
    else:
        found = {"torch": _torch(), "tensorrt": _engines([_EXPORT]), "more": _more([_EXPORT])}
    from optcli import passes

    known = set(passes.names())
    return {
        stage: {name: each for name, each in variants.items() if _names(each) <= known}
        for stage, variants in found.items()
    }


def _torch() -> dict[str, Any]:
    cuda = {"name": "torch", "device": "cuda"}
    return {
        "eager-tf32": {"runner": {**cuda, "tf32": True}},
        "eager-amp": {"passes": ["channels_last"], "runner": {**cuda, "autocast": "fp16"}},
        "compile": [{"torch_compile": {"device": "cuda"}}],
        "aoti": [{"aot_inductor": {"device": "cuda"}}],
        "onnx-cuda": {"passes": [_EXPORT], "runner": {"name": "onnxruntime", "provider": "cuda"}},
    }


def _engines(before: list[Any]) -> dict[str, Any]:
    int8 = {"quantize_onnxruntime": {"target": "tensorrt"}}
    return {
        "trt-fp16": [*before, {"tensorrt_engine": {"precision": "fp16"}}],
        "trt-fp32": [*before, {"tensorrt_engine": {"precision": "fp32"}}],
        "trt-tf32": [*before, {"tensorrt_engine": {"precision": "tf32"}}],
        "trt-int8": [*before, int8, {"tensorrt_engine": {"precision": "int8"}}],
        "trt-bf16": [*before, {"tensorrt_engine": {"precision": "bf16"}}],
    }


def _more(before: list[Any]) -> dict[str, Any]:
    fp8 = {"quantize_onnxruntime": {"target": "tensorrt", "precision": "fp8"}}
    export = ["export_onnx"] if before else []  # FP8 needs a newer opset
    graphs = {"name": "onnxruntime", "provider": "cuda", "cuda_graphs": True}
    found = {
        "onnx-cuda-graphs": {"passes": before, "runner": graphs},
        "onnx-cuda-fp16": {
            "passes": [*before, "convert_precision"],
            "runner": {"name": "onnxruntime", "provider": "cuda"},
        },
        "trt-fp8": [*export, fp8, {"tensorrt_engine": {"precision": "fp8"}}],
        "rtx-fp16": [*before, {"tensorrt_rtx_engine": {"precision": "fp16"}}],
    }
    if before:
        found["compile-graphs"] = [{"torch_compile": {"device": "cuda", "mode": "reduce-overhead"}}]
        found["script"] = {
            "passes": ["torchscript"],
            "runner": {"name": "torchscript", "device": "cuda"},
        }
    return found


def _names(variant: Any) -> set[str]:
    used = variant if isinstance(variant, list) else variant.get("passes", [])
    return {each if isinstance(each, str) else next(iter(each)) for each in used}


def baseline(network: Network, *, dry: bool = False) -> dict[str, Any]:
    """FP32 as it comes: eager PyTorch, or ONNX Runtime for what is an ONNX file."""
    if dry:
        return {"passes": []}
    if network.is_onnx:
        return {"passes": [], "runner": {"name": "onnxruntime", "provider": "cuda"}}
    return {"passes": [], "runner": {"name": "torch", "device": "cuda"}}


def write(network: Network, folder: Path, *, dry: bool = False) -> Path:
    """The recipe and its samples below `folder`; every variant may fail without harm to the others."""
    folder.mkdir(parents=True, exist_ok=True)
    batch = {"min": 1, "opt": min(8, max(network.batch_sizes)), "max": max(network.batch_sizes)}
    first = network.batch_sizes[0] if len(network.batch_sizes) == 1 else "batch"
    shape = [first, 3, network.size, network.size]
    spec = {"name": network.input, "shape": shape, **({"batch": batch} if first == "batch" else {})}
    variants: dict[str, Any] = {BASELINE: baseline(network, dry=dry)}
    for stage in stages(network, dry=dry).values():
        for name, each in stage.items():
            variants[name] = {
                **({"passes": each} if isinstance(each, list) else each),
                "required": False,
            }
    recipe = {
        "version": 1,
        "name": f"gpu-check-{network.name}",
        "model": {"source": network.target},
        "inputs": [spec],
        "data": _samples(network, folder),
        "latency": {
            "mode": "quick",
            "batch_sizes": list(network.batch_sizes),
            **({"launches": 1, "max_seconds": 0.05} if dry else {}),  # no exact times are needed
        },
        **network.judged,
        "variants": variants,
    }
    path = folder / f"{network.name}.yaml"
    path.write_text(json.dumps(recipe, indent=2))  # which is YAML, too
    return path


def _samples(network: Network, folder: Path) -> dict[str, Any]:
    """Calibration and evaluation of random images: enough to compare outputs, and to set ranges."""
    import numpy as np
    from gpu_networks import images

    found = {}
    for seed, role in enumerate(("calibration", "evaluation"), start=100):
        count = 64 if network.size < 300 else 32
        np.savez(
            folder / f"{network.name}-{role}.npz",
            **{network.input: images(count, network.size, seed).numpy()},
        )
        found[role] = {"source": f"npz:{network.name}-{role}.npz"}
    return found
