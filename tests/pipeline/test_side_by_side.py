"""How many steps a build does at once, and which ones it does alone."""

import threading
import time

import pytest

from optcli import environment
from optcli.observer import Silent
from optcli.pipeline.execute import BuildSettings, Execution, StepResult, usual_jobs
from optcli.pipeline.making import planned
from optcli.store import Store
from optcli.workers import memory

VARIANTS = """\
  plain: []
  onnx: [export_onnx]
  traced: [torchscript]
  one: [{finetune: {epochs: 1}}]
  two: [{finetune: {epochs: 2}}]
"""
HEAD = """\
version: 1
name: side-by-side
model: {source: "python:net.py:Net"}
inputs:
  - {name: image, dtype: float32, shape: [batch, 3, 4, 4], batch: {min: 1, opt: 2, max: 4}}
"""
DATA = """\
data:
  training: {source: "imagefolder:images", split: {seed: 0, to: 0.5}, prepare: {scale: 0.004}}
  validation: {source: "imagefolder:images", split: {seed: 0, from: 0.5}, prepare: {scale: 0.004}}
"""


@pytest.mark.parametrize(("gib", "cores", "jobs"), [(16, 2, 2), (16, 64, 2), (16, 1, 1), (7, 2, 1)])
def test_two_steps_at_once_where_there_are_cores_and_memory(monkeypatch, gib, cores, jobs):
    monkeypatch.setattr(memory, "available_bytes", lambda: gib << 30)
    monkeypatch.setattr(environment, "usable_cores", lambda: cores)
    assert usual_jobs() == jobs


@pytest.mark.slow
def test_a_step_that_trains_has_no_other_beside_it(project, monkeypatch):
    (project.folder / "net.py").write_text("from torch.nn import Flatten as Net\n")
    project.recipe(VARIANTS, head=HEAD, data=DATA)
    plan = planned(project.folder / "recipe.yaml", Store(project.store), (), ())
    running, together, lock = set(), [], threading.Lock()

    def do(self, step):
        with lock:
            running.add(step.key)
            together.append({plan.steps()[key].name for key in running})
        time.sleep(0.05)
        with lock:
            running.discard(step.key)
        return StepResult("built")

    monkeypatch.setattr(Execution, "_do", do)
    monkeypatch.setattr(Execution, "_look_again", lambda self: None)
    with Execution(plan, Store(project.store), Silent(), BuildSettings(jobs=2)) as execution:
        assert len(execution.run()) == 5
    assert {"export_onnx", "torchscript"} in together
    assert all(names == {"finetune"} for names in together if "finetune" in names)
