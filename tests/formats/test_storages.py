"""Archives whose tensors reach behind their records are refused before torch opens them."""

from __future__ import annotations

import io
import json
import pickle

import pytest
from hostile_archives import members, written

from optcli.errors import InputError
from optcli.models.formats import exported as exported_format
from optcli.models.formats import torch_archive, torch_weights, torchscript

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(300))

    def forward(self, x):
        return x + self.weight.sum()


def count_of(data: bytes, claimed: int) -> bytes:
    """A pickle with another count in place of the storage's 300 elements."""
    honest = b"M" + (300).to_bytes(2, "little")  # BININT2
    assert honest in data
    return data.replace(honest, b"J" + claimed.to_bytes(4, "little", signed=True))


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "model.pt"
    torch.jit.save(torch.jit.script(Net()), str(path))
    return path


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Net(), (torch.ones(2),)), str(path))
    return path


def test_sound_archives_are_read(script, program, tmp_path):
    assert not torchscript.scan(script).doubts
    assert not exported_format.scan(program).doubts
    torch.jit.save(torch.jit.trace(Net().eval(), torch.ones(2)), str(script))
    assert "traced_inputs.pkl" in members(script)
    assert not torchscript.scan(script).doubts
    path = tmp_path / "weights.pth"
    whole = torch.ones(10, 10)
    eighths = torch.ones(2).to(torch.float8_e4m3fn)
    state = {"a": whole[2:, 3:], "t": whole.t(), "0": torch.ones(0), "h": whole.half(), "e": eighths}
    torch.save(state, path)
    assert set(torch_weights.tensors_in(path)) >= {"a", "t"}


@pytest.mark.parametrize("claimed", [301, 10_000_000, -1])
def test_a_storage_of_torchscript_that_claims_more_than_its_record_has(script, claimed):
    files = members(script)
    files["data.pkl"] = count_of(files["data.pkl"], claimed)
    written(script, files)
    with pytest.raises(InputError, match=r"claims -?\d+ elements|a shape that is none"):
        torchscript.scan(script)


def test_a_tensor_of_torchscript_that_reaches_behind_its_storage(script):
    data = members(script)["data.pkl"]
    sizes = {"0": 1200}
    torch_archive.check_pickle(data, sizes.get)
    # The storage's count comes first, then offset, sizes and strides.
    first = data.index(b"M" + (300).to_bytes(2, "little"))
    more = data[: first + 3] + count_of(data[first + 3 :], 301)
    with pytest.raises(ValueError, match="reaches to element 301 of 300"):
        torch_archive.check_pickle(more, sizes.get)


@pytest.mark.parametrize("change", [{"sizes": [{"as_int": 301}]}, {"storage_offset": {"as_int": 1}},
                                    {"strides": [{"as_int": 2}]}, {"dtype": 8},
                                    {"sizes": [{"as_int": -1}]}, {"sizes": None}])  # fmt: skip
def test_a_weight_of_a_program_that_reaches_behind_its_record(program, change):
    files = members(program)
    config = json.loads(files["data/weights/model_weights_config.json"])
    config["config"]["weight"]["tensor_meta"] |= change
    files["data/weights/model_weights_config.json"] = json.dumps(config).encode()
    written(program, files)
    with pytest.raises(InputError, match=r"a tensor takes|a shape that is none"):
        exported_format.scan(program)


def test_weights_within_an_archive_and_in_a_file(program, tmp_path):
    stream = io.BytesIO()
    torch.save({"weight": torch.ones(300)}, stream)
    path = tmp_path / "weights.pth"
    path.write_bytes(stream.getvalue())
    files = members(path)
    files["data.pkl"] = count_of(files["data.pkl"], 10_000)
    written(path, files)
    with pytest.raises(InputError, match="claims 10000 elements, 40000 bytes, and its record has 1200"):
        torch_weights.tensors_in(path)
    inside = members(program)
    inside["data/sample_inputs/model.pt"] = path.read_bytes()
    written(program, inside)
    with pytest.raises(InputError, match="claims 10000 elements"):
        exported_format.scan(program)


def test_a_pickle_neither_imports_nor_counts_without_end():
    marker = pickle.dumps({"a": print, "b": [1]}, protocol=2)
    torch_archive.check_pickle(marker, {}.get)
    with pytest.raises(ValueError, match="counts further"):
        torch_archive.check_pickle(b"\x80\x02}r\xff\xff\xff\xff.", {}.get)
    with pytest.raises(ValueError, match="no storage"):
        torch_archive.check_pickle(b"\x80\x02X\x01\x00\x00\x00aQ.", {}.get)
