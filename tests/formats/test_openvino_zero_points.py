"""Zero points move into biases and back, and the network computes the same."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from optcli.models.formats import openvino as openvino_format
from optcli.models.formats import openvino_zero_points as zero_points

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
LOW, HIGH = -0.17, 1.8


def number(value) -> ov.Node:
    return opset13.constant(np.asarray(value, np.float32))


def quantized(value, low=LOW, high=HIGH):
    return opset13.fake_quantize(value, *map(number, (low, high, low, high)), levels=256)


def weights(*shape: int) -> ov.Node:
    """As NNCF keeps them: integers and their scale."""
    integers = opset13.constant(RNG.integers(-127, 128, shape, np.int8))
    scale = RNG.uniform(0.001, 0.01, (shape[0], *[1] * (len(shape) - 1)))
    return opset13.multiply(opset13.convert(integers, np.float32), number(scale))


def convolution(value, pad=0, auto_pad="explicit", size=1):
    sizes = ([1, 1], [pad, pad], [pad, pad], [1, 1])
    return opset13.convolution(value, weights(4, 3, size, size), *sizes, auto_pad=auto_pad)


def grouped(value):
    made = opset13.reshape(weights(6, 1, 1, 1), opset13.constant(np.array([3, 2, 1, 1, 1])), False)
    return opset13.group_convolution(value, made, [1, 1], [0, 0], [0, 0], [1, 1])


def biased(value):
    return opset13.add(value, number(RNG.standard_normal((1, 4, 1, 1))))


def transposed(value):
    return opset13.transpose(value, opset13.constant(np.array([0, 2, 3, 1])))


# What stands behind the activation, and whether its zero point can be moved.
READERS = {
    "a convolution": (convolution, True),
    "a convolution with a bias": (lambda x: biased(convolution(x)), True),
    "one of 3 x 3 that does not pad": (lambda x: convolution(x, size=3), True),
    "one with a bias on the left": (
        lambda x: opset13.add(number(RNG.standard_normal((1, 4, 1, 1))), convolution(x)), True,
    ),
    "groups": (grouped, True),
    "a product": (lambda x: opset13.matmul(x, weights(5, 7), False, False), True),
    "a product with turned weights": (lambda x: opset13.matmul(x, weights(6, 5), False, True), True),
    "two products": (
        lambda x: opset13.concat([convolution(x), biased(convolution(x))], 1), True,
    ),
    "one that pads": (lambda x: convolution(x, pad=1, size=3), False),
    "one that pads by itself": (lambda x: convolution(x, auto_pad="same_upper", size=3), False),
    "a turned product": (lambda x: opset13.matmul(x, weights(6, 7), True, False), False),
    "the right side of a product": (lambda x: opset13.matmul(weights(5, 6), x, False, False), False),
    "no product": (lambda x: opset13.sigmoid(x), False),
    "a product and what is none": (
        lambda x: opset13.concat([convolution(x), opset13.sigmoid(x)], 1), False,
    ),
    "a product of two activations": (lambda x: opset13.matmul(x, x, False, True), False),
}  # fmt: skip


def model_of(reader, *, low=LOW, high=HIGH) -> ov.Model:
    image = opset13.parameter([-1, 3, 6, 5], np.float32, name="image")
    image.output(0).set_names({"image"})
    out = READERS[reader][0](quantized(image, low, high))
    out.output(0).set_names({"out"})
    return ov.Model([out], [image], "zero points")


def outputs(model: ov.Model, image: np.ndarray) -> np.ndarray:
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    return openvino_format.core().compile_model(model, "CPU", settings)([image])[0].copy()


def ranges(model: ov.Model) -> list[tuple[float, ...]]:
    return [
        tuple(float(openvino_format.values_of(node.input_value(port))) for port in (3, 4))
        for node in model.get_ops()
        if node.get_type_name() == "FakeQuantize"
    ]


@pytest.mark.parametrize("reader", READERS)
def test_the_network_computes_the_same(reader):
    _, moves = READERS[reader]
    model = model_of(reader)
    image = RNG.uniform(-0.5, 2.2, (2, 3, 6, 5)).astype(np.float32)
    before, kinds = outputs(model, image), sorted(x.get_type_name() for x in model.get_ops())
    assert zero_points.move_into_biases(model) == moves
    assert zero_points.move_into_biases(model) == 0
    assert ranges(model) == [pytest.approx((0, HIGH - LOW) if moves else (LOW, HIGH))]
    scale = np.abs(before).max()
    np.testing.assert_allclose(outputs(model, image), before, atol=1e-4 * scale)
    assert model.output(0).get_any_name() == "out"
    assert zero_points.move_back(model) == moves
    assert zero_points.move_back(model) == 0
    assert ranges(model) == [pytest.approx((LOW, HIGH))]
    assert sorted(x.get_type_name() for x in model.get_ops()) == kinds
    np.testing.assert_allclose(outputs(model, image), before, atol=1e-4 * scale)
    assert model.output(0).get_any_name() == "out"


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 6.0), (-1.0, 127 / 128), (-2.0, -1.0), ([[[[-1.0]], [[-0.5]], [[-0.1]]]], 3.0)],
)
def test_what_has_no_zero_point_or_many_stays(low, high):
    model = model_of("a convolution", low=low, high=high)
    assert zero_points.move_into_biases(model) == 0


def test_a_model_on_disk_can_be_moved_back(tmp_path):
    model = model_of("a convolution with a bias")
    image = RNG.uniform(-0.5, 2.2, (2, 3, 6, 5)).astype(np.float32)
    before = outputs(model, image)
    zero_points.move_into_biases(model)
    openvino_format.save(model, tmp_path)
    read = openvino_format.open(tmp_path)
    np.testing.assert_allclose(outputs(read, image), before, atol=1e-4 * np.abs(before).max())
    assert zero_points.move_back(read) == 1
    np.testing.assert_allclose(outputs(read, image), before, atol=1e-4 * np.abs(before).max())
