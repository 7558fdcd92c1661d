"""Networks whose attributes have the names of PyTorch's own methods."""

import pytest
import torch

from optcli.models.formats import torch_modules

pytestmark = pytest.mark.slow


class Odd(torch.nn.Module):
    """As ESPNet does: what it runs is in a list called `modules`."""

    half = torch.nn.ReLU()  # of the class

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.modules = list(self.inner.children())
        self.parameters, self.buffers, self.cpu, self.to = 3, [], True, "there"

    def forward(self, x):
        for module in self.modules:
            x = module(x)
        return x


def test_methods_are_pytorchs_whatever_the_network_calls_its_attributes():
    network = Odd()
    assert len(list(torch_modules.modules(network))) == 4
    assert next(name for name, _ in torch_modules.named_parameters(network)) == "inner.0.weight"
    assert len(list(torch_modules.parameters(network))) == 4
    assert len(list(torch_modules.buffers(network))) == 3
    assert [type(each) for each in torch_modules.children(network)] == [torch.nn.Sequential]
    assert torch_modules.on(network, "cpu") is network
    assert not torch_modules.evaluating(network).training
    assert set(torch_modules.state(network)) >= {"inner.0.weight", "inner.1.running_mean"}


def test_what_a_class_has_written_itself_is_called():
    class Frozen(torch.nn.Module):
        def state_dict(self, *arguments, **about):
            return {"own": 1}

    assert torch_modules.state(Frozen()) == {"own": 1}


def test_such_a_network_is_built_written_and_opened_again(tmp_path):
    import inspect

    from optcli.models.formats import torch as torch_format
    from optcli.models.formats import torch_build

    code = tmp_path / "code"
    code.mkdir()
    (code / "net.py").write_text(f"import torch\n\n{inspect.getsource(Odd)}")
    source = {"kind": "python", "reference": "net.py:Odd", "arguments": {}}
    network = torch_build.build(source, code)
    description = torch_format.Description(source=source)
    torch_format.save(network, tmp_path / "made", description, code)
    again = torch_format.open(tmp_path / "made")
    assert torch_format.precision(again) == "fp32"
    assert torch.equal(again(torch.ones(2, 4)), network(torch.ones(2, 4)))
