"""Core ML: built and read on any system, and run by a stand-in for macOS, which alone has it."""

import platform
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from tiny_networks import INPUTS, apply, feed, job, reference
from tiny_networks import torch_artifact as network

from optcli import environment
from optcli.artifact import Format
from optcli.errors import InputError, RunnerError, StepError, UsageError
from optcli.files import digest
from optcli.models import formats
from optcli.models.formats import coreml as coreml_format
from optcli.models.formats.recognition import recognized
from optcli.passes.quantize_coreml import QuantizeCoreml
from optcli.passes.to_coreml import ToCoreml
from optcli.pipeline.model_files import opening
from optcli.runners.coreml import CoremlRunner
from optcli.scaffold.inspection import coreml as inspection
from optcli.scaffold.inspection import resolve
from optcli.settings import TensorSpec
from optcli.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.long]
IMAGE = INPUTS["Conv"]


@pytest.fixture(scope="module")
def conv(tmp_path_factory):
    return network(tmp_path_factory.mktemp("conv"), "Conv")


@pytest.fixture(scope="module")
def converted(conv, tmp_path_factory):
    return apply(ToCoreml(target="iOS18"), conv, tmp_path_factory.mktemp("coreml") / "made", IMAGE)


def test_names_sizes_and_weights_are_those_of_the_network(conv, converted):
    from coremltools.optimize import coreml

    from optcli.models.formats import torch as torch_format

    assert (converted.format, converted.precision) == (Format.COREML, "fp16")
    model = coreml_format.open(converted.path)
    taken, given = coreml_format.tensors(model)
    assert taken == [("image", "float32", (1, 3, 16, 16))]
    assert given == [("output", "float32", (1, 5))]
    assert coreml_format.oldest_system(model) == "iOS 18"
    written = [each.val for each in coreml.get_weights_metadata(model, weight_threshold=0).values()]
    for name, weight in torch_format.open(conv.path).state_dict().items():
        values = weight.numpy().astype(np.float16)
        alike = (each.ravel() for each in written if each.size == values.size)
        assert any(np.allclose(each, values.ravel()) for each in alike), name


def test_the_same_network_gives_the_same_files(conv, converted, tmp_path):
    again = apply(ToCoreml(target="iOS18"), conv, tmp_path / "again", IMAGE)
    names, contents = zip(
        *((each.name, digest.of_file(each)) for each in digest.files_below(again.path)), strict=True
    )
    assert "weight.bin" in names
    assert contents == tuple(digest.of_file(each) for each in digest.files_below(converted.path))
    assert recognized(again.path) == Format.COREML


def test_an_exported_program_and_fp32(conv, tmp_path):
    from optcli.passes.export import Export

    exported = apply(Export(), conv, tmp_path / "exported", IMAGE)
    made = apply(ToCoreml(precision="fp32", batch_size=4), exported, tmp_path / "made", IMAGE)
    found = inspection.look(made.path, IMAGE)
    assert found["inputs"] == [{"name": "image", "dtype": "float32", "shape": [4, 3, 16, 16]}]
    assert {each["precision"] for each in found["operators"] if each["type"] == "conv"} == {"float32"}


def test_what_core_ml_cannot_take_is_said(conv, tmp_path):
    varies = TensorSpec(name="image", shape=("batch", 3, "height", 16), ranges={"height": {"max": 32}})
    with pytest.raises(StepError, match="Core ML file has fixed sizes, and height of 'image' varies"):
        ToCoreml().run(conv, job(conv, tmp_path / "out", (varies,)))
    with pytest.raises(StepError, match="the model is int8, wanted fp32"):
        ToCoreml().run(replace(conv, precision="int8"), job(conv, tmp_path / "int8", IMAGE))
    bytes_in = TensorSpec(name="image", dtype="uint8", shape=(1, 3, 16, 16))
    with pytest.raises(StepError, match="takes no uint8"):
        ToCoreml().run(conv, job(conv, tmp_path / "bytes", (bytes_in,)))


@pytest.mark.parametrize(
    ("options", "precision", "share"),
    [
        ({}, "int8-weights", 0.7),
        ({"bits": 4, "group_size": 16}, "int4-weights", 0.6),
        ({"mode": "palettized"}, "lut6-weights", 0.7),
        ({"mode": "palettized", "bits": 4, "group_size": 8}, "lut4-weights", 0.6),
    ],
)
def test_weights_become_smaller(converted, tmp_path, options, precision, share):
    made = apply(QuantizeCoreml(weight_threshold=100, **options), converted, tmp_path / "made", IMAGE)
    assert made.precision == precision
    assert sum(made.facts["quantized_weights"].values()) >= 4
    size, before = (weight_bytes(each.path) for each in (made, converted))
    assert size < share * before
    assert "arrays of weights are written as constexpr_" in " ".join(
        inspection.look(made.path, ())["notes"]
    )


