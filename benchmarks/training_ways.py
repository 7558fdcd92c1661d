"""Images per second of processor time that networks train, by memory layout, precision and memory.

    python benchmarks/training_ways.py [--seconds 3] [--networks resnet18@64,mobilenet_v3_large@64]

One thread, random weights and images (NAME@SIZE of torchvision; `vit_tiny@32` is a small vision
transformer), AdamW. In processor time, because other work on the machine changes that the least. It is
what `finetune` goes by: channels last, bfloat16 only for dense convolutions, freed memory kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

NETWORKS = "resnet18@32,resnet18@112,vgg11_bn@32,squeezenet1_1@64,mobilenet_v3_large@64,vit_tiny@32"
WAYS = {
    "channels first": (False, False, False),
    "channels first, memory kept": (False, False, True),
    "channels last, memory kept": (True, False, True),
    "channels last, memory kept, bfloat16": (True, True, True),
}
_IMAGES = 16


def main() -> None:
    """Train each network in each way, in a process of its own, twice in turns; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        network, way = arguments.one.split("|")
        sys.stdout.write(json.dumps(_trained(network, *WAYS[way], arguments.seconds)))
        return
    sys.stdout.write(f"| network | {' | '.join(WAYS)} |\n| --- |{' --- |' * len(WAYS)}\n")
    for network in arguments.networks.split(","):
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for ways in (list(WAYS), list(reversed(WAYS))):
            for way in ways:
                found[way].append(_in_a_process(network, way, arguments.seconds))
        means = [sum(rates) / len(rates) for rates in found.values()]
        cells = " | ".join(f"{each:.0f} ({each / means[0]:.2f})" for each in means)
        sys.stdout.write(f"| {network} | {cells} |\n")
        sys.stdout.flush()


def _in_a_process(network: str, way: str, seconds: float) -> float:
    command = [sys.executable, __file__, "--one", f"{network}|{way}", "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout))


def _trained(name: str, last: bool, cast: bool, kept: bool, seconds: float) -> float:
    import torch

    from optcli.workers import memory

    if kept:
        memory.keep_freed()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind, _, size = name.partition("@")
    layout = torch.channels_last if last else torch.contiguous_format
    model = _network(kind, int(size)).to(memory_format=layout).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.randn(_IMAGES, 3, int(size), int(size)).contiguous(memory_format=layout)
    labels = torch.randint(0, 10, (_IMAGES,))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            scores = model(images)
        torch.nn.functional.cross_entropy(scores.float(), labels).backward()
        optimizer.step()

    step()
    step()
    steps, began, end = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end or steps < 3:
        step()
        steps += 1
    return _IMAGES * steps / (time.process_time() - began)


def _network(kind: str, size: int) -> Any:
    from torchvision import models

    if kind == "vit_tiny":
        return models.VisionTransformer(size, 4, 6, 4, 128, 256, num_classes=10)
    return getattr(models, kind)(num_classes=10)


if __name__ == "__main__":
    main()
