"""ONNX Runtime's INT8: close to FP32 in both runtimes, integers by the CPU, in bounded memory."""

from dataclasses import replace

import numpy as np
import old_onnx
import pytest
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

from optcli import environment
from optcli.artifact import Format
from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

# Model, size of its square input, signal to noise in dB that INT8 keeps on noise images in ONNX Runtime
# and in OpenVINO, which rounds differently between matrix products of two activations.
REAL = [
    ("resnet20_cifar10", 32, 20, 20),
    ("mobilenet_v3_small_fashion", 64, 15, 15),
    ("vit_tiny_fashion", 32, 18, 10),
    ("squeezenet1_1", 224, 25, 25),
]
OLD = (TensorSpec(name="image", shape=("batch", 3, 16, 16)),)


def outputs(runner, made, inputs, values):
    with runner.open(made, inputs) as model:
        return next(iter(model.run(values).values()))


def old_file(folder, name, opset, **more):
    folder.mkdir()
    onnx_format.save(old_onnx.network(name, opset, **more), folder)
    return artifact(folder, Format.ONNX, ["result"])


def quantized(conv, out, **options):
    calibration = Noise(INPUTS["Conv"], count=8)
    return apply(QuantizeOnnxruntime(**options), conv, out, INPUTS["Conv"], calibration=calibration)


def distance_db(conv, made):
    values = feed(INPUTS["Conv"], 8, seed=99)
    wanted, found = (
        outputs(OnnxruntimeRunner(threads=1), each, INPUTS["Conv"], values) for each in (conv, made)
    )
    return sqnr_db(wanted, found)


