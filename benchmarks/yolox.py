"""YOLOX-nano as a PyTorch module, with weights from its ONNX file: what can be cut and trained.

    python benchmarks/yolox.py FOLDER/models/yolox_nano.onnx WEIGHTS.safetensors

The file's batch norms are folded, so the module has none. Its output is that of the file, for images
`[n, 3, 416, 416]` `[n, 3549, 85]`: centre and size as YOLOX encodes them, objectness, 80 class scores.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn


def conv(inputs: int, outputs: int, size: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the height and width, but for its stride, and SiLU."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups)
    return nn.Sequential(layer, nn.SiLU())


def separable(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A depthwise convolution of 3 x 3, then one of 1 x 1."""
    return nn.Sequential(conv(inputs, inputs, 3, stride, inputs), conv(inputs, outputs))


class Bottleneck(nn.Module):
    """1 x 1, then separable; `adds` its input to what it gives."""

    def __init__(self, width: int, adds: bool) -> None:
        super().__init__()
        self.adds = adds
        self.first, self.second = conv(width, width), separable(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[n, width, h, w]` of the same shape."""
        y = self.second(self.first(x))
        return y + x if self.adds else y


class Stage(nn.Module):
    """Two branches, one of them through bottlenecks (CSP)."""

    def __init__(self, inputs: int, outputs: int, count: int = 1, adds: bool = True) -> None:
        super().__init__()
        self.deep, self.shallow = conv(inputs, outputs // 2), conv(inputs, outputs // 2)
        self.blocks = nn.Sequential(*(Bottleneck(outputs // 2, adds) for _ in range(count)))
        self.last = conv(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[n, outputs, h, w]`."""
        deep, shallow = self.deep(x), self.shallow(x)
        return self.last(torch.cat([self.blocks(deep), shallow], 1))


class Pooled(nn.Module):
    """A map beside its largest values of 5 x 5, 9 x 9 and 13 x 13 places."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = conv(inputs, inputs // 2), conv(inputs * 2, outputs)
        self.pools = nn.ModuleList(nn.MaxPool2d(size, 1, size // 2) for size in (5, 9, 13))

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[n, outputs, h, w]`."""
        x = self.first(x)
        return self.last(torch.cat([x, *(pool(x) for pool in self.pools)], 1))


class Head(nn.Module):
    """Box, objectness and class scores of each place of a map."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = conv(inputs, width)
        self.for_classes = nn.Sequential(separable(width, width), separable(width, width))
        self.classes = nn.Conv2d(width, classes, 1)
        self.for_boxes = nn.Sequential(separable(width, width), separable(width, width))
        self.boxes, self.objectness = nn.Conv2d(width, 4, 1), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Rows `[n, 5 + classes, h * w]`."""
        x = self.stem(x)
        classes = self.classes(self.for_classes(x))
        y = self.for_boxes(x)
        parts = [self.boxes(y), self.objectness(y).sigmoid(), classes.sigmoid()]
        return torch.cat(parts, 1).flatten(2)


class YoloxNano(nn.Module):
    """The whole detector."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.stem = conv(12, 16, 3)
        self.dark2 = nn.Sequential(separable(16, 32, 2), Stage(32, 32))
        self.dark3 = nn.Sequential(separable(32, 64, 2), Stage(64, 64, 3))
        self.dark4 = nn.Sequential(separable(64, 128, 2), Stage(128, 128, 3))
        self.dark5 = nn.Sequential(
            separable(128, 256, 2), Pooled(256, 256), Stage(256, 256, adds=False)
        )
        self.up = nn.Upsample(scale_factor=2)
        self.lateral, self.up4 = conv(256, 128), Stage(256, 128, adds=False)
        self.reduce, self.up3 = conv(128, 64), Stage(128, 64, adds=False)
        self.down4, self.out4 = separable(64, 64, 2), Stage(128, 128, adds=False)
        self.down5, self.out5 = separable(128, 128, 2), Stage(256, 256, adds=False)
        self.heads = nn.ModuleList(Head(width, 64, classes) for width in (64, 128, 256))

    def forward(self, images: Tensor) -> Tensor:
        """Rows `[n, places, 5 + classes]` of images `[n, 3, h, w]`."""
        rows = images[..., ::2, :], images[..., 1::2, :]
        x = torch.cat([each[..., start::2] for start in (0, 1) for each in rows], 1)
        map3 = self.dark3(self.dark2(self.stem(x)))
        map4 = self.dark4(map3)
        top = self.lateral(self.dark5(map4))
        middle = self.reduce(self.up4(torch.cat([self.up(top), map4], 1)))
        out3 = self.up3(torch.cat([self.up(middle), map3], 1))
        out4 = self.out4(torch.cat([self.down4(out3), middle], 1))
        out5 = self.out5(torch.cat([self.down5(out4), top], 1))
        maps = zip(self.heads, (out3, out4, out5), strict=True)
        return torch.cat([head(each) for head, each in maps], 2).transpose(1, 2)


def convolutions(model: nn.Module) -> list[tuple[str, nn.Conv2d]]:
    """The convolutions with their names, in the order in which they compute."""
    called: list[tuple[str, nn.Conv2d]] = []
    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Conv2d)]
    hooks = [
        layer.register_forward_hook(lambda *_, name=name, layer=layer: called.append((name, layer)))
        for name, layer in layers
    ]
    with torch.no_grad():
        model(torch.zeros(1, 3, 64, 64))
    for hook in hooks:
        hook.remove()
    return called


def weights(path: Path) -> dict[str, Tensor]:
    """The state of the module from the file: both compute their convolutions in the same order."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "Conv"]
    model = YoloxNano().eval()
    with torch.no_grad():
        for (_, layer), node in zip(convolutions(model), nodes, strict=True):
            for value, name in zip((layer.weight, layer.bias), node.input[1:], strict=True):
                if tuple(value.shape) != constants[name].shape:
                    raise ValueError(f"{name} has the shape {constants[name].shape}")
                value.copy_(torch.tensor(constants[name]))
    return model.state_dict()


if __name__ == "__main__":
    import safetensors.torch

    safetensors.torch.save_file(weights(Path(sys.argv[1])), sys.argv[2])
