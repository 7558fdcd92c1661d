"""The torch runner: networks and exported programs, by name, in three steps."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from textwrap import dedent

import numpy as np
import pytest
import torch

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.errors import MissingError, RunnerError
from optcli.models.formats import exported as exported_format
from optcli.models.formats import torch as torch_format
from optcli.results import flags
from optcli.runners.torch import TorchRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

CODE = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)

        def forward(self, image, scale):
            x = self.conv(image)
            top = x.flatten(1).argmax(1)
            return {"scaled": x.mean((2, 3)) * scale, "half": x.bfloat16(), "top": top}
    """
INPUTS = [
    TensorSpec(name="scale", shape=["batch", 1]),
    TensorSpec(name="image", shape=["batch", 3, 8, 8]),
]


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def artifact(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "net.py").write_text(dedent(CODE))
    from optcli.models.formats.torch_build import build

    source = {"kind": "python", "reference": "net.py:Net", "arguments": {}}
    model = build(source, code)
    description = torch_format.Description(source=source, inputs=tuple(INPUTS))
    torch_format.save(model, tmp_path / "a", description, code)
    facts = {"outputs": ["scaled", "half", "top"]}
    return Artifact("key", Format.TORCH, tmp_path / "a", "fp32", 0, "", facts)


@pytest.fixture
def exported(artifact, tmp_path):
    class Flat(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, scale, image):
            return tuple(self.model(image, scale).values())

    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(
        Flat(torch_format.open(artifact.path)),
        (torch.ones(2, 1), torch.ones(2, 3, 8, 8)),
        dynamic_shapes=({0: batch}, {0: batch}),
    )
    (tmp_path / "e").mkdir()
    exported_format.save(program, tmp_path / "e")
    return Artifact("key", Format.EXPORTED, tmp_path / "e", "fp32", 0, "", artifact.facts)


def feed(size: int = 3) -> dict:
    draw = np.random.default_rng(0)
    return {spec.name: draw.standard_normal(spec.concrete(size)).astype(np.float32) for spec in INPUTS}


def wanted(artifact, inputs) -> dict:
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.no_grad():
        found = torch_format.open(artifact.path)(**tensors)
    return {name: value.float().numpy() for name, value in found.items()}