def integer_operators(made, folder):
    """What ONNX Runtime makes of it when it loads it."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "seen.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(
        str(made.path / onnx_format.FILE), options, providers=["CPUExecutionProvider"]
    )
    return [node.op_type for node in onnx.load(folder / "seen.onnx").graph.node]


@pytest.mark.long
@pytest.mark.parametrize(("name", "size", "ort_db", "openvino_db"), REAL)
def test_real_onnx_models_stay_close_in_both_runtimes(
    tmp_path, shared, name, size, ort_db, openvino_db
):
    source = onnx_file(shared / "models" / f"{name}.onnx", tmp_path / "onnx")
    inputs = (TensorSpec(name="input", shape=("batch", 3, size, size)),)
    made = apply(
        QuantizeOnnxruntime(samples=16), source, tmp_path / "int8", inputs,
        calibration=Noise(inputs, count=24),
    )  # fmt: skip
    assert made.precision == "int8"
    assert made.facts["calibration_samples"] == 16
    assert made.facts["model_type"] == ("transformer" if name.startswith("vit") else "none")
    for batch_size in (1, 8):
        values = feed(inputs, batch_size, seed=99)
        wanted = outputs(OnnxruntimeRunner(threads=2), source, inputs, values)
        for kind, bound_db in ((OnnxruntimeRunner, ort_db), (OpenvinoRunner, openvino_db)):
            found = outputs(kind(threads=2), made, inputs, values)
            assert sqnr_db(wanted, found) > bound_db


@pytest.mark.long
def test_biases_of_a_transformer_are_integers_and_its_nodes_keep_their_names(tmp_path, shared):
    source = onnx_file(shared / "models" / "vit_tiny_fashion.onnx", tmp_path / "onnx")
    inputs = (TensorSpec(name="input", shape=("batch", 3, 32, 32)),)
    layers = [
        node.name
        for node in onnx_format.open(source.path).graph.node
        if node.op_type == "MatMul" and node.name.startswith("node_MatMul")
    ]
    for number, ignored in enumerate(((), tuple(layers[:2]))):
        made = apply(
            QuantizeOnnxruntime(samples=8, ignored_names=ignored), source, tmp_path / str(number),
            inputs, calibration=Noise(inputs, count=8),
        )  # fmt: skip
        counts = made.facts["quantized_operators"]
        assert counts["Gemm"] > counts["MatMul"]  # products of attention are left
        assert set(ignored) <= set(made.facts["kept_in_floating_point"])


@pytest.mark.long
def test_a_detector_with_a_fixed_batch_and_an_old_opset(tmp_path, shared):
    source = onnx_file(shared / "models" / "yolox_nano.onnx", tmp_path / "onnx")
    inputs, heard = (TensorSpec(name="images", shape=(1, 3, 416, 416)),), Heard()
    made = apply(
        QuantizeOnnxruntime(), source, tmp_path / "int8", inputs,
        calibration=Noise(inputs, count=4, scale=60.0), observer=heard,
    )  # fmt: skip
    assert any("opset 11 to 13" in warning for warning in heard.warnings)
    values = feed(inputs, 1, seed=99, scale=60.0)
    wanted = outputs(OnnxruntimeRunner(threads=2), source, inputs, values)
    for runner in (OnnxruntimeRunner(threads=2), OpenvinoRunner(threads=2)):
        found = outputs(runner, made, inputs, values)
        assert found.shape == (1, 3549, 85)
        assert sqnr_db(wanted, found) > 8


@pytest.mark.parametrize("opset", old_onnx.OPSETS)
@pytest.mark.parametrize("name", old_onnx.NETWORKS)
def test_files_of_any_age(tmp_path, name, opset):
    source = old_file(tmp_path / "onnx", name, opset)
    heard = Heard()
    made = apply(
        QuantizeOnnxruntime(), source, tmp_path / "int8", OLD, calibration=Noise(OLD), observer=heard
    )
    assert any("was upgraded" in warning for warning in heard.warnings) == (opset < 13)
    assert made.facts["quantized_operators"]["Conv"] >= 3
    values = feed(OLD, 4, seed=99)
    wanted = outputs(OnnxruntimeRunner(threads=1), source, OLD, values)
    for runner in (OnnxruntimeRunner(threads=1), OpenvinoRunner(threads=1)):
        assert sqnr_db(wanted, outputs(runner, made, OLD, values)) > 18


@pytest.mark.parametrize("batch", [2, 3])
def test_a_fixed_batch_is_filled(tmp_path, batch):
    inputs = (TensorSpec(name="image", shape=(batch, 3, 16, 16)),)
    source = old_file(tmp_path / "onnx", "depthwise", 9, batch=batch)
    made = apply(
        QuantizeOnnxruntime(method="percentile"), source, tmp_path / "int8", inputs,
        calibration=Noise(inputs, count=4),
    )  # fmt: skip
    assert made.facts["calibration_batch_size"] == batch
    values = feed(inputs, batch)
    found = [outputs(OnnxruntimeRunner(threads=1), each, inputs, values) for each in (source, made)]
    assert sqnr_db(*found) > 15


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
@pytest.mark.parametrize("format", ["qdq", "qoperator"])
def test_every_way_is_close_and_computes_on_integers(tmp_path, conv, method, format):
    made = quantized(conv, tmp_path / "int8", method=method, format=format)
    assert 20 < distance_db(conv, made) < 60
    seen = integer_operators(made, tmp_path)
    assert seen.count("QLinearConv") == 4
    assert "Conv" not in seen


@pytest.mark.parametrize(
    ("flags", "machine", "wanted"),
    [
        (["avx512_vnni"], "x86_64", ("vnni", "uint8", "int8", False)),
        (["avx_vnni"], "x86_64", ("vnni", "uint8", "int8", False)),
        (["avx2"], "x86_64", ("avx2", "uint8", "int8", True)),
        (["asimd"], "aarch64", ("arm", "int8", "int8", False)),
    ],
)
def test_integers_are_those_that_the_cpu_multiplies_fastest(
    tmp_path, conv, monkeypatch, flags, machine, wanted
):
    monkeypatch.setattr(environment, "cpu", lambda: {"flags": flags})
    monkeypatch.setattr("platform.machine", lambda: machine)
    facts = quantized(conv, tmp_path / "a").facts
    keys = ("target_isa", "activation_type", "weight_type", "reduce_range")
    assert tuple(facts[key] for key in keys) == wanted
    told = quantized(conv, tmp_path / "b", activation_type="uint8", reduce_range=True).facts
    assert (told["activation_type"], told["reduce_range"]) == ("uint8", True)
    assert told["target_isa"] == wanted[0]


def test_activations_of_16_bits_keep_more_and_are_integers_around_every_operator(tmp_path, conv):
    import onnx

    made = quantized(conv, tmp_path / "npu", activation_type="uint16", target_isa="avx2")
    assert made.precision == "int8-a16"
    assert (made.facts["reduce_range"], made.facts["activation_type"]) == (False, "uint16")
    narrow = quantized(conv, tmp_path / "cpu", target_isa="vnni")
    assert distance_db(conv, made) > distance_db(conv, narrow) + 1
    model = onnx_format.open(made.path)
    pairs = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    assert {node.domain for node in pairs} == {""}
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    assert kinds >= {onnx.TensorProto.UINT16, onnx.TensorProto.INT8}
    with OnnxruntimeRunner(threads=1).open(made, INPUTS["Conv"]) as model:
        assert model.effective()["precision"] == "int8-a16"


def weights(made):
    from onnx import numpy_helper

    model = onnx_format.open(made.path)
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return [
        (found[node.input[0]], found[node.input[1]])
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
        and node.input[0] in found
        and found[node.input[0]].ndim == 4
    ]


def test_integers_and_scales_are_as_asked(tmp_path, conv):
    plain = weights(quantized(conv, tmp_path / "a", target_isa="vnni"))
    assert {values.dtype.name for values, _ in plain} == {"int8"}
    assert all(scale.size == values.shape[0] for values, scale in plain)
    assert max(int(np.abs(values.astype(int)).max()) for values, _ in plain) > 100
    other = weights(
        quantized(conv, tmp_path / "b", weight_type="uint8", per_channel=False, reduce_range=True)
    )
    assert {values.dtype.name for values, _ in other} == {"uint8"}
    assert all(scale.size == 1 for _, scale in other)
    seven = weights(quantized(conv, tmp_path / "c", target_isa="avx2"))
    assert max(int(np.abs(values.astype(int)).max()) for values, _ in seven) <= 64


def test_what_is_named_stays_out_and_what_is_not_stays_in(tmp_path, conv):
    def count(name, **options):
        return quantized(conv, tmp_path / name, **options).facts["quantized_operators"]

    names = [n.name for n in onnx_format.open(conv.path).graph.node if n.op_type == "Conv"]
    plain = count("a")
    assert plain["Conv"] == 4
    assert plain["Gemm"] == 1
    assert "Conv" not in count("b", ignored_types=("Conv",))
    assert count("c", ignored_names=names[:1])["Conv"] == 3
    assert "Conv" not in count("d", ignored_patterns=(".*[Cc]onv.*",))
    assert count("e", types=("Conv",)) == {"Conv": 4}
    assert count("f", names=names[:2]) == {"Conv": 2}
    made = quantized(conv, tmp_path / "g", patterns=(".*[Cc]onv.*",), ignored_names=names[:1])
    assert made.facts["quantized_operators"]["Conv"] == 3
    assert made.facts["kept_in_floating_point"] == names[:1]


def test_histograms_do_not_depend_on_the_order(tmp_path, conv):
    """A first sample with tiny activations has made ONNX Runtime's histograms grow without bounds."""
    import onnx

    from optcli.passes._quantization.calibration import (
        activation_ranges,
        float_tensors,
    )

    class Growing(Noise):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            sample.inputs["image"] *= 1e-4 if index == 0 else 1.0
            return sample

    model = onnx_format.open(conv.path)
    model = onnx.shape_inference.infer_shapes(model)
    tensors = float_tensors(model, ["Conv", "Gemm"])

    def ranges(samples):
        feeds = [{"image": samples[index].inputs["image"][None]} for index in range(len(samples))]
        return activation_ranges(model, tensors, feeds, "percentile", 99.0, 1)

    forward = ranges(Growing(INPUTS["Conv"], count=12))
    samples = [Growing(INPUTS["Conv"], count=12)[index] for index in range(12)]
    assert ranges(samples[::-1]) == forward
    assert len(tensors) == len(forward) >= 6
    assert all(low <= 0 <= high for low, high in forward.values())


