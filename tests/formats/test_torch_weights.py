"""Reading weights: what is taken, what is refused, and that refusing runs nothing."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from optcli.errors import InputError, TrustError
from optcli.formats import torch_weights

pytestmark = pytest.mark.slow


class Net(torch.nn.Module):
    """A layer, a classifier, and the layer's weight used a second time."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.again = torch.nn.Linear(3, 3)
        self.again.weight = self.layer.weight
        self.head = torch.nn.Linear(3, classes)
        self.norm = torch.nn.BatchNorm1d(3)


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_tied_weights_survive_and_are_stored_once(tmp_path):
    model, other = Net(), Net()
    torch_weights.write(model, tmp_path)
    state = torch_weights.read_own(tmp_path)
    assert same(state, model.state_dict())
    torch_weights.load_into(other, state)
    assert other.again.weight is other.layer.weight
    from safetensors import safe_open

    with safe_open(tmp_path / torch_weights.SAFETENSORS, "pt") as file:
        assert "again.weight" not in list(file.keys())


def test_tensors_that_only_share_memory_survive(tmp_path):
    model = torch.nn.Module()
    whole = torch.arange(12.0).view(3, 4)
    model.register_buffer("whole", whole)
    model.register_buffer("turned", whole.t())
    model.register_buffer("part", whole[1:, 1:])
    torch_weights.write(model, tmp_path)
    assert same(torch_weights.read_own(tmp_path), model.state_dict())


def test_what_safetensors_cannot_hold_is_pickled_and_read_without_code(tmp_path):
    model = torch.nn.Module()
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    torch_weights.write(model, tmp_path)
    assert (tmp_path / torch_weights.PICKLED).exists()
    assert torch.equal(torch_weights.read_own(tmp_path)["sparse"].to_dense(), torch.eye(3))


@pytest.mark.parametrize("entry", [None, "state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_checkpoints_are_unwrapped(tmp_path, entry, prefix):
    state = Net().state_dict()
    saved = {prefix + name: value for name, value in state.items()}
    torch.save({entry: saved, "epoch": 3, "optimizer": {}} if entry else saved, tmp_path / "w.pth")
    assert same(torch_weights.read(tmp_path / "w.pth"), state)


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle"])
def test_a_pickle_with_code_is_refused_and_does_not_run(tmp_path, kind):
    file, mark = tmp_path / "w.pth", tmp_path / "it-ran"
    content = {"state_dict": {"w": torch.ones(2)}, "evil": Evil(mark)}
    if kind == "pickle":
        file.write_bytes(pickle.dumps({"evil": Evil(mark)}))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=kind == "zip")
    with pytest.raises(TrustError) as error:
        torch_weights.read(file)
    assert not mark.exists()
    assert error.value.place == str(file)
    assert ("plain pickle" if kind == "pickle" else "posix.system") in error.value.message
    assert "state_dict()" in error.value.hint


def test_a_whole_pickled_network_is_refused(tmp_path):
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2)), tmp_path / "w.pth")
    with pytest.raises(TrustError, match="Sequential"):
        torch_weights.read(tmp_path / "w.pth")


def test_a_torchscript_archive_is_named_as_one(tmp_path):
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "w.pt")
    with pytest.raises(InputError, match="TorchScript"):
        torch_weights.read(tmp_path / "w.pt")


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize("kept", [0, 10, 300])
def test_a_damaged_file_says_so(tmp_path, name, kept):
    from safetensors.torch import save_file

    state = {"w": torch.ones(100, 100)}
    file = tmp_path / name
    save_file(state, file) if name.endswith("safetensors") else torch.save(state, file)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(InputError) as error:
        torch_weights.read(file)
    assert not isinstance(error.value, TrustError)
    assert error.value.place == str(file)
    assert error.value.hint


@pytest.mark.parametrize(
    "content", [b"hello world, this is no file of weights", b"\x89PNG\r\n" + bytes(99)]
)
def test_another_kind_of_file_says_so(tmp_path, content):
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(InputError, match="damaged or no PyTorch file") as error:
        torch_weights.read(tmp_path / "w.pth")
    assert not isinstance(error.value, TrustError)


@pytest.mark.parametrize("content", [{}, [1, 2], {"epoch": 3, "optimizer": {}}, torch.ones(3)])
def test_a_file_without_a_state_dict_says_so(tmp_path, content):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(InputError, match="state dict"):
        torch_weights.read(tmp_path / "w.pth")


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(InputError, match="no such weights file"):
        torch_weights.read(tmp_path / "w.pth")


def test_another_number_of_classes_gets_the_setting_to_write():
    with pytest.raises(InputError) as error:
        torch_weights.load_into(Net(4), Net(7).state_dict(), "w.pth", classes="num_classes")
    assert "head.weight is [7, 3], the model has [4, 3]" in error.value.message
    assert "model.arguments.num_classes: 7" in error.value.hint


def test_what_is_missing_or_too_much_is_named():
    state = Net().state_dict()
    del state["head.bias"]
    state["tail.weight"] = torch.ones(1)
    with pytest.raises(InputError) as error:
        torch_weights.load_into(Net(), state)
    assert "missing: head.bias" in error.value.message
    assert "not in the model: tail.weight" in error.value.message


def test_long_lists_are_cut():
    with pytest.raises(InputError) as error:
        torch_weights.load_into(Net(), {})
    assert "and 7 more" in error.value.message
    assert "no name matches" in error.value.hint
