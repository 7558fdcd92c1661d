"""The networks of `tune_peers.py`: their modules, their samples in disjoint parts, their recipes.

`FOLDER` of `--shared` holds `models/` and `datasets/`. The samples of a network are divided anew for
each seed: training and calibration come from training images where there are any; validation,
evaluation and a third part come from the others. No recipe names the file of the third part.

No weights are stored for networks with `epochs`: they are trained once, by `models/train_fashion.py`,
and kept beside the folders of the networks.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from training import MEAN, NETWORK, STD

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("training", "calibration", "validation", "evaluation", "third")
THREADS = 2
_CALIBRATION = 300
_IMAGENET = {"scale": "1/255", "mean": list(MEAN), "std": list(STD)}
_FASHION = {"scale": "1/255", "mean": 0.2860, "std": 0.3530}


@dataclass(frozen=True)
class Network:
    """A network of the benchmark.

    `family` says where module and samples come from, `arguments` go to the module. `side` is the height
    and width of the input, `minutes` the usual budget, `max_drop` the bar. `epochs` is how long it is
    trained before the search; 0: its weights are stored.
    """

    name: str
    family: str
    side: int
    arguments: Mapping[str, Any]
    minutes: float = 15.0
    max_drop: float = 0.01
    channels: int = 3
    epochs: int = 0

    @property
    def trains(self) -> bool:
        return self.family in ("fashion", "cifar", "digits")

    @property
    def metric(self) -> str:
        return "map" if self.family == "coco" else "top1"

    @property
    def classes(self) -> int:
        """How many answers a classifier has."""
        return 10 if self.trains else 1000

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes that are measured; the detector's file has a fixed batch of one."""
        return (1,) if self.family == "coco" else (1, 8)

    @property
    def attends(self) -> bool:
        """Whether it is a transformer."""
        return self.name.startswith("vit")

    @property
    def input(self) -> str:
        return "images" if self.family == "coco" else "image"


def _seeded(name: str) -> Network:
    # Its labels are the float network's own answers, so that the bar is about agreement. It is wide:
    # an untrained network has small margins, and INT8 changes many of its answers.
    return Network(name, "seeded", 224, {}, minutes=10.0, max_drop=0.4)


def _fashion(name: str, side: int, epochs: int = 0) -> Network:
    about = {"name": name, "size": side}
    return Network(f"{name}_fashion", "fashion", side, about, epochs=epochs)


NETWORKS = {
    each.name: each
    for each in (
        _fashion("mobilenet_v3_small", 64),
        _fashion("vit_tiny", 32),
        Network("resnet20_cifar10", "cifar", 32, {"blocks": 3}),
        Network("resnet56_cifar10", "cifar", 32, {"blocks": 9}),
        Network("digits", "digits", 32, {}, channels=1),
        Network("squeezenet1_1", "imagenet", 224, {}, minutes=10.0),
        *map(_seeded, ("resnet50", "vit_b_16", "mobilenet_v3_large", "convnext_tiny")),
        Network("yolox_nano", "coco", 416, {}, minutes=10.0),
        _fashion("shufflenet_v2_x0_5", 64, epochs=4),
        _fashion("mobilenet_v2", 32, epochs=2),
        _fashion("regnet_y_400mf", 64, epochs=3),
    )
}


def module(network: Network, shared: Path | None, folder: Path) -> Any:
    """The float network as a PyTorch module in evaluation mode; `folder` holds seeded weights."""
    import safetensors.torch
    import torch
    import torchvision

    torch.backends.mha.set_fastpath_enabled(False)
    path = weights(network, shared, folder)
    if network.family == "fashion":
        model = _function(_models(shared) / "train_fashion.py", "build")(**network.arguments)
    elif network.family == "cifar":
        model = _function(_cifar(folder), "Net")(**network.arguments)
    elif network.family == "digits":
        model = _function(ROOT / "recipes" / "quickstart" / "model.py", "DigitsNet")()
    elif network.family == "coco":
        import yolox

        model = yolox.YoloxNano()
        model.load_state_dict(yolox.weights(path))
        return model.eval()
    else:
        model = getattr(torchvision.models, network.name)(weights=None)
    if path.suffix == ".safetensors":
        model.load_state_dict(safetensors.torch.load_file(str(path)))
    else:
        model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def weights(network: Network, shared: Path | None, folder: Path) -> Path:
    """The file with the weights."""
    if network.family == "digits":
        return ROOT / "recipes" / "quickstart" / "weights.safetensors"
    if network.family == "seeded":
        return folder / "weights.safetensors"
    suffix = {"fashion": "safetensors", "coco": "onnx"}.get(network.family, "pth")
    if network.epochs:
        return folder.parent / "trained" / f"{network.name}.{suffix}"
    return _models(shared) / f"{network.name}.{suffix}"


