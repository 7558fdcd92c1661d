"""The decoding and NMS inside of a detector give what they give outside."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from optcli.artifact import EMBEDDED_INPUTS, EMBEDDED_POSTPROCESS, Artifact, Format
from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.observer import Silent
from optcli.outputs.postprocess import decoded
from optcli.passes import Job
from optcli.passes.embed_nms import EmbedNms
from optcli.pipeline.decoding import own_postprocess
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.settings import TensorSpec
from optcli.settings.postprocess import PostprocessSettings

pytestmark = pytest.mark.slow

SIZE = (64, 96)
CELLS = sum((SIZE[0] // stride) * (SIZE[1] // stride) for stride in (8, 16, 32))
IMAGE = TensorSpec(name="image", shape=["batch", 3, *SIZE])
# Settings, and the columns of each output: their rows are the candidates.
DETECTORS = {
    "yolox": ({"yolox": {"score": 0.2}}, {"out": 5 + 4}),
    "decoded yolox": ({"yolox": {"score": 0.2, "decoded": True}}, {"out": 5 + 4}),
    "one class a box": ({"yolox": {"score": 0.2, "multi_label": False}}, {"out": 5 + 4}),
    "candidates in columns": (
        {"boxes": {"format": "cxcywh", "transposed": True, "nms": 0.5}},
        {"out": 4 + 3},
    ),
    "few detections": ({"boxes": {"nms": 0.5, "max_detections": 7}}, {"out": 4 + 3}),
    "objectness and logits": (
        {"boxes": {"objectness": True, "activation": "sigmoid", "nms": 0.6, "format": "xywh"}},
        {"out": 5 + 3},
    ),
    "detr": (
        {
            "boxes": {
                "boxes": "pred_boxes",
                "scores": "logits",
                "format": "cxcywh",
                "normalized": True,
                "activation": "softmax",
                "background": "last",
                "multi_label": False,
            }
        },
        {"logits": 5, "pred_boxes": 4},
    ),
    "coco's numbers": (
        {"boxes": {"numbering": "coco", "activation": "softmax", "background": "last", "nms": 0.5}},
        {"out": 4 + 92},
    ),
    "classes from one": ({"boxes": {"first_label": 1, "nms": 0.5}}, {"out": 4 + 3}),
}


def detector(folder, outputs: dict[str, int], *, transposed: bool) -> Artifact:
    """A model whose outputs are its further inputs: what is decoded can be said."""
    shapes = {
        name: ["batch", columns, CELLS] if transposed else ["batch", CELLS, columns]
        for name, columns in outputs.items()
    }
    graph = helper.make_graph(
        [helper.make_node("Identity", [f"{name}_in"], [name]) for name in outputs],
        "net",
        [
            helper.make_tensor_value_info(f"{name}_in", TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    folder.mkdir()
    onnx_format.save(model, folder)
    return Artifact("", Format.ONNX, folder, "fp32", 0, "", {"outputs": list(outputs)})


def values(name: str, outputs: dict[str, int]) -> dict[str, np.ndarray]:
    """Boxes that overlap and scores that differ, for two images."""
    draw = np.random.default_rng(len(name))
    made = {}
    for output, columns in outputs.items():
        rows = draw.uniform(0, 1, (2, CELLS, columns)).astype(np.float32)
        if "yolox" not in name and output == "out":
            rows[..., :2] *= 40
            rows[..., 2:4] = rows[..., 2:4] * 50 + 40
        if output == "logits" or name in ("coco's numbers", "objectness and logits"):
            rows[..., 4 if output == "out" else 0 :] = draw.normal(0, 3, rows.shape)[
                ..., 4 if output == "out" else 0 :
            ]
        made[output] = rows
    return made


def made(source: Artifact, out, settings: PostprocessSettings | None) -> Artifact:
    out.mkdir()
    job = Job(
        out=out,
        inputs=(IMAGE,),
        origin=source,
        observer=Silent(),
        postprocess=None if settings is None else settings.detector,
    )
    facts = EmbedNms().run(source, job).facts
    return Artifact("", Format.ONNX, out, "fp32", 0, "", {**source.facts, **facts})


@pytest.mark.parametrize("name", DETECTORS)
def test_rows_are_what_is_decoded_outside(tmp_path, name):
    said, outputs = DETECTORS[name]
    settings = PostprocessSettings.model_validate(said)
    kind, how = settings.detector
    transposed = bool(how.get("transposed"))
    source = detector(tmp_path / "net", outputs, transposed=transposed)
    artifact = made(source, tmp_path / "out", settings)
    given = values(name, outputs)
    if transposed:
        given = {output: np.ascontiguousarray(a.swapaxes(1, 2)) for output, a in given.items()}
    feeds = [
        TensorSpec(name=f"{output}_in", shape=["batch", *array.shape[1:]])
        for output, array in given.items()
    ]
    graph = onnx_format.open(artifact.path).graph
    constants = {tensor.name for tensor in graph.initializer}
    suppressing = [node for node in graph.node if node.op_type == "NonMaxSuppression"]
    assert len(suppressing) == (how["nms"] is not None)
    for node in suppressing:  # TensorRT's parser takes no computed settings
        assert constants.issuperset(node.input[2:])
    with OnnxruntimeRunner(threads=1).open(artifact, feeds) as model:
        rows = model.run({f"{output}_in": array for output, array in given.items()})
    own = own_postprocess(artifact.facts)
    assert own is not None
    for image in range(2):
        outside, _ = decoded(kind, how, given, SIZE, image)
        inside, _ = decoded(*own.detector, rows, SIZE, image)
        assert 3 < len(inside["scores"]) <= how["max_detections"]
        np.testing.assert_allclose(inside["scores"], outside["scores"], rtol=1e-5)
        np.testing.assert_array_equal(inside["labels"], outside["labels"])
        np.testing.assert_allclose(inside["boxes"], outside["boxes"], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (None, "neither the recipe nor the model's file"),
        ({"rows": {}}, "rows of detections already"),
        ({"boxes": {"keypoints": [17, 3], "nms": 0.5}}, "`keypoints` cannot stand in a row"),
        ({"boxes": {"boxes": "elsewhere"}}, "no output 'elsewhere'"),
    ],
)
def test_what_cannot_be_inside(tmp_path, said, says):
    source = detector(tmp_path / "net", {"out": 9}, transposed=False)
    settings = None if said is None else PostprocessSettings.model_validate(said)
    with pytest.raises(StepError, match=says):
        made(source, tmp_path / "out", settings)


def test_it_stands_before_the_preparation(tmp_path):
    source = detector(tmp_path / "net", {"out": 9}, transposed=False)
    prepared = Artifact("", source.format, source.path, "fp32", 0, "", {EMBEDDED_INPUTS: []})
    with pytest.raises(StepError, match="prepares its images itself") as caught:
        made(prepared, tmp_path / "out", PostprocessSettings.model_validate({"yolox": {}}))
    assert "before embed_preparation" in caught.value.hint


def test_facts_from_elsewhere_name_no_code():
    assert own_postprocess({EMBEDDED_POSTPROCESS: {"python": "mine.py:decode"}}) is None
    assert own_postprocess({EMBEDDED_POSTPROCESS: 3}) is None
    assert own_postprocess({}) is None


def test_the_ids_without_a_class_are_those_of_the_decoding():
    from optcli.outputs import postprocess
    from optcli.settings.postprocess import GAPS_OF_COCO, IDS_OF_COCO

    assert len(postprocess._OF_COCO) == IDS_OF_COCO
    assert tuple(np.flatnonzero(postprocess._OF_COCO < 0)) == GAPS_OF_COCO