@pytest.mark.parametrize("kind", ["artifact", "exported"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_it_gives_what_the_network_gives(request, artifact, kind, channels_last):
    model = request.getfixturevalue(kind)
    with TorchRunner(threads=1, channels_last=channels_last).open(model, INPUTS) as runner:
        for size in (1, 3):
            found = runner.run(feed(size))
            right = wanted(artifact, feed(size))
            assert list(found) == ["scaled", "half", "top"]
            for name, array in found.items():
                assert array.shape == right[name].shape
                np.testing.assert_allclose(
                    array, right[name], rtol=2e-2 if name == "half" else 1e-5, atol=1e-5
                )


def test_inputs_are_not_copied_and_outputs_stay(artifact):
    with TorchRunner(threads=1).open(artifact, INPUTS) as runner:
        inputs = feed()
        runner.bind(inputs)
        runner.execute()
        first = runner.fetch()["scaled"]
        kept = first.copy()
        inputs["scale"] *= 2
        runner.execute()
        np.testing.assert_allclose(runner.fetch()["scaled"], 2 * kept, rtol=1e-6)
        np.testing.assert_array_equal(first, kept)


def test_read_only_inputs_are_taken_without_a_warning(artifact, recwarn):
    inputs = feed()
    for array in inputs.values():
        array.flags.writeable = False
    with TorchRunner(threads=1).open(artifact, INPUTS) as runner:
        runner.run(inputs)
    assert not [w for w in recwarn if "writable" in str(w.message)]


@pytest.mark.parametrize("threads", [1, 2])
def test_its_settings_are_read_back(artifact, threads):
    with TorchRunner(threads=threads).open(artifact, INPUTS) as runner:
        effective = runner.effective()
    assert effective == {
        "precision": "fp32",
        "provider": "cpu",
        "threads": threads,
        "keeps_freed_memory": True,
        "channels_last": False,
        "autocast": None,
        "compile": False,
        "version": torch.__version__,
    }


@pytest.mark.parametrize(("precision", "loss"), [("bf16", 1e-2), ("fp16", 1e-3)])
def test_autocast_computes_in_what_it_says(artifact, precision, loss, monkeypatch):
    monkeypatch.setattr(environment, "computes_in", lambda name: name != "fp16")
    with TorchRunner(threads=1, autocast=precision).open(artifact, INPUTS) as runner:
        effective, found = runner.effective(), runner.run(feed())["scaled"]
    right = wanted(artifact, feed())["scaled"]
    error = np.abs(found - right).max() / np.abs(right).max()
    assert 0 < error < loss
    assert (effective["precision"], effective["autocast"]) == (precision, precision)
    lacking = [flags.no_instructions("fp16").model_dump()] if precision == "fp16" else []
    assert effective.get("flags", []) == lacking


@pytest.mark.long
def test_compiled_it_gives_the_same_at_every_size_and_leaves_nothing_behind(
    artifact, tmp_path, monkeypatch
):
    from torch._inductor import config

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "of somebody else")
    with TorchRunner(threads=1, compile=True).open(artifact, INPUTS) as runner:
        effective = runner.effective()
        compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for size in (1, 2, 5, 64):
            right = wanted(artifact, feed(size))
            for name, array in runner.run(feed(size)).items():
                np.testing.assert_allclose(
                    array, right[name], rtol=2e-2 if name == "half" else 1e-5, atol=1e-5
                )
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled
    assert effective["compile"] == "default"
    assert effective["kernels_compiled_at_load"] > 0
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "of somebody else"
    assert config.freezing is False
    assert os.listdir(tmp_path / "temporary") == []


def test_compiling_needs_a_compiler(artifact, tmp_path, monkeypatch):
    from torch._inductor import config

    nowhere = {"cpp.cxx": (None, str(tmp_path / "no-such-compiler"))}
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with config.patch(nowhere), pytest.raises(MissingError) as failure:
        TorchRunner(threads=1, compile="max-autotune").open(artifact, INPUTS)
    assert "g++" in failure.value.hint
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_no_gradients_are_recorded(artifact):
    with TorchRunner(threads=1).open(artifact, INPUTS) as runner:
        runner.run(feed())
        assert not runner._result["scaled"].requires_grad


def test_inputs_that_do_not_fit_say_so(artifact):
    with TorchRunner(threads=1).open(artifact, INPUTS) as runner:
        inputs = feed()
        inputs["image"] = inputs["image"][:, :1]
        with pytest.raises(RunnerError, match="3 channels"):
            runner.run(inputs)


def test_without_a_model_it_says_so():
    with pytest.raises(RunnerError, match="holds no model"):
        TorchRunner().execute()


@pytest.mark.long
def test_the_memory_of_activations_is_kept_from_call_to_call(tmp_path):
    """glibc would give it back, and the next call would take a page fault for every 4 KiB of it."""
    code = """
        import ctypes, resource, sys
        import torch
        from pathlib import Path
        from optcli.artifact import Artifact, Format
        from optcli.runners.torch import TorchRunner

        libc = ctypes.CDLL(None)
        libc.prctl(41, 1, 0, 0, 0)  # no huge pages: one fault would stand for 512
        libc.mallopt(-3, 128 << 10)  # glibc's first threshold for mapping a block, held where it is

        def faults(run):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            run()
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        def activations():
            x = torch.ones(1 << 20)  # 4 MiB a tensor, and sixteen of them at once
            return sum([x + n for n in range(16)][-1][:1])

        def calls():
            for _ in range(5):
                activations()

        torch.set_num_threads(1)
        calls()
        by_default = faults(calls)
        class Bare(TorchRunner):
            def load(self, artifact):
                self._choose_device(artifact)
                self._model = activations
        artifact = Artifact("k", Format.TORCH, Path(sys.argv[1]), "fp32", 0, "d")
        runner = Bare(threads=1).open(artifact, [])
        kept = min(faults(calls) for _ in range(10))  # the heap grows at first, by a tensor at a time
        print(by_default, kept, runner._where()["keeps_freed_memory"])
        """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code), str(tmp_path)], capture_output=True, text=True, check=True
    )
    by_default, kept, said = done.stdout.split()
    assert said == "True"
    assert int(by_default) > 5 * 1024
    assert int(kept) < 512
