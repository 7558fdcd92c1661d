"""Tiny networks as torch artifacts, and what a pass needs to run on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from optcli.artifact import Artifact, Format
from optcli.observer import Silent
from optcli.passes import Job, Pass
from optcli.runners import Runner
from optcli.sample import Sample
from optcli.settings import TensorSpec

CODE = '''\
import torch


class Conv(torch.nn.Module):
    """3x16x16 images to 5 numbers: convolutions that meet again, pooling, a linear layer."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.left = torch.nn.Conv2d(16, 16, 1)
        self.right = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.second = torch.nn.Conv2d(32, 32, 3, padding=1)
        self.head = torch.nn.Linear(32, 5)

    def forward(self, image):
        x = torch.max_pool2d(torch.relu(self.first(image)), 2)
        x = torch.cat([torch.relu(self.left(x)), torch.relu(self.right(x))], 1)
        return self.head(torch.relu(self.second(x)).mean((2, 3)))


class Rows(torch.nn.Module):
    """3x16x16 images to shares of rows: softmax behind a convolution, plain and permuted."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 1)

    def forward(self, image):
        x = self.first(image)
        return x.softmax(-1).mean(1) + x.permute(0, 2, 3, 1).softmax(3).mean(-1)


class Loud(torch.nn.Module):
    """3x16x16 images: a depthwise layer reads one channel that is 300 times as large as others."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.depthwise = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.wide = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.head = torch.nn.Conv2d(8, 8, 1, bias=False)
        with torch.no_grad():
            self.stem.weight[0] *= 300
            self.depthwise.weight[0] /= 300

    def forward(self, image):
        x = self.stem(image)
        x = self.depthwise(x * x.sigmoid())
        return self.head(torch.nn.functional.silu(self.wide(torch.nn.functional.silu(x))))


class Grey(torch.nn.Module):
    """1x16x16 images: a first layer of one channel, and a residual block."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.left = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.right = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.head = torch.nn.Linear(16, 5)

    def forward(self, image):
        x = torch.relu(self.stem(image))
        return self.head(torch.relu(self.right(torch.relu(self.left(x))) + x).mean((2, 3)))


class Pair(torch.nn.Module):
    """Two inputs, the second first; a dict with a tuple in it; any height and width."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, mask, image):
        y = self.conv(image) * mask[:, :, None, None]
        return {"map": y, "sums": (y.mean((2, 3)), y.flatten(1).amax(1))}


class Counted(Conv):
    """The batch as `len`, which is a number where torch.export runs the code."""

    def forward(self, image):
        return super().forward(image).reshape(len(image), -1)


class Attention(torch.nn.Module):
    """Torch's own multi-head attention, whose fused form exporters do not know."""

    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.encoder = torch.nn.TransformerEncoder(layer, 1)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, tokens):
        return self.head(self.encoder(tokens).mean(1))


class Windows(torch.nn.Module):
    """Attention within shifted windows as Swin has it: written out, its mask made at each call."""

    def __init__(self):
        super().__init__()
        self.queries = torch.nn.Linear(8, 24)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, image):
        size = image.shape[-1]
        mask = image.new_zeros((size, size))
        for number, rows in enumerate((slice(0, -2), slice(-2, None))):
            for columns in (slice(0, -2), slice(-2, None)):
                mask[rows, columns] = number
        mask = mask.reshape(1, -1) - mask.reshape(-1, 1)
        mask = mask.masked_fill(mask != 0, -100.0)
        x = torch.roll(image, (1, 1), (2, 3)).flatten(2).transpose(1, 2)
        q, k, v = self.queries(x).reshape(-1, size * size, 3, 2, 4).permute(2, 0, 3, 1, 4)
        shares = torch.softmax(q.matmul(k.transpose(-2, -1)) + mask, -1)
        shares = torch.nn.functional.dropout(shares, 0.0, self.training)
        x = shares.matmul(v).transpose(1, 2).flatten(2)
        return self.head(x.mean(1))


class Token(torch.nn.Module):
    """A learned token before those of the input, as in ViT."""

    def __init__(self):
        super().__init__()
        self.token = torch.nn.Parameter(torch.randn(1, 1, 16))
        self.head = torch.nn.Linear(16, 3)

    def forward(self, tokens):
        first = self.token.expand(tokens.shape[0], -1, -1)
        return self.head(torch.cat([first, tokens], 1).softmax(1)).mean(1)


