"""Samples and a network that need no file and no runtime."""

from typing import ClassVar

import numpy as np

from optcli.artifact import Format
from optcli.runners import Runner
from optcli.sample import Sample
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings

BAR = AccuracySettings()
SPEC = TensorSpec(name="x", shape=("batch", 3), batch={"min": 1, "opt": 4, "max": 8})


class Samples:
    """Ten samples whose inputs are their scores; the label is the largest."""

    def __init__(self, count=10, labels=None, ids=None):
        self.x = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
        self.labels = labels if labels is not None else [int(row.argmax()) for row in self.x]
        self.ids = ids or [f"sample-{index}" for index in range(count)]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return Sample(self.ids[index], {"x": self.x[index]}, self.labels[index])


class Network(Runner):
    """Gives `outputs(x)`; remembers the batch sizes it was called with."""

    runs: ClassVar = (Format.ONNX,)
    sizes: ClassVar = []
    function: ClassVar = None

    def load(self, artifact):
        pass

    def bind(self, feed):
        Network.sizes.append(len(feed["x"]))
        self.__dict__["outputs"] = Network.function(feed["x"])

    def execute(self):
        pass

    def fetch(self):
        return self.__dict__["outputs"]

    def effective(self):
        return {"precision": "fp32"}
