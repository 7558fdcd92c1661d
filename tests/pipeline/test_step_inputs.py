"""What a step gets of its inputs: copies of what it reads, each file read no more often than needed."""

import importlib.util
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from optcli import passes
from optcli.artifact import Format
from optcli.environment import Needs
from optcli.errors import MissingError, StepError
from optcli.passes import Traits
from optcli.passes.finetune import Finetune
from optcli.pipeline import execute, step
from optcli.pipeline.local_maker import LocalMaker
from optcli.pipeline.messages import Call, Order, PassRequest, WrittenArtifact
from optcli.settings import TensorSpec
from optcli.store import Store


@pytest.fixture
def store(tmp_path):
    return Store.at(tmp_path / "store")


def kept(store, name):
    record = {"format": "onnx", "precision": "fp32", "facts": {}}
    with store.work("artifact", name * 64) as work:
        (work / "model.onnx").write_text(f"the weights of {name}")
        return store.put("artifact", name * 64, work, record, {})


def order_of(parent, origin, **traits):
    request = PassRequest(
        step="a step",
        inputs=(TensorSpec(name="x", shape=(1, 2)),),
        folder=parent.path,
        probe=None,
        threads=1,
        seed=0,
        batch_sizes=(1,),
        traits=replace(Traits("name", {}, (Format.ONNX,), {Format.ONNX: Format.ONNX}), **traits),
        parent=parent.artifact(),
        origin=origin.artifact(),
        data={},
    )
    call = Call("optcli.pipeline.step:make_artifact", request, WrittenArtifact)
    entries = {"parent": parent, "origin": origin}
    return Order("artifact", "f" * 64, "label", call, {}, entries=entries)


def made(store, order, carry):
    """What the maker makes where `carry` is the worker."""

    def carried(order, request, log):
        carry(request)
        return WrittenArtifact(Format.ONNX, "fp32", {})

    with store.work(order.kind, order.key) as work:
        return LocalMaker(store, None, carried).make(order, work)


@pytest.mark.parametrize("reads_origin", [True, False])
def test_the_origin_is_copied_for_who_reads_it(store, reads_origin):
    parent, origin = kept(store, "a"), kept(store, "b")
    seen = []
    made(store, order_of(parent, origin, reads_origin=reads_origin), seen.append)
    request = seen[0]
    assert request.parent.path != parent.path
    assert (request.origin.path != origin.path) is reads_origin
    assert request.origin.path.exists() is not reads_origin, "copies go with the step"


def test_an_origin_that_is_the_parent_is_its_copy(store):
    parent = kept(store, "a")
    seen = []
    made(store, order_of(parent, parent, reads_origin=False), seen.append)
    assert seen[0].origin.path == seen[0].parent.path != parent.path


def test_who_reads_the_origin():
    ours = Traits.of(passes.find("export_onnx")(), "export_onnx")
    tuned = Traits.of(Finetune(epochs=1), "finetune")
    own = Traits.of(passes.find("export_onnx")(), "own", reference="own.py:Own")
    assert (ours.reads_origin, tuned.reads_origin, own.reads_origin) == (False, True, True)


@pytest.mark.slow
def test_a_change_in_the_store_is_seen(store):
    parent = kept(store, "a")

    def meddles(request):
        time.sleep(0.5)
        (parent.path / "model.onnx").chmod(0o644)
        (parent.path / "model.onnx").write_text("the weights of x")

    with pytest.raises(StepError, match=r"changed files of its input in the store .*put back"):
        made(store, order_of(parent, parent), meddles)
    assert store.sound("artifact", "a" * 64) is not None
    assert (parent.path / "model.onnx").read_text() == "the weights of a"


def test_an_origin_without_a_copy_is_removed_where_a_step_changed_it(store):
    parent, origin = kept(store, "a"), kept(store, "b")

    def meddles(request):
        (request.origin.path / "model.onnx").chmod(0o644)
        (request.origin.path / "model.onnx").write_text("the weights of x")

    with pytest.raises(StepError, match=r"changed files of its input in the store .*removed"):
        made(store, order_of(parent, origin, reads_origin=False), meddles)
    assert store.peek("artifact", "b" * 64) is None
    assert store.sound("artifact", "a" * 64) is not None


@pytest.mark.parametrize(("error", "tries"), [(StepError("no"), 2), (MissingError("no"), 1)])
def test_what_is_missing_is_not_tried_in_another_way(store, monkeypatch, error, tries):
    parent = kept(store, "a")
    request = order_of(parent, parent).call.request
    tried = []

    def attempt(one, *_):
        tried.append(one)
        raise error

    monkeypatch.setattr(step, "configured_pass", lambda *_: passes.find("export_onnx")())
    monkeypatch.setattr(step, "comparing", lambda *_: nullcontext())
    monkeypatch.setattr(step, "_seed_everything", lambda _: None)
    monkeypatch.setattr(step, "_attempt", attempt)
    (parent.path / "out").mkdir()
    with pytest.raises(type(error)):
        step.make_artifact(replace(request, out=parent.path / "out"), None)
    assert len(tried) == tries


@pytest.mark.slow
def test_a_worker_of_steps_imports_neither_recipes_nor_reports():
    """Every build waits for what its first worker imports."""
    code = (
        "import sys, optcli.pipeline.step\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('optcli.')}\n"
        "assert 'pipeline' in rooms\n"
        "print(sorted(rooms & {'recipe', 'report', 'results', 'latency', 'accuracy', 'serving'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_workers_are_forked_with_the_runners_of_their_checks():
    step = SimpleNamespace(
        format=Format.ONNX, parent=SimpleNamespace(format=Format.TORCH), needs=Needs(), traits=None
    )
    modules = execute._packages(step)
    assert {"optcli.runners.torch", "optcli.runners.onnxruntime", "torch"} <= {*modules}
    assert all(importlib.util.find_spec(name) for name in modules)
