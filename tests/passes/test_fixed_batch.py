"""Where batches may be filled up and cut, and from which size on it is done."""

import pytest
from tiny_networks import IMAGE, INPUTS, artifact, feed, job

from optcli.artifact import Format
from optcli.models.formats.aoti import Models, Routes
from optcli.passes._torch import aoti_compiling
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
WORDS = TensorSpec(name="words", shape=("batch", 6), ranges={"batch": {"max": 8, "opt": 4}})


def exported(forward, *inputs):
    """A function of tensors as a program whose batch varies."""
    import torch

    from optcli.passes._torch.tracing import dynamic_shapes, example

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 6)

        def forward(self, *tensors):
            return forward(self.layer, *tensors)

    shapes = (tuple(dynamic_shapes(inputs)),)
    return torch.export.export(Network().eval(), example(inputs), dynamic_shapes=shapes)


def test_they_may_be_where_the_batch_comes_first_everywhere():
    program = exported(lambda layer, words: (layer(words), layer(words).sum(1)), WORDS)
    assert aoti_compiling.can_pad(program, [WORDS])


@pytest.mark.parametrize(
    "forward",
    [
        lambda layer, words: layer(words).sum(0),
        lambda layer, words: layer(words).sum(),
        lambda layer, words: layer(words).reshape(-1, 3),
        lambda layer, words: layer(words).T,
        lambda layer, words: (layer(words), words @ words.T),
    ],
    ids=["summed", "one number", "flattened", "turned", "each with each"],
)
def test_they_may_not_be_where_an_output_has_it_elsewhere(forward):
    assert not aoti_compiling.can_pad(exported(forward, WORDS), [WORDS])


def test_they_may_not_be_where_an_input_has_no_batch():
    table = TensorSpec(name="table", shape=(6, 6))
    program = exported(lambda layer, words, table: layer(words) @ table, WORDS, table)
    assert not aoti_compiling.can_pad(program, [WORDS, table])


def test_a_program_for_one_batch_size_gives_the_same(tmp_path):
    import torch

    program = exported(lambda layer, words: layer(words).relu(), WORDS)
    source = artifact(tmp_path, Format.EXPORTED)
    for size in (1, 6):
        made = aoti_compiling.fixed(program, job(source, tmp_path / str(size), [WORDS]), size)
        shapes = [node.meta["val"].shape for node in made.graph.nodes if node.op == "placeholder"]
        assert list(shapes[-1]) == [size, 6]
        words = torch.from_numpy(feed([WORDS], size)["words"])
        assert torch.equal(made.module()(words), program.module()(words))


def test_other_sizes_vary_as_before(tmp_path):
    import torch

    inputs = INPUTS["Pair"]
    image, mask = inputs
    program = exported(lambda layer, image, mask: image.mean((2, 3)) * mask, image, mask)
    made = aoti_compiling.fixed(
        program, job(artifact(tmp_path, Format.EXPORTED), tmp_path / "out", inputs), 3
    )
    for height, width in ((8, 9), (24, 11)):
        found = made.module()(torch.ones(3, 3, height, width), torch.ones(3, 1))
        assert tuple(found.shape) == (3, 3)


@pytest.fixture
def clock(monkeypatch):
    """Seconds of a call by what its parts cost, instead of a clock; `costs` by model."""
    costs = {}

    def seconds(models, size, job):
        return sum(costs[part.model](part.size) for part in models.routes.parts(size))

    monkeypatch.setattr(aoti_compiling, "_seconds", seconds)
    return costs


def test_the_faster_way_is_taken(clock, tmp_path):
    work = job(artifact(tmp_path, Format.EXPORTED), tmp_path / "out", [IMAGE])
    models = Models({}, Routes((1, 8), True))
    clock.update(model=lambda rows: 4 * rows, batch_1=lambda rows: 1, batch_8=lambda rows: 18)
    routes = aoti_compiling.measured(models, work)
    assert dict(routes.padded_from) == {1: 1, 8: 5}
    assert routes.pieces  # 12 rows: 48 at once, 36 in two parts
    clock["batch_8"] = lambda rows: 100
    routes = aoti_compiling.measured(models, work)
    assert dict(routes.padded_from) == {1: 1, 8: 8}
    assert not routes.pieces


def test_the_time_of_a_call_is_taken_of_the_given_models(tmp_path):
    came = []
    models = Models({"model": lambda image: came.append(tuple(image.shape))}, Routes())
    work = job(artifact(tmp_path, Format.EXPORTED), tmp_path / "out", [IMAGE])
    assert aoti_compiling._seconds(models, 3, work) >= 0
    assert set(came) == {(3, 3, 16, 16)}
