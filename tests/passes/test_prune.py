"""Pruning: what is removed, what is kept, and that the network comes back exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch

from optcli.artifact import Artifact, Format
from optcli.errors import StepError
from optcli.models.formats import torch as torch_format
from optcli.models.formats.torch_calls import arguments, example_inputs, flatten_outputs
from optcli.models.sources.python import PythonSource
from optcli.models.sources.torchvision import TorchvisionSource
from optcli.observer import Silent
from optcli.passes import Job
from optcli.passes.prune import Prune
from optcli.sample import Sample
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

CODE = """
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 32, 3, padding=1)
            self.norm = nn.BatchNorm2d(32)
            self.inner = nn.Conv2d(32, 48, 3, padding=1)
            self.outer = nn.Conv2d(48, 32, 3, padding=1)
            self.divided = nn.Conv2d(32, 32, 3, padding=1, groups=4)
            self.head = nn.Linear(32, 5)
            for value in self.parameters():
                nn.init.normal_(value)

        def forward(self, image):
            x = self.norm(self.stem(image)).relu()
            x = x + self.outer(self.inner(x).relu())
            return self.head(self.divided(x).mean((2, 3)))

    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.inner = nn.Conv2d(16, 32, 3, padding=1)
            self.outer = nn.Conv2d(32, 32, 3, padding=1)
            self.head = nn.Linear(32, 2)

        def forward(self, image):
            x = self.stem(image)
            shortcut = nn.functional.pad(x, (0, 0, 0, 0, 8, 8))
            return self.head((shortcut + self.outer(self.inner(x))).mean((2, 3)))

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.image = nn.Conv2d(3, 16, 3)
            self.extra = nn.Linear(4, 16)
            self.joined = nn.Linear(32, 32)
            self.head = nn.Linear(32, 2)

        def forward(self, image, extra):
            both = torch.cat([self.image(image).mean((2, 3)), self.extra(extra)], 1)
            hidden = self.joined(both).relu()
            return {"scores": self.head(hidden), "hidden": hidden, "index": hidden.argmax(1)}

    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 16, 3, padding=1)
            self.head = nn.Conv2d(4, 2, 1)

        def forward(self, image):
            return self.head(self.conv(image).view(-1, 4, 16, 16))

    class Narrow(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.head = nn.Conv2d(8, 2, 1)

        def forward(self, image):
            return self.head(self.conv(image))
    """
IMAGE = [TensorSpec(name="input", shape=["batch", 3, 8, 8])]


def own(folder: Path, name: str) -> PythonSource:
    (folder / "nets.py").write_text(dedent(CODE))
    return PythonSource(target=f"nets.py:{name}", folder=folder)


@pytest.fixture(autouse=True)
def one_thread():
    """So small networks gain nothing from a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def written(source, out: Path, inputs=IMAGE) -> Artifact:
    out.mkdir()
    source.write(out, inputs)
    return Artifact("key", Format.TORCH, out, "fp32", 0, "", {})


@dataclass
class Samples:
    """Random images; the label is what `label` makes of an image, None without it."""

    inputs: list
    label: Callable | None = None
    count: int = 24

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        feed = {name: value[0] for name, value in example_inputs(self.inputs, 1, index).items()}
        target = None if self.label is None else self.label(feed)
        return Sample(f"{index}", {name: value.numpy() for name, value in feed.items()}, target)


def pruned(artifact: Artifact, out: Path, inputs=IMAGE, calibration=None, **options):
    out.mkdir()
    data = calibration or Samples(inputs)
    job = Job(out, tuple(inputs), artifact, Silent(), seed=3, calibration=data)
    made = Prune(**options).run(artifact, job)
    return torch_format.open(out), made.facts["pruning"]


def outputs(model, inputs=IMAGE):
    feed = example_inputs(inputs, 2)
    positional, keyword = arguments(model, inputs).split(feed)
    with torch.no_grad():
        return flatten_outputs(model(*positional, **keyword))


def test_coupled_layers_lose_the_same_channels(tmp_path):
    artifact = written(own(tmp_path, "Residual"), tmp_path / "a")
    model, facts = pruned(artifact, tmp_path / "b", ratio=0.5)
    sizes = (model.stem.out_channels, model.inner.out_channels, model.outer.out_channels)
    assert sizes == (16, 24, 16)
    assert (model.divided.groups, model.divided.out_channels) == (4, 16)
    assert model.head.out_features == 5
    assert set(facts["layers_pruned"]) == {"stem", "inner", "outer", "divided"}
    assert facts["macs"] < 0.5 * facts["macs_before"]
    assert facts["parameters"] == sum(value.numel() for value in model.parameters())


def test_the_weakest_channels_go(tmp_path):
    source = own(tmp_path, "Residual")
    artifact = written(source, tmp_path / "a")
    model = torch_format.open(artifact.path)
    with torch.no_grad():
        weak = torch.arange(0, 48, 2)
        model.inner.weight[weak] *= 1e-3
        model.inner.bias[weak] *= 1e-3
        model.outer.weight[:, weak] *= 1e-3
    torch_format.save(model, artifact.path, torch_format.read(artifact.path))
    keep = ("stem", "divided")
    found, _ = pruned(artifact, tmp_path / "b", ratio=0.5, keep=keep)
    assert torch.equal(found.inner.weight, model.inner.weight[torch.arange(1, 48, 2)])
    assert found.stem.out_channels == 32
    same, other = outputs(found)["output"], outputs(model)["output"]
    assert (same - other).abs().max() < 1e-2 * other.abs().max()


@pytest.mark.parametrize("importance", ["magnitude", "taylor", "batchnorm", "random"])
@pytest.mark.parametrize("global_ranking", [False, True])
def test_every_choice_comes_back_exactly(tmp_path, monkeypatch, importance, global_ranking):
    artifact = written(own(tmp_path, "Residual"), tmp_path / "a")
    options = {"importance": importance, "global_ranking": global_ranking}
    in_memory = []
    save = torch_format.save
    monkeypatch.setattr(torch_format, "save", lambda m, *rest: (in_memory.append(m), save(m, *rest)))
    first, _ = pruned(artifact, tmp_path / "b", **options)
    again, _ = pruned(artifact, tmp_path / "c", **options)
    wanted = outputs(in_memory[0])["output"]
    assert torch.equal(outputs(first)["output"], wanted)
    assert torch.equal(outputs(again)["output"], wanted)


def test_taylor_keeps_what_the_loss_needs_however_small_its_weights(tmp_path):
    artifact = written(own(tmp_path, "Residual"), tmp_path / "a")
    model = torch_format.open(artifact.path)
    with torch.no_grad():  # every second channel of `inner` is loud, and nobody listens to it
        loud = torch.arange(0, 48, 2)
        model.inner.weight[loud] *= 1e3
        model.inner.bias[loud] = -1e6
    torch_format.save(model, artifact.path, torch_format.read(artifact.path))
    options = {"ratio": 0.5, "keep": ("stem", "divided")}
    for name, label, loss in (
        ("energy", None, "output energy"),
        ("labels", lambda feed: 3, "cross-entropy"),
        ("no class", lambda feed: np.zeros((2, 2), np.int64), "output energy"),
    ):
        found, facts = pruned(
            artifact,
            tmp_path / name,
            calibration=Samples(IMAGE, label),
            importance="taylor",
            samples=9,
            **options,
        )
        assert torch.equal(found.inner.weight, model.inner.weight[torch.arange(1, 48, 2)])
        assert torch.allclose(outputs(found)["output"], outputs(model)["output"], rtol=1e-3, atol=0.1)
        assert (facts["loss"], facts["calibration_samples"]) == (loss, 9)
    by_size, _ = pruned(artifact, tmp_path / "m", importance="magnitude", **options)
    assert torch.equal(by_size.inner.weight, model.inner.weight[loud])
    assert Prune(importance="taylor").roles() == ("calibration",)
    assert Prune().roles() == ()


def test_a_loss_that_hangs_on_nothing_ranks_nothing(tmp_path):
    artifact = written(own(tmp_path, "Residual"), tmp_path / "a")
    model = torch_format.open(artifact.path)
    torch.nn.init.zeros_(model.head.weight)
    torch_format.save(model, artifact.path, torch_format.read(artifact.path))
    with pytest.raises(StepError, match=r"taylor importance of the channels of .* is no number"):
        pruned(artifact, tmp_path / "b", importance="taylor")


def test_pruning_twice_comes_back_exactly(tmp_path):
    artifact = written(own(tmp_path, "Residual"), tmp_path / "a")
    pruned(artifact, tmp_path / "b", ratio=0.25)
    once = Artifact("key", Format.TORCH, tmp_path / "b", "fp32", 0, "", {})
    model, facts = pruned(once, tmp_path / "c", ratio=0.3)
    assert model.stem.out_channels == 16
    assert facts["macs_before"] > facts["macs"]
    assert [t["name"] for t in torch_format.read(tmp_path / "c").transforms] == ["prune", "prune"]


def test_no_layer_loses_more_than_max_ratio(tmp_path):
    artifact = written(own(tmp_path, "Residual"), tmp_path / "a")
    model, _ = pruned(
        artifact, tmp_path / "b", ratio=0.9, max_ratio=0.5, round_to=1, global_ranking=True
    )
    assert model.inner.out_channels >= 24
    assert model.stem.out_channels >= 16


def test_several_inputs_and_every_output_keeps_its_shape(tmp_path):
    inputs = [
        TensorSpec(name="extra", shape=["batch", 4]),
        TensorSpec(name="image", shape=["batch", 3, 8, 8]),
    ]
    artifact = written(own(tmp_path, "Two"), tmp_path / "a", inputs)
    model, facts = pruned(artifact, tmp_path / "b", inputs, ratio=0.5)
    assert {name: tuple(value.shape) for name, value in outputs(model, inputs).items()} == {
        "scores": (2, 2),
        "hidden": (2, 32),
        "index": (2,),
    }
    assert sorted(facts["layers_pruned"]) == ["extra", "image"]
    assert (model.image.out_channels, model.joined.in_features) == (8, 16)


def test_a_shortcut_that_pads_its_channels_keeps_its_width(tmp_path):
    artifact = written(own(tmp_path, "Padded"), tmp_path / "a")
    model, facts = pruned(artifact, tmp_path / "b", ratio=0.5)
    assert facts["layers_pruned"] == ["inner"]
    assert (model.stem.out_channels, model.inner.out_channels, model.head.in_features) == (16, 16, 32)


@pytest.mark.parametrize(
    ("name", "options", "message", "hint"),
    [
        ("Fixed", {"ratio": 0.5}, "1 cannot be followed: conv", "keep"),
        ("Narrow", {}, "no channel can be removed", "round_to"),
        ("Narrow", {"keep": ("cnv",)}, "`keep: cnv` fits no module", "did you mean 'conv'?"),
        ("Narrow", {"importance": "batchnorm"}, "no batch norm", "magnitude"),
    ],
)
def test_what_cannot_be_pruned_says_so(tmp_path, name, options, message, hint):
    size = 16 if name == "Fixed" else 8
    inputs = [TensorSpec(name="input", shape=["batch", 3, size, size])]
    artifact = written(own(tmp_path, name), tmp_path / "a", inputs)
    with pytest.raises(StepError) as error:
        pruned(artifact, tmp_path / "b", inputs, **options)
    assert message in error.value.message
    assert hint in error.value.hint


def test_of_a_vision_transformer_the_hidden_layers_are_pruned(tmp_path):
    (tmp_path / "vit.py").write_text(
        dedent("""
        from torchvision.models import VisionTransformer

        def make():
            return VisionTransformer(16, 4, 2, 2, 32, 64, num_classes=3)
        """)
    )
    inputs = [TensorSpec(name="input", shape=["batch", 3, 16, 16])]
    artifact = written(PythonSource(target="vit.py:make", folder=tmp_path), tmp_path / "a", inputs)
    model, facts = pruned(artifact, tmp_path / "b", inputs, ratio=0.5)
    assert [block.mlp[0].out_features for block in model.encoder.layers] == [32, 32]
    assert model.hidden_dim == 32
    # Of 17 tokens: patches; per block the projections, the products of attention, and the MLP.
    blocks = 2 * (17 * 4 * 32 * 32 + 2 * 17 * 17 * 32 + 17 * 2 * 32 * 64)
    assert facts["macs_before"] == 16 * 48 * 32 + blocks + 32 * 3
    assert facts["groups_pruned"] == 2


DIFFICULT = """
    import torch
    from torch import nn

    def plain(inside, outside):
        conv = nn.Conv2d(inside, outside, 3, padding=1)
        return nn.Sequential(conv, nn.BatchNorm2d(outside), nn.ReLU())

    class Chunk(nn.Module):  # as C2f of YOLOv8
        def __init__(self):
            super().__init__()
            self.cv1, self.step, self.cv2 = nn.Conv2d(32, 64, 1), plain(32, 32), nn.Conv2d(96, 32, 1)

        def forward(self, x):
            parts = list(self.cv1(x).chunk(2, 1))
            parts.append(self.step(parts[-1]))
            return self.cv2(torch.cat(parts, 1))

    class Split(nn.Module):  # of parts that differ, joined in another order
        def __init__(self):
            super().__init__()
            self.wide, self.join = nn.Conv2d(32, 48, 1), nn.Conv2d(48, 32, 1)

        def forward(self, x):
            small, large = torch.split(self.wide(x), [16, 32], 1)
            return self.join(torch.cat([large, small.sigmoid()], 1))

    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(32, 32, 3, 3) * 0.1)

        def forward(self, x):
            return nn.functional.conv2d(x, self.kernel, padding=1).relu()

    class Attention(nn.Module):  # with one layer for queries, keys and values
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Conv2d(32, 96, 1), nn.Conv2d(32, 32, 1)

        def forward(self, x):
            n, _, h, w = x.shape
            q, k, v = self.qkv(x).reshape(n, 3, 4, 8, h * w).unbind(1)
            seen = (q.transpose(-2, -1) @ k).softmax(-1)
            return self.out((v @ seen.transpose(-2, -1)).reshape(n, 32, h, w))

    class Shuffled(nn.Module):
        def forward(self, x):
            n, c, h, w = x.shape
            return x.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)

    class InPlace(nn.Module):  # behind what divides its channels
        def forward(self, x):
            n, c, h, w = x.shape
            return x.view(n, 2, c // 2, h, w).mul_(2.0).flatten(1, 2)

    MIDDLES = {
        "chunk": Chunk,
        "split": Split,
        "transposed": lambda: nn.ConvTranspose2d(32, 32, 4, 2, 1, groups=8),
        "functional": Functional,
        "attention": Attention,
        "shuffled": Shuffled,
        "in place": InPlace,
    }

    class Net(nn.Module):
        def __init__(self, middle):
            super().__init__()
            self.stem, self.wide, self.middle = plain(3, 64), plain(64, 32), MIDDLES[middle]()
            self.last, self.head = plain(32, 64), nn.Linear(64, 5)

        def forward(self, input):
            return self.head(self.last(self.middle(self.wide(self.stem(input)))).mean((2, 3)))
    """


@pytest.mark.parametrize(
    "middle",
    ["chunk", "split", "transposed", "functional", "attention", "shuffled", "in place"],
)
def test_what_cannot_be_followed_stays_and_the_rest_is_pruned(tmp_path, middle):
    (tmp_path / "nets.py").write_text(dedent(DIFFICULT))
    source = PythonSource(target="nets.py:Net", folder=tmp_path, arguments={"middle": middle})
    inputs = [TensorSpec(name="input", shape=["batch", 3, 8, 8])]
    artifact = written(source, tmp_path / "a", inputs)
    model, facts = pruned(artifact, tmp_path / "b", inputs, ratio=0.5)
    assert model.stem[0].out_channels == model.last[0].out_channels == 32
    assert outputs(model, inputs)["output"].shape == (2, 5)
    again = torch_format.open(tmp_path / "b")
    assert torch.equal(outputs(again, inputs)["output"], outputs(model, inputs)["output"])
    lost = {"chunk": "middle.step.0", "split": "middle.wide", "transposed": "middle"}
    assert lost.get(middle, "") in [*facts["modules_not_followed"], ""]
    if middle == "shuffled":  # its channels would be taken for those of other places
        assert model.wide[0].out_channels == 32


HEADS = """
    import torch
    from torch import nn

    class Anchored(nn.Module):
        \"\"\"Two levels, each with the numbers of two boxes at a place in its channels.\"\"\"

        def __init__(self):
            super().__init__()
            layers = nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3)
            self.first, self.second = nn.Sequential(*layers), nn.Conv2d(32, 32, 3, 2)
            self.heads = nn.ModuleList([nn.Conv2d(32, 8, 1), nn.Conv2d(32, 8, 1)])

        def forward(self, input):
            first = self.first(input)
            levels = first, self.second(first)
            found = [head(level).unflatten(1, (2, 4)) for head, level in zip(self.heads, levels)]
            return torch.cat([each.permute(0, 1, 3, 4, 2).flatten(1, 3) for each in found], 1)

    class Ghosts(nn.Module):
        \"\"\"Half of the channels are made of the other half.\"\"\"

        def __init__(self):
            super().__init__()
            self.primary = nn.Conv2d(16, 8, 1)
            self.cheap = nn.Conv2d(8, 8, 3, padding=1, groups=8)

        def forward(self, x):
            x = self.primary(x)
            return torch.cat([x, self.cheap(x)], 1)

    class Ghosted(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.last = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 5, 1)
            self.first, self.second = Ghosts(), Ghosts()

        def forward(self, input):
            x = self.stem(input).relu()
            return self.last(self.second(self.first(x).relu()) + x).mean((2, 3))
    """


def test_a_detector_that_joins_the_anchors_of_its_levels_loses_channels(tmp_path):
    (tmp_path / "heads.py").write_text(dedent(HEADS))
    inputs = [TensorSpec(name="input", shape=["batch", 3, 12, 12])]
    artifact = written(
        PythonSource(target="heads.py:Anchored", folder=tmp_path), tmp_path / "a", inputs
    )
    model, _ = pruned(artifact, tmp_path / "b", inputs, ratio=0.5)
    widths = [each.out_channels for each in (model.first[0], model.first[2], model.second)]
    assert widths == [16, 16, 16]
    assert [head.out_channels for head in model.heads] == [8, 8]
    assert outputs(model, inputs)["output"].shape == outputs(
        torch_format.open(artifact.path), inputs
    )["output"].shape  # fmt: skip


def test_channels_beside_what_is_made_of_them_go_with_it(tmp_path):
    """Else the channels of a residual stream take others with them, and hardly any is left."""
    (tmp_path / "heads.py").write_text(dedent(HEADS))
    inputs = [TensorSpec(name="input", shape=["batch", 3, 8, 8])]
    artifact = written(PythonSource(target="heads.py:Ghosted", folder=tmp_path), tmp_path / "a", inputs)
    model, _ = pruned(artifact, tmp_path / "b", inputs, ratio=0.5)
    widths = [each.out_channels for each in (model.stem, model.second.primary, model.second.cheap)]
    assert widths == [8, 4, 4]


@pytest.mark.long
def test_shifted_windows_are_left_alone_and_do_not_take_for_ever(tmp_path):
    (tmp_path / "swin.py").write_text(
        dedent("""
        from torchvision.models import SwinTransformer

        def make():
            return SwinTransformer([4, 4], 32, [2, 2], [2, 4], [4, 4], num_classes=3)
        """)
    )
    inputs = [TensorSpec(name="input", shape=["batch", 3, 32, 32])]
    artifact = written(PythonSource(target="swin.py:make", folder=tmp_path), tmp_path / "a", inputs)
    model, facts = pruned(artifact, tmp_path / "b", inputs, ratio=0.5)
    assert facts["groups_pruned"] == 4
    assert all(".mlp." in name for name in facts["layers_pruned"])
    assert outputs(model, inputs)["output"].shape == (2, 3)


def test_shuffled_channels_stay_and_those_inside_the_units_go(tmp_path):
    """Every other channel is worth nothing: the outputs do not change without these."""
    (tmp_path / "shuffle.py").write_text(
        dedent("""
        from torchvision.models import shufflenet_v2_x0_5

        def make():
            network = shufflenet_v2_x0_5(num_classes=4)
            for stage in (network.stage2, network.stage3, network.stage4):
                for unit in stage:
                    for part in unit.branch2[:2]:
                        for value in part.parameters():
                            value.data[::2] = 0
            return network
        """)
    )
    inputs = [TensorSpec(name="input", shape=["batch", 3, 32, 32])]
    artifact = written(PythonSource(target="shuffle.py:make", folder=tmp_path), tmp_path / "a", inputs)
    keep = ("conv*", "*.branch1.*", "*.branch2.[5-7]")
    model, facts = pruned(artifact, tmp_path / "b", inputs, ratio=0.5, round_to=1, keep=keep)
    assert facts["groups_pruned"] == 16
    assert model.stage3[1].branch2[0].out_channels == 24
    assert model.stage3[1].branch2[5].out_channels == 48  # shuffled with the other half
    whole = torch_format.open(artifact.path)
    assert torch.allclose(outputs(model, inputs)["output"], outputs(whole, inputs)["output"], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "weights", "arguments", "size"),
    [
        ("squeezenet1_1", "squeezenet1_1.pth", {}, 64),
        ("mobilenet_v3_small", "mobilenet_v3_small_fashion.safetensors", {"num_classes": 10}, 64),
    ],
)
def test_real_networks_come_back_exactly(shared, tmp_path, monkeypatch, name, weights, arguments, size):
    inputs = [TensorSpec(name="input", shape=["batch", 3, size, size])]
    folder = shared / "models"
    source = TorchvisionSource(target=name, weights=weights, arguments=arguments, folder=folder)
    artifact = written(source, tmp_path / "a", inputs)
    in_memory = []
    save = torch_format.save
    monkeypatch.setattr(torch_format, "save", lambda m, *rest: (in_memory.append(m), save(m, *rest)))
    model, facts = pruned(artifact, tmp_path / "b", inputs, ratio=0.3)
    assert facts["macs"] < 0.7 * facts["macs_before"]
    assert torch.equal(outputs(model, inputs)["output"], outputs(in_memory[0], inputs)["output"])
