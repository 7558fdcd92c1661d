"""The process beside a pass: it finds what the worker would, and is no loss where it fails."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optcli import workers
from optcli.artifact import Artifact, Format
from optcli.errors import ExitCode
from optcli.passes import Traits
from optcli.pipeline.messages import PassRequest
from optcli.settings import TensorSpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is copied")
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _as_a_users(monkeypatch, cold_workers):
    path = (str(HERE), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))


def model(folder: Path, factor: float) -> Artifact:
    """An ONNX model that multiplies by a number."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(np.float32(factor), "factor")],
    )
    folder.mkdir()
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(made, folder / "model.onnx")
    return Artifact("k", Format.ONNX, folder, "fp32", 1, "d", {"outputs": ["y"]})


@pytest.fixture
def request_of(tmp_path):
    spec = TensorSpec(name="x", shape=("batch", 8), batch={"min": 1, "opt": 2, "max": 4})
    np.savez(tmp_path / "probe.npz", x=np.random.default_rng(0).random((16, 8), np.float32))
    parent = model(tmp_path / "parent", 1.0)
    return PassRequest(
        step="export",
        inputs=(spec,),
        folder=tmp_path,
        probe=tmp_path / "probe.npz",
        threads=2,
        seed=0,
        batch_sizes=(1,),
        traits=Traits("export", {}, (Format.ONNX,), {Format.ONNX: Format.ONNX}),
        parent=parent,
        origin=parent,
        data={},
        free_bytes=1 << 40,
    )


def carried_out(name: str, request: PassRequest) -> Any:
    return workers.run(f"comparing_calls:{name}", request, dict[str, Any], timeout_s=120)


@pytest.mark.slow
def test_it_finds_what_the_worker_would(request_of, tmp_path):
    factors = {"right": 1.0, "wrong": 1.1, "near": 1.0001}
    paths = [str(model(tmp_path / name, factor).path) for name, factor in factors.items()]
    (tmp_path / "children.json").write_text(json.dumps(paths))
    found = carried_out("compared", request_of)
    right, wrong, near = found["beside"]
    assert right["checked"]["largest_relative_error"] == 0
    assert 5e-5 < near["checked"]["largest_relative_error"] < 2e-4
    assert "does not compute what its parent computes" in wrong["error"]
    assert found["beside"] == found["alone"]
    assert found["left"] == []


@pytest.mark.slow
def test_where_it_fails_nothing_is_found_and_nothing_left(request_of):
    found = carried_out("lost", request_of)
    assert found == {"killed": None, "asked twice": None, "cannot run its parent": None, "left": []}


@pytest.mark.slow
def test_it_imports_the_childs_runtime_before_there_is_a_child(request_of, tmp_path):
    mark = tmp_path / "imported"
    (tmp_path / "noted_runtime.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    found = carried_out("imported_ahead", request_of)
    assert found["marked"]
    for runtime in ("noted_runtime", "no_such_runtime"):
        assert found[runtime]["checked"]["largest_relative_error"] == 0


@pytest.mark.slow
def test_there_is_one_where_a_core_and_memory_are_free(request_of):
    assert carried_out("worth_it", request_of) == {
        "usually": True,
        "on one core": False,
        "where memory is scarce": False,
        "where the system refuses": False,
        "with two threads": False,
    }


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_a_build_checks_what_a_pass_on_one_core_wrote(project, unmeasured, lost):
    project.recipe(
        f"""\
  plain: []
  right: [{{"./fakes.py:Convert": {{lost: {str(lost).lower()}}}}}]
  wrong: [{{"./fakes.py:Convert": {{wrong: true, lost: {str(lost).lower()}}}}}]
  two: [{{"./fakes.py:Convert": {{wrong: true, way_out: true, lost: {str(lost).lower()}}}}}]
"""
    )
    report = project.build()
    assert report.exit_code == ExitCode.FAILED
    assert "does not compute what its parent computes" in report.variants["wrong"].reason
    facts = {name: report.variants[name].steps[-1].facts for name in ("right", "two")}
    assert facts["right"]["checked_against_parent"]["largest_relative_error"] <= 1e-4
    assert "does not compute what its parent computes" in facts["two"]["tried_before"][0]
    assert facts["two"]["checked_against_parent"]["largest_relative_error"] <= 1e-4
