"""Files that no exporter of ours wrote, through the source, the telling passes and both runtimes."""

import foreign_models
import numpy as np
import onnx
import pytest
from tiny_networks import Noise, apply, artifact, feed, sqnr_db

from optcli.artifact import Format
from optcli.models.formats import onnx as onnx_format
from optcli.models.sources.onnx import OnnxSource
from optcli.passes.convert_precision import ConvertPrecision
from optcli.passes.optimize_onnx import OptimizeOnnx
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.passes.to_openvino import ToOpenvino
from optcli.pipeline import check
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner

pytestmark = pytest.mark.slow


def taken(folder, foreign):
    """The artifact that the source makes of the file, seen to run."""
    (folder / "file").mkdir()
    foreign.save(folder / "file")
    out = folder / "source"
    out.mkdir()
    found = OnnxSource(target="net.onnx", folder=folder / "file").write(out, foreign.inputs)
    made = artifact(out, Format.ONNX, found.outputs, found.precision)
    assert check.usable(made, foreign.inputs, None, 1).notes == ()
    return made


def outputs(kind, made, inputs, values, **settings):
    with kind(threads=1, **settings).open(made, inputs) as model:
        return model.run(values)


@pytest.mark.parametrize("name", ["bytes-nhwc", "detector-nms", "several", "branches", "external"])
def test_a_file_is_taken_and_converted_exactly(tmp_path, name):
    """Bytes, outputs that depend on the data, several inputs, subgraphs, weights in another file."""
    foreign = foreign_models.FILES[name]()
    source = taken(tmp_path, foreign)
    for index, one in enumerate((ToOpenvino(), OptimizeOnnx())):
        made = apply(one, source, tmp_path / str(index), foreign.inputs)
        checked = check.against_parent(made, source, foreign.inputs, None, one.tolerance, 1)
        assert checked["samples"] > 50


@pytest.mark.parametrize(
    ("name", "one", "bar"),
    [
        ("transposed-7", QuantizeOnnxruntime(), 20),
        ("external", QuantizeNncf(), 20),
        ("untidy", QuantizeOnnxruntime(), 20),
        ("constants", QuantizeNncf(fast_bias_correction=False), 15),
        ("fused", QuantizeOnnxruntime(), 20),
        ("fused", ConvertPrecision(), 40),
        ("reader-18", QuantizeOnnxruntime(), 20),
        ("fixed-batch", QuantizeOnnxruntime(per_channel=False), 20),
        ("ml-7", ConvertPrecision(), 40),
    ],
)
def test_a_pass_changes_no_more_than_it_must(tmp_path, name, one, bar):
    foreign = foreign_models.FILES[name]()
    source = taken(tmp_path, foreign)
    made = apply(one, source, tmp_path / "made", foreign.inputs, calibration=Noise(foreign.inputs))
    for size in {span.batch_range().min for span in foreign.inputs} | {
        span.batch_range().opt for span in foreign.inputs
    }:
        values = feed(foreign.inputs, size, seed=size)
        wanted = outputs(OnnxruntimeRunner, source, foreign.inputs, values)
        # What the pass changed, and not what 8-bit sums lose on a CPU without VNNI: they are not fused.
        found = outputs(OnnxruntimeRunner, made, foreign.inputs, values, optimization_level="basic")
        first = next(iter(wanted))
        assert list(found) == list(wanted)
        assert sqnr_db(wanted[first], found[first]) > bar


def test_nodes_of_the_same_name_are_numbered(tmp_path):
    """ONNX Runtime refuses such a file, OpenVINO and the checker of onnx take it."""
    foreign = foreign_models.untidy()
    source = taken(tmp_path, foreign)
    model = onnx_format.open(source.path)
    named = [node.name for node in model.graph.node if node.name]
    assert len(set(named)) == len(named) > 3
    assert source.facts["outputs"] == ["StatefulPartitionedCall/Identity:0", "mid"]
    values = feed(foreign.inputs, 2)
    wanted = outputs(OpenvinoRunner, source, foreign.inputs, values)
    found = outputs(OnnxruntimeRunner, source, foreign.inputs, values)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5)


def test_labels_are_compared_by_how_many_differ(tmp_path):
    """One pixel of another class, of six, is no sixth of an error."""
    foreign = foreign_models.transposed()
    source = taken(tmp_path, foreign)
    model = onnx_format.open(source.path)
    head = next(node for node in model.graph.node if node.op_type == "ArgMax")
    rounded = onnx.helper.make_node("Add", [head.input[0], "tiny"], ["nudged"])
    tiny = np.zeros((1, 6, 32, 32), np.float32)
    tiny[0, 3, 0, 0] = 1000  # one pixel of 1024 is of class 3 now
    model.graph.initializer.append(onnx.numpy_helper.from_array(tiny, "tiny"))
    head.input[0] = "nudged"
    model.graph.node.insert(len(model.graph.node) - 1, rounded)
    other = tmp_path / "other"
    other.mkdir()
    onnx_format.save(model, other)
    child = artifact(other, Format.ONNX, source.facts["outputs"])
    checked = check.against_parent(child, source, foreign.inputs, None, 2e-3, 1)
    assert 0 < checked["largest_relative_error"] < 1.5e-3
