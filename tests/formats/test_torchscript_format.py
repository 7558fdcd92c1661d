"""TorchScript files: what is sound, what could touch files is refused before it is loaded."""

import zipfile

import pytest
import torch

from optcli.errors import InputError, TrustError
from optcli.formats import torch_operators
from optcli.formats import torchscript as torchscript_format
from optcli.formats.scanning import Scan
from optcli.formats.torchscript_archive import scan_code

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchscript")
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    with torchscript_format.quiet():
        torchscript_format.save(torch.jit.trace(network, torch.ones(2, 3, 8, 8)), folder)
    return folder


def with_line(saved, folder, line):
    """The file with one more line of code in every forward."""
    written = 0
    with (
        zipfile.ZipFile(saved / torchscript_format.FILE) as old,
        zipfile.ZipFile(folder / torchscript_format.FILE, "w") as new,
    ):
        for name in old.namelist():
            data = old.read(name)
            if name.endswith(".py") and b"    return" in data:
                data = data.replace(b"    return", f"    {line}\n    return".encode(), 1)
                written += 1
            new.writestr(name, data)
    assert written  # torch names the files after what was traced before in this process
    return folder


def test_a_saved_network_comes_back(saved):
    torchscript_format.open(saved)
    model = torchscript_format.open(saved)
    assert model(torch.ones(5, 3, 8, 8)).shape == (5, 4, 6, 6)
    assert torchscript_format.precision(model) == "fp32"
    assert not model.training


def test_code_that_writes_a_file_is_refused_before_it_is_loaded(saved, tmp_path):
    trace = tmp_path / "trace"
    with_line(saved, tmp_path, f'torch.save(input, "{trace}")')
    with pytest.raises(TrustError, match=r"calls save\(\)"):
        torchscript_format.open(tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "line",
    [
        'torch.save(x, "f")',
        'torch . save (x, "f")',
        'x.save("f")',
        'y = torch.from_file("f", False, 8)',
        "t = torch",
        "t = ops",
        "o = ops.image",
        'ops.image.write_file("f", x)',
        "y = ops.my_extension.compute(x)",
        'y = getattr(x, "save")("f")',
        "y = __torch__.torch.classes.my_extension.Thing()",
    ],
)
def test_lines_that_could_do_more_than_compute(tmp_path, line):
    scan_code(f"def forward(self, x):\n  {line}\n  return x\n", tmp_path, found := Scan())
    assert found.doubts


def test_what_torch_writes_is_taken(tmp_path):
    code = """
    class Net(Module):
      __parameters__ = ["weight", ]
      weight : Tensor
      packed : __torch__.torch.classes.quantized.Conv2dPackedParamsBase
      def forward(self: __torch__.torch.nn.Net, x: Tensor) -> Tensor:
        layer = getattr(self.layers, "0")
        if torch.gt(torch.len(torch.size(x)), 3):
          y = ops.quantized.conv2d_relu(x, self.packed, 1.0e-05, 0)
        else:
          ops.prim.RaiseException("no load", "builtins.ValueError")
        return ops.torchvision.nms(y, x, CONSTANTS.c0)
    """
    from textwrap import dedent

    scan_code(dedent(code), tmp_path, found := Scan())
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


def test_names_of_dimensions_reach_nothing(monkeypatch):
    """Older torch has overloads that name dimensions by texts: `mean` is harmless all the same."""
    old = ["aten::mean.names_dim(Tensor self, str[1] dim, bool keepdim=False) -> Tensor"]
    monkeypatch.setattr(
        torch._C, "_jit_get_schemas_for_operator", lambda _: [*map(torch._C.parse_schema, old)]
    )
    asked = torch_operators.only_computes.__wrapped__
    assert asked("aten", "mean")
    assert not asked("elsewhere", "mean"), "there a text called dim may be anything"
