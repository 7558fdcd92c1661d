"""Which networks gain from training in bfloat16, and which of their convolutions stay in FP32."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from optcli.passes._torch import bfloat16

pytestmark = pytest.mark.slow


def convolutions(*, width=64, groups=1, count=2):
    inner = [nn.Conv2d(width, width, 3, padding=1, groups=groups) for _ in range(count)]
    return nn.Sequential(nn.Conv2d(3, width, 4, stride=4), *inner)


def separable(width, size):
    """A depthwise convolution and a pointwise one, as MobileNets and ConvNeXts have them."""
    depthwise = nn.Conv2d(3 * 16, 3 * 16, size, padding=size // 2, groups=3 * 16)
    return nn.Sequential(
        nn.PixelUnshuffle(4), depthwise, nn.Conv2d(48, width, 1), nn.Conv2d(width, width, 1)
    )


class Attending(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)

    def forward(self, image):
        return self.layer(self.patches(image).flatten(2).transpose(1, 2))


NETWORKS = {
    "dense convolutions": (convolutions, True),
    "dense convolutions that are narrow": (lambda: convolutions(width=4), False),
    "groups of 16 channels": (lambda: convolutions(groups=4), True),
    "depthwise convolutions": (lambda: convolutions(groups=64), False),
    "transposed": (lambda: nn.Sequential(nn.PixelUnshuffle(4), nn.ConvTranspose2d(48, 64, 3)), True),
    "a transformer": (Attending, True),
    "a transformer in evaluation mode": (lambda: Attending().eval(), True),
    "wide beside depthwise": (lambda: separable(512, 7), True),
    "narrow beside depthwise": (lambda: separable(24, 3), False),
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 256)), True),
    "a small linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 16)), False),
    "no products": (nn.Flatten, False),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_gain_by_the_products_that_they_compute(name):
    made, gains = NETWORKS[name]
    network, images = made(), torch.randn(8, 3, 32, 32)
    assert bfloat16.gains(lambda: network(images), 1) is gains


def test_calls_of_few_products_gain_nothing_until_steps_have_more_samples():
    network, images = nn.Sequential(*(nn.Linear(128, 128) for _ in range(3))), torch.randn(8, 128)
    assert not bfloat16.gains(lambda: network(images), 4)
    assert bfloat16.gains(lambda: network(images), 16)


def test_products_are_counted_as_layers_define_them():
    with bfloat16.counting() as work:
        nn.Conv2d(32, 6, 3, groups=2)(torch.ones(2, 32, 8, 8))
    assert (work.calls, work.values, work.wide) == (1, 2 * 6 * 36, 2 * 6 * 36 * 16 * 9)
    with bfloat16.counting() as work:
        nn.ConvTranspose2d(32, 6, 3)(torch.ones(2, 32, 8, 8))
    assert (work.calls, work.values, work.wide) == (1, 2 * 6 * 100, 2 * 32 * 64 * 6 * 9)
    query, key = (torch.ones(2, 4, n, 32) for n in (5, 50))
    with bfloat16.counting() as work:
        functional.scaled_dot_product_attention(query.requires_grad_(), key, key)
    assert (work.calls, work.values, work.wide) == (1, 2 * 4 * 5 * (50 + 32), 0)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_with_few_channels_in_a_group_stay_in_fp32(kind, stride):
    narrow, dense = kind(8, 8, 3, stride=stride, groups=8), kind(8, 8, 3)
    network = nn.Sequential(dense, narrow)
    kinds = {}
    for layer in network:
        layer.register_forward_hook(lambda layer, _, output: kinds.update({layer: output.dtype}))
    images = torch.randn(2, 8, *[8] * (narrow.weight.ndim - 2))
    cast = bfloat16.casting(network, "cpu")
    with cast():
        loss = network(images).square().mean()
    loss.backward()
    assert kinds == {dense: torch.bfloat16, narrow: torch.float32}
    assert all(value.grad.dtype == torch.float32 for value in network.parameters())
    with torch.no_grad(), cast():
        taken = dense(images)
        found = narrow(taken)
    assert torch.equal(found, narrow(taken.float()))
    assert network(images).dtype == torch.float32, "as before, outside"


@pytest.mark.parametrize("mask", [None, torch.zeros(5, 5), torch.zeros(5, 5) > 0])
def test_attention_stays_in_fp32(monkeypatch, mask):
    seen = []
    given = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional,
        "scaled_dot_product_attention",
        lambda *args, **named: (
            seen.append([value.dtype for value in args[:3]]) or given(*args, **named)
        ),
    )
    attending, taken = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    exact = attending(taken, taken, taken, need_weights=False, attn_mask=mask)[0]
    before = functional.scaled_dot_product_attention
    with bfloat16.casting(attending, "cpu")():
        found = attending(taken, taken, taken, need_weights=False, attn_mask=mask)[0]
        query = torch.randn(2, 5, 8, dtype=torch.bfloat16)
        functional.scaled_dot_product_attention(query, query, value=query, attn_mask=None)
    found.square().mean().backward()
    assert all(kind == torch.float32 for kinds in seen for kind in kinds)
    assert found.dtype == torch.bfloat16, "its linear layers"
    assert torch.allclose(found.float(), exact, atol=0.05)
    assert functional.scaled_dot_product_attention is before


def test_other_networks_are_not_looked_into(monkeypatch):
    monkeypatch.setattr(bfloat16, "_narrow_in_fp32", lambda: pytest.fail("each call would be seen"))
    network = nn.Conv2d(8, 8, 3, groups=2)
    with bfloat16.casting(network, "cpu")():
        assert network(torch.randn(1, 8, 8, 8)).dtype == torch.bfloat16
    bfloat16.casting(nn.Conv2d(8, 8, 3, groups=8), "cuda:0")  # on GPUs PyTorch's own kernels are quick
