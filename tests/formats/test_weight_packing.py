"""Weights in oneDNN's own order: what is counted of its log, and what is laid out in a graph."""

import pytest

from optcli.models.formats import weight_packing
from optcli.models.formats.weight_packing import PackedWeights

pytestmark = pytest.mark.slow
LINE = "onednn_verbose,v1,primitive,exec,cpu,{0},{1},0.5"
REORDER = "reorder,jit:uni,undef,src:f32::blocked:acdb::f0 dst:f32::blocked:ABcd16b16a::f0,,"


def counted(lines, *shapes):
    """What is counted of a log for a network with weights of these shapes."""
    import torch

    weights = [*map(torch.ones, shapes), torch.ones(1), 3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_packing, "_log_of", lambda call: lines)
        return weight_packing.packed_each_call(lambda: None, weights)


def test_only_reorders_of_weights_are_counted():
    lines = [
        LINE.format(REORDER, "64x32x3x3"),
        LINE.format(REORDER, "8x32x56x56"),
        LINE.format(REORDER, "2x32x16x3x3"),
        LINE.format(REORDER, "2048x1000"),
        LINE.format("convolution,jit:avx512_core,forward_inference,x,,alg", "64x32x3x3"),
    ]
    assert counted(lines, (64, 32, 3, 3)) == PackedWeights(1, 1.0, 0.2)
    # Groups stand in front by themselves; a linear layer's weights are turned over.
    both = counted(lines, (64, 16, 3, 3), (1000, 2048))
    assert (both.weights, both.share_of_time) == (2, pytest.approx(0.4))
    assert both.share == pytest.approx(1)
    assert counted(lines, (2048, 1000), (2048, 3000)) == PackedWeights(1, 0.25, 0.2)
    assert counted(lines, (5, 5)) == PackedWeights(0, 0.0, 0.0)
    assert counted([], (64, 32, 3, 3)) is None


def test_the_log_is_onednns_own_and_standard_output_stays_as_it_was(capfd):
    import torch

    conv = torch.nn.Conv2d(64, 64, 3)
    image = torch.ones(4, 64, 56, 56)
    print("before")
    with torch.no_grad():
        lines = weight_packing._log_of(lambda: conv(image))
    print("after")
    assert any("convolution" in line for line in lines)
    assert capfd.readouterr().out == "before\nafter\n"


def test_weights_in_another_order_are_counted_and_packed_ones_are_not():
    """A convolution of PyTorch itself packs on every call, unless its weights are packed before."""
    import torch

    weight, image = torch.randn(64, 32, 3, 3), torch.randn(2, 32, 20, 20)
    constants = ([1, 1], [1, 1], [1, 1], 1)
    operators = torch.ops.mkldnn
    packed = operators._reorder_convolution_weight(weight, *constants, list(image.shape))

    def call(weight):
        return operators._convolution_pointwise(image, weight, None, *constants, "none", [], "")

    assert torch.allclose(call(weight), call(packed), atol=1e-4)
    found = weight_packing.packed_each_call(lambda: call(weight), [weight])
    assert (found.weights, found.share) == (1, 1.0)
    assert 0 < found.share_of_time < 1
    assert weight_packing.packed_each_call(lambda: call(packed), [weight]) == PackedWeights()


def test_what_it_changes_of_the_compiler_it_gives_back():
    from torch._inductor import freezing

    plain = freezing.freezing_passes
    with weight_packing.packing([], [1]):
        assert freezing.freezing_passes is not plain
    assert freezing.freezing_passes is plain
