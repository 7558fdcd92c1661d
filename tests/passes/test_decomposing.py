"""Programs that need no decomposition are not traced again; all compute what the network does."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from optcli.formats import onnx as onnx_format  # noqa: E402
from optcli.passes._torch import decomposing  # noqa: E402
from optcli.passes._torch.onnx_exporting import (  # noqa: E402
    onnx_of_program,
    parts_of_program,
    quiet_exporters,
)
from optcli.settings import TensorSpec  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
pytestmark = pytest.mark.slow
SHAPE = (3, 8, 8)


class Of(nn.Module):
    """A network of one function of a convolution's output and the input, and layers it may use."""

    def __init__(self, compute, **layers):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.compute = compute
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.compute(self, self.conv(x), x)


def read_twice(net, y, x):
    before = y * 2
    return functional.relu_(y) + y + before


def through_a_view(net, y, x):
    y.view(-1).add_(1)
    return y * 2


def of_a_part(net, y, x):
    first, second = y.chunk(2, dim=2)
    return functional.relu_(first) + second + y.sum()


def of_the_input_itself(net, y, x):
    return functional.relu_(x.reshape(x.shape)) + y


def of_several_types(net, y, x):
    return (y.half() * 1).add_(x).float()


def counted(net, y, x):
    net.calls.add_(1)
    return y + net.calls


AS_IT_IS = {
    "in place": lambda net, y, x: functional.hardswish(functional.relu_(y).add_(x), inplace=True),
    "in place behind normalization": lambda net, y, x: functional.silu(net.norm(x), inplace=True) + y,
    "normalization without factors": lambda net, y, x: net.plain(x).mul_(2) + y,
    "dropout": lambda net, y, x: functional.dropout(y.flatten(1), training=False, inplace=True),
    "pooling to one value": lambda net, y, x: functional.adaptive_avg_pool2d(y, 1).flatten(1),
    "an output written in place": lambda net, y, x: functional.relu_(y),
    "one output twice": lambda net, y, x: (y, functional.relu_(y)),
    "two outputs": lambda net, y, x: (functional.relu_(y), x * 2),
    "sizes": lambda net, y, x: y.reshape(y.shape[0] * 3, -1).sum(1).view(y.shape[0], 3),
    "asserted": lambda net, y, x: net.asserting(y) + 1,
}
TRACED_AGAIN = {
    "read twice": read_twice,
    "through a view": through_a_view,
    "of a part": of_a_part,
    "of the input": of_the_input_itself,
    "of several types": of_several_types,
    "pooling to more": lambda net, y, x: functional.adaptive_avg_pool2d(y, 3),
    "no translation": lambda net, y, x: torch.special.entr(y.sigmoid()),
    "a state": counted,
    "recurrent": lambda net, y, x: net.lstm(y.mean(1))[0],
}


class Asserting(nn.Module):
    """A check of a type, which exporters leave out."""

    def forward(self, x):
        torch.ops.aten._assert_tensor_metadata(x, None, None, torch.float32)
        return x


def network(compute):
    torch.manual_seed(0)
    made = Of(
        compute,
        norm=nn.BatchNorm2d(3),
        plain=nn.BatchNorm2d(3, affine=False),
        lstm=nn.LSTM(8, 4, batch_first=True),
        asserting=Asserting(),
    )
    made.register_buffer("calls", torch.zeros(()))
    for norm in (made.norm, made.plain):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    nn.init.normal_(made.norm.weight)
    return made.eval()


def program_of(made):
    batch = torch.export.Dim("batch", min=1, max=16)
    with torch.no_grad():
        return torch.export.export(made, (torch.randn(4, *SHAPE),), dynamic_shapes=({0: batch},))


def computed(made, x):
    """The outputs of a first call: of a state, the model has what it was when it was exported."""
    with torch.no_grad():
        outputs = copy.deepcopy(made)(x.clone())
    return outputs if type(outputs) is tuple else (outputs,)


@pytest.fixture
def traced(monkeypatch):
    """The programs that the exporter has traced again."""
    from torch.onnx._internal.exporter import _fx_passes

    programs = []
    usual = _fx_passes.decompose_with_registry

    def noted(program, registry):
        programs.append(program)
        return usual(program, registry)

    monkeypatch.setattr(_fx_passes, "decompose_with_registry", noted)
    return programs


@pytest.mark.long
@pytest.mark.parametrize("name", [*AS_IT_IS, *TRACED_AGAIN])
def test_the_model_computes_what_the_network_does(traced, name):
    made = network({**AS_IT_IS, **TRACED_AGAIN}[name])
    spec = TensorSpec(name="x", shape=("batch", *SHAPE), batch={"min": 1, "opt": 4, "max": 16})
    outputs = [f"y{index}" for index in range(len(computed(made, torch.zeros(4, *SHAPE))))]
    with quiet_exporters():
        model = onnx_of_program(program_of(made), [spec], outputs)
    assert bool(traced) is (name in TRACED_AGAIN)
    session = onnx_format.session(model.SerializeToString())
    for size in (1, 2, 7):
        x = torch.randn(size, *SHAPE)
        expected = computed(made, x)
        for ours, right in zip(session.run(None, {"x": x.numpy()}), expected, strict=True):
            assert ours.shape == tuple(right.shape)
            np.testing.assert_allclose(ours, right.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["in place", "in place behind normalization", "pooling to one value"])
def test_a_rewritten_program_still_runs(name):
    made = network(AS_IT_IS[name])
    program = program_of(made)
    decomposing.simplify(program)
    assert not any(
        node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "is_mutable", 0)
        for node in program.graph.nodes
    )
    x = torch.randn(3, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), made(x))
    program.run_decompositions()


def test_without_simplification_the_exporter_does_what_it_always_does(traced):
    spec = TensorSpec(name="x", shape=("batch", *SHAPE))
    with quiet_exporters():
        parts_of_program(program_of(network(AS_IT_IS["in place"])), [spec], ["y"], optimize=False)
    assert len(traced) == 1


def test_the_exporter_is_left_as_it_was():
    from torch.onnx._internal.exporter import _fx_passes

    usual = _fx_passes.decompose_with_registry
    with decomposing.only_where_needed():
        assert _fx_passes.decompose_with_registry is not usual
    assert _fx_passes.decompose_with_registry is usual


def test_another_version_of_the_exporter_does_what_it_does(monkeypatch):
    from torch.onnx._internal.exporter import _fx_passes

    monkeypatch.delattr(_fx_passes, "decompose_with_registry")
    with decomposing.only_where_needed():
        assert not hasattr(_fx_passes, "decompose_with_registry")


def test_a_program_that_changes_its_inputs_or_its_state_is_not_taken_as_it_is():
    """Whatever the exporter has translations for."""
    inplace = program_of(network(TRACED_AGAIN["through a view"]))
    state = program_of(network(TRACED_AGAIN["a state"])).run_decompositions({})
    pure = program_of(network(AS_IT_IS["two outputs"]))
    decomposing.simplify(pure)
    for program, translatable in ((inplace, False), (state, False), (pure, True)):
        everything = {node.target for node in program.graph.nodes}
        assert decomposing.is_translatable(program, everything) is translatable
