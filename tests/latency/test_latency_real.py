"""Real processes, a real runtime and a small real network."""

from pathlib import Path

import numpy as np
import pytest
import quiet

from optcli.artifact import Artifact, Format
from optcli.measure import latency
from optcli.measure.latency import Candidate, samples
from optcli.observer import Silent
from optcli.settings import TensorSpec
from optcli.settings.latency import LatencySettings

pytestmark = pytest.mark.slow


def network(folder, hidden):
    """Two matrix products over `hidden` features as an ONNX artifact."""
    from onnx import TensorProto, helper, numpy_helper, save

    folder.mkdir()
    rng = np.random.default_rng(0)
    weights = {"a": (64, hidden), "b": (hidden, 10)}
    tensors = [numpy_helper.from_array(rng.random(s, dtype=np.float32), n) for n, s in weights.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    spec = [("x", ["batch", 64]), ("y", ["batch", 10])]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in spec]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    save(model, folder / "model.onnx")
    size = (folder / "model.onnx").stat().st_size
    return Artifact(folder.name, Format.ONNX, folder, "fp32", size, folder.name, {"outputs": ["y"]})


@pytest.fixture(autouse=True)
def judged_machine(monkeypatch):
    """Real processes, beside whatever else runs: all of it counts."""
    for module, name, value in quiet.LIFTED:
        monkeypatch.setattr(module, name, value)


def test_artifacts_in_their_own_processes(tmp_path):
    large, small = network(tmp_path / "large", 16384), network(tmp_path / "small", 64)
    missing = Artifact("gone", Format.ONNX, tmp_path / "gone", "fp32", 1, "gone")
    np.savez(tmp_path / "probe.npz", x=np.random.default_rng(0).random((16, 64), dtype=np.float32))
    candidates = [
        Candidate("large", large, "onnxruntime"),
        Candidate("small", small, "onnxruntime"),
        Candidate("gone", missing, "onnxruntime"),
    ]
    measured = latency.measure(
        latency.LatencyOrder(
            candidates,
            "large",
            (TensorSpec(name="x", shape=("batch", 64)),),
            tmp_path / "probe.npz",
            LatencySettings(
                threads=1, launches=1, rounds=6, calls=10, max_seconds=2, batch_sizes=(1, 4)
            ),
            0,
        ),
        tmp_path / "logs",
        Silent(),
    )
    rows = latency.to_results(measured)
    assert set(measured.failures) == {"gone"}
    assert [row.batch_size for row in rows["small"]] == [1, 4]
    first = rows["small"][0]
    assert first.speedup.low > 2
    assert first.threads == 1
    assert first.samples >= 60
    assert min(first.import_ms, first.load_ms, first.first_ms, first.cpu_ms) > 0
    assert 1e6 < first.peak_memory_bytes < 1e9
    assert measured.opened["small"].effective["provider"] == "CPUExecutionProvider"
    assert (tmp_path / "logs" / "gone.log").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("killed", "was killed, most likely because memory ran out"),
        ("memory", "it ran out of memory"),
        ("hangs", "it did not finish within 3 s"),
    ],
)
def test_who_dies_on_the_way_costs_only_what_it_had_not_measured(tmp_path, monkeypatch, how, said):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("DYING_COUNTER", str(tmp_path / "counter"))
    monkeypatch.setenv("DYING_IN", "1")
    monkeypatch.setenv("DYING_HOW", how)
    monkeypatch.setattr(samples, "_SHORTEST_WAIT_S", 3.0)
    small = network(tmp_path / "small", 64)
    candidates = [
        Candidate("base", small, "onnxruntime"),
        Candidate("dying", small, "onnxruntime", serve="dying:serve"),
    ]
    settings = LatencySettings(mode="table", threads=1, launches=3, rounds=4, max_seconds=1)
    measured = latency.measure(
        latency.LatencyOrder(
            candidates, "base", (TensorSpec(name="x", shape=("batch", 64)),), None, settings, 0
        ),
        tmp_path / "logs",
        Silent(),
    )
    rows = latency.to_results(measured)
    assert (rows["base"][0].launches, rows["base"][0].rounds) == (3, 12)
    assert (rows["dying"][0].launches, rows["dying"][0].rounds) == (2, 4 + 2)
    assert rows["dying"][0].speedup.low is not None
    assert "at batch size 1 in launch 2 of 3" in rows["dying"][0].flags[-1].figures["error"]
    assert said in rows["dying"][0].flags[-1].figures["error"]
