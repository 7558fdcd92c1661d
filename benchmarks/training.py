"""Images a second of `finetune` and of an evaluation, against plain PyTorch loops on the same cores.

    python benchmarks/training.py --datasets FOLDER --models FOLDER
    python benchmarks/training.py                   # random images and weights, no files needed

FOLDER of `--datasets` holds `cifar10_subset/{train,test}/CLASS/*`, that of `--models` the state dict
`resnet20_cifar10.pth`. Each contender is a process of its own, with the same number of threads, and
they take turns. What is timed in training: reading and preparing the images once, and all epochs. In an
evaluation: the whole process, from its start to its result, and the loop alone.

The plain loop reads all images into one tensor and then does what a tutorial does: FP32, AdamW,
channels first, no checks, with optcli's settings of OpenMP. `--tuned` adds one with channels last,
bfloat16 and a fused optimizer. `--learned SEEDS` times nothing: it prunes the network, fine-tunes it in
FP32 and in bfloat16 with each of so many seeds, and tells top-1 on the images of `test`.

`--vit` takes a small vision transformer with random weights and images. With `--learned` it takes the
weights `vit_tiny_fashion.safetensors` and the images of `FashionMNIST` as torchvision stores them, and
judges by 2,000 of the test images.

A plain loop that fails is named with the end of what it printed and has no figures (null in the file);
the script then ends with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import checked
from checked import NotDoneError

RESULTS = Path(__file__).parent / "results" / "training.json"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NETWORK = '''\
"""The ResNets for CIFAR-10 (He et al., 2016, section 4.2), shortcuts without parameters."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, taken, given):
        super().__init__()
        self.stride, self.more = (1, 0) if taken == given else (2, (given - taken) // 2)
        self.conv1 = nn.Conv2d(taken, given, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(given)
        self.conv2 = nn.Conv2d(given, given, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(given)

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.more:
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more, self.more))
        return torch.relu(x + y)


class Net(nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        sizes = [(16, 16), (16, 32), (32, 64)]
        for number, (taken, given) in enumerate(sizes, 1):
            parts = [Block(taken, given), *(Block(given, given) for _ in range(blocks - 1))]
            setattr(self, f"layer{number}", nn.Sequential(*parts))
        self.linear = nn.Linear(64, 10)

    def forward(self, image):
        x = torch.relu(self.bn1(self.conv1(image)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))
'''
VIT = '''\
"""A vision transformer: 6 layers, 128 wide, 4 heads, patches of 4 x 4 pixels, 10 classes."""

from torchvision.models import VisionTransformer


class Net(VisionTransformer):
    def __init__(self, blocks=6):
        super().__init__(32, 4, blocks, 4, 128, 256, num_classes=10)
'''
RECIPE = """\
version: 1
name: training
model:
  source: python:net.py:Net
  arguments: {{blocks: {blocks}}}
{weights}
inputs:
  - {{name: image, dtype: float32, shape: [batch, 3, 32, 32], batch: {{min: 1, opt: 32, max: 256}}}}
data:
  {role}: {{source: "{source}", prepare: {prepare}{samples}}}
{accuracy}
latency: {{threads: {threads}}}
variants:
  eager: []
{tuned}"""
PREPARE = f"{{scale: 1/255, mean: {list(MEAN)}, std: {list(STD)}}}"


LEARNED = """\
version: 1
name: learned
seed: {seed}
model: {{source: "python:net.py:Net", arguments: {{blocks: {blocks}}}, weights: "{weights}"}}
inputs:
  - {{name: image, dtype: float32, shape: [batch, 3, 32, 32], batch: {{min: 1, opt: 32, max: 256}}}}
data:
  training: {{source: "{training}", prepare: {prepare}, samples: {images}, seed: {seed}}}
  validation: {{source: "{validation}", prepare: {prepare}}}
latency: {{threads: {threads}}}
variants:
  eager: []
  tuned: [{{prune: {{ratio: {ratio}}}}}, {{finetune: {options}}}]
"""
VIT_PREPARE = "{scale: 1/255, mean: [0.286, 0.286, 0.286], std: [0.353, 0.353, 0.353]}"


def main() -> int:
    """Run the contenders in turns and write what they took."""
    arguments = _arguments()
    if arguments.peer:
        sys.stdout.write(json.dumps(_peer(json.loads(arguments.peer))) + "\n")
        return 0
    if arguments.learned:
        with tempfile.TemporaryDirectory(prefix="optcli-training-") as place:
            sys.stdout.write(json.dumps(_learned(arguments, Path(place)), indent=1) + "\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="optcli-training-") as place:
        folder = Path(place)
        (folder / "net.py").write_text(VIT if arguments.vit else NETWORK)
        job = _job(arguments, folder)
        contenders = _contenders(job, folder, tuned=arguments.tuned)
        turns, failed = _turns(contenders, arguments.rounds)
    found = _summary(turns, failed)
    record = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["benchmarks/training.py", *_shown(sys.argv[1:])]),
        "machine": _machine(),
        "job": {name: job[name] for name in ("images", "epochs", "blocks", "batch_size", "threads")},
        "turns": turns,
        "failed": failed,
        "summary": found,
    }
    arguments.results.parent.mkdir(exist_ok=True)
    arguments.results.write_text(json.dumps(record, indent=1) + "\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 1 if failed else 0


def _turns(
    contenders: Mapping[str, Callable[[], dict[str, float]]], rounds: int
) -> tuple[dict[str, list[dict[str, float]]], dict[str, str]]:
    """What each took in every round, and why a loop failed, which takes no further turns."""
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    failed: dict[str, str] = {}
    for round_number in range(rounds):
        names = list(contenders) if round_number % 2 == 0 else list(contenders)[::-1]
        for name in (name for name in names if name not in failed):
            try:
                turns[name].append(contenders[name]())
                sys.stderr.write(f"{name}: {turns[name][-1]}\n")
            except NotDoneError as error:
                failed[name] = str(error)
                sys.stderr.write(f"{name} FAILED: {error}\n")
    return turns, failed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--images", type=int, default=3000, help="to train on")
    parser.add_argument("--evaluated", type=int, default=10000, help="random images to evaluate")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=3, help="3: ResNet-20, 9: ResNet-56")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tuned", action="store_true", help="also the plain loop made faster by hand")
    parser.add_argument("--learned", type=int, metavar="SEEDS", help="compare top-1, time nothing")
    parser.add_argument("--vit", action="store_true", help="a small vision transformer")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.vit and not arguments.learned and (arguments.models or arguments.datasets):
        parser.error("--vit without --learned takes random weights and images")
    return arguments


def _job(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What all contenders do, as plain data."""
    job: dict[str, Any] = {
        "images": arguments.images,
        "epochs": arguments.epochs,
        "blocks": 6 if arguments.vit else arguments.blocks,
        "batch_size": arguments.batch_size,
        "threads": arguments.threads,
        "net": str(folder / "net.py"),
        "weights": None,
    }
    if arguments.models:
        name = f"resnet{6 * arguments.blocks + 2}_cifar10.pth"
        job["weights"] = str((arguments.models / name).absolute())
    if arguments.datasets:
        root = (arguments.datasets / "cifar10_subset").absolute()
        # The larger part is judged, too: nothing is claimed about how good the network is.
        images = f"imagefolder:{root / 'train'}"
        return {**job, "training": images, "evaluation": images}
    for role, count in (("training", arguments.images), ("evaluation", arguments.evaluated)):
        path = folder / f"{role}.npz"
        _write_random(path, count, seed=len(role))
        job[role] = f"npz:{path}"
    return job


def _write_random(path: Path, count: int, seed: int) -> None:
    import numpy as np

    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    np.savez(path, image=images, label=rng.integers(0, 10, count))


def _contenders(
    job: dict[str, Any], folder: Path, *, tuned: bool
) -> dict[str, Callable[[], dict[str, float]]]:
    plainly = {"channels_last": False, "autocast": "off"}
    found: dict[str, Callable[[], dict[str, float]]] = {
        "finetune": lambda: _finetune(job, folder, {}),
        "finetune, FP32, channels first": lambda: _finetune(job, folder, plainly),
        "training loop": lambda: _run_peer({**job, "do": "train"}),
        "evaluation": lambda: _evaluate(job, folder, again=False),
        "evaluation of the next variant": lambda: _evaluate(job, folder, again=True),
        "evaluation loop": lambda: _run_peer({**job, "do": "evaluate"}),
    }
    if tuned:
        found["training loop, tuned"] = lambda: _run_peer({**job, "do": "train", "tuned": True})
    return found


def _finetune(job: dict[str, Any], folder: Path, more: dict[str, Any]) -> dict[str, float]:
    """The steps of a build with an empty store; timed from the training's first word to its last."""
    from optcli.observer import Silent
    from optcli.pipeline.execute import BuildSettings
    from optcli.pipeline.making import Phases, make, planned
    from optcli.store import Store

    heard: list[tuple[float, str]] = []
    steps: dict[str, float] = {}

    class Listening(Silent):
        def progress(self, step: str, fraction: float | None, message: str) -> None:
            if "finetune" in step:
                heard.append((time.perf_counter(), message))

        def finished(self, step: str, seconds: float) -> None:
            steps[step] = seconds

    options = {
        "epochs": job["epochs"],
        "batch_size": job["batch_size"],
        "distillation_weight": 0,
        "validate_epochs": False,
        "threads": job["threads"],
        **more,
    }
    recipe = _recipe(job, folder, "training", options)
    with tempfile.TemporaryDirectory(prefix="optcli-training-") as place:
        store = Store(Path(place))
        made = make(planned(recipe, store, [], []), store, Listening(), BuildSettings(), Phases())
        errors = [done.error for done in made.done.values() if done.error is not None]
        if errors:
            raise errors[0]
    trained = job["epochs"] * (job["images"] // job["batch_size"] * job["batch_size"])
    whole = next(seconds for step, seconds in steps.items() if "finetune" in step)
    seconds = heard[-1][0] - heard[0][0]
    return {"images_per_s": trained / seconds, "seconds": seconds, "whole_s": whole}


def _evaluate(job: dict[str, Any], folder: Path, *, again: bool) -> dict[str, float]:
    """An evaluation in PyTorch as a build does it; `again`: its samples are prepared already."""
    from optcli import accuracy
    from optcli.accuracy import EvaluationRequest
    from optcli.artifact import Artifact, Format
    from optcli.files import sample_cache
    from optcli.models.sources.python import PythonSource
    from optcli.observer import Silent
    from optcli.recipe import load

    recipe = load(_recipe(job, folder, "evaluation"))
    network = folder / "network"
    if not network.exists():
        source = PythonSource(
            target="net.py:Net",
            weights=job["weights"],
            arguments={"blocks": job["blocks"]},
            folder=folder,
        )
        source.write(network, recipe.inputs)
    artifact = Artifact("k", Format.TORCH, network, "fp32", 1, "d", {"outputs": ["output"]})

    def run(name: str, **more: Any) -> tuple[float, Any]:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="optcli-training-") as place:
            request = EvaluationRequest(
                artifact=artifact,
                runner="torch",
                options={"threads": job["threads"]},
                inputs=recipe.inputs,
                feeds=recipe.inputs,
                data=recipe.data["evaluation"],
                folder=folder,
                settings=recipe.accuracy,
                out=Path(place) / name,
                **more,
            )
            found = accuracy.evaluate(request, Silent())
            count = int(found.array("correct").sum())
        return time.perf_counter() - start, (found.samples, count)

    kept = folder / "prepared"
    if again and not kept.exists():
        run("first", keep=kept)
    ready = {"prepared": kept} if again and sample_cache.is_whole(kept) else {}
    seconds, (samples, right) = run("one", **ready)
    return {"images_per_s": samples / seconds, "seconds": seconds, "right": right}


def _learned(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Top-1 on `test` after pruning and fine-tuning, in FP32 and in bfloat16, by seed."""
    from optcli.observer import Silent
    from optcli.pipeline.execute import BuildSettings
    from optcli.pipeline.making import Phases, make, planned
    from optcli.store import Store

    store = Store(folder / "store")
    job = _vit_job(arguments, folder) if arguments.vit else _resnet_job(arguments, folder)
    found: dict[str, Any] = {"pruned": [], "off": [], "bf16": []}
    for seed in range(arguments.learned):
        for autocast in ("off", "bf16"):
            options = {"epochs": arguments.epochs, "autocast": autocast, "threads": arguments.threads}
            given = {**job, "seed": seed, "options": json.dumps(options)}
            (folder / "recipe.yaml").write_text(LEARNED.format(**given))
            to_do = planned(folder / "recipe.yaml", store, [], [])
            made = make(to_do, store, Silent(), BuildSettings(), Phases())
            facts = made.artifacts["tuned"].facts["finetuning"]
            found[autocast].append(facts["validation_accuracy"])
            if autocast == "off":
                found["pruned"].append(facts["validation_accuracy_before"])
            sys.stderr.write(f"seed {seed}, {autocast}: {facts['validation_accuracy']}\n")
    return found


def _resnet_job(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    (folder / "net.py").write_text(NETWORK)
    job = _job(arguments, folder)
    validation = job["training"].replace("train", "test")
    return {**job, "validation": validation, "prepare": PREPARE, "ratio": 0.3}


def _vit_job(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A vision transformer with half of its channels to be pruned, and its images as arrays."""
    import numpy as np
    from PIL import Image
    from torchvision.datasets import FashionMNIST

    (folder / "net.py").write_text(VIT)
    for role, count in (("training", arguments.images), ("validation", 2000)):
        stored = FashionMNIST(str(arguments.datasets), train=role == "training")
        sizes = [Image.fromarray(image).resize((32, 32)) for image in stored.data[:count].numpy()]
        images = np.stack([np.asarray(image.convert("RGB")) for image in sizes])
        np.savez(folder / f"{role}.npz", image=images, label=stored.targets[:count].numpy())
    return {
        "blocks": 6,
        "weights": str((arguments.models / "vit_tiny_fashion.safetensors").absolute()),
        "training": f"npz:{folder / 'training.npz'}",
        "validation": f"npz:{folder / 'validation.npz'}",
        "images": arguments.images,
        "threads": arguments.threads,
        "prepare": VIT_PREPARE,
        "ratio": 0.5,
    }


def _recipe(
    job: dict[str, Any], folder: Path, role: str, options: dict[str, Any] | None = None
) -> Path:
    """A recipe with one role: the same images may be judged that another contender trains on."""
    path = folder / f"{role}.yaml"
    path.write_text(
        RECIPE.format(
            blocks=job["blocks"],
            weights=f"  weights: {job['weights']}" if job["weights"] else "",
            role=role,
            source=job[role],
            samples=f", samples: {job['images']}" if role == "training" else "",
            prepare=PREPARE,
            accuracy="accuracy: {metric: top1}" if role == "evaluation" else "",
            threads=job["threads"],
            tuned="" if options is None else f"  tuned: [{{finetune: {json.dumps(options)}}}]\n",
        )
    )
    return path


def _run_peer(job: dict[str, Any]) -> dict[str, float]:
    """A plain loop in a process of its own."""
    who = f"the plain loop ({job['do']})"
    done = checked.run(
        who,
        [sys.executable, __file__, "--peer", json.dumps(job)],
        # As optcli has it; with OpenMP's own settings it stands still where a core is busy.
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(job["threads"]),
            "OMP_WAIT_POLICY": "PASSIVE",
            "GOMP_SPINCOUNT": "10000",
        },
    )
    found: dict[str, float] = checked.last_line(who, done)
    checked.figures(who, found, "images_per_s", *(("loss",) if job["do"] == "train" else ("images",)))
    if job["do"] == "evaluate":
        found["loop_images_per_s"] = found["images_per_s"]
        found["images_per_s"] = found["images"] / done.wall_s
    return {**found, "whole_s": done.wall_s}


def _peer(job: dict[str, Any]) -> dict[str, float]:
    import importlib.util

    import torch

    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    spec = importlib.util.spec_from_file_location("net", job["net"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Net(job["blocks"])
    if job["weights"]:
        model.load_state_dict(torch.load(job["weights"], weights_only=True))
    return _train(model, job) if job["do"] == "train" else _judge(model, job)


def _train(model: Any, job: dict[str, Any]) -> dict[str, float]:
    import torch
    from torch.nn import functional

    start = time.perf_counter()
    images, labels = _read(job["training"], job["images"])
    size, tuned = job["batch_size"], job.get("tuned", False)
    if tuned:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=tuned)
    model.train()
    trained = 0
    for _ in range(job["epochs"]):
        order = torch.randperm(len(images))
        for first in range(0, len(order) - size + 1, size):
            chosen = order[first : first + size]
            batch = images[chosen]
            if tuned:
                batch = batch.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=tuned):
                scores = model(batch)
            loss = functional.cross_entropy(scores.float(), labels[chosen])
            loss.backward()
            optimizer.step()
            trained += size
    seconds = time.perf_counter() - start
    last = float(loss.detach()) if trained else 0.0
    return {"images_per_s": trained / seconds, "seconds": seconds, "loss": last}


def _judge(model: Any, job: dict[str, Any]) -> dict[str, float]:
    import torch

    images, labels = _read(job["evaluation"], None)
    model.eval()
    start = time.perf_counter()
    right = 0
    with torch.no_grad():
        for first in range(0, len(images), 32):
            scores = model(images[first : first + 32])
            right += int((scores.argmax(1) == labels[first : first + 32]).sum())
    seconds = time.perf_counter() - start
    return {"images_per_s": len(images) / seconds, "images": len(images), "right": right}


def _read(source: str, count: int | None) -> tuple[Any, Any]:
    """All images as one tensor, with their labels; `count` of them, evenly spread."""
    import numpy as np
    import torch
    from PIL import Image

    kind, _, place = source.partition(":")
    if kind == "npz":
        with np.load(place) as arrays:
            pixels, labels = arrays["image"], arrays["label"]
    else:
        folders = sorted(path for path in Path(place).iterdir() if path.is_dir())
        files = [(path, n) for n, folder in enumerate(folders) for path in sorted(folder.iterdir())]
        if count is not None:
            files = [files[index * len(files) // count] for index in range(count)]
        pixels = np.stack([np.asarray(Image.open(path).convert("RGB")) for path, _ in files])
        labels = np.array([label for _, label in files])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)
    mean, std = (torch.tensor(values)[None, :, None, None] for values in (MEAN, STD))
    return ((images - mean) / std).contiguous(), torch.from_numpy(labels).long()


def _summary(turns: Mapping[str, list[dict[str, float]]], failed: Collection[str]) -> dict[str, Any]:
    """Medians, and ratios within each round: what was noise for one of a round was it for the other.

    Who failed has none.
    """
    done = {name: found for name, found in turns.items() if name not in failed}
    rates = {name: [turn["images_per_s"] for turn in found] for name, found in done.items()}
    pairs = [
        ("finetune", "training loop"),
        ("finetune, FP32, channels first", "training loop"),
        ("finetune", "training loop, tuned"),
        ("evaluation", "evaluation loop"),
        ("evaluation of the next variant", "evaluation loop"),
    ]
    ratios = {
        f"{mine} / {theirs}": [round(a / b, 3) for a, b in zip(rates[mine], rates[theirs], strict=True)]
        for mine, theirs in pairs
        if mine in rates and theirs in rates
    }
    right = {n: found[0]["right"] for n, found in done.items() if found and "right" in found[0]}
    return {
        "images_per_s": {
            name: round(median(rates[name]), 1) if name in rates else None for name in turns
        },
        "ratios": {
            name: {"each": each, "median": round(median(each), 3)} for name, each in ratios.items()
        },
        "right": right,
    }


def _machine() -> dict[str, Any]:
    from optcli import environment

    packages = ("torch", "numpy", "pillow")
    return {
        "cpu": environment.cpu()["model"],
        "cores": environment.usable_cores(),
        "versions": environment.versions(packages),
    }


def _shown(arguments: list[str]) -> list[str]:
    """The arguments without places of this machine."""
    return ["FOLDER" if os.sep in each else each for each in arguments]


if __name__ == "__main__":
    checked.told(main)
