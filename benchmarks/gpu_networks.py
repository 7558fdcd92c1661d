"""The networks of `gpu_check.py`: torchvision's, with seeded weights that behave like trained ones.

    python benchmarks/gpu_networks.py resnet50 mobilenet_v3 vit_b_16

prints how many dB of signal to noise PyTorch keeps of each in fp16 and bf16, on the CPU.

Weights cannot be fetched where nothing can be installed. Seeded ones alone would mislead: without
statistics of their own batch norms let activations grow or vanish, and ViT's head is all zeros. So the
statistics are those of a few seeded images, and the head is drawn at random.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torchvision

_IMAGES, _BATCHES = 8, 2


def resnet50() -> torch.nn.Module:
    """ResNet-50."""
    return _averaged(torchvision.models.resnet50, 224)


def mobilenet_v3() -> torch.nn.Module:
    """MobileNetV3-Large."""
    return _averaged(torchvision.models.mobilenet_v3_large, 224)


def vit_b_16() -> torch.nn.Module:
    """ViT-B/16."""
    torch.manual_seed(0)
    model = torchvision.models.vit_b_16(weights=None)
    torch.nn.init.normal_(model.heads.head.weight, std=0.05)
    return model.eval()


class Detector(torch.nn.Module):
    """RetinaNet on a ResNet-50 with a feature pyramid: scores and boxes of all anchors, not decoded."""

    def __init__(self) -> None:
        super().__init__()
        whole = torchvision.models.detection.retinanet_resnet50_fpn_v2(
            weights=None, weights_backbone=None
        )
        self.backbone, self.head = whole.backbone, whole.head

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        """`image` is [batch, 3, height, width]; scores are [batch, anchors, 91], boxes [.., .., 4]."""
        found = self.head(list(self.backbone(image).values()))
        return {"scores": found["cls_logits"], "boxes": found["bbox_regression"]}


def detector() -> torch.nn.Module:
    """A detector at 320 x 320."""
    return _averaged(Detector, 320)


class Tiny(torch.nn.Module):
    """Three layers, for trying the script itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, stride=2)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """`image` is [batch, 3, 32, 32]."""
        found: torch.Tensor = self.head(torch.relu(self.norm(self.conv(image))).mean((2, 3)))
        return found


def tiny() -> torch.nn.Module:
    """A network for the dry run."""
    return _averaged(Tiny, 32)


def images(count: int, size: int, seed: int) -> torch.Tensor:
    """Smooth random images, [count, 3, size, size], about as bright as normalized photographs."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn((count, 3, size // 16, size // 16), generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size, mode="bilinear")
    return smooth + 0.1 * torch.randn(smooth.shape, generator=generator)


class Halved(torch.nn.Module):
    """A network that computes in a half precision, channels last; it takes and gives float32."""

    def __init__(self, network: torch.nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.dtype = network.to(dtype, memory_format=torch.channels_last), dtype

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """`image` is [batch, 3, height, width]."""
        found: torch.Tensor = self.network(
            image.to(self.dtype, memory_format=torch.channels_last)
        ).float()
        return found


def resnet50_fp16() -> torch.nn.Module:
    """ResNet-50 in float16."""
    return Halved(resnet50(), torch.float16).eval()


def resnet50_bf16() -> torch.nn.Module:
    """ResNet-50 in bfloat16."""
    return Halved(resnet50(), torch.bfloat16).eval()


def mobilenet_v3_fp16() -> torch.nn.Module:
    """MobileNetV3-Large in float16."""
    return Halved(mobilenet_v3(), torch.float16).eval()


def _averaged(make: type[torch.nn.Module], size: int) -> torch.nn.Module:
    torch.manual_seed(0)
    model = make().train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        for seed in range(_BATCHES):
            model(images(_IMAGES, size, seed))
    return model.eval()


def _kept_db(make: Callable[[], torch.nn.Module], dtype: torch.dtype, image: torch.Tensor) -> float:
    with torch.no_grad():
        wanted = make()(image).double()
        found = make().to(dtype)(image.to(dtype)).double()
    return float(10 * torch.log10(wanted.square().sum() / (wanted - found).square().sum()))


def main() -> None:
    """Print what halves keep of the networks that are named."""
    makes = {"resnet50": resnet50, "mobilenet_v3": mobilenet_v3, "vit_b_16": vit_b_16}
    for name in sys.argv[1:] or makes:
        for dtype in (torch.float16, torch.bfloat16):
            print(f"{name} {dtype}: {_kept_db(makes[name], dtype, images(16, 224, 101)):.1f} dB")


if __name__ == "__main__":
    main()
