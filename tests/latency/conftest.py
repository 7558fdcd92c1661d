import importlib

import pytest
import quiet
from scripted import ScriptedChild

from optcli import runners, workers
from optcli.artifact import Artifact, Format
from optcli.measure.latency import Candidate
from optcli.runners import Runner


class PlainRunner(Runner):
    """A runner without a runtime: outputs are the inputs."""

    runs = (Format.ONNX,)

    def load(self, artifact):
        pass

    def bind(self, feed):
        self.__dict__["seen"] = [*self.__dict__.get("seen", []), feed]
        self.__dict__["outputs"] = feed

    def execute(self):
        pass

    def fetch(self):
        return self.__dict__["outputs"]

    def effective(self):
        return {"precision": "fp32", "threads": self.threads}


@pytest.fixture
def plain_runner(monkeypatch):
    monkeypatch.setattr(runners, "find", lambda name: PlainRunner)
    return PlainRunner


@pytest.fixture(autouse=True)
def judged_machine(monkeypatch):
    """The machine is judged as ever; what is measured again is measured again at once."""
    for module, name, value in quiet.AS_EVER:
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(
        importlib.import_module("optcli.measure.latency.measure"), "_PAUSES", (0.0, 0.0, 0.0)
    )


@pytest.fixture
def candidate(tmp_path):
    def make(name, size_bytes=1000, **options):
        artifact = Artifact(name, Format.ONNX, tmp_path, "fp32", size_bytes, name)
        return Candidate(name, artifact, "plain", options)

    return make


@pytest.fixture
def scripted(monkeypatch, plain_runner):
    """Scripted children by candidate name: `scripted(eager={"call_ns": 1e6})`; gives those spawned."""

    def prepare(**scripts):
        spawned = []
        ScriptedChild.turns, ScriptedChild.launches = [], {}

        def spawn(function, request, *, log, environment, interpreter=None, confined=None):
            name = request.artifact.key
            spawned.append(ScriptedChild(name, request, **scripts[name]))
            spawned[-1].environment, spawned[-1].log = environment, log
            spawned[-1].function, spawned[-1].interpreter = function, interpreter
            spawned[-1].confined = confined
            return spawned[-1]

        monkeypatch.setattr(workers, "spawn", spawn)
        return spawned

    return prepare
