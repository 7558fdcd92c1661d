"""AOTInductor: one package for every batch size and number of threads, and nothing left behind."""

import importlib
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_networks import INPUTS, apply, job, largest_error, torch_artifact
from torch.utils._pytree import tree_structure

from optcli.errors import MissingError, RunnerError
from optcli.files import folders
from optcli.models.formats import aoti as aoti_format
from optcli.models.formats.torch_calls import example_inputs
from optcli.passes.aot_inductor import AotInductor
from optcli.passes.export import Export
from optcli.runners.aoti import AotiRunner

pytestmark = pytest.mark.slow


def children() -> str:
    command = ["ps", "-o", "args=", "--ppid", str(os.getpid())]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.replace(
        "ps -o", ""
    )


def opened_alone(folder):
    """What a process says that opens a package and does nothing else."""
    code = (
        "import sys; from pathlib import Path; from optcli.models.formats import aoti;"
        "aoti.open(Path(sys.argv[1]));"
        "print('compiler imported:', bool({'torch._inductor', 'torch._dynamo'} & {*sys.modules}))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.long
def test_a_package_is_right_at_every_batch_size_and_leaves_nothing_behind(tmp_path, monkeypatch):
    from torch._inductor import codecache

    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(temporary / "headers"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path / "a", "Conv")
    store = tmp_path / "my steps"  # the compiler's command line is split at spaces
    made = apply(AotInductor(strict=False), source, store / "made", inputs)
    assert os.listdir(temporary) == []
    assert os.listdir(home) == []
    assert os.listdir(store) == ["made"]
    assert os.listdir(made.path) == ["model.pt2"]
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    assert "inductor" not in children()
    for threads in (1, 2):
        runner = AotiRunner(threads=threads)
        with runner.open(made, inputs) as model:
            assert model.effective()["threads"] == threads
        assert largest_error(runner, made, source, inputs, (1, 2, 4, 12)) < 1e-5
    assert "compiler imported: False" in opened_alone(made.path)
    with AotiRunner(threads=1).open(made, inputs) as model:
        for shape in [(13, 3, 16, 16), (1, 3, 16, 8), (1, 3, 16)]:
            with pytest.raises(RunnerError, match="the package takes"):
                model.bind({"image": np.ones(shape, np.float32)})


@pytest.mark.long
def test_several_inputs_and_nested_outputs_through_an_exported_program(tmp_path):
    inputs, source = INPUTS["Pair"], torch_artifact(tmp_path, "Pair")
    program = apply(Export(strict=False), source, tmp_path / "exported", inputs)
    made = apply(AotInductor(freezing=False), program, tmp_path / "made", inputs)
    assert largest_error(AotiRunner(threads=1), made, source, inputs, (1, 3)) < 1e-5
    feed = example_inputs(inputs, 3).values()
    importlib.import_module("torch._inductor.package")
    with torch.inference_mode():
        usual = torch._inductor.aoti_load_package(str(made.path / "model.pt2"))(*feed)
        ours = aoti_format.open(made.path)(*feed)
    assert tree_structure(ours) == tree_structure(usual) != tree_structure(0)
    torch.testing.assert_close(ours, usual, rtol=0, atol=0)

    def public(path, name, device_index):
        return (path, name, device_index)

    def lacking(*_):
        raise RuntimeError("Could not find schema for quantized_decomposed::add")

    for ours in (None, lacking):  # no such class in this version of torch; an unknown operator
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr(torch._C._aoti, "AOTIModelPackageLoader")
            if ours is not None:
                patch.setattr(torch._C._aoti, "AOTIModelPackageLoader", ours, raising=False)
            patch.setattr(torch._inductor.package, "load_package", public)
            loaded = aoti_format.open(made.path).loaded
        assert loaded == {"model": (str(made.path / "model.pt2"), "model", -1)}


def test_without_a_compiler_it_says_what_to_install(tmp_path):
    from torch._inductor import config

    nowhere = {"cpp.cxx": (None, str(tmp_path / "no-such-compiler"))}
    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path / "a", "Conv")
    with config.patch(nowhere), pytest.raises(MissingError) as failure:
        AotInductor(strict=False).run(source, job(source, tmp_path / "made", inputs))
    assert "g++" in failure.value.hint


def test_a_temporary_folder_with_a_space_is_refused_before_it_compiles(tmp_path, monkeypatch):
    (tmp_path / "my tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "my tmp"))
    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path / "a", "Conv")
    with pytest.raises(MissingError, match=r"without a space.*my tmp"):
        AotInductor(strict=False).run(source, job(source, tmp_path / "made", inputs))


def test_a_temporary_folder_mounted_noexec_is_refused_before_it_compiles(tmp_path, monkeypatch):
    noexec = SimpleNamespace(f_flag=os.ST_NOEXEC)
    monkeypatch.setattr(folders.os, "statvfs", lambda place: noexec)
    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path / "a", "Conv")
    with pytest.raises(MissingError, match="mounted noexec") as failure:
        AotInductor(strict=False).run(source, job(source, tmp_path / "made", inputs))
    assert "TMPDIR" in failure.value.hint
    with pytest.raises(MissingError, match="mounted noexec"):
        aoti_format.open(tmp_path)


def test_its_result_is_bound_to_the_machine_and_the_measured_sizes():
    assert AotInductor.device_bound
    assert AotInductor.uses_batch_sizes