class Detector(torch.nn.Module):
    """Boxes to 128 pixels, their sides from distributions over bins, and scores, of two scales."""

    def __init__(self):
        super().__init__()
        self.fine = torch.nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.coarse = torch.nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.sides = torch.nn.ModuleList(torch.nn.Conv2d(16, 32, 1) for _ in range(2))
        self.classes = torch.nn.ModuleList(torch.nn.Conv2d(16, 3, 1) for _ in range(2))
        self.bins = torch.nn.Conv2d(8, 1, 1, bias=False)
        self.bins.weight.data[:] = torch.arange(8.0).reshape(1, 8, 1, 1)

    def forward(self, image):
        fine = torch.nn.functional.silu(self.fine(image))
        maps = fine, torch.relu(self.coarse(fine))
        heads = zip(self.sides, self.classes, maps)
        rows = [torch.cat([side(x), score(x)], 1).flatten(2) for side, score, x in heads]
        sides, logits = torch.cat(rows, 2).split((32, 3), 1)
        shares = sides.reshape(sides.shape[0], 4, 8, -1).transpose(1, 2).softmax(1)
        near, far = self.bins(shares).reshape(sides.shape[0], 4, -1).chunk(2, 1)
        points = torch.arange(float(near.shape[-1]))
        low, high = points - near, points + far
        return torch.cat([(low + high) * 4, (high - low) * 8, logits.sigmoid()], 1)


class OneBatchOnly(torch.nn.Module):
    def forward(self, image):
        return image.reshape(4, -1)


class Halves(torch.nn.Module):
    """Sizes are halved and doubled: odd ones do not fit."""

    def forward(self, image):
        half = torch.max_pool2d(image, 2)
        return torch.nn.functional.interpolate(half, scale_factor=2.0) + image


