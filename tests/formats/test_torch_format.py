"""The torch format: what it holds, and what is said where it is damaged."""

from __future__ import annotations

import json

import pytest
import torch

from optcli.errors import InputError
from optcli.models.formats import torch as torch_format
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

SOURCE = {"kind": "python", "reference": "net.py:Net", "arguments": {"width": 3}}
CODE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(2, width)
        self.drawn = torch.randn(2)

    def forward(self, x):
        return self.layer(x * self.drawn)
"""


@pytest.fixture
def artifact(tmp_path):
    """A network on disk and the same network in memory."""
    code, folder = tmp_path / "user", tmp_path / "artifact"
    code.mkdir()
    (code / "net.py").write_text(CODE)
    from optcli.models.formats.torch_build import build

    model = build(SOURCE, code)
    inputs = (TensorSpec(name="x", shape=["batch", 2]),)
    description = torch_format.Description(source=SOURCE, inputs=inputs, outputs=("output",))
    torch_format.save(model, folder, description, code)
    return folder, model


def test_it_comes_back_with_what_it_drew_at_random(artifact):
    folder, model = artifact
    before = torch.get_rng_state()
    opened = torch_format.open(folder)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(opened(torch.ones(4, 2)), model(torch.ones(4, 2)))
    assert not opened.training


def test_the_description_survives(artifact):
    folder, _ = artifact
    description = torch_format.read(folder)
    assert (description.source, description.outputs) == (SOURCE, ("output",))
    after = description.after({"name": "prune", "history": []})
    assert [record["name"] for record in after.transforms] == ["prune"]
    assert description.transforms == ()
    torch_format.open(folder)


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors", "code/net.py"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_damage_is_found(artifact, name, damage):
    folder, _ = artifact
    file = folder / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    if damage == "gone":
        file.unlink()
    with pytest.raises(InputError):
        torch_format.open(folder)


@pytest.mark.parametrize(
    ("key", "value"), [("source", {"kind": "tape"}), ("transforms", [{"name": "fold"}])]
)
def test_what_a_newer_optcli_wrote_is_named(artifact, key, value):
    folder, _ = artifact
    file = folder / "model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(InputError, match=r"tape|fold") as error:
        torch_format.open(folder)
    assert "newer optcli" in error.value.hint


@pytest.mark.parametrize(
    ("dtypes", "name"),
    [
        (["float32"], "fp32"),
        (["float16"], "fp16"),
        (["bfloat16", "float32"], "bf16+fp32"),
        (["float64"], "fp64"),
        ([], "fp32"),
    ],
)
def test_precision_is_that_of_the_weights(dtypes, name):
    model = torch.nn.Module()
    for index, dtype in enumerate(dtypes):
        model.register_parameter(
            f"w{index}", torch.nn.Parameter(torch.ones(2, dtype=getattr(torch, dtype)))
        )
    model.register_buffer("steps", torch.tensor(3))
    assert torch_format.precision(model) == name


@pytest.mark.parametrize("name", ["resnet18", "shufflenet_v2_x0_5", "ssdlite320_mobilenet_v3_large"])
def test_opening_gives_the_weights_that_were_saved_and_draws_nothing_of_others(tmp_path, name):
    from optcli.models.formats import torch_build

    source = {"kind": "torchvision", "name": name, "arguments": {}}
    model = torch_build.build(source, tmp_path)
    before = torch.get_rng_state()
    image = TensorSpec(name="x", shape=[1, 3, 64, 64])
    description = torch_format.Description(source=source, inputs=(image,), outputs=("y",))
    torch_format.save(model, tmp_path / "artifact", description)
    opened = torch_format.open(tmp_path / "artifact")
    wanted, found = model.state_dict(), opened.state_dict()
    assert all(torch.equal(wanted[key], found[key]) for key in wanted)
    assert torch.equal(torch.get_rng_state(), before)
