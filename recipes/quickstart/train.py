"""Train the quickstart's network on the training split of the digits: minutes on a CPU.

    python recipes/quickstart/train.py

Reads the data through the recipe itself, so that the images are prepared here exactly as they are
when a variant is calibrated and judged. The epoch with the best validation accuracy is kept, the
later one on a tie; the evaluation split is looked at once, at the end.

Three eighths of the channels are emptied on the way (structured sparsity), so that the variant
`pruned-onnx` can cut channels out without any training after it.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from model import DigitsNet
from ruamel.yaml import YAML
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from optcli import data
from optcli.data import DataSettings
from optcli.sample import cycled
from optcli.settings import TensorSpec

HERE = Path(__file__).parent
RECIPE = HERE.with_suffix(".yaml")
BATCH_SIZE = 64
Part = tuple[Tensor, Tensor]
Weak = tuple[list[Tensor], Tensor]


def part(role: str) -> Part:
    """Images [n, 1, 32, 32] and labels [n] of one role of the recipe."""
    recipe = YAML(typ="safe").load(RECIPE)
    settings = DataSettings.model_validate(recipe["data"][role])
    inputs = [TensorSpec.model_validate(each) for each in recipe["inputs"]]
    samples = data.open(settings, RECIPE.parent, inputs)
    batch = cycled(samples, len(samples))
    return torch.from_numpy(batch.inputs["image"]), torch.tensor(batch.targets)


def augmented(images: Tensor) -> Tensor:
    """Each image turned, shifted, scaled and sheared a little; what appears beside it is background."""
    count = len(images)
    angle, shear = (torch.rand(2, count) - 0.5) * 0.45
    size = 1 + (torch.rand(2, count) - 0.5) * 0.25
    shift = (torch.rand(2, count) - 0.5) * 0.3
    rows = [
        torch.stack([angle.cos() * size[0], -angle.sin() + shear, shift[0]], 1),
        torch.stack([angle.sin(), angle.cos() * size[1], shift[1]], 1),
    ]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images + 1, grid, align_corners=False) - 1


def channel_groups(model: DigitsNet) -> Iterator[list[Tensor]]:
    """The weights of every group of channels that can only be cut together.

    Each is a view [channels, rest]. A channel is written by a convolution and its norm and read by
    those that follow; the blocks of one width write to and read from the same channels.
    """
    trunk = written(model.stem[0], model.stem[1])
    for block in model.blocks:
        yield [*written(block.conv1, block.norm1), read(block.conv2)]
        trunk.append(read(block.conv1))
        if isinstance(block.shortcut, nn.Sequential):
            yield [*trunk, read(block.shortcut[0])]
            trunk = written(block.shortcut[0], block.shortcut[1])
        trunk += written(block.conv2, block.norm2)
    yield [*trunk, read(model.head)]


def written(conv: nn.Module, norm: nn.Module) -> list[Tensor]:
    """Views [output channels, rest] of a convolution's and its norm's weights."""
    return [conv.weight.detach().flatten(1), norm.weight.detach()[:, None], norm.bias.detach()[:, None]]


def read(layer: nn.Module) -> Tensor:
    """The view [input channels, ...] of a layer's weight."""
    return layer.weight.detach().transpose(0, 1)


@torch.no_grad()
def weakest(model: DigitsNet, share: float) -> list[Weak]:
    """Per group of channels its weights and the `share` of the channels with the smallest ones."""
    found = []
    for weights in channel_groups(model):
        strength = torch.stack([weight.flatten(1).square().sum(1) for weight in weights]).sum(0)
        found.append((weights, strength.argsort()[: round(share * len(strength))]))
    return found


@torch.no_grad()
def shrink(weak: list[Weak], factor: float) -> None:
    """Multiply all weights of the weak channels."""
    for weights, channels in weak:
        for weight in weights:
            weight[channels] *= factor


@torch.no_grad()
def top1(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of the images whose largest logit is the label's."""
    model.eval()
    return (model(images).argmax(1) == labels).float().mean().item()


def train(model: DigitsNet, training: Part, validation: Part, epochs: int, empty: float) -> None:
    """Train in place and end with the weights that were best on the validation split.

    In the second third of the training the weakest channels fade out, a share `empty` of each
    group, and stay at zero while the rest learns to do without them.
    """
    images, labels = training
    steps = epochs * -(-len(images) // BATCH_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    weak: list[Weak] = []
    best, kept = 0.0, copy.deepcopy(model.state_dict())
    for epoch in range(epochs):
        model.train()
        progress = epoch / epochs
        if progress >= 1 / 3 and not weak:
            weak = weakest(model, empty)
        for rows in torch.randperm(len(images)).split(BATCH_SIZE):
            logits = model(augmented(images[rows]))
            loss = functional.cross_entropy(logits, labels[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            shrink(weak, 0.95 if progress < 2 / 3 else 0.0)
        accuracy = top1(model, *validation)
        if progress >= 2 / 3 and accuracy >= best:
            best, kept = accuracy, copy.deepcopy(model.state_dict())
        print(
            f"epoch {epoch + 1:3d}  loss {loss.item():.3f}  validation top-1 {accuracy:.4f}", flush=True
        )
    model.load_state_dict(kept)


def main() -> None:
    """Train, write the weights, say how good they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=45)
    parser.add_argument(
        "--empty", type=float, default=0.375, help="share of the channels that fade out"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "weights.safetensors")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # sums then do not hang on the number of cores
    model = DigitsNet()
    train(model, part("training"), part("validation"), options.epochs, options.empty)
    save_file(model.state_dict(), options.out)
    print(f"evaluation top-1 {top1(model, *part('evaluation')):.4f}")


if __name__ == "__main__":
    main()
