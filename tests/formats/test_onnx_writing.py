"""ONNX files whose weights are written from where they lie: the same models as from whole messages."""

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import pytest

from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats.onnx import _varint, fill_in, take_apart, write_with_weights

pytestmark = pytest.mark.slow

VALUES = {
    "large": np.arange(64 * 64, dtype=np.float32).reshape(64, 64),
    "turned": np.arange(64 * 64, dtype=np.float32).reshape(64, 64).T,
    "half": np.linspace(-1, 1, 1024).astype(np.float16),
    "brain": np.linspace(-1, 1, 1024).astype(ml_dtypes.bfloat16),
    "quarter": np.arange(-2048, 2048).astype(np.int8),
    "numbers": np.arange(300, dtype=np.int64),
    "flags": np.arange(2000) % 3 == 0,
    "small": np.float32([1, 2, 3]),
    "empty": np.zeros((0, 4), np.float32),
}


def model():
    """A network that multiplies by one weight and adds another; the other weights nobody reads."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "large"], ["between"]),
            helper.make_node("MatMul", ["between", "turned"], ["y"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", floats, ["batch", 64])],
        [helper.make_tensor_value_info("y", floats, ["batch", 64])],
        [onnx.numpy_helper.from_array(values, name) for name, values in VALUES.items()],
        doc_string="what it is for",
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10, producer_name="a test"
    )
    made.metadata_props.add(key="licence", value="none")
    return made


def read():
    """The same as onnx_ir has it; some weights lie in the memory of others, as transposed ones do."""
    made = onnx_ir.serde.deserialize_model(model())
    for name, value in made.graph.initializers.items():
        kind = onnx_ir.DataType.BFLOAT16 if name == "brain" else None
        value.const_value = onnx_ir.Tensor(VALUES[name], dtype=kind, name=name)
    return made


@pytest.fixture
def apart():
    """The message and the weights."""
    return take_apart(read())


def test_only_large_weights_leave_the_message(apart):
    message, weights = apart
    assert set(weights) == {"large", "turned", "half", "brain", "quarter", "numbers", "flags"}
    lacking = {t.name for t in message.graph.initializer if not t.raw_data and t.name != "empty"}
    assert lacking == set(weights)
    assert not any(tensor.external_data for tensor in message.graph.initializer)


def test_the_file_holds_what_the_whole_message_holds(apart, tmp_path):
    message, weights = apart
    write_with_weights(message, weights, tmp_path / "model.onnx")
    written = onnx.load(tmp_path / "model.onnx")
    found = {tensor.name: tensor for tensor in written.graph.initializer}
    assert list(found) == list(VALUES), "in their order"
    for name, values in VALUES.items():
        assert found[name].raw_data == values.tobytes(), name
        assert tuple(found[name].dims) == values.shape
    fill_in(message, weights)
    assert written == message
    assert written == onnx_ir.serde.serialize_model(read())
    assert (written.producer_name, written.metadata_props[0].value) == ("a test", "none")
    assert written.graph.doc_string == "what it is for"
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)


def test_runtimes_read_it(apart, tmp_path):
    import openvino

    onnx_format.save(apart[0], tmp_path, weights=apart[1])
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    x = np.random.default_rng(0).random((3, 64), np.float32)
    expected = x @ VALUES["large"] @ VALUES["turned"]
    (by_onnxruntime,) = onnx_format.session(tmp_path / "model.onnx").run(None, {"x": x})
    np.testing.assert_allclose(by_onnxruntime, expected, rtol=1e-5)
    compiled = openvino.compile_model(tmp_path / "model.onnx", "CPU")
    hint = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    np.testing.assert_allclose(compiled(x)[0], expected, rtol=1e-5 if hint == "f32" else 2e-2)


@pytest.mark.parametrize("why", ["asked", "large"])
def test_weights_beside_the_model_come_from_the_same_parts(apart, tmp_path, monkeypatch, why):
    if why == "large":
        monkeypatch.setattr(onnx_format, "ONE_FILE_BYTES", 20_000)
    onnx_format.save(apart[0], tmp_path, apart=why == "asked", weights=apart[1])
    assert (tmp_path / onnx_format.DATA).stat().st_size >= 2 * VALUES["large"].nbytes
    onnx_format.check(tmp_path)
    opened = {tensor.name: tensor for tensor in onnx_format.open(tmp_path).graph.initializer}
    for name in ("large", "turned"):
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(opened[name]), VALUES[name])


def test_a_weight_that_writes_something_else_is_an_error(apart, tmp_path):
    class Short:
        nbytes = 100

        def tofile(self, file):
            file.write(b"x" * 99)

    with pytest.raises(StepError, match="a weight of 100 bytes wrote 99"):
        write_with_weights(apart[0], {**apart[1], "large": Short()}, tmp_path / "model.onnx")


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**31, 2**63 - 1])
def test_lengths_are_those_of_protobuf(number):
    from google.protobuf.internal.decoder import _DecodeVarint

    assert _DecodeVarint(_varint(number), 0)[0] == number