def train(network: Network, shared: Path | None, folder: Path) -> None:
    """Train a network whose weights are not stored, unless that was done before."""
    path = weights(network, shared, folder)
    if not network.epochs or path.is_file():
        return
    path.parent.mkdir(exist_ok=True)
    about = network.arguments
    command = [sys.executable, str(_models(shared) / "train_fashion.py"), about["name"]]
    command += ["--size", str(about["size"]), "--epochs", str(network.epochs)]
    command += ["--data", str(_folder(shared) / "datasets"), "--out", str(path.parent)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    if not path.is_file() or not path.stat().st_size:
        raise RuntimeError(f"{command[1]} ended well and wrote no {path}")


def _models(shared: Path | None) -> Path:
    return _folder(shared) / "models"


def _folder(shared: Path | None) -> Path:
    if shared is None:
        raise RuntimeError("this network needs --shared FOLDER with models/ and datasets/")
    return shared.absolute()


def _cifar(folder: Path) -> Path:
    path = folder / "net.py"
    if not path.is_file():
        path.write_text(NETWORK)
    return path


def _function(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)


def divided(count: int, seed: int, shares: Mapping[str, float], most: int | None) -> dict[str, Any]:
    """Disjoint rows by part, shuffled by a seed; `most` is the largest number of a part."""
    order, at, found = np.random.default_rng(seed).permutation(count), 0.0, {}
    for part, share in shares.items():
        rows = order[round(at * count) : round((at + share) * count)]
        found[part] = np.sort(rows[:most])
        at += share
    return found


def write_samples(
    network: Network, shared: Path | None, folder: Path, seed: int, most: int | None = None
) -> dict[str, int]:
    """Write `samples.npz` and `third.npz` of uint8 images and labels; gives the counts of the parts.

    `most` is the largest number of validation, evaluation and third samples each.
    """
    if network.family == "coco":
        return {}
    held = {"validation": 0.3, "evaluation": 0.4, "third": 0.3}
    if network.trains:
        (images, labels), (others, their_labels) = _trained_images(network, shared)
        order = np.random.default_rng(seed).permutation(len(images))
        rows = {"calibration": order[:_CALIBRATION], "training": order[_CALIBRATION:]}
        parts = {part: (images[chosen], labels[chosen]) for part, chosen in rows.items()}
        for part, chosen in divided(len(others), seed, held, most).items():
            parts[part] = (others[chosen], their_labels[chosen])
    else:
        images, labels = _imagenet(_folder(shared) / "datasets" / "imagenet_1000")
        if network.family == "seeded":
            images = images[::2]  # half of them: the float network answers all, and some are slow
            labels = _answers(network, images, folder)
        shares = {"calibration": 0.2, "validation": 0.25, "evaluation": 0.3, "third": 0.25}
        parts = {
            part: (images[chosen], labels[chosen])
            for part, chosen in divided(len(images), seed, shares, most).items()
        }
    third = parts.pop("third")
    np.savez(folder / "third.npz", **{network.input: third[0]}, target=third[1])
    np.savez(
        folder / "samples.npz",
        **{network.input: np.concatenate([images for images, _ in parts.values()])},
        target=np.concatenate([labels for _, labels in parts.values()]),
        split=np.concatenate([[part] * len(labels) for part, (_, labels) in parts.items()]),
    )
    return {part: len(labels) for part, (_, labels) in {**parts, "third": third}.items()}


def _trained_images(network: Network, shared: Path | None) -> tuple[Any, Any]:
    """Training images with their labels, and those that the network has not seen."""
    if network.family == "digits":
        with np.load(ROOT / "calibration_data" / "digits.npz") as known:
            seen = np.isin(known["split"], ("training", "calibration"))
            images, labels = known["image"], known["target"]
        return (images[seen], labels[seen]), (images[~seen], labels[~seen])
    datasets = _folder(shared) / "datasets"
    if network.family == "cifar":
        return tuple(_image_folder(datasets / "cifar10_subset" / part) for part in ("train", "test"))
    from torchvision.datasets import FashionMNIST

    sets = [FashionMNIST(str(datasets), train=train, download=False) for train in (True, False)]
    grey = [(each.data.numpy()[..., None], each.targets.numpy()) for each in sets]
    return tuple((np.repeat(images, 3, axis=3), labels) for images, labels in grey)


def _image_folder(folder: Path) -> tuple[Any, Any]:
    from torchvision.datasets import ImageFolder

    pairs = [(np.asarray(image), label) for image, label in ImageFolder(str(folder))]
    return np.stack([image for image, _ in pairs]), np.array([label for _, label in pairs])


def _imagenet(folder: Path) -> tuple[Any, Any]:
    """The middle 224 x 224 pixels of each image."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms.functional import center_crop

    pairs = [(np.asarray(center_crop(i, 224)), label) for i, label in ImageFolder(folder / "images")]
    return np.stack([image for image, _ in pairs]), np.array([label for _, label in pairs])


def _answers(network: Network, images: np.ndarray, folder: Path) -> np.ndarray:
    """Seeded weights, written once, and the answers of the network to the images.

    The last bias is set so that the mean answer is zero: else one class would have all the images.
    """
    import safetensors.torch
    import torch
    import torchvision
    from by_hand import network as seeded

    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (MEAN, STD))

    def outputs(model: Any) -> torch.Tensor:
        rows = np.split(images, range(32, len(images), 32))
        with torch.inference_mode():
            ready = (torch.from_numpy(each).permute(0, 3, 1, 2).float() / 255 for each in rows)
            return torch.cat([model((each - mean) / std) for each in ready])

    path = folder / "weights.safetensors"
    if path.is_file():
        model = getattr(torchvision.models, network.name)(weights=None).eval()
        model.load_state_dict(safetensors.torch.load_file(str(path)))
        return outputs(model).argmax(1).numpy()
    model = seeded(network.name)
    found = outputs(model)
    last = [each for each in model.modules() if isinstance(each, torch.nn.Linear)][-1]
    with torch.no_grad():
        last.bias -= found.mean(0)
    safetensors.torch.save_model(model, str(path))
    return (found - found.mean(0)).argmax(1).numpy()


def write_recipe(network: Network, shared: Path | None, folder: Path, seed: int) -> Path:
    """A recipe without variants and without hints, in `folder`."""
    path = folder / f"{network.name}.yaml"
    path.write_text(json.dumps(recipe(network, shared, folder, seed), indent=1) + "\n")
    return path


def recipe(network: Network, shared: Path | None, folder: Path, seed: int) -> dict[str, Any]:
    """What the recipe says."""
    found: dict[str, Any] = {
        "version": 1,
        "name": network.name,
        "model": _model(network, shared, folder),
        "inputs": [_input(network)],
        "data": _roles(network, shared, seed),
        "accuracy": {"metric": network.metric, "max_drop": network.max_drop},
        "latency": {"batch_sizes": list(network.batch_sizes), "threads": THREADS},
        "seed": seed,
    }
    if network.family == "coco":
        found["postprocess"] = {"yolox": {}}
    return found


def _model(network: Network, shared: Path | None, folder: Path) -> dict[str, Any]:
    if network.family == "coco":
        return {"source": f"onnx:{weights(network, shared, folder)}"}
    sources = {
        "fashion": lambda: (
            f"python:{os.path.relpath(_models(shared) / 'train_fashion.py', folder)}:build"
        ),
        "cifar": lambda: f"python:{_cifar(folder).name}:Net",
        "digits": lambda: (
            f"python:{os.path.relpath(ROOT / 'recipes/quickstart/model.py', folder)}:DigitsNet"
        ),
    }
    source = sources.get(network.family, lambda: f"torchvision:{network.name}")()
    found = {"source": source, "weights": str(weights(network, shared, folder))}
    return {**found, "arguments": dict(network.arguments)} if network.arguments else found


def _input(network: Network) -> dict[str, Any]:
    shape = [network.channels, network.side, network.side]
    if network.batch_sizes == (1,):
        return {"name": network.input, "shape": [1, *shape]}
    batch = {"min": 1, "opt": 8, "max": 8 if network.side > 64 else 64}
    return {"name": network.input, "shape": ["batch", *shape], "batch": batch}


def _roles(network: Network, shared: Path | None, seed: int) -> dict[str, Any]:
    if network.family == "coco":
        place = f"coco:{_folder(shared) / 'datasets' / 'coco_tiny_val'}"
        prepare: Any = {"letterbox": {"size": 416, "fill": 114, "align": "top_left"}}
        shares = {"calibration": (0.0, 0.25), "validation": (0.25, 0.5), "evaluation": (0.5, 1.0)}
        return {
            part: {
                "source": place,
                "split": {"seed": seed, "from": start, "to": stop},
                "prepare": {**prepare, "channel_order": "bgr"},
            }
            for part, (start, stop) in shares.items()
        }
    prepare = prepared(network)
    parts = [part for part in PARTS[:-1] if part != "training" or network.trains]
    return {part: {"source": "npz:samples.npz", "split": part, "prepare": prepare} for part in parts}


def prepared(network: Network) -> dict[str, Any]:
    """How an image becomes an input, as a recipe says it."""
    if network.family == "digits":
        return {"resize": [32, 32], "scale": "1/255", "mean": 0.5, "std": 0.5}
    if network.family == "fashion":
        return {"resize": [network.side, network.side], **_FASHION}
    return _IMAGENET
