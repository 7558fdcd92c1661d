"""Layers of a cut network, fitted in closed form to what they gave in the whole one."""

from __future__ import annotations

import copy
from textwrap import dedent

import numpy as np
import pytest
import torch
from real_recipes import BLOCK, RESNET
from torch import nn

from optcli import data
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings, Preparation
from optcli.models.formats import torch as torch_format
from optcli.models.sources.python import PythonSource
from optcli.observer import Silent
from optcli.passes import Job
from optcli.passes._torch import reconstruction
from optcli.passes.prune import Prune
from optcli.sample import Sample
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
IMAGE = [TensorSpec(name="input", shape=["batch", 3, 8, 8])]
PAIRS = [TensorSpec(name="input", shape=["batch", 3, 8, 8], batch={"min": 2, "opt": 2, "max": 8})]
CODE = """
    import torch
    from torch import nn

    def conv():
        return nn.Conv2d(16, 16, 3, padding=1)

    class Block(nn.Sequential):
        def __init__(self):
            super().__init__(conv(), nn.ReLU(), conv())

        def forward(self, x):
            return (x + super().forward(x)).relu()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.blocks = nn.Sequential(Block(), Block())
            self.head = nn.Linear(16, 4)

        def forward(self, input):
            return self.head(self.blocks(self.stem(input).relu()).mean((2, 3)))

    class Pairs(Net):
        def forward(self, input):
            if len(input) > 2:
                raise ValueError("another batch")
            return super().forward(input)

    class NeverOne(Net):
        def forward(self, input):
            if len(input) < 2:
                raise ValueError("another batch")
            return super().forward(input)
    """


@pytest.fixture(autouse=True)
def one_thread():
    """So small networks gain nothing from a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Samples:
    def __init__(self, count: int = 60) -> None:
        self._images = np.random.default_rng(0).standard_normal((count, 3, 8, 8)).astype(np.float32)

    def __len__(self):
        return len(self._images)

    def __getitem__(self, index):
        return Sample(f"{index}", {"input": self._images[index]}, None)


class Heard(Silent):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warned(self, step, text):
        self.warnings.append(text)


@pytest.fixture
def prune(tmp_path):
    """Prune a network of CODE; gives the network before, the one after, the facts and warnings."""
    (tmp_path / "nets.py").write_text(dedent(CODE))

    def pruned(name: str, folder: str = "out", inputs=IMAGE, **options):
        whole, out = tmp_path / "whole", tmp_path / folder
        if not whole.is_dir():
            whole.mkdir()
            PythonSource(target=f"nets.py:{name}", folder=tmp_path).write(whole, inputs)
        out.mkdir()
        source = Artifact("key", Format.TORCH, whole, "fp32", 0, "", {})
        heard = Heard()
        job = Job(out, tuple(inputs), source, heard, seed=3, calibration=Samples())
        facts = Prune(**options).run(source, job).facts["pruning"]
        return torch_format.open(whole), torch_format.open(out), facts, heard.warnings

    return pruned


def change(whole, smaller, seed=1):
    """The change of the outputs on images that nothing was fitted to, relative to the outputs."""
    images = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        wanted = whole(images)
        return float((smaller(images) - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("options", [{"ratio": 0.5}, {"remove": ("blocks.0",)}, {"block_ratio": 0.5}])
def test_what_is_left_comes_closer_to_the_whole(prune, options):
    whole, cut, facts, _ = prune("Net", "cut", **options)
    assert "reconstruction" not in facts
    _, fitted, facts, warnings = prune("Net", "fitted", reconstruct=True, **options)
    assert not warnings
    made = facts["reconstruction"]
    assert (made["samples"], made["held_out"]) == (48, 12)
    assert made["layers"] > 2
    assert made["output_change"] < 0.6 * made["output_change_before"]
    assert change(whole, fitted) < 0.7 * change(whole, cut)
    shapes = [value.shape for value in cut.state_dict().values()]
    assert [value.shape for value in fitted.state_dict().values()] == shapes


def test_a_fit_that_does_not_help_is_undone(prune, monkeypatch):
    _, cut, _, _ = prune("Net", "cut", ratio=0.5)

    def ruined(whole, smaller, *_):
        with torch.no_grad():
            smaller.head.weight.mul_(-5)
        return ["head"]

    monkeypatch.setattr(reconstruction, "fit", ruined)
    _, fitted, facts, _ = prune("Net", "fitted", ratio=0.5, reconstruct=True)
    made = facts["reconstruction"]
    assert made["layers"] == 0
    assert made["output_change"] == made["output_change_before"]
    for name, value in cut.state_dict().items():
        assert torch.equal(fitted.state_dict()[name], value)


def test_a_network_that_runs_on_no_such_batch_is_pruned_all_the_same(prune):
    _, _, facts, warnings = prune("Pairs", ratio=0.5, reconstruct=True)
    assert facts["reconstruction"] == {"layers": 0}
    assert len(warnings) == 1
    assert "not reconstructed" in warnings[0]
    assert "another batch" in warnings[0]


def test_a_network_that_never_runs_on_one_image_is_reconstructed(prune):
    _, _, facts, warnings = prune("NeverOne", ratio=0.5, inputs=PAIRS, reconstruct=True)
    assert not warnings
    assert facts["reconstruction"]["layers"] > 2


class Reader(nn.Module):
    """A first layer whose last four channels repeat the others, then a layer that reads all eight."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        with torch.no_grad():
            self.first.weight[4:] = self.first.weight[:4] * 2
            self.first.bias[4:] = self.first.bias[:4] * 2 + 1
        self.kind = kind
        if kind == "linear":
            self.reader = nn.Linear(8, 5)
        else:
            self.reader = nn.Conv2d(8, 6, 3, stride=2, padding="valid", dilation=2, bias=kind == "bias")
        self.norm = nn.BatchNorm2d(6) if kind == "norm" else nn.Identity()
        self.eval()

    def forward(self, x):
        x = self.first(x)
        return self.norm(self.reader(x.mean((2, 3)) if self.kind == "linear" else x))

    def cut(self):
        smaller = copy.deepcopy(self)
        for layer, parts in ((smaller.first, (0,)), (smaller.reader, (1,))):
            for part in parts:
                layer.weight = nn.Parameter(layer.weight.detach().narrow(part, 0, 4).clone())
        smaller.first.bias = nn.Parameter(smaller.first.bias.detach()[:4].clone())
        smaller.first.out_channels = 4
        return smaller