def test_a_model_that_does_not_fit_into_one_file_becomes_the_same(tmp_path, conv, monkeypatch):
    wanted = quantized(conv, tmp_path / "one")
    assert {path.name for path in wanted.path.iterdir()} == {onnx_format.FILE}
    large = tmp_path / "large"
    large.mkdir()
    monkeypatch.setattr(onnx_format, "ONE_FILE_BYTES", 2000)
    onnx_format.save(onnx_format.open(conv.path), large)
    assert (large / onnx_format.DATA).exists()
    made = quantized(replace(conv, path=large), tmp_path / "two")
    assert {path.name for path in made.path.iterdir()} == {onnx_format.FILE, onnx_format.DATA}
    values = feed(INPUTS["Conv"], 4)
    found = [
        outputs(OnnxruntimeRunner(threads=1), each, INPUTS["Conv"], values) for each in (wanted, made)
    ]
    assert np.array_equal(*found)


def test_weights_of_the_prepared_graph_lie_beside_it(tmp_path, conv):
    """Whatever reads and writes the graph then copies none of them. The ranges are the same."""
    from optcli.passes._onnx.models import prepared
    from optcli.passes._quantization.calibration import activation_ranges, float_tensors

    folder = tmp_path / "prepared"
    outline = prepared(onnx_format.open(conv.path), folder, job(conv, tmp_path / "out", INPUTS["Conv"]))
    whole = onnx_format.open(folder)
    assert (folder / onnx_format.DATA).stat().st_size > outline.ByteSize() / 2
    assert whole.ByteSize() > outline.ByteSize()
    assert onnx_format.bytes_in(folder) == sum(path.stat().st_size for path in folder.iterdir())
    tensors = float_tensors(outline, ["Conv", "Gemm"])
    assert tensors == float_tensors(whole, ["Conv", "Gemm"])
    assert len(tensors) >= 6
    feeds = [feed(INPUTS["Conv"], 1, seed=seed) for seed in range(3)]
    for method in ("minmax", "entropy"):
        apart = activation_ranges(outline, tensors, feeds, method, 99.99, 1, folder)
        assert apart == activation_ranges(whole, tensors, feeds, method, 99.99, 1)


