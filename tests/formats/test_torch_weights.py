"""Reading weights: what is taken, what is refused, and that refusing runs nothing."""

from __future__ import annotations

import os
import pickle
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from optcli.errors import InputError, TrustError
from optcli.models.formats import torch_weights

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
        torch_weights.tensors_in(file)
    assert not mark.exists()
    assert error.value.place == str(file)
    assert ("plain pickle" if kind == "pickle" else "posix.system") in error.value.message
    assert "state_dict()" in error.value.hint


def test_a_whole_pickled_network_is_refused(tmp_path):
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2)), tmp_path / "w.pth")
    with pytest.raises(TrustError, match="Sequential"):
        torch_weights.tensors_in(tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("ultralytics.nn.tasks", "yolo export model=best.pt format=onnx"),
        ("models.yolo", "python export.py --weights best.pt --include onnx"),
    ],
)
def test_a_whole_detector_of_a_library_is_refused_with_its_export(
    tmp_path, monkeypatch, module, command
):
    network = type("DetectionModel", (torch.nn.Module,), {"__module__": module})
    for at, _ in enumerate(parts := module.split("."), 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:at]), ModuleType(module))
    sys.modules[module].DetectionModel = network
    torch.save({"epoch": -1, "model": network(), "ema": None}, tmp_path / "best.pt")
    with pytest.raises(TrustError, match="DetectionModel") as error:
        torch_weights.tensors_in(tmp_path / "best.pt")
    assert f"`{command}`, and write `source: onnx:best.onnx`" in error.value.hint


@pytest.mark.parametrize("zipped", [True, False])
def test_plain_values_of_training_programs_are_read(tmp_path, zipped):
    values = {
        "args": Namespace(lr=0.1, data=Path("/data")),
        "best": np.float64(0.9),
        "acc": np.float32(91.5),
        "epoch": np.int64(3),
        "done": np.bool_(True),
    }
    torch.save(
        {"model": {"w": torch.ones(2)}, **values},
        tmp_path / "w.pth",
        _use_new_zipfile_serialization=zipped,
    )
    read = torch_weights.tensors_in(tmp_path / "w.pth")
    assert {name: read[name] for name in values} == values


def test_a_torchscript_archive_is_named_as_one(tmp_path):
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "w.pt")
    with pytest.raises(InputError, match="TorchScript"):
        torch_weights.tensors_in(tmp_path / "w.pt")


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize("kept", [0, 10, 300])
def test_a_damaged_file_says_so(tmp_path, name, kept):
    from safetensors.torch import save_file

    state = {"w": torch.ones(100, 100)}
    file = tmp_path / name
    save_file(state, file) if name.endswith("safetensors") else torch.save(state, file)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(InputError) as error:
        torch_weights.tensors_in(file)
    assert not isinstance(error.value, TrustError)
    assert error.value.place == str(file)
    assert error.value.hint


@pytest.mark.parametrize(
    "content", [b"hello world, this is no file of weights", b"\x89PNG\r\n" + bytes(99)]
)
def test_another_kind_of_file_says_so(tmp_path, content):
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(InputError, match="damaged or no PyTorch file") as error:
        torch_weights.tensors_in(tmp_path / "w.pth")
    assert not isinstance(error.value, TrustError)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(InputError, match="no such weights file"):
        torch_weights.tensors_in(tmp_path / "w.pth")


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
