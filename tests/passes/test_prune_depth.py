"""Pruning by depth: which blocks can be removed, which are, and that nothing of them is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from pydantic import ValidationError
from tiny_networks import artifact
from torchvision.models.convnext import CNBlockConfig

from optcli.artifact import Artifact, Format
from optcli.errors import InputError, StepError
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_transforms
from optcli.models.formats.torch_calls import example_inputs, flatten_outputs
from optcli.models.sources.python import PythonSource
from optcli.models.sources.torchvision import TorchvisionSource
from optcli.observer import Silent
from optcli.passes import Job
from optcli.passes._torch.blocks import Block, removable, remove_weakest
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.prune import Prune
from optcli.sample import Sample
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

CODE = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width, hidden=None, stride=1):
            super().__init__()
            hidden = hidden or width
            self.inner = nn.Conv2d(width, hidden, 3, padding=1, stride=stride)
            self.norm = nn.BatchNorm2d(hidden)
            self.outer = nn.Conv2d(hidden, width, 3, padding=1)

        def forward(self, x):
            out = self.outer(self.norm(self.inner(x)).relu_())
            out += x
            return out.relu_()

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.stage = nn.Sequential(Block(16), Block(16), Block(16), Block(16, 32))
            self.head = nn.Linear(16, 5)
            for value in self.stem.parameters():
                nn.init.normal_(value)
            nn.init.zeros_(self.stage[2].outer.weight)
            nn.init.zeros_(self.stage[2].outer.bias)

        def forward(self, image):
            return self.head(self.stage(self.stem(image).relu()).mean((2, 3)))

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(16)
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x, mask=None, *, scale=1.0):
            y = self.norm(x)
            return x + scale * self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]

    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(3, 16, 4, stride=4)
            self.layers = nn.ModuleList([Masked() for _ in range(3)])
            self.head = nn.Linear(16, 5)
            self.register_buffer("mask", torch.zeros(4, 4))

        def forward(self, image):
            x = self.embed(image).flatten(2).transpose(1, 2)
            for layer in self.layers:
                x = layer(x, self.mask, scale=0.5)
            return self.head(x.mean(1))

    class Position(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.ones(16, 8, 8))

        def forward(self, x):
            return x + self.value

    class Swish(nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x * torch.relu(self.slope * x + 3) / 6

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x):
            return self.conv(x).relu()

    class Strided(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, padding=1, stride=2)

        def forward(self, x):
            return self.conv(x) + x[:, :, ::2, ::2]

    class Joining(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x):
            kept, used = x.chunk(2, dim=1)
            return torch.cat((kept, self.conv(used).relu()), dim=1)

    class Widened(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 8, 3, padding=1)
            self.more = nn.Parameter(torch.ones(1, 8, 8, 8))

        def forward(self, x):
            return torch.cat((self.conv(x), self.more.expand(len(x), -1, -1, -1)), dim=1)

    class Guarded(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 1)

        def forward(self, x):
            if torch.is_grad_enabled():
                raise NotImplementedError("this network is not trained")
            return x + self.conv(x)

    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.first, self.second = Joining(), Plain()
            self.third = nn.Sequential(Widened(), Guarded())
            self.head = nn.Linear(16, 5)

        def forward(self, image):
            x = self.third(self.second(self.first(self.stem(image))))
            return self.head(x.mean((2, 3)))

    class Unjoined(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.parts = nn.Sequential(Plain(), nn.Conv2d(16, 16, 1), Widened(), Position())
            self.head = nn.Linear(16, 5)

        def forward(self, image):
            return self.head(self.parts(self.stem(image)).mean((2, 3)))

    class Normed(nn.BatchNorm2d):
        def __init__(self):
            super().__init__(16)
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(super().forward(x))

    class Norms(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.parts = nn.Sequential(Normed(), nn.Sequential(nn.Conv2d(16, 16, 1), Normed()))
            self.head = nn.Linear(16, 5)

        def forward(self, image):
            return self.head(self.parts(self.stem(image)).mean((2, 3)))

    class Odd(nn.Module):
        '''Modules that look like blocks and are none, blocks that are used twice, three real ones.'''

        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            inner = nn.Sequential(Block(16))
            self.parts = nn.Sequential(Position(), Swish(), Plain(), Block(16), inner)
            self.twice = nn.ModuleList([Block(16)])
            same = Block(16)
            self.tied = nn.Sequential(same, same)
            self.read = nn.ModuleList([Block(16)])
            self.stage = nn.Sequential(Strided())
            self.head = nn.Linear(16, 5)

        def forward(self, image):
            x = self.parts(self.stem(image))
            x = self.tied(self.twice[0](self.twice[0](x)))
            x = self.read[0](x) * self.read[0].inner.bias[0]
            return self.head(self.stage(x).mean((2, 3)))
    """
