"""`optcli verify-accuracy` on model files: copies, broken ones, other names and types, every output."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from tiny_project import DATA, write_model

from optcli.workers import confinement


@pytest.fixture
def files(place):
    """A recipe and files: the model, a copy, and one of other weights."""
    place.recipe("  plain: []\n", data=DATA)
    (place.folder / "copy.onnx").write_bytes((place.folder / "model.onnx").read_bytes())
    write_model(place.folder / "other.onnx", seed=7)
    return place.folder


def changed(source, out, change):
    """The model with something done to it."""
    import onnx

    model = onnx.load(source)
    change(model)
    onnx.save(model, out)


def weights(model, function):
    from onnx import numpy_helper

    tensor = model.graph.initializer[0]
    values = np.asarray(function(numpy_helper.to_array(tensor).copy()))
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def judged(optcli, *arguments, code=0):
    said = optcli("verify-accuracy", *arguments, "--recipe", "recipe.yaml", "--json")
    assert said.code == code, said.err
    return json.loads(said.out)["variants"]


@pytest.mark.slow
def test_an_identical_copy_accepts_with_nothing_lost_or_gained(files, optcli):
    found = judged(optcli, "--baseline", "model.onnx", "copy.onnx")
    assert list(found) == ["model.onnx", "copy.onnx"]
    accuracy = found["copy.onnx"]["accuracy"]
    assert (accuracy["regressed"], accuracy["improved"], accuracy["agreement"]) == (0, 0, 1)
    verdicts = {each["name"]: each for each in found["copy.onnx"]["verdicts"]}
    assert verdicts["accuracy"]["outcome"] == "accept"
    assert verdicts["accuracy"]["runner"] == "onnxruntime"
    assert verdicts["accuracy"]["isa"]


@pytest.mark.slow
def test_the_first_file_is_the_baseline_and_the_exit_code_is_the_verdicts(files, optcli):
    changed("model.onnx", "turned.onnx", lambda model: weights(model, lambda w: -w))
    strict = ("--set", "accuracy.max_drop=0.1", "--no-layers")
    said = optcli(
        "verify-accuracy", "model.onnx", "turned.onnx", *strict, "--recipe", "recipe.yaml", "--json"
    )
    turned = json.loads(said.out)["variants"]["turned.onnx"]
    assert turned["accuracy"]["agreement"] == 0
    verdict = next(each for each in turned["verdicts"] if each["name"] == "accuracy")
    lost = turned["accuracy"]["drop"]["value"] > 0.1  # by the noise of the images it may gain
    assert verdict["outcome"] == ("reject" if lost else "accept")
    assert said.code == (1 if lost else 0)


@pytest.mark.long
@pytest.mark.slow
def test_what_is_known_is_not_evaluated_again(files, optcli):
    line = ("verify-accuracy", "model.onnx", "copy.onnx", "--recipe", "recipe.yaml")
    first = optcli(*line)
    again = optcli(*line)
    assert again.out == first.out
    assert all(said.startswith("  cached") for said in again.err.splitlines())
    assert "  built   model.onnx" in optcli(*line, "--remeasure").err  # the copy is the same


@pytest.mark.long
@pytest.mark.slow
def test_weights_beside_the_model_belong_to_what_is_known(files, optcli):
    import onnx

    model = onnx.load("model.onnx")
    options = {"save_as_external_data": True, "location": "w.data", "size_threshold": 0}
    onnx.save(model, "beside.onnx", **options)
    first = judged(optcli, "model.onnx", "beside.onnx")["beside.onnx"]["accuracy"]
    assert first["agreement"] == 1
    data = files / "w.data"
    data.write_bytes((-np.frombuffer(data.read_bytes(), np.float32)).tobytes())
    line = ("model.onnx", "beside.onnx", "--recipe", "recipe.yaml", "--json", "--no-layers")
    again = optcli("verify-accuracy", *line)
    assert json.loads(again.out)["variants"]["beside.onnx"]["accuracy"]["agreement"] == 0


@pytest.mark.long
@pytest.mark.slow
def test_inputs_of_another_name_type_and_batch(files, optcli):
    from onnx import TensorProto, helper

    def rename(model):
        model.graph.input[0].name = model.graph.node[0].input[0] = "pixels"

    def halve(model):
        weights(model, lambda w: w.astype(np.float16))
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16

    def fix(model):
        model.graph.input[0].type.CopyFrom(
            helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3, 4, 4])
        )

    for name, change in (("renamed", rename), ("half", halve), ("fixed", fix)):
        changed("model.onnx", f"{name}.onnx", change)
    found = judged(optcli, "model.onnx", "renamed.onnx", "half.onnx", "fixed.onnx")
    for name in ("renamed.onnx", "fixed.onnx"):
        assert found[name]["accuracy"]["output_error"]["max_abs"] < 1e-5
    assert 0 < found["half.onnx"]["accuracy"]["output_error"]["max_abs"] < 0.1


@pytest.mark.slow
def test_one_file_in_two_runners(files, optcli):
    runners = ("--runner", "onnxruntime", "--runner", "openvino")
    found = judged(optcli, "model.onnx", *runners)
    assert list(found) == ["model.onnx (onnxruntime)", "model.onnx (openvino)"]
    assert found["model.onnx (openvino)"]["accuracy"]["runner"] == "openvino"


@pytest.mark.long
@pytest.mark.slow
def test_nan_and_constant_outputs_are_rejected_in_words(files, optcli):
    changed("model.onnx", "large.onnx", lambda m: weights(m, lambda w: w * np.float32(1e38)))
    changed("model.onnx", "flat.onnx", lambda m: weights(m, lambda w: w * np.float32(0)))
    line = ("model.onnx", "large.onnx", "flat.onnx", "--recipe", "recipe.yaml", "--no-layers")
    said = optcli("verify-accuracy", *line)
    assert said.code == 1
    assert "reject: the outputs are infinite at other places" in said.out
    assert "reject: the outputs are the same for every sample" in said.out


@pytest.mark.slow
def test_a_file_that_fails_costs_its_row(files, optcli):
    def other_size(model):
        model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 5

    changed("model.onnx", "odd.onnx", other_size)
    found = judged(optcli, "model.onnx", "odd.onnx", "copy.onnx", code=4)
    assert found["odd.onnx"]["status"] == "failed"
    assert "ONNX Runtime cannot load the model" in found["odd.onnx"]["reason"]
    assert found["copy.onnx"]["accuracy"]["agreement"] == 1


@pytest.mark.slow
def test_markdown_and_junit(files, optcli):
    line = ("verify-accuracy", "model.onnx", "copy.onnx", "other.onnx", "--recipe", "recipe.yaml")
    said = optcli(*line, "--markdown", "--junit", "result.xml", "--no-layers")
    assert said.out.startswith("## Accuracy of tiny\n\n| variant | runtime | top1 | change |")
    assert "| copy.onnx | onnxruntime |" in said.out
    suite = ElementTree.parse(files / "result.xml").getroot().find("testsuite")
    cases = suite.findall("testcase")
    assert int(suite.get("tests")) == len(cases) > 3
    names = {case.get("name") for case in cases if case.get("classname") == "tiny.copy.onnx"}
    assert {"accuracy", "outputs", "non-inferiority"} <= names
    failures = [case for case in cases if case.find("failure") is not None]
    assert int(suite.get("failures")) == len(failures)


@pytest.mark.long
@pytest.mark.slow
def test_shards_say_the_same(files, optcli):
    line = ("verify-accuracy", "model.onnx", "other.onnx", "--recipe", "recipe.yaml", "--json")
    small = ("--set", "accuracy.batch_size=2", "--no-layers")
    one, two = optcli(*line, *small), optcli(*line, *small, "--remeasure", "--jobs", "2")
    assert (one.code, one.out) == (two.code, two.out)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "model.onnx copy.onnx",
            "model files need a recipe that names the evaluation data, and none is given",
        ),
        ("--recipe recipe.yaml", "no files are named"),
        ("model.onnx nowhere.onnx --recipe recipe.yaml", "nowhere.onnx: there is no such file"),
        ("model.onnx --recipe recipe.yaml --runner aoti", "none of the runners aoti runs onnx"),
        ("model.onnx --recipe recipe.yaml --set data=null --set accuracy=null", "names no data"),
        (
            "model.onnx --recipe recipe.yaml --set accuracy.metric=topp1",
            "unknown metric 'topp1'\n  hint: did you mean 'top1'?",
        ),
    ],
)
def test_what_is_wrong_is_said(files, optcli, line, message):
    said = optcli("verify-accuracy", *line.split())
    assert said.code == 2
    assert message in said.err


@pytest.mark.slow
def test_labels_beyond_the_classes_are_an_error_not_a_verdict(files, optcli):
    from PIL import Image

    for name in ("c", "d"):
        (files / "images" / name).mkdir()
        for index in range(4):
            Image.fromarray(np.full((4, 4, 3), index, np.uint8)).save(
                files / "images" / name / f"{name}{index}.png"
            )
    said = optcli("verify-accuracy", "model.onnx", "copy.onnx", "--recipe", "recipe.yaml")
    assert said.code == 2
    assert "is number 2, and the model has 2 classes" in said.out + said.err


@pytest.mark.long
@pytest.mark.slow
def test_what_is_rejected_shows_where_the_error_starts(files, optcli):
    changed("model.onnx", "dead.onnx", lambda model: weights(model, np.zeros_like))
    found = judged(optcli, "model.onnx", "dead.onnx", "copy.onnx", code=1)
    assert found["copy.onnx"]["layers"] is None
    rows = found["dead.onnx"]["layers"]["rows"]
    assert {(row["tensor"], row["operator"]) for row in rows[:2]} == {
        ("logits", "MatMul"),
        ("weight", "MatMul"),
    }
    assert [row["own_db"] for row in rows] == [pytest.approx(0.0, abs=1e-9)] * 2 + [None, None]
    # Which of the two stands first is decided by the last bit.
    assert "leave logits as it was" in {row["advice"] for row in rows[:2]}


@pytest.mark.long
def test_layers_of_one_file_are_shown_where_they_are_asked_for(files, optcli):
    line = ("verify-accuracy", "model.onnx", "copy.onnx", "--recipe", "recipe.yaml")
    assert "where the error starts" not in optcli(*line).out
    said = optcli(*line, "--layers", "copy.onnx")
    assert (said.code, "no layer adds an error, of 4 tensors" in said.out) == (0, True), said.out
    unknown = optcli(*line, "--layers", "cpy.onnx")
    assert unknown.code == 2
    assert "did you mean 'copy.onnx'?" in unknown.err
    changed("model.onnx", "other.onnx", lambda model: weights(model, lambda w: 2 * w))
    line = ("verify-accuracy", "model.onnx", "other.onnx", "--recipe", "recipe.yaml")
    table = optcli(*line, "--layers", "other.onnx", "--markdown").out
    assert "where the error starts: signal to noise" in table
    assert "| 0.0 dB | 0.0 dB | activation | logits | MatMul | 1x2 |" in table
    assert "2.00 times what they should be" in table


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_torchscript_file_that_is_quantized_already(files, optcli):
    import onnx
    import torch
    from onnx import numpy_helper
    from torch.ao import quantization

    weight = numpy_helper.to_array(onnx.load("model.onnx").graph.initializer[0])
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(*weight.shape, bias=False)).eval()
    plain[1].weight.data = torch.from_numpy(weight.T.copy())
    wrapped = quantization.QuantWrapper(plain)
    wrapped.qconfig = quantization.get_default_qconfig("x86")
    prepared = quantization.prepare(wrapped)
    prepared(torch.rand(64, 3, 4, 4))
    torch.jit.save(torch.jit.trace(quantization.convert(prepared), torch.rand(2, 3, 4, 4)), "int8.pt")

    line = ("verify-accuracy", "--baseline", "model.onnx", "int8.pt", "--recipe", "recipe.yaml")
    if not confinement.available().whole:  # behind a wall that is whole it needs no trust
        refused = optcli(*line)
        assert refused.code == 2
        assert "int8.pt: this is a program from elsewhere" in refused.err
    # Six samples are too few to bound what INT8 loses.
    found = judged(optcli, "--baseline", "model.onnx", "int8.pt", "--trust", code=5)["int8.pt"]
    assert (found["accuracy"]["runner"], found["accuracy"]["precision"]) == ("torchscript", "int8")
    assert 10 < found["accuracy"]["output_error"]["sqnr_db"] < 60
    assert found["accuracy"]["regressed"] is not None
    layers = optcli(*line, "--trust", "--layers", "int8.pt")
    assert "torchscript keeps no layers that could be looked into" in layers.out


@pytest.mark.slow
def test_a_file_of_another_size_than_the_recipes_is_said_before_it_is_run(files, optcli):
    from tiny_project import write_model

    write_model(files / "large.onnx", size=6)
    said = optcli("verify-accuracy", files / "large.onnx", "--recipe", "recipe.yaml")
    assert said.code == 2
    assert "it takes image of 3 x 6 x 6, the recipe has image of 3 x 4 x 4" in said.err
