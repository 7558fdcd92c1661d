"""Half precision: close to FP32 in both runtimes, sound graphs, nothing that overflows unseen."""

import numpy as np
import old_onnx
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from pydantic import ValidationError
from tiny_networks import (
    INPUTS,
    Heard,
    Noise,
    apply,
    artifact,
    feed,
    job,
    onnx_file,
    sqnr_db,
)

from optcli.artifact import Format
from optcli.errors import RunnerError, StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import precision_of
from optcli.passes._onnx.half_precision import halved
from optcli.passes.convert_precision import ConvertPrecision
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
OLD = (TensorSpec(name="image", shape=("batch", 3, 16, 16)),)
REAL = [
    ("resnet20_cifar10", ("batch", 3, 32, 32), "input", 1.0),
    ("mobilenet_v3_small_fashion", ("batch", 3, 64, 64), "input", 1.0),
    ("vit_tiny_fashion", ("batch", 3, 32, 32), "input", 1.0),
    ("yolox_nano", (1, 3, 416, 416), "images", 60.0),
]
BARS = {"fp16": 45, "bf16": 25}


def outputs(kind, made, inputs, values):
    with kind(threads=2).open(made, inputs) as model:
        return next(iter(model.run(values).values()))


def closeness(source, made, inputs, values, kinds=(OnnxruntimeRunner, OpenvinoRunner)):
    wanted = outputs(OnnxruntimeRunner, source, inputs, values)
    found = [outputs(kind, made, inputs, values) for kind in kinds]
    return min(sqnr_db(wanted, each.astype(np.float32)) for each in found)


def runtimes(precision):
    return (OpenvinoRunner,) if precision == "bf16" else (OnnxruntimeRunner, OpenvinoRunner)


@pytest.mark.long
@pytest.mark.parametrize(("name", "shape", "input_name", "scale"), REAL)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_real_models_stay_close(tmp_path, shared, name, shape, input_name, scale, precision):
    source = onnx_file(shared / "models" / f"{name}.onnx", tmp_path / "onnx")
    inputs = (TensorSpec(name=input_name, shape=shape),)
    made = apply(ConvertPrecision(precision=precision), source, tmp_path / "made", inputs)
    assert made.precision == precision_of(onnx_format.open(made.path)) == precision
    sizes = [(each.path / onnx_format.FILE).stat().st_size for each in (source, made)]
    assert sizes[1] < 0.6 * sizes[0]
    for batch_size in (1, 8) if shape[0] == "batch" else (1,):
        values = feed(inputs, batch_size, 9, scale)
        assert closeness(source, made, inputs, values, runtimes(precision)) > BARS[precision]


@pytest.mark.parametrize("opset", old_onnx.OPSETS)
@pytest.mark.parametrize("name", old_onnx.NETWORKS)
def test_files_of_any_age(tmp_path, name, opset):
    (tmp_path / "onnx").mkdir()
    onnx_format.save(old_onnx.network(name, opset), tmp_path / "onnx")
    source = artifact(tmp_path / "onnx", Format.ONNX, ["result"])
    for index, options in enumerate([{}, {"keep_io": False}, {"precision": "bf16"}]):
        heard = Heard()
        made = apply(ConvertPrecision(**options), source, tmp_path / str(index), OLD, observer=heard)
        bf16 = options.get("precision") == "bf16"
        assert any("was upgraded" in warning for warning in heard.warnings) == bf16
        bar = BARS[options.get("precision", "fp16")]
        kinds = runtimes(options.get("precision"))
        assert closeness(source, made, OLD, feed(OLD, 4), kinds) > bar


def test_inputs_and_outputs_are_kept_or_not(tmp_path, conv):
    def types(made):
        model = onnx_format.open(made.path)
        values = (*model.graph.input, *model.graph.output)
        return {value.type.tensor_type.elem_type for value in values}

    kept = apply(ConvertPrecision(), conv, tmp_path / "a", INPUTS["Conv"])
    halved = apply(ConvertPrecision(keep_io=False), conv, tmp_path / "b", INPUTS["Conv"])
    assert types(kept) == {TensorProto.FLOAT}
    assert types(halved) == {TensorProto.FLOAT16}
    values = feed(INPUTS["Conv"], 2)
    for kind in (OnnxruntimeRunner, OpenvinoRunner):
        assert outputs(kind, kept, INPUTS["Conv"], values).dtype == np.float32
        assert outputs(kind, halved, INPUTS["Conv"], values).dtype == np.float16
    with pytest.raises(ValidationError, match="bfloat16"):
        ConvertPrecision(precision="bf16", keep_io=False)


def test_what_is_named_stays_in_fp32(tmp_path, conv):
    def halves(name, **options):
        made = apply(ConvertPrecision(**options), conv, tmp_path / name, INPUTS["Conv"])
        weights = onnx_format.open(made.path).graph.initializer
        assert closeness(conv, made, INPUTS["Conv"], feed(INPUTS["Conv"], 4)) > 50
        found = sum(t.data_type == TensorProto.FLOAT16 and len(t.dims) == 4 for t in weights)
        return found, made.facts["kept_in_fp32"]

    names = [n.name for n in onnx_format.open(conv.path).graph.node if n.op_type == "Conv"]
    assert halves("a") == (4, [])
    assert halves("b", ignored_names=names[:1]) == (3, names[:1])
    assert halves("c", ignored_types=("Conv",)) == (0, sorted(names))
    assert halves("d", ignored_patterns=(".*[Cc]onv.*",))[0] == 0


