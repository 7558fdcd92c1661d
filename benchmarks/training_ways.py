"""Images per second of processor time that networks train, by memory layout, precision and memory.

    python benchmarks/training_ways.py [--seconds 3] [--turns 2] [--networks resnet18@64,vit_tiny@32]

One thread, random weights and images (NAME@SIZE of torchvision; `vit_tiny@32` is a small vision
transformer), AdamW. In processor time, because other work on the machine changes that the least. In
brackets: beside the first way of the same turn, the least and the most of the turns. It is what
`finetune` goes by. `--layers` takes single layers, in FP32 and in bfloat16, forward and backward.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import nullcontext
from typing import Any

import checked

NETWORKS = (
    "vit_tiny@32,swin_t@64,convnext_tiny@64,efficientnet_v2_s@64,resnext50_32x4d@64,regnet_y_400mf@64,"
    "squeezenet1_1@64,resnet18@32,efficientnet_b0@64,mobilenet_v3_large@64,shufflenet_v2_x1_0@64"
)
# Channels last, precision of products, freed memory kept. "mixed" is the bfloat16 of `finetune`:
# attention and convolutions with few channels in a group stay in FP32.
WAYS = {
    "channels first": (False, "fp32", False),
    "channels first, memory kept": (False, "fp32", True),
    "channels last, memory kept": (True, "fp32", True),
    "channels first, memory kept, bfloat16": (False, "bf16", True),
    "channels last, memory kept, bfloat16": (True, "bf16", True),
    "channels last, memory kept, mixed": (True, "mixed", True),
}
# Rows by width of linear layers; channels, size of the image, kernel, stride, groups of convolutions.
LINEAR = [(32, 64), (32, 256), (32, 1024), (256, 32), (256, 64), (2048, 64), (2048, 192), (2048, 768)]
CONVOLUTIONS = [
    *((32, 32, 1, 1, 1), (192, 8, 1, 1, 1), (64, 32, 3, 1, 1), (192, 8, 3, 1, 1)),
    *(
        (96, 16, 3, 1, 12),
        (64, 16, 3, 1, 16),
        (64, 16, 3, 1, 32),
        (64, 16, 3, 2, 16),
        (64, 16, 3, 2, 32),
    ),
    *(
        (64, 32, 3, 1, 64),
        (64, 32, 7, 1, 64),
        (240, 8, 5, 1, 240),
        (64, 32, 3, 2, 64),
        (672, 4, 3, 2, 672),
    ),
]


def main() -> None:
    """Train each network in each way, in a process of its own, in turns; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--images", type=int, default=16, help="in a step")
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--ways", default=";".join(WAYS), help="of the table's columns, with ; between")
    parser.add_argument("--layers", action="store_true", help="single layers in place of networks")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.layers:
        _print_layers(arguments.turns, arguments.seconds)
        return
    if arguments.one:
        network, way = arguments.one.split("|")
        rate = _trained(network, arguments.images, *WAYS[way], arguments.seconds)
        sys.stdout.write(json.dumps(rate))
        return
    ways = arguments.ways.split(";")
    sys.stdout.write(f"| network | {' | '.join(ways)} |\n| --- |{' --- |' * len(ways)}\n")
    for network in arguments.networks.split(","):
        found: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(arguments.turns):
            for way in ways if turn % 2 == 0 else reversed(ways):
                found[way].append(_in_a_process(network, way, arguments))
        first = next(iter(found.values()))
        cells = " | ".join(_cell(rates, first) for rates in found.values())
        sys.stdout.write(f"| {network} | {cells} |\n")
        sys.stdout.flush()


def _cell(rates: list[float], first: list[float]) -> str:
    ratios = [mine / theirs for mine, theirs in zip(rates, first, strict=True)]
    mean = sum(rates) / len(rates)
    least, most = (f"{each:.2f}" for each in (min(ratios), max(ratios)))
    return f"{mean:.{0 if mean >= 20 else 1}f} ({least if least == most else f'{least} to {most}'})"


def _in_a_process(network: str, way: str, arguments: argparse.Namespace) -> float:
    command = [sys.executable, __file__, "--one", f"{network}|{way}"]
    command += ["--seconds", str(arguments.seconds), "--images", str(arguments.images)]
    who = f"{network}, {way}"
    rate = checked.answer(who, command)
    checked.figures(who, {"the rate": rate}, "the rate")
    return float(rate)


def _trained(name: str, count: int, last: bool, precision: str, kept: bool, seconds: float) -> float:
    import torch

    from optcli.passes._torch import bfloat16
    from optcli.workers import memory

    if kept:
        memory.keep_freed()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind, _, size = name.partition("@")
    layout = torch.channels_last if last else torch.contiguous_format
    model = _network(kind, int(size)).to(memory_format=layout).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    casts = {
        "fp32": nullcontext,
        "bf16": lambda: torch.autocast("cpu", torch.bfloat16),
        "mixed": bfloat16.casting(model, "cpu"),
    }
    images = torch.randn(count, 3, int(size), int(size)).contiguous(memory_format=layout)
    labels = torch.randint(0, 10, (count,))

    def step() -> None:
        optimizer.zero_grad()
        with casts[precision]():
            scores = model(images)
        torch.nn.functional.cross_entropy(scores.float(), labels).backward()
        optimizer.step()

    step()
    step()
    steps, began, end = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end or steps < 3:
        step()
        steps += 1
    return count * steps / (time.process_time() - began)


def _print_layers(turns: int, seconds: float) -> None:
    """The milliseconds of layers, a mean over turns, and how many times as fast bfloat16 is."""
    import torch
    from torch import nn

    from optcli.workers import memory

    memory.keep_freed()
    torch.set_num_threads(1)
    made: dict[str, tuple[Any, Any]] = {}
    for rows, width in LINEAR:
        name = f"linear, {width} to {4 * width}, {rows} rows"
        made[name] = (nn.Linear(width, 4 * width), torch.randn(rows, width))
    for channels, size, kernel, stride, groups in CONVOLUTIONS:
        name = f"convolution {kernel}x{kernel}, stride {stride}, {channels}@{size}"
        layer = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
        images = torch.randn(16, channels, size, size)
        made[f"{name}, {channels // groups} channels in a group"] = tuple(
            each.to(memory_format=torch.channels_last) for each in (layer, images)
        )
    sys.stdout.write("| layer | FP32 ms | bfloat16 ms | times as fast |\n| --- | --- | --- | --- |\n")
    for name, (layer, taken) in made.items():
        found = [[_layer_ms(layer, taken, c, seconds) for c in (False, True)] for _ in range(turns)]
        exact, cast = (sum(column) / turns for column in zip(*found, strict=True))
        ratios = sorted(a / b for a, b in found)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        sys.stdout.write(f"| {name} | {exact:.2f} | {cast:.2f} | {spread} |\n")
        sys.stdout.flush()


def _layer_ms(layer: Any, taken: Any, cast: bool, seconds: float) -> float:
    import torch

    taken = taken.clone().requires_grad_()

    def step() -> None:
        taken.grad = None
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            given = layer(taken)
        given.backward(torch.ones_like(given))

    step()
    step()
    steps, began = 0, time.process_time()
    while time.process_time() < began + seconds:
        step()
        steps += 1
    return 1e3 * (time.process_time() - began) / steps


def _network(kind: str, size: int) -> Any:
    from torchvision import models

    if kind == "vit_tiny":
        return models.VisionTransformer(size, 4, 6, 4, 192, 768, num_classes=10)
    return getattr(models, kind)(num_classes=10)


if __name__ == "__main__":
    checked.told(main)
