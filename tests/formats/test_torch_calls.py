"""How a network is called and what its outputs are called."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch

from optcli.models.formats.torch_calls import Arguments, arguments, example_inputs, flatten_outputs
from optcli.passes._torch.tracing import example
from optcli.scaffold.inspection._torch_calls import tensors
from optcli.settings import TensorSpec, batched

pytestmark = pytest.mark.slow

T = torch.zeros(1)
Pair = namedtuple("Pair", "left right")


@dataclass
class Found:
    boxes: torch.Tensor
    count: int


@pytest.mark.parametrize(
    ("outputs", "names"),
    [
        (T, ["output"]),
        ((T, T), ["output_0", "output_1"]),
        ([T], ["output_0"]),
        ((T, None, 3, T), ["output_0", "output_3"]),
        ({"logits": T, "mask": T}, ["logits", "mask"]),
        (OrderedDict(out=T, aux=T), ["out", "aux"]),
        ({"a": {"b": T, "c": [T, T]}}, ["a.b", "a.c.0", "a.c.1"]),
        ((T, {"boxes": T}), ["output_0", "output_1.boxes"]),
        (Pair(T, (T, T)), ["left", "right.0", "right.1"]),
        (Found(T, 3), ["boxes"]),
        ({"text": "none", "nothing": None}, []),
    ],
)
def test_outputs_have_names_in_their_order(outputs, names):
    assert list(flatten_outputs(outputs)) == names


class Net(torch.nn.Module):
    def forward(self, image, mask, scale=1.0, *, offset=None):
        return image


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["image", "mask"], Arguments(("image", "mask"))),
        (["mask", "image"], Arguments(("image", "mask"))),
        (["image", "mask", "offset"], Arguments(("image", "mask"), ("offset",))),
        (["mask", "scale"], Arguments((), ("mask", "scale"))),
        (["x", "mask"], Arguments(("x", "mask"))),
        (["b", "a"], Arguments(("b", "a"))),
    ],
)
def test_inputs_go_by_name_only_if_all_are_parameters(names, wanted):
    call = arguments(Net(), [TensorSpec(name=name, shape=["batch", 3]) for name in names])
    assert call == wanted
    positional, keyword = call.split({name: name.upper() for name in names})
    assert positional == tuple(name.upper() for name in wanted.positional)
    assert keyword == {name: name.upper() for name in wanted.keyword}


def test_example_inputs_have_the_shapes_and_types_of_their_specs():
    specs = [
        TensorSpec(name="image", shape=["batch", 3, 4]),
        TensorSpec(name="ids", dtype="int64", shape=["batch", "length"], length={"opt": 5}),
        TensorSpec(name="mask", dtype="bool", shape=[1, 2]),
        TensorSpec(name="half", dtype="float16", shape=["batch"]),
    ]
    feed = example_inputs(specs, 7)
    assert {name: (str(t.dtype), tuple(t.shape)) for name, t in feed.items()} == {
        "image": ("torch.float32", (7, 3, 4)),
        "ids": ("torch.int64", (7, 5)),
        "mask": ("torch.bool", (1, 2)),
        "half": ("torch.float16", (7,)),
    }
    assert set(feed["ids"].flatten().tolist()) <= {0, 1}
    again = example_inputs(specs, 7)
    assert all(torch.equal(feed[name], again[name]) for name in feed)


def test_an_input_with_a_value_has_it_in_examples():
    batch = {"min": 1, "opt": 4, "max": 8}
    inputs = (
        TensorSpec(name="numbers", dtype="int64", shape=(3,), value=(7, 8, 9)),
        TensorSpec(name="size", dtype="int64", shape=("batch", 2), value="original_size", batch=batch),
        TensorSpec(name="image", shape=("batch", 3, 8, 16), batch=batch),
    )
    feed = example_inputs(inputs, 2)
    assert feed["numbers"].tolist() == [7, 8, 9]
    assert feed["size"].tolist() == [[8, 16]] * 2
    assert tuple(feed["image"].shape) == (2, 3, 8, 16)
    # The batch is that of the inputs which have one, wherever they stand.
    assert batched(inputs) == inputs[1]
    assert batched(inputs[:1]) is None
    (found,) = tensors({"y": feed["image"]}, inputs, feed)
    assert found["shape"] == ["batch", 3, 8, 16]
    few = example(inputs, small=True)
    assert [tuple(each.shape) for each in few] == [(3,), (1, 2), (1, 3, 8, 16)]
