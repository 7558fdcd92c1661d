"""A network with layers that INT8 ruins, for real: the repair finds them, the rest stays in INT8."""

from pathlib import Path

import numpy as np
import pytest

from optcli import tuning
from optcli.recipe import load

pytestmark = pytest.mark.slow

RECIPE = """\
version: 1
name: outlier
model: {source: "onnx:model.onnx"}
inputs:
  - {name: image, dtype: float32, shape: [1, 3, 16, 16]}
data:
  calibration: {source: "npz:data.npz", split: {seed: 0, to: 0.25}}
  evaluation: {source: "npz:data.npz", split: {seed: 0, from: 0.25}}
accuracy: {metric: top1, max_drop: 0.05}
latency: {threads: 1, launches: 1, rounds: 2, calls: 2, max_seconds: 0.2}
variants:
  plain: []
  int8: [{quantize_onnxruntime: {least_layer_sqnr: null}}]   # else it leaves out such layers itself
"""
RUINED = "spread"
"""Its output channels differ by a factor of 3000, which one scale for all cannot hold."""


def write_network(path: Path, seed: int = 0) -> None:
    """Four convolutions; the second one's channels are spread, the third one gathers them again."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(seed)
    spread = np.ones(16, np.float32)
    spread[0] = 3000.0
    nodes, constants = [], []
    plan = [("first", 3, "a"), (RUINED, 16, "b"), ("gather", 16, "c"), ("last", 16, "d")]
    source = "image"
    for name, channels, out in plan:
        weight = generator.standard_normal((16, channels, 3, 3)) / np.sqrt(9 * channels)
        weight = weight.astype(np.float32)
        if name == RUINED:
            weight *= spread[:, None, None, None]
        if name == "gather":
            weight /= spread[None, :, None, None]
        constants.append(numpy_helper.from_array(weight, f"{name}.weight"))
        nodes.append(
            helper.make_node("Conv", [source, f"{name}.weight"], [out], name, pads=[1, 1, 1, 1])
        )
        nodes.append(helper.make_node("Relu", [out], [f"{out}r"], f"{name}.relu"))
        source = f"{out}r"
    nodes.append(helper.make_node("GlobalAveragePool", [source], ["pooled"], "pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["logits"], "flatten"))
    graph = helper.make_graph(
        nodes,
        "outlier",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 16])],
        constants,
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def write_data(folder: Path) -> None:
    """Images of one colour with noise, labelled by the network itself: those that it is sure about."""
    import onnxruntime

    generator = np.random.default_rng(1)
    images = 0.3 * generator.standard_normal((1200, 3, 16, 16))
    images = (images + 3 * generator.standard_normal((1200, 3, 1, 1))).astype(np.float32)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    logits = np.concatenate([session.run(None, {"image": one[None]})[0] for one in images])
    top, labels = np.sort(logits, axis=1), logits.argmax(axis=1)
    unsure = (top[:, -2] - top[:, -1]) / np.abs(top[:, -1])
    # As many of each of three classes, else whoever guesses is as good.
    classes = np.bincount(labels).argsort()[-3:]
    by_class = [np.flatnonzero(labels == each) for each in classes]
    sure = np.concatenate([each[unsure[each].argsort()][:80] for each in by_class])
    assert len(sure) == 240
    np.savez(folder / "data.npz", image=images[sure], target=labels[sure])


@pytest.fixture
def network(tmp_path: Path) -> Path:
    write_network(tmp_path / "model.onnx")
    write_data(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "recipe.yaml"


@pytest.mark.long
def test_the_ruined_layer_is_found(network: Path) -> None:
    folder = network.parent
    found = tuning.repair(
        network, "int8", store=folder / "s", artifacts=folder / "a", trials=6, write=True
    )
    first, best = found.trials[0], found.best
    assert not first.inside
    assert best is not None, [(each.label, each.value, each.reason) for each in found.trials]
    assert best.inside
    assert best.speedup is not None
    assert {RUINED, "gather"}.intersection(best.options["ignored_names"])
    assert best.operators, "the rest stays in INT8"
    options = load(network).variants["int8"].passes[0].options
    assert options == {"least_layer_sqnr": None, **best.options}
    assert "# else it leaves" in network.read_text()
