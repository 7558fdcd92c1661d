"""Batch normalization of an exported program is folded where that is right, and nowhere else."""

import pytest

torch = pytest.importorskip("torch")

from optcli.passes._torch import onnx_exporting  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.slow


def trained(network):
    """The network with statistics and factors that change something."""
    torch.manual_seed(0)
    for layer in network.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
            if layer.affine:
                nn.init.uniform_(layer.weight, 0.5, 2)
                nn.init.normal_(layer.bias)
    return network.eval()


def folded(network, *shape, dtype=torch.float32):
    """How many were folded; the program computes what the network does, which is as it was."""
    network = trained(network).to(dtype)
    example = torch.randn(2, *shape, dtype=dtype)
    with torch.no_grad():
        before = network(example)
        batch = torch.export.Dim("batch", min=1, max=8)
        program = torch.export.export(network, (example,), dynamic_shapes=({0: batch},))
        count = onnx_exporting.fold(program)
        left = sum(node.target is torch.ops.aten.batch_norm.default for node in program.graph.nodes)
        scale = before.abs().max()
        assert (program.module()(example) - before).abs().max() / scale < 1e-5
        assert torch.equal(network(example), before)
        program.run_decompositions()
    return count, left


class Shared(nn.Module):
    """A convolution that two normalizations read, and one whose weights another one has as well."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Conv2d(3, 4, 1)
        self.left, self.right = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.first, self.second = nn.Conv2d(4, 4, 1, bias=False), nn.Conv2d(4, 4, 1, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.shared(x)
        x = self.left(x) + self.right(x)
        return self.norm(self.first(x)) + self.second(x)


class Twice(nn.Module):
    """One convolution and one normalization, called twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(self.conv(torch.relu(self.norm(self.conv(x))))) * 2


class Training(nn.Module):
    """A normalization that uses the statistics of the batch."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x):
        self.norm.train()
        x = nn.functional.batch_norm(self.conv(x), None, None, training=True)
        self.norm.eval()
        return self.norm(x).relu()


@pytest.mark.long
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["1", "2", "3"])
def test_behind_a_convolution_of_any_kind(kind, groups, bias, affine):
    conv = getattr(nn, f"Conv{kind}d")(4, 6, 3, groups=groups, bias=bias, padding="same")
    norm = getattr(nn, f"BatchNorm{kind}d")(6, affine=affine, eps=1e-2)
    assert folded(nn.Sequential(conv, norm, nn.ReLU()), 4, *[5] * int(kind)) == (1, 0)


def test_as_many_as_there_are():
    blocks = [nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(3)]
    assert folded(nn.Sequential(*blocks), 3, 4, 4) == (3, 0)


def test_what_others_read_stays():
    count, left = folded(Shared(), 3, 4, 4)
    assert left == 3 - count
    assert count <= 1  # the weights of `first` where torch.export gives each its own copy
    assert folded(Twice(), 3, 4, 4) == (0, 2)


def test_what_is_no_pair_stays():
    assert folded(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), 3, 4, 4) == (0, 1)
    linear = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    assert folded(linear, 3) == (0, 1)
    transposed = nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4), nn.ReLU())
    assert folded(transposed, 3, 4, 4) == (0, 1)
    untracked = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU()
    )
    example = torch.randn(2, 3, 4, 4)
    program = torch.export.export(untracked.eval(), (example,))
    assert onnx_exporting.fold(program) == 0


def test_the_last_one_stays_for_the_program_names_it():
    assert folded(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), 3, 4, 4) == (0, 1)


def test_only_in_fp32():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    assert folded(network, 3, 4, 4, dtype=torch.float64) == (0, 1)


def test_batch_statistics_stay():
    example = torch.randn(2, 3, 4, 4)
    network = trained(Training())
    program = torch.export.export(network, (example,))
    assert onnx_exporting.fold(program) == 0
