"""The preparation inside of a model gives what it gives outside, within one grey level."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from needs import needs
from onnx import TensorProto, helper

from optcli import data
from optcli.artifact import EMBEDDED_INPUTS, EMBEDDED_STEPS, Artifact, Format, own_inputs
from optcli.data import DataSettings, Preparation, images, steps
from optcli.errors import InputError, StepError
from optcli.models.formats import onnx as onnx_format
from optcli.observer import Silent
from optcli.passes import Job
from optcli.passes.embed_preparation import EmbedPreparation
from optcli.passes.to_openvino import ToOpenvino
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

NORMALIZED = {
    "channel_order": "rgb",
    "scale": 1 / 255,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.2, 0.3, 0.1],
}
BOX = {"size": [96, 128], "fill": 114}
STEPS = {
    "one size": {"resize": [96, 80], **NORMALIZED},
    "shorter side and a crop": {"resize": 110, "crop": [96, 80], **NORMALIZED},
    "a crop that rounds down": {"resize": 111, "crop": [96, 80], "crop_rounding": "down", **NORMALIZED},
    "bicubic": {"resize": [96, 80], "interpolation": "bicubic", "mean": 0.5},
    "nearest": {"resize": [96, 80], "interpolation": "nearest"},
    "as tensors": {"resize": [96, 80], "resize_in": "float32"},
    "larger": {"resize": 700, "crop": 640},
    "a bounded longer side": {"resize": 96, "longest": 100, "multiple_of": 8},
    "letterbox": {"letterbox": BOX, "channel_order": "bgr"},
    "letterbox at the top left": {"letterbox": {**BOX, "align": "top_left", "fill": [1, 20, 255]}},
    "letterbox that does not enlarge": {"letterbox": {"size": 640, "enlarge": False}, "scale": 1 / 255},
    "values alone": NORMALIZED | {"channel_order": "bgr"},
}


@pytest.fixture(scope="module")
def photographs(request) -> list[np.ndarray]:
    """Of odd sizes, lying and upright."""
    from PIL import Image

    needs("shared data")
    shared = request.getfixturevalue("shared")
    paths = sorted((shared / "datasets/coco_tiny_val/images").iterdir())[:2]
    whole = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    return [whole[0][:331, :417], whole[1][:377, :301]]


def network(folder: Path, shape: list, dtype: int = TensorProto.FLOAT) -> Artifact:
    """A network that gives its input: what the preparation leads to is seen."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["image"], ["seen"])],
        "net",
        [helper.make_tensor_value_info("image", dtype, shape)],
        [helper.make_tensor_value_info("seen", dtype, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir()
    onnx_format.save(model, folder)
    return Artifact("", Format.ONNX, folder, "fp32", 0, "", {"outputs": ["seen"]})


def converted(source: Artifact, folder: Path, *inputs: TensorSpec) -> Artifact:
    """The same in OpenVINO."""
    folder.mkdir()
    job = Job(out=folder, inputs=inputs, origin=source, observer=Silent())
    ToOpenvino().run(source, job)
    return Artifact("", Format.OPENVINO, folder, "fp32", 0, "", source.facts)


def job(out: Path, spec: TensorSpec, preparation: Preparation | None) -> Job:
    out.mkdir()
    plain = (
        None
        if preparation is None
        else {**steps.written_out(preparation), "layout": preparation.layout}
    )
    return Job(out=out, inputs=(spec,), origin=None, observer=Silent(), preparation=plain)  # type: ignore[arg-type]


def embedded(source: Artifact, out: Path, spec: TensorSpec, preparation, options) -> Artifact:
    one = EmbedPreparation(**options)
    made = one.run(source, job(out, spec, preparation))
    return Artifact("", source.format, out, "fp32", 0, "", {**source.facts, **made.facts})


def seen(artifact: Artifact, spec: TensorSpec, pixels: np.ndarray) -> np.ndarray:
    runner = OnnxruntimeRunner if artifact.format == Format.ONNX else OpenvinoRunner
    name = artifact.facts[EMBEDDED_INPUTS][0]["name"]
    with runner(threads=1).open(artifact, (spec,)) as model:
        return model.run({name: pixels[None]})["seen"][0]


def sized(preparation: Preparation, photograph: np.ndarray) -> tuple[int, int]:
    return steps.transformed(photograph, preparation).size


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(("runtime", "layout"), [("onnx", "nhwc"), ("openvino", "nchw")])
def test_photographs_are_prepared_as_pillow_does(tmp_path, photographs, name, layout, runtime):
    preparation = Preparation(**STEPS[name])
    spec = TensorSpec(name="image", shape=["batch", 3, "height", "width"])
    source = network(tmp_path / "net", ["batch", 3, "height", "width"])
    if runtime == "openvino":
        source = converted(source, tmp_path / "converted", spec)
    options = {"size": "any", "layout": layout}
    artifact = embedded(source, tmp_path / "out", spec, preparation, options)
    require_equal(artifact, spec, preparation, photographs, layout)


def test_openvino_reads_what_is_inside_of_an_onnx_model(tmp_path, photographs):
    preparation = Preparation(**STEPS["letterbox"])
    spec = TensorSpec(name="image", shape=["batch", 3, "height", "width"])
    source = network(tmp_path / "net", ["batch", 3, "height", "width"])
    artifact = embedded(source, tmp_path / "out", spec, preparation, {"size": "any"})
    pixels = own_inputs(artifact.facts, ())
    artifact = converted(artifact, tmp_path / "converted", *pixels)
    require_equal(artifact, spec, preparation, photographs, "nhwc")


def require_equal(
    artifact: Artifact, spec: TensorSpec, preparation: Preparation, photographs, layout: str
) -> None:
    unit = preparation.scale / np.array(preparation.std)[:, None, None]
    for photograph in photographs:
        theirs = steps.transformed(photograph, preparation).pixels.transpose(2, 0, 1)
        given = photograph if layout == "nhwc" else photograph.transpose(2, 0, 1)
        ours = seen(artifact, spec, np.ascontiguousarray(given))
        assert ours.shape == theirs.shape
        assert (np.abs(ours - theirs) / unit).max() <= 1.01


def test_one_size_takes_no_other(tmp_path):
    from PIL import Image

    (tmp_path / "photos/cat").mkdir(parents=True)
    Image.new("RGB", (40, 30)).save(tmp_path / "photos/cat/a.png")
    settings = DataSettings(source="imagefolder:photos", prepare={"resize": [96, 80]})
    spec = TensorSpec(name="image_pixels", dtype="uint8", shape=["batch", 20, 40, 3])
    samples = data.open(settings.for_model({EMBEDDED_STEPS: "all"}), tmp_path, [spec])
    with pytest.raises(InputError, match=r"found shape \[30, 40, 3\]") as caught:
        samples[0]
    assert "size: any" in caught.value.hint


def test_what_is_inside_is_left_out_of_a_sample_s_preparation(photographs):
    settings = DataSettings(source="imagefolder:x", prepare=STEPS["letterbox"] | {"layout": "chw"})
    outside = settings.for_model({EMBEDDED_STEPS: "all"}).prepare
    image = steps.transformed(photographs[0], outside)
    assert image.pixels is photographs[0] or np.array_equal(image.pixels, photographs[0])
    whole = steps.transformed(photographs[0], settings.prepare)
    assert image.placement() == {**whole.placement(), "network_size": (96, 128)}
    sized_only = steps.transformed(
        photographs[0], settings.for_model({EMBEDDED_STEPS: "values"}).prepare
    )
    assert sized_only.pixels.dtype == np.uint8
    assert np.array_equal(sized_only.pixels[:, :, ::-1], whole.pixels)
    assert sized_only.placement() == whole.placement()
    assert settings.for_model({}) is settings
    assert images.transformed(photographs[0], steps.written_out(outside)).network_size == (96, 128)


@pytest.mark.parametrize(
    ("shape", "preparation", "says"),
    [
        (["batch", 3, 96, 80], None, "declare no `prepare`"),
        (["batch", 3, 96, 80], {"range": [0, 65535]}, "more than 8 bits"),
        (["batch", 3, 96, 80], {"resize": 96, "interpolation": "lanczos"}, "found lanczos"),
        (["batch", 12], {}, r"wanted one input \[batch, channels, height, width\]"),
        (["batch", 4, 96, 80], {}, "1 or 3 channels, found 4"),
    ],
)
def test_what_cannot_be_inside(tmp_path, shape, preparation, says):
    source = network(tmp_path / "net", shape)
    spec = TensorSpec(name="image", shape=shape)
    settings = None if preparation is None else Preparation(**preparation)
    with pytest.raises(StepError, match=says):
        embedded(source, tmp_path / "out", spec, settings, {"size": "any"})
