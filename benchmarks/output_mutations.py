"""How many broken detectors are accepted without labels, and how many honest ones are not.

    python benchmarks/output_mutations.py DETECTOR.onnx COCO --int8 MODEL.xml [--count 200] [--seed 0]

DETECTOR.onnx is YOLOX, which takes one image of [1, 3, 416, 416]; MODEL.xml is the same in INT8, as
`optcli build recipes/detector.yaml` leaves it. COCO is a folder in COCO's layout. What the models give
for its images is mutated: a class zeroed, scores scaled, boxes shifted by 2 % of the picture or
resized, coordinates swapped, classes permuted, everything rounded on one scale. A mutation counts if it
changes 5 % of the confident detections, or their scores by 10 %. Each is judged in one of three
layouts, with a decoding. Honest ones are the INT8 model and roundings to 16 bits, on other images.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino

from optcli import data
from optcli.accuracy import detections, parts, unlabelled
from optcli.accuracy.distances import output_distances
from optcli.data import DataSettings
from optcli.outputs import describe, postprocess
from optcli.results.outcomes import OutputError
from optcli.settings import TensorSpec
from optcli.settings.postprocess import PostprocessSettings

SIZE = 416
STEP = SIZE / 255  # of 8 bits over a range of boxes
PREPARE = {"letterbox": {"size": SIZE, "fill": 114, "align": "top_left"}, "channel_order": "bgr"}
MUTATIONS = (
    "class zeroed",
    "scores scaled",
    "boxes shifted",
    "boxes resized",
    "swapped",
    "permuted",
    "one scale",
)
STORED = 13  # samples of which outputs are kept beside detections


@dataclass(frozen=True)
class Output:
    """An output for `describe`."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


def decoded(rows: np.ndarray) -> np.ndarray:
    """YOLOX's rows with boxes in pixels."""
    grid, stride = postprocess._grid((8, 16, 32), (SIZE, SIZE))
    boxes = [(rows[..., :2] + grid) * stride, np.exp(rows[..., 2:4]) * stride]
    whole: np.ndarray = np.concatenate([*boxes, rows[..., 4:]], axis=-1)
    return whole


def scored(rows: np.ndarray) -> np.ndarray:
    """Scores of classes, times objectness."""
    scores: np.ndarray = rows[..., 4:5] * rows[..., 5:]
    return scores


def layouts() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Layouts of the same outputs, and how each is decoded."""

    def two(rows: np.ndarray) -> dict[str, np.ndarray]:
        half = rows[..., 2:4] / 2
        corners = np.concatenate([rows[..., :2] - half, rows[..., :2] + half], axis=-1)
        return {"boxes": corners, "scores": scored(rows)}

    columns = {"format": "cxcywh", "transposed": True, "nms": 0.65}
    return {
        "yolox": (lambda rows: {"output": rows}, {"yolox": {"decoded": True}}),
        "columns": (
            lambda rows: {"y": np.concatenate([rows[..., :4], scored(rows)], -1).transpose(0, 2, 1)},
            {"boxes": columns},
        ),
        "two outputs": (two, {"boxes": {"boxes": "boxes", "scores": "scores", "nms": 0.65}}),
    }


def found(outputs: dict[str, np.ndarray], post: PostprocessSettings) -> list[np.ndarray]:
    """The records of detections of all images."""
    assert post.detector is not None
    kind, how = post.detector
    images = len(next(iter(outputs.values())))
    each = [
        postprocess.decoded(kind, how, outputs, (SIZE, SIZE), i, None, refuse=False)[0]
        for i in range(images)
    ]
    return list(detections.records(each).values())


def judge(
    mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray], how: dict[str, Any]
) -> tuple[str, str, float, float]:
    """The outcome, the reason, the share of confident detections that changed, how far scores moved."""
    post = PostprocessSettings.model_validate(how)
    images = len(next(iter(theirs.values())))
    change = detections.compare(found(mine, post), found(theirs, post), images, 0.01)
    assert change is not None
    known = describe([Output(k, v.shape[1:]) for k, v in theirs.items()], postprocess=post)
    pairs = [(each.output, mine[each.output][:STORED], theirs[each.output][:STORED]) for each in known]
    distances = output_distances(pairs)
    distances.pop("signal")
    judged = [
        part
        for meaning, (_, a, b) in zip(known, pairs, strict=True)
        for part in parts.part_distances(meaning, a, b, 0.01)
    ]
    error = OutputError(
        finite=True, constant=False, parts=tuple(judged), detections=change, **distances
    )
    lost = 1 - change.same / max(1, change.confident)
    moved = abs((change.score_ratio or 0.0) - 1)
    if (died := unlabelled.dead(error)) is not None:
        return "reject", died, lost, moved
    doubt = unlabelled.doubt(error)
    return ("accept", "", lost, moved) if doubt is None else ("inconclusive", doubt.reason, lost, moved)


def mutated(kind: str, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Rows with one thing wrong."""
    rows = rows.copy()
    scores = scored(rows)
    labels, counts = np.unique(scores.argmax(-1)[scores.max(-1) > parts.CONFIDENT], return_counts=True)
    if kind == "class zeroed":
        rows[..., 5 + random.choice(labels, p=counts / counts.sum())] = 0
    elif kind == "scores scaled":
        rows[..., 5:] = np.clip(
            rows[..., 5:] * random.choice([0.5, 0.6, 0.7, 0.8, 0.85, 1.2, 1.5]), 0, 1
        )
    elif kind == "boxes shifted":
        rows[..., random.integers(2)] += 0.02 * SIZE * random.choice([-1, 1])
    elif kind == "boxes resized":
        rows[..., 2:4] *= random.choice([0.6, 0.8, 1.3, 1.6])
    elif kind == "swapped":
        rows[..., :2] = rows[..., 1::-1]
    elif kind == "permuted":
        order = np.arange(rows.shape[-1] - 5)
        some = random.choice(labels, min(len(labels), random.choice([2, 3, 20])), replace=False)
        order[some] = np.roll(some, 1)
        rows[..., 5:] = rows[..., 5 + order]
    else:
        rows = np.round(rows / STEP) * STEP
    return rows


