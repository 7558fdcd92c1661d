"""LiteRT: a network as it is, and quantized, in the runtime of Android and small boards."""

from dataclasses import replace

import pytest
from pydantic import ValidationError
from tiny_networks import INPUTS, Noise, apply, artifact, feed, job, largest_error, reference, sqnr_db
from tiny_networks import torch_artifact as network

from optcli.artifact import SLOW_INTEGERS, Format
from optcli.errors import InputError, RunnerError, StepError
from optcli.models.formats import litert as litert_format
from optcli.models.sources.litert import LitertSource
from optcli.passes.quantize_litert import QuantizeLitert
from optcli.passes.to_litert import ToLitert
from optcli.runners.litert import LitertRunner
from optcli.scaffold.inspection import litert as inspection
from optcli.settings import TensorSpec

pytestmark = [pytest.mark.slow, pytest.mark.long]
IMAGE = INPUTS["Conv"]


@pytest.fixture(scope="module")
def conv(tmp_path_factory):
    return network(tmp_path_factory.mktemp("conv"), "Conv")


@pytest.fixture(scope="module")
def converted(conv, tmp_path_factory):
    return apply(ToLitert(), conv, tmp_path_factory.mktemp("tflite") / "made", IMAGE)


def test_it_computes_what_the_network_does_at_every_batch_size(conv, converted):
    assert converted.format == Format.LITERT
    assert converted.facts["batch_size"] == 1
    assert largest_error(LitertRunner(threads=1), converted, conv, IMAGE, (1, 2, 5, 12)) < 1e-5
    plain = LitertRunner(threads=1, delegate="none")
    assert largest_error(plain, converted, conv, IMAGE, (3,)) < 1e-5
    with LitertRunner(threads=1).open(converted, IMAGE) as model:
        assert model.effective()["provider"] == "xnnpack"
    with plain.open(converted, IMAGE) as model:
        assert model.effective()["provider"] == "litert"


def test_batches_are_filled_up_and_images_may_have_their_channels_last(conv, tmp_path):
    made = apply(ToLitert(batch_size=4, layout="nhwc"), conv, tmp_path / "made", IMAGE)
    assert largest_error(LitertRunner(threads=1), made, conv, IMAGE, (1, 4, 6)) < 1e-5
    found = inspection.look(made.path, IMAGE)
    assert found["inputs"] == [{"name": "image", "dtype": "float32", "shape": [4, 16, 16, 3]}]
    assert found["outputs"][0]["name"] == "output"
    assert "outside of it: nothing" in found["notes"][0]


def test_sizes_other_than_the_batch_must_be_fixed(conv, tmp_path):
    varies = TensorSpec(name="image", shape=("batch", 3, "height", 16), ranges={"height": {"max": 32}})
    with pytest.raises(StepError, match="height of 'image' varies"):
        ToLitert().run(conv, job(conv, tmp_path / "out", (varies,)))


@pytest.mark.parametrize(
    ("options", "precision", "least_db"),
    [
        ({}, "int8", 20),
        ({"activation_bits": 16}, "int8-a16", 30),
        ({"mode": "dynamic"}, "int8-dynamic", 20),
        ({"mode": "weights"}, "int8-weights", 30),
    ],
)
def test_it_is_quantized(conv, converted, tmp_path, options, precision, least_db):
    more = {} if options.get("mode") else {"calibration": Noise(IMAGE)}
    made = apply(QuantizeLitert(**options), converted, tmp_path / "made", IMAGE, **more)
    assert made.precision == precision
    values = feed(IMAGE, 4, seed=99)
    with LitertRunner(threads=1).open(made, IMAGE) as model:
        answers = model.run(values)["output"]
    decibels = sqnr_db(reference(conv, IMAGE, values)["output"], answers)
    assert least_db < decibels < 90
    if precision == "int8":
        assert made.facts["quantized_operators"]["CONV_2D"] == 4
        look = inspection.look(made.path, IMAGE)
        assert look["inputs"] == [{"name": "image", "dtype": "float32", "shape": [1, 3, 16, 16]}]
        assert "image is int8 with a scale in the file; values are converted" in look["notes"]
        with pytest.raises(StepError, match="quantized already"):
            QuantizeLitert().run(made, job(made, tmp_path / "again", IMAGE))


def test_operators_and_names_stay_in_floats_where_the_recipe_says_so(converted, tmp_path):
    more = {"calibration": Noise(IMAGE)}
    options = QuantizeLitert(operators=("CONV_2D",), ignored_names=(".*second.*",))
    made = apply(options, converted, tmp_path / "made", IMAGE, **more)
    assert made.facts["quantized_operators"] == {"CONV_2D": 3}
    with pytest.raises(StepError, match="no operator 'CONV2D'"):
        QuantizeLitert(operators=("CONV2D",)).run(
            converted, job(converted, tmp_path / "out", IMAGE, **more)
        )
    with pytest.raises(ValidationError, match="no regular expression"):
        QuantizeLitert(ignored_names=("[",))


