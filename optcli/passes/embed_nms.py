"""Decoding and non-maximum suppression inside of a detector: rows of detections come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from optcli.artifact import EMBEDDED_INPUTS, EMBEDDED_POSTPROCESS, Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, did_you_mean
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import output_names
from optcli.passes import Job, Made, Pass
from optcli.passes._onnx.models import modern
from optcli.passes._onnx.preparation import Steps
from optcli.settings import TensorSpec, image_size
from optcli.settings.postprocess import GAPS_OF_COCO, IDS_OF_COCO

if TYPE_CHECKING:
    from onnx import ModelProto

OUTPUT = "detections"
_OPSET = 18
_FLOAT, _INT64 = 1, 7  # TensorProto's
# What a row of detections does not hold.
_NOT_EMBEDDED = ("labels", "prototypes", "masks", "keypoints", "angle", "original")


class EmbedNms(Pass):
    """Puts the recipe's `postprocess` into a detector: it gives rows x1, y1, x2, y2, score and class.

    Boxes are decoded, those of a small score left out, and overlapping ones of a class suppressed by
    ONNX's NonMaxSuppression, with the settings of `postprocess: {yolox: ...}` or `{boxes: ...}`. The
    output `detections` has `max_detections` rows, best first, in pixels of the input. Those behind the
    last detection are zero. What is decoded outside is the same but for ties. Boxes alone: masks,
    keypoints and angles stay outside. Quantize before this pass, and put `embed_preparation` behind
    it.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.ONNX,)
    needs: ClassVar[Needs] = Needs(("onnx",))
    reads_postprocess: ClassVar[bool] = True

    def run(self, source: Artifact, job: Job) -> Made:
        kind, how = _decoding(job)
        if EMBEDDED_INPUTS in source.facts:
            raise StepError(
                "the model prepares its images itself: the size that its boxes are in is not known",
                hint="put embed_nms before embed_preparation",
            )
        model = modern(onnx_format.open(source.path), _OPSET, job, "older operators lack batches")
        written = _Decoder(f"{OUTPUT}/decoding", model, how, image_size(job.inputs))
        boxes, scores = written.yolox() if kind == "yolox" else written.boxes_and_scores()
        written.rows(boxes, scores)
        _give(model, written, job.inputs)
        onnx_format.save(model, job.out)
        rows = {
            "output": OUTPUT,
            "score": how["score"],
            "max_detections": how["max_detections"],
            "numbering": how.get("numbering", "consecutive"),
        }
        return Made(facts={EMBEDDED_POSTPROCESS: {"rows": rows}, "outputs": [OUTPUT]})


def _decoding(job: Job) -> tuple[str, Mapping[str, Any]]:
    """The decoding of the recipe, or of the model's file. Raises `StepError`."""
    if job.postprocess is None:
        raise StepError(
            "neither the recipe nor the model's file says what the outputs are",
            hint="declare `postprocess: {yolox: ...}` or `{boxes: ...}`",
        )
    kind, how = job.postprocess
    if kind == "rows":
        raise StepError("the outputs are rows of detections already", hint="leave the pass out")
    further = [name for name in _NOT_EMBEDDED if how.get(name)]
    if further:
        hint = "leave the pass out: the server decodes such detectors"
        raise StepError(f"`{further[0]}` cannot stand in a row of six numbers", hint=hint)
    return kind, how


