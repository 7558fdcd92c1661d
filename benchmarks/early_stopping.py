"""What held-out samples say on the way of a training, and what the network then loses.

    .venv/bin/python benchmarks/early_stopping.py --shared FOLDER --work FOLDER [--minutes 1.5]
        [--networks NAMES] [--stop]

Each network of `tune_peers.py` that can be trained is pruned in several ways, by shares of its blocks
and channels, and trained as `optcli tune` does, for so many minutes. A row says what share of the
samples held out of the training it had lost against the float network when a quarter, half and three
quarters of the training were over, and how many points the trained network loses on the evaluation
samples. With `--stop` each is also trained with `stop_at_drop: 0`, for as long as that wants.
`optcli tune` goes by this where it ends trainings: `passes/_torch/early_stopping.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import checked
from checked import NotDoneError
from tune_networks import NETWORKS, write_recipe, write_samples

CUTS = {"1/6": (0.17, 0.0), "1/3": (0.34, 0.0), "1/2": (0.5, 0.0), "2/3": (0.67, 0.0)}
WIDER = {"1/2, 40 %": (0.5, 0.4), "2/3, 40 %": (0.67, 0.4)}
_SEEN = 800


def main() -> None:
    """Train every network with every cut; print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=1.5)
    parser.add_argument("--networks", default=",".join(n for n, e in NETWORKS.items() if e.trains))
    parser.add_argument("--stop", action="store_true")
    arguments = parser.parse_args()
    ways = {"whole": {"give_up_at_drop": 1.0}}
    ways |= {"stopped": {"stop_at_drop": 0.0}} if arguments.stop else {}
    sys.stdout.write("| network | cut | way | 1/4 | 1/2 | 3/4 | points lost | epochs | ended |\n")
    sys.stdout.write(f"|{' --- |' * 9}\n")
    for name in arguments.networks.split(","):
        folder = arguments.work / name
        folder.mkdir(parents=True, exist_ok=True)
        network = NETWORKS[name]
        write_samples(network, arguments.shared, folder, 0, _SEEN)
        path = write_recipe(network, arguments.shared, folder, 0)
        for cut, shares in {**CUTS, **WIDER}.items():
            trained = {
                way: _variant(*shares, arguments.minutes, name.startswith("vit"), options)
                for way, options in ways.items()
            }
            for row in _rows(path, cut, trained):
                sys.stdout.write(f"| {name} | {row} |\n")
                sys.stdout.flush()


def _variant(
    blocks: float, width: float, minutes: float, attends: bool, options: dict[str, float]
) -> list[Any]:
    prune = {"block_ratio": blocks, **({"ratio": width} if width else {})}
    training = {
        "epochs": 200,
        "max_minutes": minutes,
        "validate_epochs": False,
        "learning_rate": 0.0005 if attends else 0.002,
        "feature_weight": 1.0,
        "batch_size": 64,
        "augment": "auto",
        **options,
    }
    return [{"prune": prune}, {"finetune": training}]


def _rows(path: Path, cut: str, trained: dict[str, list[Any]]) -> list[str]:
    variants = json.dumps({"float": [], **trained})
    artifacts = path.parent / "artifacts"
    command = ["build", path.name, "--json", "--jobs", "1", "--artifacts", str(artifacts)]
    settings = (f"variants={variants}", "baseline=float", "latency.batch_sizes=[1]")
    for setting in (*settings, "latency.launches=1", "latency.max_seconds=1"):
        command += ["--set", setting]
    try:
        # A variant that failed has no figures in the report, and takes none from the others.
        report = checked.optcli_answer(*command, cwd=path.parent, fine=(*checked.VERDICTS, 4))
    except NotDoneError as error:
        sys.stderr.write(f"{path.parent.name}, {cut}: {error}\n")
        return [f"{cut} | FAILED: {error.reason}"]
    found = []
    for name in trained:
        variant = report["variants"][name]
        facts: dict[str, Any] = {}
        for step in variant["steps"]:
            facts |= step["facts"].get("finetuning", {})
        if not facts or variant["accuracy"] is None:
            found.append(f"{cut} | {name} | {variant['reason']}")
            continue
        stopping = facts["early_stopping"]
        looks = {round(4 * each["share"], 1): each["lost"] for each in stopping["looks"]}
        seen = " | ".join(_points(_nearest(looks, quarter)) for quarter in (1, 2, 3))
        lost = _points(variant["accuracy"]["drop"]["value"])
        found.append(f"{cut} | {name} | {seen} | {lost} | {facts['epochs']} | {stopping['why'] or ''}")
    return found


def _nearest(looks: dict[float, float], quarter: float) -> float | None:
    """What was lost at a quarter of the training; None where it had ended."""
    at = min(looks, key=lambda each: abs(each - quarter), default=None)
    return looks[at] if at is not None and abs(at - quarter) <= 0.3 else None


def _points(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


if __name__ == "__main__":
    main()
