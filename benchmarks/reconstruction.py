"""What `prune: {reconstruct: true}` gives back of what a cut costs: before training and after some.

    python benchmarks/reconstruction.py --shared FOLDER --out FILE [NETWORK ...] [--seconds 0 30]

The networks are those of `tune_peers.py` that can be cut; their samples are divided as there. Each is
cut in two ways, then trained for so many seconds (0: not at all), with and without reconstruction.
Accuracy is that of optcli's builds on evaluation samples. The file gets a row a variant.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tune_networks import NETWORKS, Network, recipe, train, write_samples

from optcli import build

CUTS: dict[str, dict[str, Any]] = {
    "30 % of the channels": {"ratio": 0.3},
    "30 % of the blocks": {"block_ratio": 0.3},
}
USUAL = ("digits", "resnet20_cifar10", "resnet56_cifar10", "mobilenet_v3_small_fashion")


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], default=USUAL)
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, nargs="+", default=(0.0, 30.0))
    parser.add_argument("--most", type=int, default=1000, help="evaluation samples at the most")
    given = parser.parse_args()
    rows = []
    for name in given.networks:
        rows += measured(NETWORKS[name], given.shared, given.seconds, given.most)
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


def measured(network: Network, shared: Path | None, seconds: list[float], most: int) -> list[Any]:
    """A row a variant, printed as well."""
    variants: dict[str, Any] = {"whole": []}
    about: dict[str, dict[str, Any]] = {"whole": {"cut": "", "reconstruct": False, "seconds": 0.0}}
    for number, (cut, options) in enumerate(CUTS.items()):
        for fitted in (False, True):
            for budget in seconds:
                name = f"cut{number}-{'fitted' if fitted else 'plain'}-{budget:g}"
                passes: list[Any] = [{"prune": {**options, "round_to": 4, "reconstruct": fitted}}]
                if budget:
                    passes.append({"finetune": {"epochs": 100, "max_minutes": budget / 60}})
                variants[name] = passes
                about[name] = {"cut": cut, "reconstruct": fitted, "seconds": budget}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / network.name
        folder.mkdir()
        train(network, shared, folder)
        write_samples(network, shared, folder, 0, most)
        written = recipe(network, shared, folder, 0) | {"variants": variants}
        written["accuracy"]["max_drop"] = 0.95
        written["latency"] = {"mode": "off"}
        path = folder / "recipe.yaml"
        path.write_text(json.dumps(written))
        report = build(path, store=folder / "store", artifacts=folder / "artifacts")
    rows = []
    for name, variant in report.variants.items():
        if variant.accuracy is None:
            print(f"{network.name} {name}: {variant.reason}", file=sys.stderr)
            continue
        top1 = variant.accuracy.value
        rows.append({"network": network.name, **about[name], "top1": top1})
        print(f"{network.name:28} {name:18} {top1:.4f}", flush=True)
    return rows


if __name__ == "__main__":
    main()
