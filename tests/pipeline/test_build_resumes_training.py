"""kill -9 in the middle of a training: the next build goes on after the last whole epoch."""

import os
import signal
import subprocess
import sys
import time
from textwrap import dedent

import pytest
from tiny_project import write_images

from optcli.observer import Silent
from optcli.passes._torch.checkpoint import CHECKPOINT
from optcli.pipeline.building import build
from optcli.store import Store

RECIPE = """\
version: 1
name: training
model: {source: "python:net.py:Net"}
inputs:
  - {name: image, dtype: float32, shape: [batch, 3, 4, 4], batch: {min: 1, opt: 2, max: 4}}
latency: {launches: 1, rounds: 2, calls: 2, warmup: 1, max_seconds: 0.05, threads: 1}
data:
  training: {source: "imagefolder:images", split: {seed: 0, to: 0.5}, prepare: {scale: 0.004}}
  validation: {source: "imagefolder:images", split: {seed: 0, from: 0.5}, prepare: {scale: 0.004}}
variants:
  plain: []
  tuned: [{finetune: {epochs: 40, batch_size: 3}}]
"""
NET = '''\
"""Slow to train, where it is told to be."""

import os
import time

from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(48, 2))

    def forward(self, image):
        if self.training:
            time.sleep(float(os.environ.get("SLOW_TRAINING_S", "0")))
        return super().forward(image)
'''


class Heard(Silent):
    def __init__(self):
        self.warnings = []

    def warned(self, step, message):
        self.warnings.append(message)


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_build_goes_on_after_the_last_whole_epoch(tmp_path):
    (tmp_path / "net.py").write_text(dedent(NET))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    write_images(tmp_path / "images")
    places = {"store": tmp_path / "store", "artifacts": tmp_path / "artifacts"}
    store = Store(places["store"])
    command = [sys.executable, "-m", "optcli", "build", "recipe.yaml", "--store", str(places["store"])]
    killed = subprocess.Popen(
        [*command, "--artifacts", str(places["artifacts"])],
        cwd=tmp_path,
        env={**os.environ, "SLOW_TRAINING_S": "0.05"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    scratch = store.root / "scratch"
    while not any(scratch.rglob(CHECKPOINT)):
        assert killed.poll() is None, "it ended without a checkpoint"
        assert time.monotonic() < deadline, "it wrote no checkpoint"
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert store.unfinished()
    heard = Heard()
    report = build(tmp_path / "recipe.yaml", observer=heard, **places)
    assert report.variants["tuned"].status == "built"
    going_on = [text for text in heard.warnings if text.startswith("resuming after epoch")]
    assert len(going_on) == 1
    assert store.unfinished() == []
    facts = next(
        e.record["facts"] for e in store.entries("artifact") if "finetuning" in e.record["facts"]
    )
    assert [record["epoch"] for record in facts["finetuning"]["curve"]] == list(range(41))
    assert store.verify() == []
