"""The networks of `sweep_passes.py`, with the images they are fed: realistic weights, small images.

Random weights mislead: without batch norm statistics activations shrink to nothing, and every
quantizer looks broken. So a network is a trained one where there is one, else its batch norms are
averaged over real images.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from optcli.settings import TensorSpec
from optcli.workers import Channel

VITS = '''\
import torch
import torchvision


def random(seed: int = 0) -> torch.nn.Module:
    """4 layers, 192 wide, 64x64 images in patches of 16; torchvision's head would be all zeros."""
    torch.manual_seed(seed)
    model = torchvision.models.VisionTransformer(
        image_size=64, patch_size=16, num_layers=4, num_heads=3, hidden_dim=192, mlp_dim=768,
        num_classes=100,
    )
    torch.nn.init.normal_(model.heads.head.weight, std=0.05)
    return model


def fashion() -> torch.nn.Module:
    """6 layers, 128 wide, 32x32 images in patches of 4."""
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=4, num_layers=6, num_heads=4, hidden_dim=128, mlp_dim=256,
        num_classes=10,
    )
'''
_PHOTOS = {"channel_order": "rgb", "scale": "1/255", "mean": [0.485, 0.456, 0.406],
           "std": [0.229, 0.224, 0.225]}  # fmt: skip
_FASHION = {
    "resize_in": "float32",
    "channel_order": "rgb",
    "scale": "1/255",
    "mean": 0.2860,
    "std": 0.3530,
}


@dataclass(frozen=True)
class Network:
    """A network as a recipe would name it; `{work}` and `{shared}` stand for folders.

    `make` is a function below that writes what `weights` or `target` names.
    """

    kind: str
    target: str
    size: int
    images: str
    weights: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    make: str | None = None

    @property
    def starts_as(self) -> str:
        return "onnx" if self.kind == "onnx" else "torch"

    def inputs(self) -> tuple[TensorSpec, ...]:
        shape = ("batch", 3, self.size, self.size)
        return (TensorSpec(name="image", shape=shape, ranges={"batch": {"opt": 8, "max": 16}}),)

    def data(self, shared: Path) -> dict[str, dict[str, Any]]:
        """The settings of each data role."""
        if self.images == "fashion":
            common = {"source": "torchvision:FashionMNIST", "root": str(shared / "datasets")}
            common["prepare"] = {"resize": self.size, **_FASHION}
            parts = [{"split": "train"}] * 3 + [{"split": "test"}]
        else:
            common = {"source": f"imagefolder:{shared / 'datasets' / 'imagenet_1000' / 'images'}"}
            common["prepare"] = {"resize": self.size, "crop": self.size, **_PHOTOS}
            bounds = ((0.0, 0.4), (0.4, 0.8), (0.8, 0.9), (0.9, 1.0))
            parts = [{"split": {"seed": 0, "from": low, "to": high}} for low, high in bounds]
        counts = {"calibration": 128, "training": 96, "validation": 32, "evaluation": 16}
        return {
            role: {**common, **part, "samples": count}
            for (role, count), part in zip(counts.items(), parts, strict=True)
        }

    def source(self, work: Path, shared: Path) -> dict[str, Any]:
        """The options of the source."""
        fill = {"work": str(work), "shared": str(shared)}
        weights = self.weights and self.weights.format(**fill)
        target = self.target.format(**fill)
        return {"target": target, "folder": str(work), "weights": weights, "arguments": self.arguments}


NETWORKS = {
    "resnet18": Network("torchvision", "resnet18", 64, "photos", "{work}/resnet18.safetensors",
                        make="averaged"),
    "mobilenet_v3_small": Network("torchvision", "mobilenet_v3_small", 64, "fashion",
                                  "{shared}/models/mobilenet_v3_small_fashion.safetensors",
                                  {"num_classes": 10}),
    "vit": Network("python", "vits.py:random", 64, "photos"),
    "vit_tiny": Network("python", "vits.py:fashion", 32, "fashion",
                        "{shared}/models/vit_tiny_fashion.safetensors"),
    "onnx_file": Network("onnx", "{work}/plain.onnx", 64, "photos", make="plain_onnx"),
}  # fmt: skip


def averaged(payload: dict[str, Any], channel: Channel) -> None:
    """Write a torchvision network of a fixed seed whose batch norms are averaged over real images."""
    import torch
    import torchvision
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = torchvision.models.get_model(payload["target"], weights=None).train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        for batch in torch.from_numpy(np.load(payload["images"])["image"]).split(16):
            model(batch)
    save_file(model.state_dict(), payload["weights"])


def plain_onnx(payload: dict[str, Any], channel: Channel) -> None:
    """Write an ONNX file that no exporter made.

    Depthwise, grouped and transposed convolutions, concat, resize. Two outputs: a map half as large as
    the image, and the probabilities of 10 classes.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []

    def constant(name: str, array: np.ndarray) -> str:
        tensors.append(numpy_helper.from_array(array, name))
        return name

    def node(kind: str, reads: list[str], made: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, reads, [made], name=f"the/{made}", **attributes))
        return made

    def conv(x: str, made: str, shape: tuple[int, ...], stride: int = 1, group: int = 1) -> str:
        spread = np.sqrt(2 / np.prod(shape[1:]))
        weight = constant(f"{made}.w", (spread * generator.standard_normal(shape)).astype(np.float32))
        bias = constant(f"{made}.b", (0.1 * generator.standard_normal(shape[0])).astype(np.float32))
        pads = [shape[2] // 2] * 4
        return node("Conv", [x, weight, bias], made, strides=[stride] * 2, pads=pads, group=group)

    low, high = constant("zero", np.zeros((), np.float32)), constant("six", np.full((), 6, np.float32))
    x = node("Clip", [conv("image", "stem", (16, 3, 3, 3), 2), low, high], "stem6")
    x = node("Clip", [conv(x, "depthwise", (16, 1, 3, 3), group=16), low, high], "depthwise6")
    deep = node("Relu", [conv(x, "grouped", (32, 4, 3, 3), 2, group=4)], "grouped_relu")
    scales = constant("scales", np.array([1, 1, 2, 2], np.float32))
    up = node("Resize", [deep, "", scales], "up", mode="nearest",
              coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    both = node("Concat", [up, x], "both", axis=1)
    x = node("HardSwish", [conv(both, "point", (48, 48, 1, 1))], "swish")
    x = node("Add", [x, both], "sum")
    spread = (0.1 * generator.standard_normal((48, 8, 2, 2))).astype(np.float32)
    node("ConvTranspose", [x, constant("transposed.w", spread)], "transposed", strides=[2, 2])
    conv(node("Relu", ["transposed"], "large"), "to_map", (2, 8, 1, 1))
    halves = constant("halves", np.array([1, 1, 0.5, 0.5], np.float32))
    node("Resize", ["to_map", "", halves], "map", mode="linear",
         coordinate_transformation_mode="half_pixel")  # fmt: skip
    pooled = node("Flatten", [node("GlobalAveragePool", [x], "pool")], "flat", axis=1)
    weight = constant("fc.w", (0.15 * generator.standard_normal((10, 48))).astype(np.float32))
    bias = constant("fc.b", np.zeros(10, np.float32))
    logits = node("Gemm", [pooled, weight, bias], "logits", transB=1)
    node("Softmax", [logits], "probabilities", axis=-1)
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 64, 64])
    made = [
        helper.make_tensor_value_info("map", TensorProto.FLOAT, ["N", 2, 32, 32]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 10]),
    ]
    graph = helper.make_graph(nodes, "plain", [image], made, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, payload["target"])
