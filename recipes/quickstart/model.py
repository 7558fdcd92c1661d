"""The network of the quickstart: a small residual classifier of hand-written digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions around which the input is led and added."""

    def __init__(self, source: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(source, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or source != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(source, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """[batch, source, h, w] to [batch, width, h / stride, w / stride]."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class DigitsNet(nn.Module):
    """Images [batch, 1, 32, 32], about -1..1, to logits [batch, 10]."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        blocks = [Block(width, width) for _ in range(depth)]
        blocks += [Block(width, 2 * width, stride=2)]
        blocks += [Block(2 * width, 2 * width) for _ in range(depth - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Images to logits."""
        x = self.blocks(self.stem(image))
        return self.head(x.mean((2, 3)))