def test_what_xnnpack_has_in_floats_alone_stays_in_floats(tmp_path):
    import litert_torch
    import torch

    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.Hardswish(), torch.nn.Conv2d(8, 8, 3))
    network = torch.nn.Sequential(*layers).eval()
    (tmp_path / "made").mkdir()
    litert_torch.convert(network, (torch.zeros(1, 3, 16, 16),)).export(
        str(tmp_path / "made" / litert_format.FILE)
    )
    litert_format.rename(tmp_path / "made", ["image"], ["output"])
    source = artifact(tmp_path / "made", Format.LITERT, outputs=["output"])
    values = feed(IMAGE, 1, seed=99)
    expected = network(torch.from_numpy(values["image"])).detach().numpy()
    for whole in (False, True):
        place = tmp_path / f"made{whole}"
        made = apply(QuantizeLitert(whole=whole), source, place, IMAGE, calibration=Noise(IMAGE))
        assert made.facts["quantized_operators"]["CONV_2D"] == 2
        assert ("HARD_SWISH" in made.facts["quantized_operators"]) == whole
        assert made.facts.get(SLOW_INTEGERS) == (None if whole else ["HARD_SWISH"])
        with LitertRunner(threads=1).open(made, IMAGE) as model:
            assert sqnr_db(expected, model.run(values)["output"]) > 20
            assert model.effective()["operators_outside"] == whole


def test_a_divisor_that_rounds_to_zero_is_no_integer(tmp_path):
    import litert_torch
    import torch

    class Share(torch.nn.Module):
        def forward(self, image):
            return image / (1e-3 + image * image)

    folder = tmp_path / "made"
    folder.mkdir()
    litert_torch.convert(Share().eval(), (torch.zeros(1, 3, 16, 16),)).export(
        str(folder / litert_format.FILE)
    )
    litert_format.rename(folder, ["image"], ["output"])
    share = artifact(folder, Format.LITERT, outputs=["output"])
    values = feed(IMAGE, 1)
    values["image"][:] = 0
    made = apply(QuantizeLitert(), share, tmp_path / "float", IMAGE, calibration=Noise(IMAGE))
    with LitertRunner(threads=1).open(made, IMAGE) as model:
        assert not model.run(values)["output"].any()
    whole = QuantizeLitert(operators=("DIV", "ADD", "MUL"))
    made = apply(whole, share, tmp_path / "integers", IMAGE, calibration=Noise(IMAGE))
    said = pytest.raises(RunnerError, match=r"not true.*\(DIV\) failed to invoke")
    with LitertRunner(threads=1).open(made, IMAGE) as model, said:
        model.run(values)


@pytest.mark.parametrize("cut", [0, 30, 200, 3000])
def test_a_damaged_file_is_refused(converted, tmp_path, cut):
    content = (converted.path / litert_format.FILE).read_bytes()
    (tmp_path / litert_format.FILE).write_bytes(content[:cut])
    with pytest.raises(InputError, match="LiteRT cannot load the model"):
        litert_format.open(tmp_path)


def test_a_name_that_is_no_text_is_refused(converted, tmp_path):
    content = (converted.path / litert_format.FILE).read_bytes()
    assert b"image" in content
    (tmp_path / litert_format.FILE).write_bytes(content.replace(b"image", b"ima\xb6e"))
    with pytest.raises(InputError, match="LiteRT cannot load the model: 'utf-8' codec"):
        litert_format.open(tmp_path)


def test_a_file_of_its_own_is_measured_as_it_is(converted, tmp_path):
    source = LitertSource(target=str(converted.path / litert_format.FILE), folder=tmp_path)
    (tmp_path / "out").mkdir()
    assert source.write(tmp_path / "out", IMAGE).outputs == ("output",)
    wrong = TensorSpec(name="image", shape=(1, 3, 16, 20))
    with pytest.raises(InputError, match="dimension 3 of image is 16 in the file, 20 in the recipe"):
        source.write(tmp_path / "out", (wrong,))


def test_an_output_without_a_row_for_each_sample_is_refused_in_pieces(conv, tmp_path):
    import torch

    class Whole(torch.nn.Module):
        def forward(self, image):
            return image.mean((0, 2, 3))

    import litert_torch

    litert_torch.convert(Whole().eval(), (torch.zeros(1, 3, 16, 16),)).export(
        str(tmp_path / litert_format.FILE)
    )
    made = replace(conv, format=Format.LITERT, path=tmp_path, facts={})
    with LitertRunner(threads=1).open(made, IMAGE) as model:
        assert next(iter(model.run(feed(IMAGE, 1)).values())).shape == (3,)
        with pytest.raises(RunnerError, match="has no row for each"):
            model.run(feed(IMAGE, 2))
