"""Four real networks as ONNX: trained ones where they are, else torchvision's with a seed."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.settings import TensorSpec

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("OPTCLI_SHARED") or REPOSITORY.parent / "shared") / "models"

# Kind: file in the shared folder, name and shape of its input, and what real samples vary by.
_FILES: dict[str, tuple[str, str, tuple[int | str, ...], float]] = {
    "resnet": ("resnet20_cifar10", "input", ("batch", 3, 32, 32), 1.0),
    "mobilenet": ("mobilenet_v3_small_fashion", "input", ("batch", 3, 64, 64), 1.0),
    "vit": ("vit_tiny_fashion", "input", ("batch", 3, 32, 32), 1.0),
    "detector": ("yolox_nano", "images", (1, 3, 416, 416), 60.0),
}
KINDS = tuple(_FILES)
# Decibels of signal over the noise of INT8, of the file and of the untrained network. YOLOX keeps
# 10 to 12 on noise with any quantizer, in any integers.
_INT8_DB = {"resnet": (20, 12), "mobilenet": (13, 6), "vit": (15, 10), "detector": (8, 4)}
_RANGES = {"batch": {"min": 1, "opt": 4, "max": 16}}


@dataclass(frozen=True)
class Network:
    """An ONNX artifact's folder, its inputs, and the spread of noise that stands for samples.

    `fp16_db` and `int8_db` are what it keeps of its signal: less where weights were never trained.
    """

    folder: Path
    inputs: tuple[TensorSpec, ...]
    scale: float
    fp16_db: float
    int8_db: float

    @property
    def is_dynamic(self) -> bool:
        return bool(self.inputs[0].symbols)


def network(kind: str, folder: Path) -> Network:
    """One of `KINDS`, written below `folder`."""
    from optcli.models.formats import onnx as onnx_format

    name, given, shape, scale = _FILES[kind]
    out = folder / kind
    out.mkdir(parents=True)
    file = SHARED / f"{name}.onnx"
    trained = file.is_file()
    if trained:
        shutil.copyfile(file, out / onnx_format.FILE)
    else:
        given, shape, scale = "input", ("batch", 3, 64, 64), 1.0
        _export(_of_torchvision(kind), out / onnx_format.FILE)
    ranges = _RANGES if "batch" in shape else {}
    inputs = (TensorSpec(name=given, shape=shape, ranges=ranges),)
    return Network(out, inputs, scale, 45 if trained else 35, _INT8_DB[kind][not trained])


def _of_torchvision(kind: str) -> Any:
    import torch
    from torchvision import models
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    class Heads(torch.nn.Module):
        """A detector without its last step, which counts boxes: TensorRT-RTX knows no NonZero."""

        def __init__(self, detector: Any) -> None:
            super().__init__()
            self.backbone, self.head = detector.backbone, detector.head

        def forward(self, images: Any) -> Any:
            found = self.head(list(self.backbone(images).values()))
            return torch.cat([found["bbox_regression"], found["cls_logits"]], dim=2)

    torch.manual_seed(0)
    if kind == "vit":
        made = models.VisionTransformer(64, 16, 4, 2, 64, 128, num_classes=10)
        torch.nn.init.normal_(made.heads.head.weight)  # zeros, as it comes
    elif kind == "detector":
        made = Heads(ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None))
    else:
        named = {"resnet": "resnet18", "mobilenet": "mobilenet_v3_small"}[kind]
        made = models.get_model(named, weights=None)
    return _with_statistics(made)


def _with_statistics(model: Any) -> Any:
    """Batch normalization gets the statistics of noise: with none signals vanish in deep networks."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        model.train()(torch.randn(16, 3, 64, 64))
    return model.eval()


def _export(model: Any, path: Path) -> None:
    import torch

    torch.onnx.export(
        model,
        (torch.zeros(2, 3, 64, 64),),
        path,
        input_names=["input"],
        output_names=["output"],
        dynamic_shapes=({0: torch.export.Dim("batch", max=64)},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
