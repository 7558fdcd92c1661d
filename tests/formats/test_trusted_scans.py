"""What a scan cannot prove opens with trust: operators and classes of somebody's own library."""

import io
import sys

import pytest
import torch
from hostile_archives import members, with_program, written

from optcli.errors import InputError, TrustError
from optcli.models.formats import exported as exported_format
from optcli.models.formats import torchscript as torchscript_format

pytestmark = pytest.mark.slow

LIBRARY = """
import torch

made = torch.library.Library("{name}", "DEF")
made.define("double(Tensor self) -> Tensor")
made.impl("double", lambda x: x * 2, "CPU")
made.impl("double", lambda x: torch.empty_like(x), "Meta")
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Installs a library of operators, and gives the namespace that it is called like."""

    def make(name):
        (tmp_path / f"{name}.py").write_text(LIBRARY.format(name=name))
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop(name, None)
        return name

    return make


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    exported_format.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), folder)
    return members(folder / exported_format.FILE)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x)

    folder = tmp_path_factory.mktemp("script")
    with torchscript_format.quiet():
        torchscript_format.save(torch.jit.script(Net()), folder)
    return members(folder / torchscript_format.FILE)


def calling(files, operator):
    """An archive whose graph calls another operator of one tensor."""

    def change(program):
        program["graph_module"]["graph"]["nodes"][0]["target"] = f"torch.ops.{operator}.default"

    return with_program(files, change)


def test_a_program_with_an_operator_of_another_library_opens_with_trust(exported, tmp_path, library):
    name = library("optcli_tests_exported")
    written(tmp_path / exported_format.FILE, calling(exported, f"{name}.double"))
    with pytest.raises(TrustError, match=f"calls the operator {name}.double") as failure:
        exported_format.open(tmp_path)
    assert "--trust" in failure.value.hint
    assert name not in sys.modules
    program = exported_format.open(tmp_path, trust=True)
    assert program.module()(torch.tensor([-1.0, 2.0])).tolist() == [-2.0, 4.0]
    assert exported_format.doubts(tmp_path) == (
        f"it calls the operator {name}.double, which torch lacks",
    )


def test_a_library_that_is_not_here_is_named(exported, tmp_path):
    written(tmp_path / exported_format.FILE, calling(exported, "nobodys_library.double"))
    with pytest.raises(InputError, match="cannot read this exported program") as failure:
        exported_format.open(tmp_path, trust=True)
    assert "the library of nobodys_library" in failure.value.hint


def test_a_script_with_an_operator_of_another_library_opens_with_trust(script, tmp_path, library):
    name = library("optcli_tests_script")
    code = next(each for each in script if each.endswith(".py") and b"torch.relu" in script[each])
    changed = script[code].replace(b"torch.relu", f"ops.{name}.double".encode())
    written(tmp_path / torchscript_format.FILE, {**script, code: changed})
    with pytest.raises(TrustError, match=f"calls the operator {name}.double") as failure:
        torchscript_format.open(tmp_path)
    assert "--trust" in failure.value.hint
    model = torchscript_format.open(tmp_path, trust=True)
    assert model(torch.tensor([-1.0, 2.0])).tolist() == [-2.0, 4.0]
    assert torchscript_format.doubts(tmp_path)


class Extra:
    """A class of somebody's own among the samples."""


def test_a_program_with_samples_of_a_class_opens_with_trust(exported, tmp_path):
    stream = io.BytesIO()
    sample = torch.ones(2)
    sample.extra = Extra()
    torch.save(((sample,), {}), stream)
    content = {**exported, "data/sample_inputs/model.pt": stream.getvalue()}
    written(tmp_path / exported_format.FILE, content)
    with pytest.raises(TrustError, match="more than tensors"):
        exported_format.open(tmp_path)
    program = exported_format.open(tmp_path, trust=True)
    assert program.module()(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]


def test_a_proven_program_has_no_doubts_and_trust_changes_nothing(exported, script, tmp_path):
    written(tmp_path / exported_format.FILE, exported)
    written(tmp_path / torchscript_format.FILE, script)
    assert exported_format.doubts(tmp_path) == torchscript_format.doubts(tmp_path) == ()
    value = torch.tensor([-1.0, 2.0])
    for trust in (False, True):
        program = exported_format.open(tmp_path, trust=trust).module()
        assert program(value).tolist() == [0.0, 2.0]
        assert torchscript_format.open(tmp_path, trust=trust)(value).tolist() == [0.0, 2.0]


def test_a_doubt_does_not_hide_that_the_archive_is_unsound(exported, tmp_path):
    """An archive that is both is refused for what no trust mends."""
    content = {**calling(exported, "somebodys.double"), "../evil": b"x"}
    written(tmp_path / exported_format.FILE, content)
    for trust in (False, True):
        with pytest.raises(InputError, match="more than one way") as failure:
            exported_format.open(tmp_path, trust=trust)
        assert not isinstance(failure.value, TrustError)
