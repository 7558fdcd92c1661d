"""A small network for 28x28 grey images, as a user might have one."""

from __future__ import annotations

import torch
from torch import nn


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class FashionNet(nn.Module):
    """Five convolutions, pooling, and a linear layer: [n, 1, 28, 28] to the logits of ten classes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _block(1, width, 1),
            _block(width, 2 * width, 2),
            _block(2 * width, 2 * width, 1),
            _block(2 * width, 4 * width, 2),
            _block(4 * width, 4 * width, 1),
        )
        self.head = nn.Linear(4 * width, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(image).mean((2, 3)))
