"""Exported programs: what is sound, and that no archive runs code when it is opened."""

import io
import pickle
import zipfile

import pytest
import torch

from optcli.errors import InputError, TrustError
from optcli.models.formats import exported as exported_format

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    shapes = ({0: torch.export.Dim("batch", min=1, max=9), 1: torch.export.Dim("rows", max=8)},)
    network = torch.nn.Sequential(torch.nn.Linear(8, 2), torch.nn.Flatten()).eval()
    program = torch.export.export(network, (torch.ones(3, 5, 8),), dynamic_shapes=shapes)
    exported_format.save(program, folder)
    return folder


def rewritten(saved, folder, change):
    """The archive with each member passed through `change(member, data)`; None leaves it out."""
    target = folder / exported_format.FILE
    with zipfile.ZipFile(saved / exported_format.FILE) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            root, _, member = name.partition("/")
            data = change(member, old.read(name))
            if data is not None:
                new.writestr(name, data)
        for member, data in change(None, None) or ():
            new.writestr(f"{root}/{member}", data)
    return folder


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def malicious(path, kind):
    if kind == "pickle":
        return pickle.dumps(Touch(path))
    stream = io.BytesIO()
    torch.save({"a": torch.ones(2), "b": Touch(path)}, stream)
    return stream.getvalue()


def test_a_saved_program_is_sound_and_comes_back_with_its_dynamic_sizes(saved):
    exported_format.open(saved)
    module = exported_format.open(saved).module()
    for shape in [(1, 2, 8), (9, 8, 8)]:
        assert module(torch.ones(shape)).shape == (shape[0], shape[1] * 2)


def test_no_path_of_this_machine_is_saved(saved):
    assert b".py" not in (saved / exported_format.FILE).read_bytes()


def test_traces_of_a_file_from_elsewhere_are_left_out_as_it_is_opened(tmp_path):
    program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(8, 2)), (torch.ones(3, 8),))
    torch.export.save(program, tmp_path / exported_format.FILE)
    assert any("stack_trace" in node.meta for node in torch.export.load(
        tmp_path / exported_format.FILE).graph.nodes)  # fmt: skip
    opened = exported_format.open(tmp_path)
    assert not any("stack_trace" in node.meta for node in opened.graph.nodes)


@pytest.mark.parametrize("kind", ["pickle", "torch.save"])
@pytest.mark.parametrize("member", ["data/sample_inputs/model.pt", "data/constants/custom_obj_0"])
def test_a_pickle_with_code_is_refused_and_does_not_run(saved, tmp_path, member, kind):
    trace = tmp_path / "trace"

    def change(name, data):
        if name is None:
            return [(member, malicious(trace, kind))]
        return None if name == member else data

    rewritten(saved, tmp_path, change)
    with pytest.raises(TrustError, match="holds more than tensors"):
        exported_format.open(tmp_path)
    assert not trace.exists()


def test_a_weight_that_is_said_to_be_pickled_is_refused(saved, tmp_path):
    trace = tmp_path / "trace"

    def change(name, data):
        if name == "data/weights/model_weights_config.json":
            return data.replace(b'"use_pickle": false', b'"use_pickle": true')
        return malicious(trace, "torch.save") if name == "data/weights/weight_0" else data

    with pytest.raises(TrustError):
        exported_format.open(rewritten(saved, tmp_path, change))
    assert not trace.exists()


@pytest.mark.parametrize("size", [0, 100, -200])
def test_a_truncated_archive_is_an_input_error(saved, tmp_path, size):
    (tmp_path / exported_format.FILE).write_bytes((saved / exported_format.FILE).read_bytes()[:size])
    with pytest.raises(InputError):
        exported_format.open(tmp_path)