def test_a_graph_that_cannot_be_optimized_is_prepared_as_it_is(tmp_path, conv, monkeypatch, capsys):
    from optcli.passes._onnx.models import prepared

    def refuse(folder, path):
        path.write_text("half of a model")
        path.with_name(onnx_format.DATA).write_text("half of its weights")
        raise RuntimeError("no such operator")

    monkeypatch.setattr(onnx_format, "write_optimized", refuse)
    folder = tmp_path / "prepared"
    outline = prepared(onnx_format.open(conv.path), folder, job(conv, tmp_path / "out", INPUTS["Conv"]))
    source, found = onnx_format.open(conv.path), onnx_format.open(folder)
    assert [node.op_type for node in found.graph.node] == [node.op_type for node in source.graph.node]
    assert {value.name for value in outline.graph.value_info} >= {
        output for node in source.graph.node[:-1] for output in node.output
    }
    values = feed(INPUTS["Conv"], 3)
    alike = [
        outputs(OnnxruntimeRunner(threads=1), each, INPUTS["Conv"], values)
        for each in (conv, replace(conv, path=folder))
    ]
    assert np.array_equal(*alike)
    assert "no such operator" in capsys.readouterr().err


@pytest.mark.long
def test_memory_does_not_grow_with_the_samples(tmp_path, shared):
    """All activations of these samples together are over 1.5 GB."""
    import psutil

    class Weighed(Heard):
        def progress(self, step, fraction, message):
            if fraction is not None:
                sizes.append(psutil.Process().memory_info().rss / 1e6)

    sizes: list[float] = []
    source = onnx_file(shared / "models" / "squeezenet1_1.onnx", tmp_path / "onnx")
    inputs = (TensorSpec(name="input", shape=("batch", 3, 224, 224)),)
    apply(
        QuantizeOnnxruntime(method="percentile"), source, tmp_path / "int8", inputs,
        calibration=Noise(inputs, count=48), observer=Weighed(),
    )  # fmt: skip
    assert len(sizes) >= 2 * 48  # and the samples by which layers are compared
    assert max(sizes) - sizes[0] < 400