class Numbers(torch.nn.Module):
    """Numbers are added to what layers give: a hard sigmoid by hand, one before a ReLU, with alpha."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3)
        self.second = torch.nn.Conv2d(16, 16, 3)
        self.third = torch.nn.Conv2d(16, 16, 3)
        self.head = torch.nn.Linear(16, 5)

    def forward(self, image):
        x = (self.first(image) + 3).clamp(0, 6) / 6
        x = torch.add(self.second(x), 1.5, alpha=2).relu()
        x = 1 + self.third(x)
        return self.head(x.mean((2, 3))) + 1
'''

IMAGE = TensorSpec(name="image", shape=("batch", 3, 16, 16), ranges={"batch": {"max": 12, "opt": 4}})
SIZES = {"height": {"min": 8, "opt": 12, "max": 24}, "width": {"min": 8, "opt": 10, "max": 24}}
ANY_IMAGE = TensorSpec(name="image", shape=("batch", 3, "height", "width"), ranges=SIZES)
INPUTS = {
    "Conv": (IMAGE,),
    "Rows": (IMAGE,),
    "Grey": (TensorSpec(name="image", shape=("batch", 1, 16, 16)),),
    "Pair": (ANY_IMAGE, TensorSpec(name="mask", shape=("batch", 1))),
    "Attention": (TensorSpec(name="tokens", shape=("batch", 5, 16)),),
    "Windows": (TensorSpec(name="image", shape=("batch", 8, 6, 6)),),
    "Token": (TensorSpec(name="tokens", shape=("batch", 5, 16)),),
    "Detector": (IMAGE,),
    "Loud": (IMAGE,),
    "OneBatchOnly": (IMAGE,),
    "Counted": (IMAGE,),
    "Numbers": (IMAGE,),
    "Halves": (TensorSpec(name="image", shape=("batch", 3, "height", 16), ranges=SIZES),),
}
OUTPUTS = {"Pair": ["map", "sums.0", "sums.1"]}


def torch_artifact(folder: Path, name: str) -> Artifact:
    """The network of that name as a torch artifact, with weights of a fixed seed."""
    from optcli.models.formats import torch as torch_format
    from optcli.models.formats import torch_build

    code = folder / "sources"
    code.mkdir(parents=True)
    (code / "networks.py").write_text(CODE)
    source = {"kind": "python", "reference": f"networks.py:{name}", "arguments": {}}
    description = torch_format.Description(source=source, inputs=INPUTS[name])
    out = folder / "torch"
    torch_format.save(torch_build.build(source, code), out, description, code)
    return artifact(out, Format.TORCH, outputs=OUTPUTS.get(name, ["output"]))


def artifact(
    folder: Path, format: Format, outputs: Sequence[str] = ("output",), precision: str = "fp32"
) -> Artifact:
    """A folder as an artifact."""
    return Artifact("key", format, folder, precision, 0, "digest", {"outputs": list(outputs)})


def onnx_file(source: Path, folder: Path) -> Artifact:
    """An ONNX file as an artifact; its outputs keep their names."""
    import shutil

    from optcli.models.formats import onnx as onnx_format
    from optcli.models.onnx_graphs.protobuf import output_names

    folder.mkdir(parents=True)
    shutil.copy(source, folder / onnx_format.FILE)
    outputs = output_names(onnx_format.outline(folder))
    return artifact(folder, Format.ONNX, outputs)


@dataclass
class Heard(Silent):
    """An observer that remembers."""

    warnings: list[str] = field(default_factory=list)
    fractions: list[float | None] = field(default_factory=list)

    def warned(self, step: str, message: str) -> None:
        self.warnings.append(message)

    def progress(self, step: str, fraction: float | None, message: str) -> None:
        self.fractions.append(fraction)


@dataclass
class Noise:
    """Random samples for some inputs, the same for the same position."""

    inputs: Sequence[TensorSpec]
    count: int = 8
    scale: float = 1.0
    read: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        self.read.append(index)
        return Sample(
            f"sample {index}", {k: v[0] for k, v in feed(self.inputs, 1, index, self.scale).items()}
        )


def feed(
    inputs: Sequence[TensorSpec], batch_size: int, seed: int = 0, scale: float = 1.0
) -> dict[str, np.ndarray]:
    """Random inputs of a batch size."""
    generator = np.random.default_rng(seed)
    return {
        spec.name: (scale * generator.standard_normal(spec.concrete(batch_size))).astype(spec.dtype)
        for spec in inputs
    }


def job(source: Artifact, out: Path, inputs: Sequence[TensorSpec], **more: Any) -> Job:
    """A job that writes into a new folder."""
    out.mkdir(parents=True)
    return Job(
        out=out, inputs=tuple(inputs), origin=source, observer=more.pop("observer", Heard()), **more
    )


def apply(
    one: Pass, source: Artifact, out: Path, inputs: Sequence[TensorSpec], **more: Any
) -> Artifact:
    """Run a pass, check what it wrote, and give it as an artifact."""
    from optcli.models import formats

    made = one.run(source, job(source, out, inputs, **more))
    format = one.produces(source.format)
    formats.check(format, out)
    facts = {**source.facts, **made.facts}
    return Artifact("key", format, out, made.precision or source.precision, 0, "digest", facts)


def reference(
    source: Artifact, inputs: Sequence[TensorSpec], values: dict[str, Any]
) -> dict[str, np.ndarray]:
    """What the torch artifact's own network computes."""
    import torch

    from optcli.models.formats import torch as torch_format
    from optcli.models.formats.torch_calls import arguments, flatten_outputs

    model = torch_format.open(source.path)
    tensors = {name: torch.from_numpy(value) for name, value in values.items()}
    positional, keyword = arguments(model, inputs).split(tensors)
    with torch.no_grad():
        outputs = flatten_outputs(model(*positional, **keyword))
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def largest_error(
    runner: Runner,
    made: Artifact,
    source: Artifact,
    inputs: Sequence[TensorSpec],
    batches: Sequence[int],
) -> float:
    """Largest relative difference to the network; the outputs must have its names, order and shapes."""
    worst = 0.0
    with runner.open(made, inputs) as model:
        for size in batches:
            values = feed(inputs, size, seed=size)
            wanted, found = reference(source, inputs, values), model.run(values)
            assert list(found) == list(wanted)
            for name, array in wanted.items():
                assert found[name].shape == array.shape
                worst = max(worst, float(np.abs(found[name] - array).max() / np.abs(array).max()))
    return worst


def sqnr_db(wanted: np.ndarray, found: np.ndarray) -> float:
    """Signal to quantization noise."""
    noise = float(((wanted - found) ** 2).sum())
    return 10 * float(np.log10(float((wanted**2).sum()) / max(noise, 1e-30)))