IMAGE = (TensorSpec(name="image", shape=["batch", 3, 8, 8]),)


@dataclass
class Images:
    count: int = 20

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        return Sample(f"{index}", {"image": example_inputs(IMAGE, 1, index)["image"][0].numpy()}, 0)


@pytest.fixture(autouse=True)
def one_thread():
    """So small networks gain nothing from a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def written(folder: Path, name: str) -> Artifact:
    (folder / "nets.py").write_text(dedent(CODE))
    out = folder / name
    out.mkdir()
    outputs = PythonSource(target=f"nets.py:{name}", folder=folder).write(out, IMAGE).outputs
    return artifact(out, Format.TORCH, outputs=list(outputs))


def pruned(source: Artifact, out: Path, inputs=IMAGE, images=None, **options):
    out.mkdir()
    job = Job(
        out, tuple(inputs), source, Silent(), seed=3, calibration=Images() if images is None else images
    )
    made = Prune(**options).run(source, job)
    return torch_format.open(out), made.facts["pruning"]


def scores(model) -> torch.Tensor:
    with torch.no_grad():
        return flatten_outputs(model(example_inputs(IMAGE, 4)["image"]))["output"]


def test_the_block_that_adds_nothing_is_removed_and_the_outputs_stay(tmp_path):
    source = written(tmp_path, "Residual")
    model, facts = pruned(source, tmp_path / "b", blocks=1)
    assert facts["blocks_removed"] == ["stage.2"]
    assert (facts["blocks_found"], facts["block_samples"]) == (4, 20)
    assert facts["block_choices"][0]["output_change"] == 0
    assert torch.equal(scores(model), scores(torch_format.open(source.path)))
    assert not [name for name in model.state_dict() if name.startswith("stage.2")]
    block = 2 * 16 * 16 * 9 * 8 * 8
    assert facts["macs_before"] - facts["macs"] == facts["block_choices"][0]["macs"] == block
    assert facts["parameters_before"] - facts["parameters"] == 2 * (16 * 16 * 9 + 16) + 2 * 16
    assert "layers_pruned" not in facts, "no channel was removed"


def test_the_same_options_give_the_same_network(tmp_path):
    source = written(tmp_path, "Residual")
    for name in "bc":
        pruned(source, tmp_path / name, blocks=2, ratio=0.25)
    files = [sorted(path for path in (tmp_path / name).rglob("*") if path.is_file()) for name in "bc"]
    assert [path.name for path in files[0]] == ["nets.py", "model.json", "weights.safetensors"]
    assert [a.read_bytes() for a in files[0]] == [b.read_bytes() for b in files[1]]


@pytest.mark.parametrize("options", [{"blocks": 2}, {"remove": ("stage.[01]",)}, {"block_ratio": 0.5}])
def test_depth_and_width_come_back_exactly(tmp_path, monkeypatch, options):
    saved = []
    save = torch_format.save
    monkeypatch.setattr(torch_format, "save", lambda m, *rest: (saved.append(m), save(m, *rest)))
    source = written(tmp_path, "Residual")
    model, facts = pruned(source, tmp_path / "b", ratio=0.5, **options)
    assert len(facts["blocks_removed"]) == 2
    assert (model.stem.out_channels, model.stage[3].inner.out_channels) == (8, 16)
    assert torch.equal(scores(model), scores(saved[-1]))
    names = [record["name"] for record in torch_format.read(tmp_path / "b").transforms]
    assert names == ["remove_blocks", "prune"]
    again, facts = pruned(
        Artifact("key", Format.TORCH, tmp_path / "b", "fp32", 0, "", {}), tmp_path / "c", blocks=1
    )
    assert torch.equal(scores(again), scores(saved[-1]))
    assert (facts["blocks_found"], len(facts["blocks_removed"])) == (2, 1)


def test_blocks_are_taken_by_change_and_cost_and_tried_again_after_each():
    model = torch.nn.ModuleDict({name: torch.nn.Linear(1, 1) for name in "abcd"})
    blocks = [Block("a", 0, 1), Block("b", 0, 1), Block("c", 0, 4), Block("d", 3_000_000, 10)]
    asked: list[str] = []

    def change() -> float | None:
        gone = "".join(name for name, each in model.items() if isinstance(each, torch.nn.Identity))
        for name in gone:
            model[name](torch.zeros(1))  # the network calls what is left
        asked.append(gone)
        # `c` alone changes more than `a`, less by its cost; without it, `a` matters and `b` does not.
        return {"a": 0.2, "b": 0.5, "c": 0.4, "d": 9.0, "ac": 0.9, "bc": 0.5}[gone]

    said: list[float] = []
    removals = remove_weakest(model, blocks, 2, change, lambda fraction, _: said.append(fraction))
    assert [(r.block.name, r.change) for r in removals] == [("c", 0.4), ("b", 0.5)]
    # `d` changed so much before that it cannot be next.
    assert asked == ["a", "b", "c", "d", "ac", "bc"]
    assert said == sorted(said)
    assert isinstance(model["b"], torch.nn.Identity)
    assert isinstance(model["a"], torch.nn.Linear)
    assert Block("x", 3, 2).cost == 200_003


def test_what_only_looks_like_a_block_stays(tmp_path):
    source = written(tmp_path, "Odd")
    model = torch_format.open(source.path)
    assert list(removable(model, IMAGE)) == ["parts.3", "parts.4.0", "tied", "read.0"]
    with pytest.raises(StepError, match="4 blocks are to be removed, and only 3 can be"):
        pruned(source, tmp_path / "b", blocks=4)  # forward reads a layer of the fourth
    _, facts = pruned(source, tmp_path / "c", block_ratio=1.0)
    assert sorted(facts["blocks_removed"]) == ["parts.3", "parts.4.0", "tied"]


def test_a_block_that_joins_its_input_with_what_it_computes_is_one(tmp_path):
    source = written(tmp_path, "Joined")
    assert list(removable(torch_format.open(source.path), IMAGE)) == ["first"]
    model, facts = pruned(source, tmp_path / "b", block_ratio=1.0)
    assert facts["blocks_removed"] == ["first"]
    assert torch.isfinite(scores(model)).all()


def test_where_no_block_has_a_shortcut_those_that_keep_the_shape_can_go(tmp_path):
    source = written(tmp_path, "Unjoined")
    assert list(removable(torch_format.open(source.path), IMAGE)) == ["parts.0", "parts.2"]
    _, facts = pruned(source, tmp_path / "b", blocks=1)
    assert facts["blocks_found"] == 2
    with pytest.raises(StepError, match="3 blocks are to be removed, and only 2 can be"):
        pruned(source, tmp_path / "c", blocks=3)


def test_batch_norms_with_their_activations_are_no_blocks(tmp_path):
    """A reparameterized network, such as MobileOne, has hundreds, and all are folded."""
    source = written(tmp_path, "Norms")
    assert list(removable(torch_format.open(source.path), IMAGE)) == ["parts.1"]


@pytest.mark.long
def test_masks_and_scales_are_taken_and_the_exported_graph_has_no_trace(tmp_path):
    import onnx

    source = written(tmp_path, "Attending")
    whole, less = tmp_path / "whole", tmp_path / "less"
    model, facts = pruned(source, tmp_path / "b", remove=("layers.1",))
    assert facts["blocks_removed"] == ["layers.1"]
    assert Prune(remove=("layers.1",)).roles() == ()
    nodes = []
    for path, out in ((source.path, whole), (tmp_path / "b", less)):
        out.mkdir()
        given = Artifact("key", Format.TORCH, path, "fp32", 0, "", source.facts)
        ExportOnnx().run(given, Job(out, IMAGE, source, Silent()))
        graph = onnx.load(next(out.glob("*.onnx"))).graph
        nodes.append(len(graph.node))
        names = " ".join([n.name for n in graph.node] + [t.name for t in graph.initializer])
        assert ("layers.1" in names) == (out == whole)
    layer = nodes[0] - nodes[1]
    assert 5 < layer < nodes[0] / 3, "all the nodes of one of three layers went"
    assert torch.isfinite(scores(model)).all()


def test_a_network_without_a_block_can_be_scripted(tmp_path):
    model, _ = pruned(written(tmp_path, "Residual"), tmp_path / "b", blocks=2)
    with torch.no_grad():
        scripted = torch.jit.script(model)(example_inputs(IMAGE, 4)["image"])
    assert torch.allclose(scripted, scores(model), atol=1e-6)


def test_what_is_kept_stays(tmp_path):
    source = written(tmp_path, "Residual")
    _, facts = pruned(source, tmp_path / "b", blocks=2, keep=("stage.2.outer", "stage.1"))
    assert sorted(facts["blocks_removed"]) == ["stage.0", "stage.3"]
    with pytest.raises(StepError, match=r"`remove` and `keep` both name stage\.1"):
        pruned(source, tmp_path / "c", remove=("stage.1",), keep=("stage.1.norm",))


def test_named_blocks_go_first_and_count_apart(tmp_path):
    _, facts = pruned(written(tmp_path, "Residual"), tmp_path / "b", remove=("stage.0",), blocks=1)
    assert facts["blocks_removed"] == ["stage.0", "stage.2"]
    assert facts["blocks_found"] == 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Residual", {"remove": ("stage.9",)}, "`remove: stage.9` fits no module"),
        ("Residual", {"remove": ("stem",)}, "stem cannot be removed: wanted a module"),
        ("Odd", {"remove": ("twice.0",)}, "twice.0 cannot be removed"),
        ("Odd", {"remove": ("stage.0",)}, "stage.0 cannot be removed"),
        ("Odd", {"remove": ("read.0",)}, "does not run without read.0: "),
        ("Residual", {"blocks": 5}, "5 blocks are to be removed, and only 4 can be"),
        ("Residual", {"blocks": 1, "keep": ("stage",)}, "no block of this network can be removed"),
    ],
)
def test_what_cannot_be_removed_says_so(tmp_path, name, options, message):
    with pytest.raises(StepError) as error:
        pruned(written(tmp_path, name), tmp_path / "b", **options)
    assert message in error.value.message
    assert error.value.hint


def test_no_calibration_sample_says_so(tmp_path):
    with pytest.raises(StepError, match="no calibration samples"):
        pruned(written(tmp_path, "Residual"), tmp_path / "b", images=Images(0), blocks=1)


def test_channels_are_removed_where_no_block_is_and_only_then():
    assert Prune() == Prune(ratio=0.3)
    assert Prune(remove=()).ratio == 0.3
    for depth in ({"blocks": 1}, {"block_ratio": 0.2}, {"remove": ("x",)}):
        assert Prune(**depth).ratio is None
        assert Prune(**depth).requires().packages == ("torch",)
        assert Prune(**depth, ratio=0.4).requires() == Prune.needs
    assert Prune(blocks=1).roles() == Prune(block_ratio=0.5).roles() == ("calibration",)
    assert Prune(remove=("x",), importance="taylor").roles() == ()
    with pytest.raises(ValidationError, match="leave one of them out"):
        Prune(blocks=1, block_ratio=0.2)
    with pytest.raises(ValidationError):
        Prune(ratio=0)


def test_a_record_of_a_block_that_is_not_there_says_so(tmp_path):
    model = torch_format.open(written(tmp_path, "Residual").path)
    with pytest.raises(InputError, match=r"made without the block 'stage\.7'"):
        torch_transforms.remove_blocks(model, torch_transforms.record_of_blocks(["stage.7"]))


NETWORKS: dict[str, tuple[Callable, int, list[str]]] = {
    "resnet18": (
        lambda m: m.resnet18(), 32, ["layer1.0", "layer1.1", "layer2.1", "layer3.1", "layer4.1"],
    ),
    "mobilenet_v3_small": (
        lambda m: m.mobilenet_v3_small(), 32, [f"features.{i}" for i in (3, 5, 6, 8, 10, 11)],
    ),
    "convnext": (
        lambda m: m.ConvNeXt([CNBlockConfig(8, 16, 2), CNBlockConfig(16, None, 1)]),
        32, ["features.1.0", "features.1.1", "features.3.0"],
    ),
    "vit": (
        lambda m: m.VisionTransformer(16, 4, 2, 2, 32, 64, num_classes=3), 16,
        ["encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1"],
    ),
    "swin": (
        lambda m: m.SwinTransformer([4, 4], 32, [2, 2], [2, 4], [4, 4], num_classes=3), 32,
        ["features.1.0", "features.1.1", "features.3.0", "features.3.1"],
    ),
    "shufflenet": (
        lambda m: m.shufflenet_v2_x0_5(), 32,
        [f"stage{stage}.{i}" for stage, units in ((2, 4), (3, 8), (4, 4)) for i in range(1, units)],
    ),
    "squeezenet": (lambda m: m.squeezenet1_1(), 32, [f"features.{i}" for i in (4, 7, 10, 12)]),
    "googlenet": (
        lambda m: m.googlenet(init_weights=False, aux_logits=False), 32,
        ["conv2", "inception4b", "inception4c", "inception5a"],
    ),
    "vgg": (lambda m: m.vgg11(), 32, []),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_the_blocks_of_well_known_networks_are_found(name):
    from torchvision import models

    make, size, wanted = NETWORKS[name]
    inputs = [TensorSpec(name="input", shape=["batch", 3, size, size])]
    model = make(models).eval()
    image = example_inputs(inputs, 2)
    assert list(removable(model, inputs)) == wanted
    for block in wanted:
        torch_transforms.remove_blocks(model, torch_transforms.record_of_blocks([block]))
    with torch.no_grad():
        assert torch.isfinite(model(*image.values())).all()


def test_a_trained_network_hardly_needs_the_block_that_goes(shared, tmp_path):
    import numpy as np
    from torchvision.datasets import FashionMNIST

    images = FashionMNIST(shared / "datasets", train=False).data[:64, None].float() / 255
    images = (torch.nn.functional.interpolate(images, size=64) - 0.2860) / 0.3530
    images = images.expand(-1, 3, -1, -1).contiguous()

    class Fashion(Images):
        def __getitem__(self, index: int) -> Sample:
            return Sample(f"{index}", {"input": images[index].numpy()}, 0)

    inputs = [TensorSpec(name="input", shape=["batch", 3, 64, 64])]
    (tmp_path / "a").mkdir()
    TorchvisionSource(
        target="mobilenet_v3_small",
        weights="mobilenet_v3_small_fashion.safetensors",
        arguments={"num_classes": 10},
        folder=shared / "models",
    ).write(tmp_path / "a", inputs)
    source = artifact(tmp_path / "a", Format.TORCH, outputs=["output"])
    model, facts = pruned(source, tmp_path / "b", inputs, Fashion(64), blocks=1, block_samples=32)
    whole = torch_format.open(source.path)
    with torch.no_grad():
        classes = [each(images).argmax(1).numpy() for each in (whole, model)]
    assert np.mean(classes[0] == classes[1]) > 0.9
    assert facts["blocks_found"] == 6
    assert facts["macs"] < facts["macs_before"]
