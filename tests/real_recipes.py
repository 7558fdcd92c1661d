"""Recipes about real models and data, as a user would write them; `${SHARED}` is the folder of both."""

HURRIED = "latency: {launches: 1, rounds: 2, calls: 2, warmup: 1, max_seconds: 0.1, threads: 1}\n"

BLOCK = """\
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shrinks, self.pad = before != after, after // 4

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.shrinks:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(x + y)
"""
RESNET = """\
import torch.nn.functional as F
from torch import nn

from block import Block


class ResNet(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for index, (before, after) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
            first = Block(before, after, 1 if index == 1 else 2)
            blocks = [first, *(Block(after, after, 1) for _ in range(n - 1))]
            setattr(self, f"layer{index}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64, 10)

    def forward(self, image):
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(image))))))
        return self.linear(x.mean((2, 3)))
"""
RESNET20 = """\
version: 1
name: resnet20
model:
  source: python:resnet.py:ResNet
  weights: ${SHARED}/models/resnet20_cifar10.pth
  arguments: {n: 3}
inputs:
  - {name: image, dtype: float32, shape: [batch, 3, 32, 32], batch: {min: 1, opt: 8, max: 64}}
data:
  calibration:
    source: imagefolder:${SHARED}/datasets/cifar10_subset/train
    samples: 64
    prepare: &p {scale: 1/255, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
  evaluation:
    {source: "imagefolder:${SHARED}/datasets/cifar10_subset/test", samples: 600, prepare: *p}
accuracy: {metric: top1, max_drop: 0.01, batch_size: 64}
variants:
  eager: []
  onnx-int8: [export_onnx, quantize_nncf]
  pruned: [{prune: {ratio: 0.1, round_to: 2}}]
"""

FASHION = """\
version: 1
name: fashion
model:
  source: torchvision:mobilenet_v3_small
  weights: ${SHARED}/models/mobilenet_v3_small_fashion.safetensors
  arguments: {num_classes: 10}
inputs:
  - {name: image, dtype: float32, shape: [batch, 3, 64, 64], batch: {min: 1, opt: 8, max: 32}}
data:
  calibration:
    source: torchvision:FashionMNIST
    root: ${SHARED}/datasets
    split: train
    samples: 50
    prepare: &p
      {resize: 64, resize_in: float32, channel_order: rgb, scale: 1/255, mean: 0.2860, std: 0.3530}
  evaluation: {source: "torchvision:FashionMNIST", root: "${SHARED}/datasets", split: test,
               samples: 600, prepare: *p}
accuracy: {metric: top1, max_drop: 0.01}
variants:
  eager: []
  openvino-int8: [export_onnx, to_openvino, {quantize_nncf: {preset: mixed}}]
"""

YOLOX = """\
version: 1
name: yolox
model: {source: "onnx:${SHARED}/models/yolox_nano.onnx"}
inputs:
  - {name: images, dtype: float32, shape: [1, 3, 416, 416]}
data:
  calibration:
    source: imagefolder:${SHARED}/datasets/coco_tiny_val/images
    split: {seed: 0, to: 0.5}
    samples: 5
    prepare: &p {letterbox: {size: 416, fill: 114}, channel_order: bgr}
  evaluation:
    source: imagefolder:${SHARED}/datasets/coco_tiny_val/images
    split: {seed: 0, from: 0.5}
    samples: 4
    prepare: *p
variants:
  onnx: []
  openvino: [to_openvino]
  openvino-int8: [to_openvino, quantize_nncf]
"""

TWO = """\
import torch
from torch import nn


class Two(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.image = nn.Conv2d(1, width, 3, 2, 1)
        self.table = nn.Linear(5, width)
        self.head = nn.Linear(2 * width, 3)

    def forward(self, image, numbers):
        a, b = self.image(image).relu().mean((2, 3)), self.table(numbers).relu()
        return {"extra": (a, b), "logits": self.head(torch.cat([a, b], 1))}
"""
TWO_INPUTS = """\
version: 1
name: two
model: {source: python:two.py:Two, arguments: {width: 16}}
inputs:
  - {name: image, dtype: float32, shape: [batch, 1, 16, 16], batch: {min: 1, opt: 8, max: 16}}
  - {name: numbers, dtype: float32, shape: [batch, 5], batch: {min: 1, opt: 8, max: 16}}
data:
  calibration: {source: npz:two.npz, split: calibration}
  evaluation: {source: npz:two.npz, split: evaluation}
accuracy: {metric: top1, output: logits, max_drop: 0.05}
variants:
  eager: []
  onnx-int8: [export_onnx, quantize_nncf]
  openvino: [export, to_openvino]
"""
