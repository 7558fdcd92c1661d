"""Which batch goes to which model of a package; batches filled up, cut and joined again."""

import pytest

from optcli.errors import RunnerError
from optcli.models.formats.aoti import BatchPart, Models, Routes

BOTH = Routes((2, 8), True, {2: 2, 8: 6})


def test_a_package_of_one_model_takes_any_size():
    routes = Routes.of_names(["model"])
    assert routes == Routes()
    assert routes.parts(5) == [BatchPart("model", 5, 5)]
    assert routes.route_of(5) == "any size"


def test_a_size_with_a_model_of_its_own_goes_there():
    assert BOTH.parts(8) == [BatchPart("batch_8", 8, 8)]
    assert BOTH.route_of(8) == "own model"


@pytest.mark.parametrize(
    ("size", "model", "filled", "said"),
    [
        (1, "model", 1, "any size"),
        (5, "model", 5, "any size"),
        (6, "batch_8", 8, "padded to 8"),
        (7, "batch_8", 8, "padded to 8"),
        (9, "model", 9, "any size"),
    ],
)
def test_in_between_it_is_filled_up_from_where_that_is_faster(size, model, filled, said):
    assert BOTH.parts(size) == [BatchPart(model, size, filled)]
    assert BOTH.route_of(size) == said


def test_without_a_model_for_any_size_all_others_are_filled_up_or_cut():
    routes = Routes.of_names(["batch_8", "batch_2"])
    assert routes.fixed == (2, 8)
    assert routes.route_of(1) == "padded to 2"
    assert routes.parts(21) == [
        BatchPart("batch_8", 8, 8),
        BatchPart("batch_8", 8, 8),
        BatchPart("batch_8", 5, 8),
    ]
    assert routes.route_of(21) == "8 + 8 + 5 padded to 8"
    assert routes.compiled_for() == "batch size 2, 8"
    assert BOTH.compiled_for() == "batch size 2, 8 and any other"


def test_where_neither_can_be_done_it_says_which_sizes_there_are():
    with pytest.raises(RunnerError, match=r"batch of 3, only for \[2, 8\]") as failure:
        Routes((2, 8), False).parts(3)
    assert "latency.batch_sizes" in failure.value.hint


@pytest.mark.parametrize("routes", [Routes(), BOTH, Routes((1,), False, {1: 1}, True, 1)])
def test_routes_survive_a_round_trip(routes):
    assert Routes.from_record(routes.to_record()) == routes


@pytest.mark.slow
def test_rows_keep_their_places_and_only_wanted_ones_come_back():
    import torch

    came = []

    def model(size):
        def call(mask, image):
            assert image.shape[0] == mask.shape[0] == size
            came.append(size)
            return image * 2, (image + mask).sum(1)

        return call

    loaded = {f"batch_{size}": model(size) for size in (2, 8)}
    models = Models(loaded, Routes.of_names(list(loaded)))
    for size in (1, 2, 5, 8, 9, 19):
        image, mask = torch.randn(size, 3), torch.randn(size, 1)
        double, sums = models(mask, image)
        assert torch.equal(double, image * 2)
        assert torch.equal(sums, (image + mask).sum(1))
    assert came == [2, 2, 8, 8, 8, 2, 8, 8, 8]
    assert sorted(models.seen) == [1, 2, 5, 8, 9, 19]


@pytest.mark.slow
def test_the_size_is_that_of_the_input_that_has_a_batch():
    import torch

    routes = Routes((2,), False, {2: 1}, True, input=1)
    models = Models({"batch_2": lambda table, image: image @ table}, routes)
    table, image = torch.eye(3), torch.ones(2, 3)
    assert torch.equal(models(table, image), image)
