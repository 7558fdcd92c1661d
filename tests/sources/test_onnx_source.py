"""ONNX files taken as they are: checked, copied with their weights, refused with what to paste."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from optcli.errors import InputError, TrustError
from optcli.files.digest import FileDigests
from optcli.models.sources.onnx import OnnxSource, locations
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

INPUTS = [TensorSpec(name="image", shape=["batch", 4])]


def network(first: int | str = "N", value: float = 1.0):
    """image [N, 4] times a 4x4 matrix."""
    matrix = np.full((4, 4), value, np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["image", "matrix"], ["scores"])],
        "net",
        [onnx.helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [first, 4])],
        [onnx.helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, [first, 4])],
        [onnx.numpy_helper.from_array(matrix, "matrix")],
    )
    return onnx.helper.make_model(
        graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 18)]
    )


def saved(folder: Path, model=None, data: str | None = None) -> OnnxSource:
    folder.mkdir(exist_ok=True)
    external = {"save_as_external_data": True, "location": data, "size_threshold": 0} if data else {}
    onnx.save(model or network(), folder / "net.onnx", **external)
    return OnnxSource(target="net.onnx", folder=folder)


def pointed(source: OnnxSource, location: str) -> OnnxSource:
    """The same file with its weights said to be at another place."""
    model = onnx.load(source.file, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    source.file.write_bytes(model.SerializeToString())
    return source


def failing(source: OnnxSource, out: Path, inputs=INPUTS) -> InputError:
    out.mkdir()
    with pytest.raises(InputError) as error:
        source.write(out, inputs)
    assert error.value.place.startswith(str(source.folder))
    assert error.value.hint
    return error.value


def test_a_file_is_copied_and_described(tmp_path):
    source = saved(tmp_path / "models")
    (tmp_path / "out").mkdir()
    facts = source.write(tmp_path / "out", INPUTS)
    assert (facts.outputs, facts.precision) == (("scores",), "fp32")
    assert (facts.facts["opset"], facts.facts["ir_version"]) == (18, 10)
    assert (tmp_path / "out" / "model.onnx").read_bytes() == source.file.read_bytes()


@pytest.mark.parametrize("size", [-1, 0, None])
def test_sizes_of_minus_one_or_zero_vary_and_a_shape_that_is_missing_is_the_recipes(tmp_path, size):
    """As Paddle2ONNX wrote them for years; ONNX Runtime takes a 0 for the size."""
    import onnxruntime

    model = network("N")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    shape = model.graph.input[0].type.tensor_type
    if size is None:
        shape.ClearField("shape")
    else:
        shape.shape.dim[0].dim_value = size
    (tmp_path / "out").mkdir()
    saved(tmp_path, model).write(tmp_path / "out", INPUTS)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    for batch in (1, 3):
        assert session.run(None, {"image": np.ones((batch, 4), np.float32)})[0].shape == (batch, 4)
    assert session.get_inputs()[0].shape[1:] == [4]


@pytest.mark.parametrize(
    ("domain", "operator", "owner"),
    [
        ("ai.onnx.contrib", "ImageDecoder", "onnxruntime-extensions"),
        ("mmdeploy", "NMSRotated", "MMDeploy"),
        ("", "EfficientNMS_TRT", "TensorRT's plugins"),
        ("my.own", "Magic", "nobody that is known here"),
    ],
)
def test_operators_that_onnx_runtime_lacks_are_named_with_their_owner(
    tmp_path, domain, operator, owner
):
    model = network()
    model.graph.node.append(onnx.helper.make_node(operator, ["scores"], ["more"], domain=domain))
    if domain:
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    error = failing(saved(tmp_path, model), tmp_path / "out")
    assert owner in error.message
    assert operator in error.message


def test_operators_of_onnx_runtime_and_of_functions_in_the_file_are_no_foreign_ones(tmp_path):
    helper = onnx.helper
    model = network()
    model.graph.node[0].output[0] = "product"
    model.graph.node.append(helper.make_node("Gelu", ["product"], ["bent"], domain="com.microsoft"))
    model.graph.node.append(helper.make_node("Twice", ["bent"], ["scores"], domain="my.own"))
    body = [helper.make_node("Add", ["x", "x"], ["y"])]
    opsets = [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function("my.own", "Twice", ["x"], ["y"], body, opsets))
    model.opset_import.extend(
        [helper.make_opsetid("my.own", 1), helper.make_opsetid("com.microsoft", 1)]
    )
    (tmp_path / "out").mkdir()
    assert saved(tmp_path, model).write(tmp_path / "out", INPUTS).outputs == ("scores",)


def test_weights_beside_the_file_are_copied_and_part_of_the_key(tmp_path):
    source = saved(tmp_path / "models", data="weights.bin")
    (tmp_path / "out").mkdir()
    source.write(tmp_path / "out", INPUTS)
    copied = onnx.load(tmp_path / "out" / "model.onnx")
    assert onnx.numpy_helper.to_array(copied.graph.initializer[0]).sum() == 16
    before = source.ingredients(FileDigests())
    assert set(before["data"]) == {"weights.bin"}
    data = tmp_path / "models" / "weights.bin"
    data.write_bytes(bytes(data.stat().st_size))
    assert source.ingredients(FileDigests()) != before


@pytest.mark.parametrize("length", [1, 127, 128, 180])
def test_names_of_weights_files_are_found_whatever_their_length(tmp_path, length):
    source = saved(tmp_path / "models", data="w" * length)
    assert locations(source.file) == {"w" * length}


def test_the_key_needs_no_onnx(tmp_path):
    saved(tmp_path / "models", data="weights.bin")
    program = (
        "import sys\nfrom pathlib import Path\nfrom optcli.files.digest import FileDigests\n"
        "from optcli.models.sources.onnx import OnnxSource\n"
        "source = OnnxSource(target='net.onnx', folder=Path(sys.argv[1]))\n"
        "assert source.ingredients(FileDigests())['data']\n"
        "assert not {'onnx', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "models")], check=True)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "inside/../../secret.bin"])
def test_weights_outside_the_folder_are_refused_and_not_read(tmp_path, location):
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    source = pointed(saved(tmp_path / "models", data="weights.bin"), location)
    assert source.ingredients(FileDigests())["data"] == {location: None}
    error = failing(source, tmp_path / "out")
    assert isinstance(error, TrustError)
    assert not any((tmp_path / "out").iterdir())


def test_a_link_that_leads_outside_is_refused(tmp_path):
    source = saved(tmp_path / "models", data="weights.bin")
    (tmp_path / "models" / "weights.bin").rename(tmp_path / "secret.bin")
    (tmp_path / "models" / "weights.bin").symlink_to(tmp_path / "secret.bin")
    assert isinstance(failing(source, tmp_path / "out"), TrustError)


def test_missing_and_truncated_weights(tmp_path):
    source = saved(tmp_path / "models", data="weights.bin")
    data = tmp_path / "models" / "weights.bin"
    data.write_bytes(data.read_bytes()[:-4])
    assert "truncated" in failing(source, tmp_path / "a").message
    data.unlink()
    assert "missing" in failing(source, tmp_path / "b").message


@pytest.mark.parametrize("content", [b"", b"no onnx at all, just words" * 20, None])
def test_what_is_no_onnx_file(tmp_path, content):
    source = saved(tmp_path / "models")
    whole = source.file.read_bytes()
    source.file.write_bytes(whole[: len(whole) // 2] if content is None else content)
    failing(source, tmp_path / "out")


def test_nan_in_the_weights(tmp_path):
    error = failing(saved(tmp_path / "models", network(value=float("nan"))), tmp_path / "out")
    assert "NaN: matrix, 16 of 16" in error.message


PASTE = "inputs:\n  - {name: 'image', dtype: float32, shape: [%s, 4]}"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "the recipe lacks the input image"),
        ([TensorSpec(name="img", shape=["batch", 4])], "the file has no input img"),
        ([TensorSpec(name="image", dtype="uint8", shape=["batch", 4])], "float32 in the file, uint8"),
        ([TensorSpec(name="image", shape=["batch", 1, 4])], "2 dimensions in the file, 3"),
        ([TensorSpec(name="image", shape=["batch", 5])], "dimension 1 of image is 4 in the file, 5"),
    ],
)
def test_other_inputs_get_a_block_to_paste(tmp_path, inputs, message):
    error = failing(saved(tmp_path / "models"), tmp_path / "out", inputs)
    assert message in error.message
    assert PASTE % "batch" in error.hint


def test_a_fixed_batch_that_the_recipe_wants_dynamic(tmp_path):
    error = failing(saved(tmp_path / "models", network(2)), tmp_path / "out")
    assert "the batch of image is fixed at 2" in error.message
    assert "export the model again" in error.hint
    assert PASTE % "2" in error.hint


def test_the_pasted_block_is_taken(tmp_path):
    from ruamel.yaml import YAML

    error = failing(saved(tmp_path / "models", network(2)), tmp_path / "out")
    block = YAML(typ="safe").load(error.hint[error.hint.index("inputs:") :])
    source = saved(tmp_path / "models", network(2))
    source.write(tmp_path / "out", [TensorSpec.model_validate(spec) for spec in block["inputs"]])


def test_problems_are_seen_without_opening_anything(tmp_path):
    source = saved(tmp_path / "models")
    assert source.problems() == []
    wrong = OnnxSource(target="nett.onnx", folder=source.folder, weights="w.pth", arguments={"a": 1})
    assert [where for where, _, _ in wrong.problems()] == ["source", "weights", "arguments"]
    assert "net.onnx" in wrong.problems()[0][2]
    source.file.write_bytes(b"")
    assert "is empty" in source.problems()[0][1]


def test_a_real_detector(shared, tmp_path):
    source = OnnxSource(target="yolox_nano.onnx", folder=shared / "models")
    (tmp_path / "out").mkdir()
    facts = source.write(tmp_path / "out", [TensorSpec(name="images", shape=[1, 3, 416, 416])])
    assert facts.outputs == ("output",)
    assert facts.facts["opset"] == 11


def test_an_output_that_is_no_tensor_is_named(tmp_path):
    model = network()
    model.graph.node.append(onnx.helper.make_node("SplitToSequence", ["scores"], ["several"]))
    several = onnx.helper.make_tensor_sequence_value_info("several", onnx.TensorProto.FLOAT, None)
    model.graph.output.append(several)
    source = saved(tmp_path / "in", model)
    (tmp_path / "out").mkdir()
    with pytest.raises(
        InputError, match=r"the output 'several' is no tensor \(found: sequence\)"
    ) as error:
        source.write(tmp_path / "out", INPUTS)
    assert "zipmap" in error.value.hint


@pytest.mark.parametrize("stored", ["initializer", "constant"])
@pytest.mark.parametrize("trained", ["norm", "drop"])
def test_nodes_in_training_mode_are_named(tmp_path, stored, trained):
    helper = onnx.helper
    model = network()
    graph = model.graph
    graph.node[0].output[0] = "product"
    ones = onnx.numpy_helper.from_array(np.ones(4, np.float32), "ones")
    mode = onnx.numpy_helper.from_array(np.array(trained == "drop"), "mode")
    graph.initializer.extend([ones, onnx.numpy_helper.from_array(np.float32(0.5), "ratio")])
    if stored == "initializer":
        graph.initializer.append(mode)
    else:
        graph.node.insert(0, helper.make_node("Constant", [], ["mode"], value=mode))
    norm = ["product", "ones", "ones", "ones", "ones"]
    options = {"training_mode": 1} if trained == "norm" else {}
    made = ["normal", "mean", "var"] if trained == "norm" else ["normal"]
    graph.node.append(helper.make_node("BatchNormalization", norm, made, name="norm", **options))
    graph.node.append(helper.make_node("Dropout", ["normal", "ratio", "mode"], ["scores"], name="drop"))
    error = failing(saved(tmp_path, model), tmp_path / "out")
    kind = {"norm": "BatchNormalization norm", "drop": "Dropout drop"}[trained]
    assert error.message == f"the file is in training mode: {kind}"
    assert "model.eval()" in error.hint