def scaled(folder, weight, second=1.0):
    """image times a weight, and back again."""
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["image", "large"], ["wide"], name="up"),
            helper.make_node("Mul", ["wide", "small"], ["narrow"], name="down"),
            helper.make_node("Add", ["narrow", "one"], ["result"], name="last"),
        ],
        "scaled",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, ["batch", 4])],
        [
            numpy_helper.from_array(np.full(4, weight, np.float32), "large"),
            numpy_helper.from_array(np.full(4, 1 / weight, np.float32), "small"),
            numpy_helper.from_array(np.full(4, second, np.float32), "one"),
        ],
    )
    folder.mkdir()
    opsets = [helper.make_opsetid("", 18)]
    onnx_format.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder)
    return artifact(folder, Format.ONNX, ["result"])


@pytest.mark.parametrize(
    ("weight", "said"), [(1e6, "weights are out"), (60_000.0, "activation leaves")]
)
def test_what_leaves_the_range_stays_in_fp32_and_is_said(tmp_path, weight, said):
    inputs, heard = (TensorSpec(name="image", shape=("batch", 4)),), Heard()
    source = scaled(tmp_path / "onnx", weight)
    made = apply(ConvertPrecision(), source, tmp_path / "made", inputs, observer=heard)
    assert any(said in warning for warning in heard.warnings)
    assert made.facts["kept_in_fp32"] == ["down", "up"]
    assert made.facts["weights_out_of_range"] == ({"large": 4} if weight > 65504 else {})
    types = {t.name: t.data_type for t in onnx_format.open(made.path).graph.initializer}
    assert types == {"large": TensorProto.FLOAT, "small": TensorProto.FLOAT, "one": TensorProto.FLOAT16}
    found = outputs(OnnxruntimeRunner, made, inputs, feed(inputs, 3))
    assert np.isfinite(found).all()
    wide = apply(ConvertPrecision(precision="bf16"), source, tmp_path / "bf16", inputs)
    assert wide.facts["kept_in_fp32"] == []


def test_what_cannot_work_says_why(tmp_path, conv):
    again = apply(ConvertPrecision(), conv, tmp_path / "a", INPUTS["Conv"])
    with pytest.raises(StepError, match="is fp16, wanted fp32"):
        ConvertPrecision().run(again, job(again, tmp_path / "b", INPUTS["Conv"]))
    calibration = Noise(INPUTS["Conv"], count=2)
    int8 = apply(QuantizeOnnxruntime(), conv, tmp_path / "c", INPUTS["Conv"], calibration=calibration)
    with pytest.raises(StepError, match="quantized already"):
        ConvertPrecision().run(int8, job(int8, tmp_path / "d", INPUTS["Conv"]))
    brain = apply(ConvertPrecision(precision="bf16"), conv, tmp_path / "f", INPUTS["Conv"])
    late = job(brain, tmp_path / "e", INPUTS["Conv"], calibration=calibration)
    with pytest.raises(StepError, match="is bf16"):
        QuantizeOnnxruntime().run(brain, late)
    with pytest.raises(RunnerError) as failure:
        OnnxruntimeRunner().open(brain, INPUTS["Conv"])
    assert "runner: openvino" in failure.value.hint


def test_nothing_is_printed(tmp_path, conv, capfd):
    apply(ConvertPrecision(), conv, tmp_path / "a", INPUTS["Conv"])
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_the_graph_is_in_order(tmp_path, conv):
    made = apply(ConvertPrecision(), conv, tmp_path / "a", INPUTS["Conv"])
    onnx.checker.check_model(onnx_format.open(made.path), full_check=True)


# As torchvision's detectors suppress boxes where there are some.
BRANCHES = """
<ir_version: 8, opset_import: ["" : 17]>
detector (float[1, 8, 4] image, bool some) => (int64[n, 3] y)
<float two = {2}, int64[1, 3] none = {0, 0, 0}>
{
  boxes = Mul (image, two)
  y = If (some) <
    then_branch = found () => (int64[n, 3] best) {
      larger = Mul (boxes, two)
      scores = ReduceMax <axes = [2], keepdims = 0> (larger)
      last = Constant <value = int64[1] {1}> ()
      by_class = Unsqueeze (scores, last)
      best = NonMaxSuppression (larger, by_class)
    },
    else_branch = nothing () => (int64[1, 3] empty) { empty = Identity (none) }
  >
}
"""


def test_branches_that_the_converter_breaks_are_named():
    with pytest.raises(StepError, match=r"inside of If: it casts 'larger' outside of it"):
        halved(onnx.parser.parse_model(BRANCHES), "fp16", set(), keep_io=True)
