"""Weights packed once whatever the batch; one model for each batch size; nothing in silence."""

import pytest
from tiny_networks import INPUTS, Heard, Noise, apply, feed, largest_error, sqnr_db, torch_artifact

from optcli.models.formats import aoti as aoti_format
from optcli.models.formats import weight_packing
from optcli.passes._torch.aoti_compiling import Compiling
from optcli.passes.aot_inductor import AotInductor
from optcli.passes.quantize_pt2e import QuantizePt2e
from optcli.runners.aoti import AotiRunner
from optcli.runners.torch import TorchRunner

pytestmark = [pytest.mark.slow, pytest.mark.long]
IMAGE = INPUTS["Conv"]
NONE = {"weights": 0, "share": 0.0, "share_of_time": 0.0}


@pytest.fixture(scope="module")
def conv(tmp_path_factory):
    return torch_artifact(tmp_path_factory.mktemp("conv"), "Conv")


@pytest.fixture(scope="module")
def quantized(conv, tmp_path_factory):
    out = tmp_path_factory.mktemp("int8") / "made"
    return apply(QuantizePt2e(strict=True), conv, out, IMAGE, calibration=Noise(IMAGE))


def compiled(source, out, sizes=(1, 4), **options):
    """The package and what was said while it was made."""
    heard = Heard()
    made = apply(AotInductor(**options), source, out, IMAGE, batch_sizes=sizes, observer=heard)
    return made, [text for text in heard.warnings if "packed" in text]


def packed(made, name="model"):
    model = made.facts["models"][name]
    return model.get("packed_layers"), model.get("unpacked_layers")


def signal(made, wanted, sizes):
    """The worst signal to noise in decibel over batch sizes."""
    found = []
    for size in sizes:
        values = feed(IMAGE, size, seed=size)
        with AotiRunner(threads=1).open(made, IMAGE) as one:
            outputs = one.run(values)["output"]
        with TorchRunner(threads=1).open(wanted, IMAGE) as other:
            found.append(sqnr_db(other.run(values)["output"], outputs))
    return min(found)


def test_integers_are_packed_once_for_any_batch(quantized, conv, tmp_path):
    made, said = compiled(quantized, tmp_path / "made", shapes="dynamic")
    assert list(aoti_format.models(made.path)) == ["model"]
    assert packed(made) == (5, 0)
    assert made.facts["packs_each_call"] == {"1": NONE, "4": NONE}
    assert said == []
    assert signal(made, conv, (1, 3, 4, 12)) > 30


def test_floats_are_packed_once_for_any_batch(conv, tmp_path):
    made, said = compiled(conv, tmp_path / "made", strict=False)
    assert list(aoti_format.models(made.path)) == ["model"]
    assert packed(made) == (4, 0)
    assert made.facts["packs_each_call"] == {"1": NONE, "4": NONE}
    assert said == []
    assert largest_error(AotiRunner(threads=1), made, conv, IMAGE, (1, 3, 4, 12)) < 1e-5


def test_what_is_packed_on_every_call_is_never_silent(conv, tmp_path, monkeypatch):
    """As Inductor compiles by itself."""
    monkeypatch.setattr(weight_packing, "_pack", lambda *_: None)
    monkeypatch.setattr("optcli.artifact._COSTLY_TIME", 0.0)  # whatever it takes here and now
    made, said = compiled(conv, tmp_path / "made", strict=False, shapes="dynamic")
    count = made.facts["packs_each_call"]["1"]["weights"]
    assert count > 0
    assert f"at batch size 1 {count} weights are packed on every call" in said[0]
    assert "shapes: static" in said[0]


def test_a_model_of_one_size_that_packs_on_every_call_is_not_told_to_fix_its_batch(
    conv, tmp_path, monkeypatch
):
    packs = {"weights": 3, "share": 0.5, "share_of_time": 0.5}
    monkeypatch.setattr(Compiling, "packs_each_call", lambda *_: {"4": packs})
    _, said = compiled(conv, tmp_path / "made", sizes=(4,), strict=False, shapes="static")
    assert len(said) == 1
    assert "at batch size 4 3 weights are packed on every call: a fixed batch" in said[0]


def test_a_size_at_which_weights_would_be_packed_gets_a_model_of_its_own(conv, tmp_path, monkeypatch):
    monkeypatch.setattr(weight_packing, "_pack", lambda *_: None)
    monkeypatch.setattr("optcli.artifact._COSTLY_TIME", 0.0)  # whatever it takes here and now
    made, said = compiled(conv, tmp_path / "made", sizes=(4,), strict=False)
    assert sorted(aoti_format.models(made.path)) == ["batch_4", "model"]
    assert made.facts["packs_each_call"] == {"4": NONE}
    assert said == []
    assert made.facts["routes"]["fixed"] == [4]
    assert largest_error(AotiRunner(threads=1), made, conv, IMAGE, (1, 3, 4, 5, 12)) < 1e-5


def test_one_model_for_each_measured_size(quantized, conv, tmp_path):
    made, said = compiled(quantized, tmp_path / "made", (1, 4, 99), shapes="static")
    assert sorted(aoti_format.models(made.path)) == ["batch_1", "batch_4"]
    assert made.facts["packs_each_call"] == {"1": NONE, "4": NONE}
    assert made.facts["integer_kernels"] == 5
    assert {name: each["batch_size"] for name, each in made.facts["models"].items()} == {
        "batch_1": 1,
        "batch_4": 4,
    }
    assert all(each["bytes"] > 0 and each["seconds"] > 0 for each in made.facts["models"].values())
    assert said == []
    assert signal(made, conv, (1, 2, 3, 4, 5, 12)) > 30
    with AotiRunner(threads=1).open(made, IMAGE) as model:
        assert model.effective()["compiled_for"] == "batch size 1, 4"
        for size in (1, 3, 6):
            assert model.run(feed(IMAGE, size))["output"].shape == (size, 5)
        assert model.observed() == {
            "batches": {"1": "own model", "3": "padded to 4", "6": "4 + 2 padded to 4"}
        }


@pytest.mark.parametrize(
    ("gains", "models", "tried"),
    [
        ({1: 1.2, 4: 1.01}, ["batch_1", "model"], [1, 4]),
        ({1: None, 4: 1.2}, ["model"], [1]),
    ],
    ids=["one size gains", "the smallest is not known to"],
)
def test_of_a_quantized_network_a_size_keeps_its_model_where_that_is_faster(
    quantized, conv, tmp_path, monkeypatch, gains, models, tried
):
    seen = []

    def gain(opened, size, job):
        assert opened.routes.fixed[-1] == size
        seen.append(size)
        return gains[size]

    monkeypatch.setattr("optcli.passes._torch.aoti_compiling.gain", gain)
    made, said = compiled(quantized, tmp_path / "made")
    assert seen == tried
    assert sorted(aoti_format.models(made.path)) == models
    assert made.facts["integer_kernels"] == 5
    assert said == []
    assert signal(made, conv, (1, 3, 4, 12)) > 30
