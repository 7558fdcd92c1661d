"""A network that learns to tell noisy stripes apart, and its training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import torch
from tiny_networks import Heard, artifact

from optcli.artifact import Artifact, Format
from optcli.models.formats import torch as torch_format
from optcli.models.sources.python import PythonSource
from optcli.passes import Job
from optcli.passes.finetune import Finetune
from optcli.sample import Sample
from optcli.settings import TensorSpec

CODE = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, width=16, dropout=0.1):
            super().__init__()
            self.conv = nn.Conv2d(1, width, 3, padding=1, stride=2)
            self.norm = nn.BatchNorm2d(width)
            self.inner = nn.Conv2d(width, 32, 3, padding=1, stride=2)
            self.drop = nn.Dropout(dropout)
            self.head = nn.Linear(32, 4)

        def forward(self, image):
            x = torch.relu(self.norm(self.conv(image)))
            return self.head(self.drop(torch.relu(self.inner(x)).mean((2, 3))))

    class Two(Net):
        def forward(self, image):
            return {"other": image.mean((1, 2, 3)), "scores": super().forward(image)}

    def plain():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))

    class Viewing(Net):
        def forward(self, image):
            x = torch.relu(self.inner(torch.relu(self.norm(self.conv(image)))))
            return self.head(x.view(len(x), -1).view(len(x), 32, -1).mean(2))

    class Cancelling(Net):
        def forward(self, image):
            return (super().forward(image) + 4096) - 4096

    class half(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = plain().half()

        def forward(self, image):
            return self.scores(image.half())
    """
IMAGE = (TensorSpec(name="image", shape=["batch", 1, 8, 8]),)


@dataclass
class Stripes:
    """Noisy stripes, horizontal or vertical, bright on one half or the other: four classes."""

    count: int = 128
    seed: int = 0
    labelled: bool = True
    classes: int = 4
    read: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        self.read.append(index)
        generator = np.random.default_rng([self.seed, index])
        label = index % 4
        image = np.zeros((8, 8), np.float32)
        image[label % 2 :: 2] = 1.0
        image = image.T if label >= 2 else image
        noise = 0.3 * generator.standard_normal((1, 8, 8))
        target = label % self.classes if self.labelled else None
        return Sample(f"{index}", {"image": (image + noise).astype(np.float32)}, target)


def written(folder: Path, name: str = "Net", **facts) -> Artifact:
    code = folder / "code"
    code.mkdir(exist_ok=True)
    (code / "nets.py").write_text(dedent(CODE))
    out = folder / name
    out.mkdir()
    outputs = PythonSource(target=f"nets.py:{name}", folder=code).write(out, IMAGE).outputs
    made = artifact(out, Format.TORCH, outputs=list(outputs))
    return replace(made, facts={**made.facts, **facts})


def changed(source: Artifact, out: Path, change) -> Artifact:
    """A copy of an artifact with other weights."""
    model = torch_format.open(source.path)
    with torch.no_grad():
        change(model)
    torch_format.save(model, out, torch_format.read(source.path), source.path / torch_format.CODE)
    return replace(source, path=out)


def tuned(source: Artifact, out: Path, *, origin=None, heard=None, scratch=None, data=None, **options):
    """The network after fine-tuning, what its facts say of it, and what was heard."""
    out.mkdir()
    data = Stripes() if data is None else data
    job = Job(
        out, IMAGE, origin or source, heard or Heard(), seed=3, scratch=scratch,
        training=data, validation=replace(data, count=64, seed=1, read=[]),
        device=options.get("device", "cpu"),
    )  # fmt: skip
    made = Finetune(
        **{"epochs": 4, "batch_size": 16, "learning_rate": 0.01, "threads": 1, **options}
    ).run(source, job)
    assert made.precision is None
    return torch_format.open(out), made.facts["finetuning"], job.observer


def states_equal(one, other) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)