class _Decoder(Steps):
    """Nodes that decode outputs as `outputs.postprocess` does, and suppress as its NMS."""

    def __init__(
        self,
        prefix: str,
        model: ModelProto,
        how: Mapping[str, Any],
        size: tuple[int, int] | None,
    ) -> None:
        super().__init__(prefix)
        self._how, self._size, self._names = how, size, output_names(model)

    def yolox(self) -> tuple[str, str]:
        """Boxes [batch, n, 4] and scores [batch, n, classes] of YOLOX's output."""
        import numpy as np

        rows = self._output(self._how["output"])
        centre, extent = self._columns(rows, 0, 2), self._columns(rows, 2, 4)
        if not self._how["decoded"]:
            cells, scales = [], []
            height, width = self._known_size()
            for stride in self._how["strides"]:
                y, x = np.indices((height // stride, width // stride))
                cells.append(np.stack([x, y], axis=-1).reshape(-1, 2))
                scales.append(np.full((len(cells[-1]), 1), stride))
            grid = self.constant(np.concatenate(cells)[None], "f4")
            stride_of = self.constant(np.concatenate(scales)[None], "f4")
            centre = self.add("Mul", self.add("Add", centre, grid), stride_of)
            extent = self.add("Mul", self.add("Exp", extent), stride_of)
        boxes = self._from_centre(centre, extent)
        return boxes, self.add("Mul", self._columns(rows, 4, 5), self._columns(rows, 5, None))

    def boxes_and_scores(self) -> tuple[str, str]:
        """The same of any detector."""
        how = self._how
        rows = self._output(how["boxes"], transposed=how["transposed"])
        boxes, first = self._corners(self._columns(rows, 0, 4)), int(how["objectness"])
        table = rows
        if how["scores"] is not None:
            table = self._output(how["scores"], transposed=how["transposed"])
        start = 0 if how["scores"] is not None else 4
        end = None if how["classes"] is None else start + first + how["classes"]
        scores = self._activated(self._columns(table, start + first, end), how["activation"])
        if first:
            likely = "sigmoid" if how["activation"] != "none" else "none"
            objectness = self._activated(self._columns(table, start, start + 1), likely)
            scores = self.add("Mul", scores, objectness)
        cut = {"none": (0, None), "first": (1, None), "last": (0, -1)}[how["background"]]
        return boxes, scores if cut == (0, None) else self._columns(scores, *cut)

    def rows(self, boxes: str, scores: str) -> None:
        """Rows of the best boxes that NMS leaves, as the output."""
        how = self._how
        by_class = self.add("Transpose", scores, perm=[0, 2, 1])
        if how.get("numbering") == "coco":
            named = [float(each not in GAPS_OF_COCO) for each in range(IDS_OF_COCO)]
            ids = self.add("Slice", self.add("Shape", by_class), *map(self._indices, ([1], [2])))
            row = self.add("Slice", self.constant(named, "f4"), self._indices([0]), ids)
            by_class = self.add("Mul", by_class, self.add("Unsqueeze", row, self._indices([1])))
        if not how["multi_label"]:
            best = self.add("ReduceMax", by_class, self._indices([1]), keepdims=1)
            by_class = self._where(self.add("Equal", by_class, best), by_class)
        least = self.constant(how["score"], "f4")
        by_class = self._where(self.add("Greater", by_class, least), by_class)
        if how["nms"] is not None:
            most, iou = self.constant([how["max_detections"]], "i8"), self.constant([how["nms"]], "f4")
            least = self.constant([how["score"]], "f4")
            stay = self.add("NonMaxSuppression", boxes, by_class, most, iou, least)
            count = self.add("Slice", self.add("Shape", stay), *map(self._indices, ([0], [1])))
            nothing = self.add("Mul", by_class, self.constant(0, "f4"))
            ones = self.add("Expand", self.constant([1], "f4"), count)
            by_class = self.add("Mul", by_class, self.add("ScatterND", nothing, stay, ones))
        flat = self.add("Reshape", by_class, self._indices([0, -1]))
        held = self.add("Slice", self.add("Shape", flat), *map(self._indices, ([1], [2])))
        best = self.add("Min", self._indices([how["max_detections"]]), held)
        values, places = self._top(flat, best)
        shape = self.add("Shape", boxes)
        candidates = self.add("Slice", shape, *map(self._indices, ([1], [2])))
        number, last = self.add("Div", places, candidates), self._indices([2])
        which = self.add("Unsqueeze", self.add("Mod", places, candidates), last)
        chosen = self.add("GatherND", boxes, which, batch_dims=1)
        labels = self.add("Cast", number, to=_FLOAT)
        if how.get("first_label"):
            labels = self.add("Add", labels, self.constant(how["first_label"], "f4"))
        columns = [self.add("Unsqueeze", column, last) for column in (values, labels)]
        rows = self.add("Concat", chosen, *columns, axis=2)
        real = self.add("Greater", columns[0], self.constant(0, "f4"))
        self.add("Where", real, rows, self.constant(0, "f4"), output=OUTPUT)

    def _top(self, flat: str, count: str) -> tuple[str, str]:
        from onnx import helper

        names = (f"{flat}/best", f"{flat}/places")
        self.nodes.append(helper.make_node("TopK", [flat, count], names, f"{flat}/TopK", axis=1))
        return names

    def _output(self, name: str | None, *, transposed: bool = False) -> str:
        """An output as [batch, n, columns] in float32."""
        wanted = name or self._names[0]
        if wanted not in self._names:
            hint = did_you_mean(wanted, list(self._names))
            raise StepError(f"the model has no output {wanted!r}", hint=hint)
        rows = self.add("Cast", wanted, to=_FLOAT)
        return self.add("Transpose", rows, perm=[0, 2, 1]) if transposed else rows

    def _corners(self, boxes: str) -> str:
        if self._how["normalized"]:
            height, width = self._known_size()
            boxes = self.add("Mul", boxes, self.constant([width, height] * 2, "f4"))
        if self._how["format"] == "xyxy":
            return boxes
        first, extent = self._columns(boxes, 0, 2), self._columns(boxes, 2, 4)
        if self._how["format"] == "cxcywh":
            return self._from_centre(first, extent)
        return self.add("Concat", first, self.add("Add", first, extent), axis=2)

    def _from_centre(self, centre: str, extent: str) -> str:
        half = self.add("Mul", extent, self.constant(0.5, "f4"))
        ends = (self.add(operator, centre, half) for operator in ("Sub", "Add"))
        return self.add("Concat", *ends, axis=2)

    def _known_size(self) -> tuple[int, int]:
        if self._size is None:
            raise StepError(
                "the size of the image varies, and boxes are decoded by it",
                hint="fix height and width under inputs",
            )
        return self._size

    def _activated(self, scores: str, activation: str) -> str:
        if activation == "none":
            return scores
        if activation == "sigmoid":
            return self.add("Sigmoid", scores)
        return self.add("Softmax", scores, axis=2)

    def _where(self, condition: str, values: str) -> str:
        return self.add("Where", condition, values, self.constant(0, "f4"))

    def _columns(self, rows: str, start: int, end: int | None) -> str:
        ends = [2**31 - 1 if end is None else end]
        return self.add("Slice", rows, self._indices([start]), self._indices(ends), self._indices([2]))

    def _indices(self, values: Sequence[int]) -> str:
        return self.constant(values, "i8")


def _give(model: ModelProto, written: _Decoder, inputs: Sequence[TensorSpec]) -> None:
    """The rows in place of the model's outputs, and no node that nothing reads."""
    from onnx import helper

    graph = model.graph
    batch = inputs[0].shape[0]
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(OUTPUT, _FLOAT, [batch, "rows", 6]))
    graph.node.extend(written.nodes)
    graph.initializer.extend(written.constants)
