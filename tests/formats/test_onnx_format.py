"""The ONNX format: what is sound, what is refused, and what it says of a model."""

import numpy as np
import onnx
import pytest

from optcli.errors import InputError, TrustError
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import (
    input_names,
    input_shapes,
    opset_of,
    output_names,
    precision_of,
)

pytestmark = pytest.mark.slow


ONES = np.ones((4, 2), np.float32)


def model(values=ONES, extra=()):
    helper = onnx.helper
    weight = onnx.numpy_helper.from_array(values, "weight")
    float_type = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"]), *extra],
        "tiny",
        [helper.make_tensor_value_info("x", float_type, ["batch", 4])],
        [helper.make_tensor_value_info("y", float_type, ["batch", 2])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def external(folder, location):
    made = model(np.ones((64, 64), np.float32)[:4])
    tensor = made.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, location, offset=0, length=len(tensor.raw_data))
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    return data


def test_a_saved_model_is_sound_and_comes_back(tmp_path):
    onnx_format.save(model(), tmp_path)
    onnx_format.check(tmp_path)
    opened = onnx_format.open(tmp_path)
    assert input_names(opened) == ("x",)
    assert output_names(opened) == ("y",)
    assert input_shapes(opened) == {"x": ("batch", 4)}
    assert opset_of(opened) == 18
    assert precision_of(opened) == "fp32"


def test_a_large_model_has_its_weights_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_format, "ONE_FILE_BYTES", 1000)
    onnx_format.save(model(np.ones((4, 2000), np.float32)[:, :2].copy()), tmp_path)
    assert not (tmp_path / onnx_format.DATA).exists()
    onnx_format.save(model(np.ones((4, 512), np.float32)), tmp_path)
    assert (tmp_path / onnx_format.DATA).stat().st_size >= 4 * 512 * 4
    onnx_format.check(tmp_path)
    weight = onnx.numpy_helper.to_array(onnx_format.open(tmp_path).graph.initializer[0])
    assert weight.shape == (4, 512)


@pytest.mark.parametrize("keep", [0, 1, 40, -30])
def test_a_truncated_file_is_an_input_error(tmp_path, keep):
    onnx_format.save(model(np.ones((4, 200), np.float32)), tmp_path)
    path = tmp_path / "model.onnx"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError) as failure:
        onnx_format.check(tmp_path)
    assert str(path) in str(failure.value)


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no such ONNX file"):
        onnx_format.check(tmp_path)


