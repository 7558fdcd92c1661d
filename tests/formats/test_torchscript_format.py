"""TorchScript files: what is sound, what could touch files is refused before it is loaded."""

import zipfile

import pytest
import torch

from optcli.errors import InputError
from optcli.models.formats import torchscript
from optcli.models.formats import torchscript as torchscript_format
from optcli.models.formats.torch_archive import Scan

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchscript")
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    with torchscript_format.quiet():
        torchscript_format.save(torch.jit.trace(network, torch.ones(2, 3, 8, 8)), folder)
    return folder


def test_a_saved_network_comes_back(saved):
    torchscript_format.open(saved)
    model = torchscript_format.open(saved)
    assert model(torch.ones(5, 3, 8, 8)).shape == (5, 4, 6, 6)
    assert torchscript_format.precision(model) == "fp32"
    assert not model.training


def scanned(folder, *lines):
    """What is read of an archive with these lines of code."""
    with zipfile.ZipFile(folder / "written.pt", "w") as archive:
        archive.writestr("model/constants.pkl", b"\x80\x02).")
        archive.writestr("model/code/__torch__.py", "\n".join(lines))
    return torchscript.scan(folder / "written.pt")


@pytest.mark.parametrize(
    "line",
    [
        'ops.image.write_file("f", x)',
        "y = ops.my_extension.compute(x)",
        "y = __torch__.torch.classes.my_extension.Thing()",
    ],
)
def test_operators_and_classes_of_another_library_are_a_doubt(tmp_path, line):
    found = scanned(tmp_path, "def forward(self, x):", f"  {line}", "  return x")
    assert len(found.doubts) == len(found.unknown) == 1


def test_operators_of_torch_and_torchvision_are_none(tmp_path):
    found = scanned(
        tmp_path,
        "class Net(Module):",
        "  packed : __torch__.torch.classes.quantized.Conv2dPackedParamsBase",
        "  def forward(self: __torch__.torch.nn.Net, x: Tensor) -> Tensor:",
        "    y = ops.quantized.conv2d_relu(x, self.packed, 1.0e-05, 0)",
        '    ops.prim.RaiseException("no load", "builtins.ValueError")',
        "    return ops.torchvision.nms(y, x, CONSTANTS.c0)",
    )
    assert found == Scan(namespaces={"torchvision"})


@pytest.mark.parametrize("size", [0, 100, -200])
def test_a_truncated_file_is_an_input_error(saved, tmp_path, size):
    path = tmp_path / torchscript_format.FILE
    path.write_bytes((saved / torchscript_format.FILE).read_bytes()[:size])
    with pytest.raises(InputError):
        torchscript_format.open(tmp_path)


def test_weights_alone_are_not_taken_for_a_network(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / torchscript_format.FILE)
    with pytest.raises(InputError, match="holds no TorchScript"):
        torchscript_format.open(tmp_path)
