"""Large inputs are read where they lie, small ones are copied; what was handed over stays."""

import numpy as np
import pytest
from tiny_networks import INPUTS, apply, torch_artifact

from optcli.passes.aot_inductor import AotInductor
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.to_openvino import ToOpenvino
from optcli.runners import reads_in_place
from optcli.runners.aoti import AotiRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.runners.torch import TorchRunner

IMAGE = INPUTS["Conv"]


def test_which_arrays_are_read_in_place():
    large = np.zeros((1 << 16,), np.float32)
    assert reads_in_place(large)
    assert not reads_in_place(large[:100])
    assert not reads_in_place(np.zeros((1 << 9, 1 << 9), np.float32).T)
    fixed = large.copy()
    fixed.flags.writeable = False
    assert not reads_in_place(fixed)


@pytest.fixture(scope="module")
def conv(tmp_path_factory):
    return torch_artifact(tmp_path_factory.mktemp("conv"), "Conv")


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["openvino", pytest.param("aoti", marks=pytest.mark.long)])
def test_large_and_small_batches_in_turn(conv, tmp_path, runtime, monkeypatch):
    """What is copied, here small or in another order, is not written into an array before it."""
    if runtime == "aoti":
        made, kind = apply(AotInductor(strict=False), conv, tmp_path / "made", IMAGE), AotiRunner
    else:
        onnx = apply(ExportOnnx(), conv, tmp_path / "onnx", IMAGE)
        made, kind = apply(ToOpenvino(), onnx, tmp_path / "made", IMAGE), OpenvinoRunner
    shape = IMAGE[0].concrete(1)[1:]
    limit = 4 * int(np.prod(shape)) * 4
    monkeypatch.setattr("optcli.runners._LARGE_BYTES", limit)
    generator = np.random.default_rng(0)
    feeds = [
        generator.standard_normal((size, *shape)).astype(np.float32) for size in (4, 4, 1, 4, 2, 1)
    ]
    feeds.insert(2, np.asfortranarray(generator.standard_normal((4, *shape)).astype(np.float32)))
    kept = [each.copy() for each in feeds]
    assert [reads_in_place(each) for each in feeds] == [True, True, False, False, True, False, False]
    with kind(threads=1).open(made, IMAGE) as found, TorchRunner(threads=1).open(conv, IMAGE) as wanted:
        for _ in range(2):
            for each in feeds:
                one, other = (model.run({IMAGE[0].name: each}) for model in (found, wanted))
                np.testing.assert_allclose(one["output"], other["output"], rtol=1e-3, atol=1e-4)
    for each, before in zip(feeds, kept, strict=True):
        assert np.array_equal(each, before)
