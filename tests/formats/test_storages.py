"""Weights whose tensors reach behind their records are refused, by torch itself."""

from __future__ import annotations

import pytest
from hostile_archives import members, written

from optcli.errors import InputError
from optcli.models.formats import torch_weights

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def test_weights_of_every_kind_are_read(tmp_path):
    path = tmp_path / "weights.pth"
    whole = torch.ones(10, 10)
    eighths = torch.ones(2).to(torch.float8_e4m3fn)
    state = {"a": whole[2:, 3:], "t": whole.t(), "0": torch.ones(0), "h": whole.half(), "e": eighths}
    torch.save(state, path)
    assert set(torch_weights.tensors_in(path)) >= {"a", "t"}


def test_a_storage_that_claims_more_than_its_record_has(tmp_path):
    path = tmp_path / "weights.pth"
    torch.save({"weight": torch.ones(300)}, path)
    files = members(path)
    honest, lying = b"M" + (300).to_bytes(2, "little"), b"J" + (10_000).to_bytes(4, "little")
    assert honest in files["data.pkl"]
    written(path, {**files, "data.pkl": files["data.pkl"].replace(honest, lying)})
    with pytest.raises(InputError, match="damaged or no PyTorch file: RuntimeError record size"):
        torch_weights.tensors_in(path)
