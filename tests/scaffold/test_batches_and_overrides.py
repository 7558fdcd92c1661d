"""Batches that memory holds, and `--set` written into a first recipe."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML

from optcli.errors import UsageError
from optcli.scaffold import looking, overriding
from optcli.settings import TensorSpec


def spec(*shape, dtype="float32", high=32):
    record = {"name": "x", "dtype": dtype, "shape": list(shape)}
    ranges = {"batch": {"min": 1, "opt": min(8, high), "max": high}} if "batch" in shape else {}
    return TensorSpec.model_validate({**record, **ranges})


@pytest.mark.parametrize(
    ("size", "largest", "most"),
    [
        (28, 0, 32),
        (224, 0, 32),
        (416, 0, 8),
        (720, 0, 2),
        (2048, 0, 1),
        (224, 100_000_000, 2),
        (224, 10**12, 1),
    ],
)
def test_a_batch_fits_into_memory(size, largest, most):
    (found,) = looking.fitted([spec("batch", 3, size, size)], largest)
    span = found.ranges["batch"]
    assert (span.min, span.opt, span.max) == (1, min(8, most), most)


def test_a_fixed_batch_and_the_bounds_of_a_file_stay():
    assert looking.fitted([spec(4, 3, 720, 720)], 0)[0].shape[0] == 4
    assert looking.fitted([spec("batch", 3, 32, 32, high=9)], 0)[0].ranges["batch"].max == 9


def test_bytes_by_type():
    assert looking.input_bytes(spec("batch", 3, 10, 10)) == 1200
    assert looking.input_bytes(spec("batch", 3, 10, 10, dtype="uint8")) == 300
    assert looking.input_bytes(spec("batch", 3, 10, 10, dtype="float16")) == 600


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "item_bytes"), [("FLOAT", 4), ("FLOAT16", 2)])
def test_the_largest_tensor_inside_an_onnx_file(tmp_path, kind, item_bytes):
    import onnx
    from onnx import helper

    element = getattr(onnx.TensorProto, kind)
    ends = [helper.make_tensor_value_info(name, element, ["n", 3, "size", "size"]) for name in "xy"]
    weight = helper.make_tensor("w", element, [6, 3, 1, 1], [1.0] * 18)
    back = helper.make_tensor("v", element, [3, 6, 1, 1], [1.0] * 18)
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Conv", ["a", "v"], ["y"])]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], [weight, back])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    inputs = [spec("n", 3, 10, 10).model_copy(update={"name": "x"})]
    assert looking.of_onnx(tmp_path / "model.onnx", inputs) == 6 * 100 * item_bytes
    assert looking.of_onnx(tmp_path / "model.onnx", []) == 0


RECIPE = """\
# a comment
version: 1
model:
  source: torchvision:resnet18    # a network
  # weights: DEFAULT
latency: {batch_sizes: [1, 8]}
variants:
  onnx: [export_onnx]    # plain
  onnx-int8: [export_onnx, quantize_nncf]
"""


def put(*overrides):
    text = overriding.written_into(RECIPE, overriding.parsed(overrides))
    return text, YAML(typ="safe").load(text)


def test_values_are_put_in_and_comments_stay():
    text, found = put("model.arguments.num_classes=10", "latency.batch_sizes=[1, 4]", "seed=3")
    assert found["model"]["arguments"] == {"num_classes": 10}
    assert found["latency"] == {"batch_sizes": [1, 4]}
    assert found["seed"] == 3
    for comment in ("# a comment", "# a network", "# weights: DEFAULT", "# plain"):
        assert comment in text


@pytest.mark.parametrize("way", ["passes.quantize_nncf", "passes.1.quantize_nncf", "1.quantize_nncf"])
def test_options_of_a_pass(way):
    _, found = put(f"variants.onnx-int8.{way}.preset=mixed")
    assert found["variants"]["onnx-int8"] == ["export_onnx", {"quantize_nncf": {"preset": "mixed"}}]


def test_null_takes_out():
    _, found = put("latency=null", "variants.onnx=null")
    assert "latency" not in found
    assert list(found["variants"]) == ["onnx-int8"]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("latency", "KEY=VALUE"),
        ("=3", "KEY=VALUE"),
        ("a..b=3", "KEY=VALUE"),
        ("model.source=x", "cannot be set here"),
        ("latency=[1", "no YAML"),
        ("slo=null", "no 'slo' to remove"),
        ("variants.onx.passes=[]", "no variant 'onx'"),
        ("version.x=1", "no 'x' within"),
        ("variants.onnx.quantize.preset=1", "no 'quantize'"),
    ],
)
def test_what_cannot_be_set(override, says):
    with pytest.raises(UsageError) as caught:
        put(override)
    assert says in str(caught.value)
    assert caught.value.hint


def test_arguments_of_the_model():
    values = overriding.parsed(["model.arguments.num_classes=10", "model.arguments.width=2", "seed=1"])
    assert overriding.arguments_of(values) == {"num_classes": 10, "width": 2}
    assert overriding.arguments_of(overriding.parsed(["model.arguments={a: 1}"])) == {"a": 1}