def weight_bytes(folder):
    (weights,) = folder.rglob("weight.bin")
    return weights.stat().st_size


def test_layers_that_are_ignored_stay_as_they_are(converted, tmp_path):
    def counts(name, **options):
        made = apply(QuantizeCoreml(weight_threshold=100, **options), converted, tmp_path / name, IMAGE)
        return sum(made.facts["quantized_weights"].values())

    everything = counts("all")
    assert counts("types", ignored_types=("linear",)) == everything - 1
    assert counts("names", ignored_names=("second_.*",)) == everything - 1
    with pytest.raises(StepError, match="is the name of no weights"):
        counts("nothing", ignored_names=("nowhere",))
    with pytest.raises(StepError, match="no layer has more than 1000000 weights"):
        QuantizeCoreml(weight_threshold=1_000_000).run(
            converted, job(converted, tmp_path / "none", IMAGE)
        )
    with pytest.raises(ValidationError, match="has 4 or 8 bits"):
        QuantizeCoreml(bits=6)
    with pytest.raises(ValidationError, match="no regular expression"):
        QuantizeCoreml(ignored_names=("[",))


def test_what_wants_a_newer_system_says_so(conv, tmp_path):
    older = apply(ToCoreml(target="iOS16"), conv, tmp_path / "older", IMAGE)
    with pytest.raises(StepError, match="coremltools cannot quantize") as failure:
        QuantizeCoreml(bits=4, weight_threshold=100).run(older, job(older, tmp_path / "out", IMAGE))
    assert "target: iOS18" in failure.value.hint


def test_a_damaged_package_is_refused(converted, tmp_path):
    for number, name in enumerate(("Manifest.json", "model.mlmodel", "weight.bin")):
        folder = tmp_path / str(number)
        shutil.copytree(converted.path, folder)
        (path,) = folder.rglob(name)
        content = path.read_bytes()
        for cut in (0, 10, len(content) // 2, None):
            if cut is None:
                path.unlink()
            else:
                path.write_bytes(content[:cut])
            with pytest.raises(InputError, match="this is not a valid Core ML model"):
                formats.check(Format.COREML, folder)


def test_inspect_lists_what_is_in_it(converted, tmp_path):
    package = converted.path / coreml_format.FILE
    assert resolve(str(package), tmp_path).format == "coreml"
    found = inspection.look(package, ())
    assert "iOS 18 and later run it; it was not run here" in found["notes"]
    assert {"conv", "linear"} <= {each["type"] for each in found["operators"]}
    assert found["parameters_by_type"]["float16"] > 10_000
    with pytest.raises(UsageError, match="a Core ML model, which cannot be measured directly"):
        opening.find([package], Store(tmp_path / "store"), trust=False)


@pytest.fixture
def macos(conv, monkeypatch):
    """Core ML as macOS has it: what a package declares, computed by the network it came from."""
    import coremltools

    real = coremltools.models.MLModel

    def answer(feeds):
        batches = feeds if isinstance(feeds, list) else [feeds]
        assert all(each["image"].shape == (1, 3, 16, 16) for each in batches)
        made = [reference(conv, IMAGE, each) for each in batches]
        return made if isinstance(feeds, list) else made[0]

    def loaded(path, compute_units=coremltools.ComputeUnit.ALL):
        assert Path(path).is_dir()
        model = real(str(path), skip_model_load=True)
        model.compute_unit, model.predict = compute_units, answer
        return model

    monkeypatch.setattr(coremltools.models, "MLModel", loaded)


@pytest.mark.usefixtures("macos")
def test_the_runner_computes_batches_image_by_image(conv, converted):
    values = feed(IMAGE, 3, seed=1)
    with CoremlRunner(compute_units="cpu").open(converted, IMAGE) as model:
        assert model.effective()["provider"] == "coreml:cpu_only"
        answers = model.run(values)["output"]
    np.testing.assert_allclose(answers, reference(conv, IMAGE, values)["output"], rtol=1e-4, atol=1e-5)
    other = (TensorSpec(name="photo", shape=(1, 3, 16, 16)),)
    with pytest.raises(RunnerError, match="the model takes image, the recipe has photo"):
        CoremlRunner().open(converted, other)


def test_elsewhere_it_is_said_that_macos_runs_it(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert environment.missing(CoremlRunner().requires()) == []
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    (lacking,) = environment.missing(CoremlRunner().requires())
    assert lacking.what == "it runs on macOS only, and this is Linux"
    assert "--predictions" in lacking.hint