def test_a_wrong_graph_is_an_input_error(tmp_path):
    onnx_format.save(model(extra=[onnx.helper.make_node("Relu", ["nowhere"], ["z"])]), tmp_path)
    with pytest.raises(InputError, match="not a valid ONNX model"):
        onnx_format.check(tmp_path)


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/hostname", "link.bin", "sub/../../secret.bin"]
)
def test_external_data_outside_the_folder_is_refused(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    data = external(folder, location)
    (tmp_path / "secret.bin").write_bytes(data)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(TrustError, match="outside"):
        onnx_format.check(folder)


@pytest.mark.parametrize("location", ["w.bin", "../../blobs/22", "other.bin"])
def test_links_into_one_folder_are_followed_as_onnx_runtime_does(tmp_path, location):
    """Hugging Face's cache: `snapshots/HASH/model.onnx` and its weights are links into `blobs`."""
    folder, blobs = tmp_path / "snapshots" / "0a1b", tmp_path / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    data = external(folder, location)
    (folder / "model.onnx").rename(blobs / "11")
    (folder / "model.onnx").symlink_to("../../blobs/11")
    (blobs / "22").write_bytes(data)
    (folder / "w.bin").symlink_to("../../blobs/22")
    (tmp_path / "secret.bin").write_bytes(data)
    (folder / "other.bin").symlink_to(tmp_path / "secret.bin")
    if location == "w.bin":
        onnx_format.check(folder)
        return
    with pytest.raises(TrustError, match="outside"):
        onnx_format.check(folder)


@pytest.mark.parametrize(
    ("offset", "length"), [(-16, 32), (16, -16), (0, 10**6), (2**63, 32), ("x", 32), (0, "9" * 5000)]
)
def test_external_data_that_the_file_does_not_have_are_refused(tmp_path, offset, length):
    data = external(tmp_path, "weights.bin")
    (tmp_path / "weights.bin").write_bytes(data)
    onnx_format.check(tmp_path)
    made = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    for entry in made.graph.initializer[0].external_data:
        entry.value = str({"offset": offset, "length": length}.get(entry.key, entry.value))
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(InputError, match="the weights file is truncated"):
        onnx_format.check(tmp_path)


def with_functions(depth, last):
    """A model whose function `f0` calls the next one twice, and so on; the last one calls `last`."""
    helper, opsets = onnx.helper, [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("own", 1)]
    made = model(extra=[helper.make_node("f0", ["y"], ["z"], domain="own")])
    for number in range(depth):
        domain, name = ("own", f"f{number + 1}") if number + 1 < depth else last
        nodes = [helper.make_node(name, ["a"], ["m"], domain=domain)]
        nodes.append(helper.make_node(name, ["m"], ["b"], domain=domain))
        made.functions.append(helper.make_function("own", f"f{number}", ["a"], ["b"], nodes, opsets))
    made.opset_import.append(opsets[1])
    return made


def test_functions_stand_for_no_more_nodes_than_a_machine_can_hold(tmp_path):
    """2 to the power of 40 nodes in 5 kB: whoever writes out the functions takes all memory."""
    onnx_format.save(with_functions(10, ("", "Relu")), tmp_path)
    onnx_format.check(tmp_path)
    onnx_format.save(with_functions(40, ("", "Relu")), tmp_path)
    with pytest.raises(InputError, match=f"functions stand for {2**40 + 1} nodes"):
        onnx_format.check(tmp_path)
    onnx_format.save(with_functions(3, ("own", "f1")), tmp_path)
    with pytest.raises(InputError, match="calls itself"):
        onnx_format.check(tmp_path)


def outside(name):
    """A tensor whose numbers lie outside the model's folder."""
    tensor = onnx.TensorProto(name=name, dims=[4], data_type=onnx.TensorProto.FLOAT)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    return tensor


def constant(attribute, value):
    return onnx.helper.make_node("Constant", [], ["c"], **{attribute: value})


def in_a_branch():
    inner = onnx.helper.make_graph([constant("value", outside("c"))], "inner", [], [])
    return onnx.helper.make_node("If", ["x"], ["c"], then_branch=inner, else_branch=inner)


def sparse():
    indices = onnx.numpy_helper.from_array(np.arange(4), "indices")
    tensor = onnx.SparseTensorProto(values=outside("c"), indices=indices, dims=[4])
    return constant("sparse_value", tensor)


@pytest.mark.parametrize(
    "node",
    [constant("value", outside("c")), in_a_branch(), sparse()],
    ids=["tensor", "branch", "sparse"],
)
def test_external_data_of_a_nodes_attribute_is_refused_as_well(tmp_path, node):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model(extra=[node]).SerializeToString())
    with pytest.raises(TrustError):
        onnx_format.check(folder)


def test_external_data_inside_the_folder_must_be_whole(tmp_path):
    data = external(tmp_path, "weights.bin")
    with pytest.raises(InputError, match="missing"):
        onnx_format.check(tmp_path)
    (tmp_path / "weights.bin").write_bytes(data[:-1])
    with pytest.raises(InputError, match="truncated"):
        onnx_format.check(tmp_path)


def test_precision_follows_the_operators_and_the_weights():
    assert precision_of(model(np.ones((4, 2), np.float16))) == "fp16"
    quantize = onnx.helper.make_node("QuantizeLinear", ["y", "s"], ["q"])
    assert precision_of(model(extra=[quantize])) == "int8"


@pytest.mark.parametrize(("operator", "found"), [("Shape", True), ("Reshape", False)])
def test_a_graph_that_works_out_shapes_is_seen_without_parsing(tmp_path, operator, found):
    from onnx import TensorProto, helper, numpy_helper

    made = [helper.make_node("Shape", ["x"], ["sizes"])] if operator == "Shape" else []
    sizes = [numpy_helper.from_array(np.array([-1, 3]), "sizes")] if operator != "Shape" else []
    graph = helper.make_graph(
        [*made, helper.make_node("Reshape", ["x", "sizes"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        sizes,
    )
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    assert onnx_format.works_out_shapes(tmp_path) is found


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_a_session_has_as_many_threads_as_are_asked_for(threads):
    """More would take the cores of what is measured beside it."""
    session = onnx_format.session(model().SerializeToString(), threads)
    assert session.get_session_options().intra_op_num_threads == threads
