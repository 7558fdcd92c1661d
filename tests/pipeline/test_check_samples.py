"""What a conversion is checked on, and that its parent computes a sample once where that is enough."""

from __future__ import annotations

import numpy as np
import pytest

from optcli.pipeline._check_samples import Expected, drawn
from optcli.settings import TensorSpec

SPEC = TensorSpec(name="x", shape=("batch", 3), batch={"min": 1, "opt": 8, "max": 32})


class Counting:
    """A parent that counts its samples; `batch` is how much its outputs depend on the batch size."""

    def __init__(self, batch=0.0, output=lambda x: x.sum(axis=1)):
        self.batch, self.output, self.sizes = batch, output, []

    def run(self, feed):
        self.sizes.append(len(feed["x"]))
        return {"y": self.output(feed["x"]) + self.batch * len(feed["x"])}


@pytest.fixture
def probe(tmp_path):
    np.savez(tmp_path / "probe.npz", x=np.random.default_rng(1).random((16, 3), np.float32))
    return tmp_path / "probe.npz"


def compared(parent, spec, probe):
    """Every batch beside what the parent computes of it alone; gives the batches by kind."""
    found = {}
    for samples in drawn((spec,), probe):
        expected = Expected(parent, samples, 1e-4)
        for rows in samples.batches:
            feed = samples.feed(rows)
            alone = type(parent)(parent.batch, parent.output).run(feed)
            np.testing.assert_allclose(expected.of(rows)["y"], alone["y"], rtol=1e-6)
            assert len(feed["x"]) == len(rows)
            found.setdefault(samples.kind.partition(" ")[0], []).append(len(rows))
    return found


def test_each_sample_is_computed_once_and_one_in_both_kinds_of_batch(probe):
    parent = Counting()
    batches = compared(parent, SPEC, probe)
    assert batches == {"real": [1, 2, 8, 32], "random": [2]}
    assert parent.sizes == [16, 1, 2]


def test_every_real_sample_takes_part(probe):
    spec = TensorSpec(name="x", shape=("batch", 3), batch={"min": 1, "opt": 1, "max": 4})
    real, _ = drawn((spec,), probe)
    assert [len(rows) for rows in real.batches] == [1, 2, 4, 4, 4, 1]
    assert {row for rows in real.batches for row in rows} == set(range(16))


def test_where_the_batch_matters_every_batch_is_computed(probe):
    parent = Counting(batch=1.0)
    batches = compared(parent, SPEC, probe)
    assert parent.sizes == [16, 1, *batches["real"], *batches["random"]]


def test_where_outputs_have_no_rows_every_batch_is_computed(probe):
    parent = Counting(output=lambda x: x[:1].mean(axis=1))
    compared(parent, SPEC, probe)
    assert parent.sizes[1:4] == [1, 2, 8]


def test_a_batch_of_one_size_is_computed_as_it_is(probe):
    fixed = TensorSpec(name="x", shape=(4, 3))
    parent = Counting()
    assert compared(parent, fixed, probe) == {"real": [4] * 4, "random": [4]}
    assert parent.sizes[:4] == [4] * 4  # all 16, four at a time
    least = TensorSpec(name="x", shape=("batch", 3), batch={"min": 12, "opt": 12, "max": 13})
    parent = Counting()
    assert compared(parent, least, probe) == {"real": [12, 13], "random": [12]}
    assert min(parent.sizes) == 12


def test_an_input_whose_first_size_is_no_batch_is_drawn_for_each_batch():
    specs = (SPEC, TensorSpec(name="scale", shape=(1,)))
    batches = [
        {name: array.shape for name, array in samples.feed(rows).items()}
        for samples in drawn(specs, None)
        for rows in samples.batches
    ]
    assert batches == [{"x": (size, 3), "scale": (1,)} for size in (1, 2, 8, 32)]


def test_random_samples_of_small_batches_are_the_first_of_the_largest():
    (samples,) = drawn((SPEC,), None)
    largest = samples.feed(range(32))["x"]
    for rows in samples.batches:
        assert np.array_equal(samples.feed(rows)["x"], largest[: len(rows)])