@pytest.mark.parametrize("kind", ["bias", "norm", "linear"])
def test_channels_that_others_hold_are_not_missed(kind):
    whole = Reader(kind)
    smaller = whole.cut()
    channels = reconstruction.output_channels(whole, Reader.cut)
    assert channels["first"] == [0, 1, 2, 3]
    images = torch.randn(2000, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    before = change(whole, smaller)
    assert reconstruction.fit(whole, smaller, channels, lambda each: each(images), 0) == ["reader"]
    assert before > 0.3
    assert change(whole, smaller) < 0.05


def test_each_group_of_channels_is_fitted_for_itself():
    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 1)
    whole = nn.Sequential(first, nn.Conv2d(8, 8, 3, groups=4), nn.Flatten()).eval()
    smaller = copy.deepcopy(whole)
    with torch.no_grad():
        smaller[0].weight.mul_(2)
        smaller[0].bias.mul_(2)
    channels = {"1": list(range(8))}
    images = torch.randn(2000, 3, 8, 8)
    assert reconstruction.fit(whole, smaller, channels, lambda each: each(images), 0) == ["1"]
    assert torch.allclose(smaller[1].weight * 2, whole[1].weight, atol=2e-2)


def test_a_layer_that_runs_twice_stays():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 3, 1)
    whole = nn.Sequential(nn.Conv2d(3, 3, 1), conv, conv, nn.Flatten()).eval()
    smaller = copy.deepcopy(whole)
    with torch.no_grad():
        smaller[0].weight.mul_(2)
    run = lambda each: each(torch.randn(8, 3, 8, 8))  # noqa: E731
    assert reconstruction.fit(whole, smaller, {"1": [0, 1, 2]}, run, 0) == []


@pytest.mark.long
def test_a_real_network_keeps_most_of_its_accuracy(shared, tmp_path):
    (tmp_path / "resnet.py").write_text(RESNET)
    (tmp_path / "block.py").write_text(BLOCK)
    inputs = [TensorSpec(name="image", shape=["batch", 3, 32, 32])]
    weights = str(shared / "models/resnet20_cifar10.pth")
    source = PythonSource(
        target="resnet.py:ResNet", folder=tmp_path, weights=weights, arguments={"n": 3}
    )
    (tmp_path / "whole").mkdir()
    source.write(tmp_path / "whole", inputs)
    artifact = Artifact("key", Format.TORCH, tmp_path / "whole", "fp32", 0, "", {})
    images = shared / "datasets/cifar10_subset"
    prepare = Preparation(scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

    def samples_of(part: str, count: int):
        settings = DataSettings(source=f"imagefolder:{images / part}", prepare=prepare, samples=count)
        return data.open(settings, tmp_path, inputs)

    found = {}
    test = samples_of("test", 150)
    samples = [test[index] for index in range(len(test))]
    feed = torch.from_numpy(np.stack([each.inputs["image"] for each in samples]))
    for fitted in (False, True):
        out = tmp_path / str(fitted)
        out.mkdir()
        job = Job(out, tuple(inputs), artifact, Silent(), calibration=samples_of("train", 80))
        Prune(ratio=0.3, round_to=4, reconstruct=fitted).run(artifact, job)
        with torch.no_grad():
            chosen = torch_format.open(out)(feed).argmax(1).tolist()
        found[fitted] = np.mean([a == each.target for a, each in zip(chosen, samples, strict=True)])
    assert found[True] > found[False] + 0.15
    assert found[True] > 0.7
