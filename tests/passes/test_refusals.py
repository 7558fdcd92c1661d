"""What converters refuse, named by the layer that calls the operator."""

import re

import pytest

from optcli.errors import InputError, StepError
from optcli.passes._torch.networks import by_layer
from optcli.passes._torch.tracing import program_of

pytestmark = pytest.mark.slow


def program():
    import torch

    class Gate(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.hardswish(x).flip(1)

    network = torch.nn.Sequential(torch.nn.Linear(4, 4), Gate(), torch.nn.ReLU())
    return program_of(network.eval(), (torch.zeros(2, 4),))


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("Lowering not found: aten.flip.default", "aten.flip is called by 1"),
        ("PyTorch convert function for op 'flip' not implemented.\nmore", "aten.flip is called by 1"),
        ("Only 1D is supported.\n\nWhile executing %x : [target=torch.ops.aten.flip.default]", "by 1"),
        ("no operator `relu` and `flip` here", "aten.flip is called by 1; aten.relu is called by 2"),
        ("nobody knows\n" * 3 + "aten.flip.default", "it failed: nobody knows"),
        ("flipped is no operator, nor is a flip", "it failed: flipped is no operator, nor is a flip"),
    ],
)
def test_the_layer_of_an_operator_is_named(said, wanted):
    with pytest.raises(StepError) as failure, by_layer("it failed", program, "try another"):
        raise RuntimeError(said)
    assert failure.value.message.startswith(f"it failed: {said.splitlines()[0].rstrip('.')}")
    assert failure.value.message.endswith(wanted)
    assert failure.value.hint == "try another"


def test_the_layer_of_a_line_is_named():
    node = next(each for each in program().graph.nodes if "flip" in str(each.target))
    file, line = re.findall(r'File "(.+)", line (\d+)', node.meta["stack_trace"])[-1]
    with pytest.raises(StepError) as failure, by_layer("it failed", program, ""):
        raise RuntimeError(f"{file}:{line}:0: error: sizes must match")
    assert "aten.flip is called by 1" in failure.value.message
    assert "relu" not in failure.value.message


def test_what_cannot_be_traced_and_errors_of_ones_own():
    def trace():
        raise ValueError("no trace")

    with pytest.raises(StepError, match=r"it failed: aten\.flip$"), by_layer("it failed", trace, ""):
        raise RuntimeError("aten.flip")
    with pytest.raises(InputError, match="a file"), by_layer("it failed", trace, ""):
        raise InputError("a file")
