"""Sparsity: which weights become zero, which do not, and that fine-tuning keeps them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
import torch
from tiny_networks import Heard, artifact

from optcli.artifact import Artifact, Format
from optcli.errors import StepError
from optcli.models.formats import torch as torch_format
from optcli.models.sources.python import PythonSource
from optcli.passes import Job
from optcli.passes.sparsify import Sparsify
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

CODE = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 16, 3)
            self.depthwise = nn.Conv2d(16, 16, 3, groups=16)
            self.second = nn.Conv2d(16, 8, 3)
            self.up = nn.ConvTranspose2d(8, 8, 2)
            self.norm = nn.LayerNorm(8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 3))

        def forward(self, image):
            x = self.up(self.second(self.depthwise(self.first(image)))).flatten(2).transpose(1, 2)
            x = self.norm(x)
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    def none():
        return nn.Sequential(nn.Flatten(), nn.ReLU())
    """
IMAGE = (TensorSpec(name="image", shape=["batch", 3, 10, 10]),)


def made(folder: Path, name: str = "Net", **options):
    """The networks before and after, the facts and what was heard."""
    code, source, out = folder / "code", folder / "source", folder / "out"
    for each in (code, source, out):
        each.mkdir()
    (code / "nets.py").write_text(dedent(CODE))
    PythonSource(target=f"nets.py:{name}", folder=code).write(source, IMAGE)
    given: Artifact = artifact(source, Format.TORCH)
    heard = Heard()
    facts = Sparsify(**options).run(given, Job(out, IMAGE, given, heard)).facts["sparsity"]
    return torch_format.open(source), torch_format.open(out), facts, heard


def test_two_of_every_four_input_channels_stay(tmp_path):
    before, after, facts, heard = made(tmp_path)
    assert "make no CPU runtime faster" in heard.warnings[0]
    assert not any("norm" in name or "bias" in name for name in facts["layers"])
    assert set(facts["layers"]) == {
        "second.weight", "attention.in_proj_weight", "attention.out_proj.weight", "head.0.weight"
    }  # fmt: skip
    assert {"first.weight", "depthwise.weight", "up.weight", "head.1.weight"} <= set(
        facts["left_dense"]
    )
    assert set(facts["layers"].values()) == {0.5}
    new, old = (model.second.weight.detach() for model in (after, before))
    for start in range(0, 16, 4):
        four, was = new[:, start : start + 4], old[:, start : start + 4]
        assert ((four != 0).sum(1) == 2).all()
        assert torch.equal(four.abs().sum(1), was.abs().topk(2, dim=1).values.sum(1))


def test_what_is_kept_stays_whole(tmp_path):
    before, after, facts, _ = made(tmp_path, keep=("head", "attention*", "first"))
    assert set(facts["layers"]) == {"second.weight"}
    assert torch.equal(after.head[0].weight, before.head[0].weight)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("none", {}, "no weight can be made sparse"),
        ("Net", {"keep": ("haed",)}, "`keep: haed` fits no module"),
        ("Net", {"keep": ("*",)}, "no weight can be made sparse"),
    ],
)
def test_what_cannot_be_made_sparse_says_so(tmp_path, name, options, message):
    with pytest.raises(StepError) as error:
        made(tmp_path, name, **options)
    assert message in error.value.message
    assert error.value.hint