def test_percentile_and_entropy_leave_outliers_out():
    from optcli.passes._quantization.calibration import (
        BINS,
        _count,
        _least_divergence,
        _percentile,
    )

    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    values[0] = 100.0
    for array, low_wanted in ((values, True), (np.abs(values), False)):
        counts = np.zeros(2 * BINS, np.int64)
        _count(array, 100.0, counts)
        assert counts.sum() == values.size
        low, high = _percentile(counts, 100.0, 99.0)
        assert 2.4 < high < 2.95
        assert (-2.75 < low < -2.4) if low_wanted else abs(low) < 0.06
        assert _percentile(counts, 100.0, 100.0)[1] == 100.0
        _, limit = _least_divergence(counts, 100.0, one_sided=not low_wanted)
        assert 3 < limit < 50


def test_what_cannot_work_says_why(tmp_path, conv):
    def fails(options, match, source=conv, name="a", calibration=None):
        calibration = calibration or Noise(INPUTS["Conv"], count=2)
        with pytest.raises(StepError, match=match) as failure:
            QuantizeOnnxruntime(**options).run(
                source, job(source, tmp_path / name, INPUTS["Conv"], calibration=calibration)
            )
        return failure.value

    assert "node_" in fails({"ignored_names": ("node_con",)}, "fits no node", name="a").hint
    assert "'Conv'" in fails({"ignored_types": ("conv",)}, "fits no node", name="b").hint
    fails({"ignored_patterns": (".*",)}, "nothing to quantize", name="c")
    fails({"types": ("Sin",)}, "fits no node|cannot quantize Sin", name="d")
    again = quantized(conv, tmp_path / "int8")
    fails({}, "quantized already", source=again, name="e")

    class Broken(Noise):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            sample.inputs["image"][:] = 3e38
            return sample

    fails({}, "not finite", name="f", calibration=Broken(INPUTS["Conv"], count=2))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"activation_type": "int8", "weight_type": "uint8"}, "swap"),
        ({"activation_type": "uint16", "format": "qoperator"}, "no operators for uint16"),
        ({"percentile": 99.0}, "no effect"),
        ({"patterns": ("(",)}, "no regular expression"),
    ],
)
def test_options_that_contradict_each_other(options, match):
    with pytest.raises(ValidationError, match=match):
        QuantizeOnnxruntime(**options)


def test_nothing_is_printed(tmp_path, conv, capfd, caplog):
    quantized(conv, tmp_path / "a", method="entropy")
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert not caplog.records


def masked_scores(folder):
    """Scores of which a mask leaves five of eight in front of Softmax."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(0, 0.3, (16, 3, 3, 3)).astype(np.float32),
        "v": rng.normal(0, 0.5, (16, 8)).astype(np.float32),
        "mask": np.array([True] * 5 + [False] * 3),
        "never": np.float32(-np.inf),
    }
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["a"], "conv"),
        helper.make_node("GlobalAveragePool", ["a"], ["b"], "pool"),
        helper.make_node("Flatten", ["b"], ["c"], "flat"),
        helper.make_node("MatMul", ["c", "v"], ["d"], "dense"),
        helper.make_node("Where", ["mask", "d", "never"], ["m"], "where"),
        helper.make_node("Softmax", ["m"], ["scores"], "softmax"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    folder.mkdir()
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx_format.save(made, folder)
    return artifact(folder, Format.ONNX, ["scores"])


@pytest.mark.parametrize("options", [{}, {"method": "percentile"}])
def test_a_mask_of_minus_infinity_stays_in_floating_point(tmp_path, options):
    source = masked_scores(tmp_path / "onnx")
    pass_ = QuantizeOnnxruntime(output_tail="quantized", **options)
    made = apply(pass_, source, tmp_path / "int8", OLD, calibration=Noise(OLD, count=8))
    kept = made.facts["kept_in_floating_point"]
    assert "where" in kept
    assert "conv" not in kept
    values = feed(OLD, 8, seed=99)
    wanted, found = (
        outputs(OnnxruntimeRunner(threads=1), each, OLD, values) for each in (source, made)
    )
    assert not found[:, 5:].any()
    assert sqnr_db(wanted, found) > 25


def test_named_nodes_that_are_all_masks_are_refused(tmp_path):
    source = masked_scores(tmp_path / "onnx")
    pass_ = QuantizeOnnxruntime(output_tail="quantized", names=("where",))
    with pytest.raises(StepError, match="minus infinity"):
        apply(pass_, source, tmp_path / "int8", OLD, calibration=Noise(OLD, count=8))