def main() -> int:
    """Read the command line, and print the counts and each wrong answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("detector", type=Path)
    parser.add_argument("coco", type=Path)
    parser.add_argument("--int8", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--honest", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    spec = TensorSpec(name="images", shape=(1, 3, SIZE, SIZE))
    settings = DataSettings.model_validate(
        {"source": f"coco:{options.coco.resolve()}", "prepare": PREPARE}
    )
    samples = data.open(settings, Path.cwd(), (spec,))
    images = [samples[i].inputs["images"][None].astype(np.float32) for i in range(len(samples))]
    session = onnxruntime.InferenceSession(str(options.detector), providers=["CPUExecutionProvider"])
    base = decoded(
        np.concatenate([session.run(None, {session.get_inputs()[0].name: x})[0] for x in images])
    )
    model = openvino.Core().compile_model(str(options.int8), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    int8 = decoded(np.concatenate([next(iter(model(x).values())) for x in images]))
    honest = {"int8": int8, "fp16": base.astype(np.float16).astype(np.float32)}
    random = np.random.default_rng(options.seed)
    forms, counted, accepted, doubted = layouts(), Counter[str](), Counter[str](), 0

    def drawn() -> tuple[str, np.ndarray, str]:
        chosen = np.sort(random.choice(len(images), random.choice([20, 40, 80]), replace=False))
        return str(random.choice(list(honest))), chosen, str(random.choice(list(forms)))

    tried = 0
    while counted.total() < options.count and tried < 10 * options.count:
        kind = MUTATIONS[tried % len(MUTATIONS)]
        tried += 1
        name, chosen, form = drawn()
        layout, how = forms[form]
        mine, theirs = layout(mutated(kind, honest[name][chosen], random)), layout(base[chosen])
        outcome, reason, lost, moved = judge(mine, theirs, how)
        if lost < 0.05 and moved < 0.1:
            continue
        counted[kind] += 1
        if outcome == "accept":
            accepted[kind] += 1
            print(
                f"accepted: {kind} of {name} as {form}, {len(chosen)} images: {lost:.0%}, {moved:.0%}"
            )
    for _ in range(options.honest):
        name, chosen, form = drawn()
        layout, how = forms[form]
        outcome, reason, *_ = judge(layout(honest[name][chosen]), layout(base[chosen]), how)
        if outcome != "accept":
            doubted += 1
            print(f"not accepted: honest {name} as {form}, {len(chosen)} images: {reason}")
    print("| mutation | counted | accepted |\n| --- | ---: | ---: |")
    for kind in MUTATIONS:
        print(f"| {kind} | {counted[kind]} | {accepted[kind]} |")
    print(f"\n{accepted.total()} of {counted.total()} mutations accepted")
    print(f"{doubted} of {options.honest} honest ones not accepted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
