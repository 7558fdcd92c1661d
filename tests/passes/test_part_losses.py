"""Outputs compared part by part: every part counts, in its own units, and annotations are no labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from textwrap import dedent

import numpy as np
import pytest
import torch
from stripes import IMAGE, Stripes
from tiny_networks import Heard, artifact

from optcli.artifact import Format
from optcli.errors import InputError, StepError
from optcli.models.formats import torch as torch_format
from optcli.models.sources.python import PythonSource
from optcli.passes import Job
from optcli.passes._torch.examples import ExampleSet
from optcli.passes._torch.learning import caller
from optcli.passes._torch.part_losses import are_no_classes, part_losses
from optcli.passes._torch.rates import groups, rate_shares
from optcli.passes.finetune import Finetune
from optcli.settings.outputs import OutputPart
from optcli.settings.postprocess import PostprocessSettings

pytestmark = pytest.mark.slow

CODE = """
    import torch
    from torch import nn

    class Detector(nn.Module):
        '''Rows of 4 numbers of a box in pixels, objectness and 3 classes; raw maps while it trains.'''
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16))
            self.boxes, self.scores = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 4, 1)

        def forward(self, image):
            return self.rows(self.stem(image))

        def rows(self, y):
            y = torch.relu(y)
            boxes, scores = self.boxes(y), self.scores(y)
            if self.training:
                return boxes, scores
            rows = torch.cat([400 + 100 * boxes, scores.sigmoid()], 1)
            return rows.flatten(2).transpose(1, 2)

    class Joined(Detector):
        def __init__(self):
            super().__init__()
            self.left = nn.Conv2d(1, 8, 3, padding=1, stride=2)
            self.right = nn.Conv2d(1, 8, 3, padding=1, stride=2)
            self.stem = nn.Conv2d(16, 16, 1)

        def forward(self, image):
            sides = torch.sigmoid(self.left(image)), torch.tanh(self.right(image))
            return self.rows(self.stem(torch.cat(sides, 1)))
    """
ROWS = (
    OutputPart("boxes", 1, 0, 4),
    OutputPart("objectness", 1, 4, 5),
    OutputPart("scores", 1, 5, 8),
)
CXCYWH = PostprocessSettings.model_validate({"boxes": {"format": "cxcywh", "objectness": True}})


@dataclass
class Annotated(Stripes):
    """Samples with annotated objects, as COCO's layout gives them."""

    def __getitem__(self, index):
        target = {"boxes": np.zeros((index % 3, 4)), "labels": np.zeros(index % 3, np.int64)}
        return replace(super().__getitem__(index), target=target)


def rows_of(samples: int, seed: int = 0) -> torch.Tensor:
    """Rows `[n, 6, 8]`: boxes in pixels, then probabilities."""
    generator = torch.Generator().manual_seed(seed)
    boxes = 400 + 100 * torch.randn(samples, 6, 4, generator=generator)
    return torch.cat([boxes, torch.rand(samples, 6, 4, generator=generator)], 2)


def distances(rows=None, parts=ROWS, how=CXCYWH.detector):
    return part_losses({"output": parts}, how, {"output": rows_of(8) if rows is None else rows})


def test_each_part_is_a_share_of_what_the_mean_answer_has():
    rows = rows_of(8)
    whole = distances(rows)
    assert whole.names == ["output: boxes", "output: objectness", "output: scores"]
    assert float(whole({"output": rows}, {"output": rows})) == pytest.approx(0, abs=1e-5)
    mean = rows.mean(0, keepdim=True).expand_as(rows)
    assert float(whole({"output": mean}, {"output": rows})) == pytest.approx(1, abs=1e-4)
    for start, stop in ((0, 4), (4, 5), (5, 8)):
        wrong = rows.clone()
        wrong[..., start:stop] = mean[..., start:stop]
        assert float(whole({"output": wrong}, {"output": rows})) == pytest.approx(1 / 3, abs=1e-3)


def test_boxes_count_where_the_teacher_sees_an_object():
    rows = rows_of(8)
    rows[:, 1:, 4:] = 1e-4
    whole = distances(rows)
    moved = [rows.clone() for _ in range(2)]
    moved[0][:, 0, :4] += 50
    moved[1][:, 1, :4] += 50
    near, far = (float(whole({"output": each}, {"output": rows})) for each in moved)
    assert near > 100 * far


@pytest.mark.parametrize(
    ("kind", "values", "wrong"),
    [
        ("embedding", torch.randn(8, 12), lambda x: -x),
        ("class_map", torch.randn(8, 3, 4, 4), lambda x: -x),
        ("logits", torch.randn(8, 5), lambda x: -x),
        ("depth", torch.rand(8, 1, 4, 4), lambda x: 0.1 * x),
        ("unknown", torch.randn(8, 2, 3), lambda x: 0.1 * x),
        ("prototypes", torch.randn(8, 4, 6, 6), lambda x: 0.1 * x),
    ],
)
def test_a_whole_output_has_the_distance_of_its_kind(kind, values, wrong):
    whole = distances(values, (OutputPart(kind),), None)
    taught = {"output": values}
    assert float(whole({"output": values}, taught)) == pytest.approx(0, abs=1e-5)
    assert float(whole({"output": wrong(values)}, taught)) > 0.3
    longer = float(whole({"output": 3 * values}, taught))
    assert (longer < 1e-5) is (kind == "embedding"), "an embedding is a direction"


@pytest.mark.parametrize(
    ("how", "sound"),
    [
        ({"activation": "softmax", "background": "last"}, "softmax"),
        ({"activation": "sigmoid"}, "sigmoid"),
        ({}, "sigmoid"),
    ],
)
def test_boxes_and_scores_of_their_own(how, sound):
    generator = torch.Generator().manual_seed(0)
    taught = {"b": torch.rand(8, 6, 4, generator=generator), "s": torch.randn(8, 6, 4) * 3}
    decoding = PostprocessSettings.model_validate({"boxes": {"boxes": "b", "scores": "s", **how}})
    parts = {"b": (OutputPart("boxes"),), "s": (OutputPart("scores"),)}
    whole = part_losses(parts, decoding.detector, taught)
    assert whole.scores is not None
    assert whole.scores.activation == sound
    assert float(whole(taught, taught)) == pytest.approx(0, abs=1e-5)
    assert float(whole({**taught, "s": -taught["s"]}, taught)) > 0.5


def test_transposed_rows_are_read_as_rows():
    rows = rows_of(8)
    parts = tuple(replace(part, axis=0) for part in ROWS)
    turned, straight = distances(rows.transpose(1, 2), parts), distances(rows)
    other = rows_of(8, seed=1)
    wrong = turned({"x": other.transpose(1, 2)}, {"output": rows.transpose(1, 2)})
    assert float(wrong) == pytest.approx(float(straight({"x": other}, {"output": rows})), rel=1e-5)


def test_what_cannot_be_compared_says_so():
    finished = (OutputPart("boxes", 1, 0, 4), OutputPart("class_numbers", 1, 5, 6))
    with pytest.raises(StepError, match="after NMS"):
        distances(parts=finished)
    with pytest.raises(StepError, match="the same outputs for all"):
        distances(torch.ones(8, 6, 8))
    with pytest.raises(StepError, match="have the shapes"):
        distances()({"output": rows_of(8)[..., :7]}, {"output": rows_of(8)})
    assert are_no_classes({"output": ROWS})
    assert not are_no_classes({"output": (OutputPart("class_map"),), "more": (OutputPart("unknown"),)})


def detector(folder, name="Detector"):
    code = folder / "code"
    code.mkdir()
    (code / "nets.py").write_text(dedent(CODE))
    (folder / name).mkdir()
    PythonSource(target=f"nets.py:{name}", folder=code).write(folder / name, IMAGE)
    return artifact(folder / name, Format.TORCH, outputs=["output"])


def trained(origin, source, out, data=None, **options):
    out.mkdir()
    data = Annotated() if data is None else data
    job = Job(
        out, IMAGE, origin, Heard(), seed=3, training=data, validation=data,
        parts={"output": ROWS}, postprocess=CXCYWH.detector,
    )  # fmt: skip
    common = {"epochs": 6, "batch_size": 16, "learning_rate": 0.01, "threads": 1, "autocast": "off"}
    made = Finetune(**{**common, **options}).run(source, job)
    return made.facts["finetuning"], job.observer


def damaged(origin, out):
    model = torch_format.open(origin.path)
    with torch.no_grad():
        model.scores.weight.mul_(0.2)
        model.boxes.weight.mul_(0.2)
    torch_format.save(model, out, torch_format.read(origin.path), origin.path / torch_format.CODE)
    return replace(origin, path=out)


def test_a_detector_learns_its_teachers_answers_whatever_its_labels(tmp_path):
    origin = detector(tmp_path)
    facts, heard = trained(origin, damaged(origin, tmp_path / "d"), tmp_path / "t")
    losses = [record["validation_loss"] for record in facts["curve"]]
    assert min(losses) < 0.3 * losses[0]
    assert facts["compared"] == ["output: boxes", "output: objectness", "output: scores"]
    assert facts["distillation_weight"] == 1.0
    assert facts["validation_judged_by"] == "teacher"
    assert heard.warnings == []
    numbered = {"data": Stripes(), "epochs": 1, "stop_at_drop": 0.0}
    facts, heard = trained(origin, origin, tmp_path / "u", **numbered)
    assert facts["training_samples"] == 128
    words = " ".join(heard.warnings)
    assert "labels of the training samples are not used" in words
    assert "no early stopping" in words


def test_its_own_labels_can_be_asked_for_and_then_must_be_sound(tmp_path):
    origin = detector(tmp_path)
    with pytest.raises(StepError, match="have no labels"):
        trained(origin, origin, tmp_path / "t", distillation_weight=0.5)
    with pytest.raises((StepError, InputError), match="do not fit the output"):
        trained(origin, origin, tmp_path / "u", data=Stripes(), distillation_weight=0.5)


def test_views_are_shown_of_what_no_label_says_anything_of(tmp_path):
    origin = detector(tmp_path)
    wide = partial(trained, origin, origin, augment="auto", epochs=5)
    facts, heard = wide(tmp_path / "t")
    assert "augmentation" not in facts, "its images are smaller than 16 by 16"
    assert "16 by 16" in heard.warnings[0]


@pytest.mark.long
def test_with_the_roundings_of_int8_in_it_a_detector_learns_as_well(tmp_path, monkeypatch):
    from torch.utils import cpp_extension

    from optcli.passes.quantize_aware import QuantizeAware

    # NNCF's own quantizers would compile: what is concatenated shares one, under several names.
    monkeypatch.setattr(cpp_extension, "load", lambda **_: pytest.fail("a quantizer of NNCF's is left"))
    origin = detector(tmp_path, "Joined")
    job = Job(
        tmp_path / "made", IMAGE, origin, Heard(), seed=3, calibration=Annotated(32),
        training=Annotated(), validation=Annotated(64, seed=1),
        parts={"output": ROWS}, postprocess=CXCYWH.detector,
    )  # fmt: skip
    job.out.mkdir()
    made = QuantizeAware(epochs=2, batch_size=16, learning_rate=0.002, threads=1).run(origin, job)
    facts = made.facts["quantization_aware_training"]
    assert made.facts["quantized_operators"]["Conv"] == 5
    assert facts["compared"] == ["output: boxes", "output: objectness", "output: scores"]
    losses = [record["validation_loss"] for record in facts["curve"]]
    assert min(losses[1:]) < losses[0] < 0.2, "integers cost little, and training wins some of it back"


def test_layers_that_read_large_values_have_smaller_steps(tmp_path):
    """A few steps on pixels of 0 to 255 ruined the first layer of a detector."""

    @dataclass
    class Pixels(Annotated):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return replace(sample, inputs={"image": 255 * sample.inputs["image"]})

    origin = detector(tmp_path)
    model = torch_format.open(origin.path)
    call = caller(model, IMAGE, "cpu")
    shares = []
    for data in (Annotated(8), Pixels(8)):
        found = rate_shares(model, call, ExampleSet(data, "training").batch(range(8)))
        shares.append(found.get(id(model.stem[0].weight), 1.0))
    assert shares[0] == 1
    assert 0.01 < shares[1] < 0.05
    grouped = groups(list(model.parameters()), {id(model.stem[0].weight): 0.02})
    assert {len(each["params"]): each["share"] for each in grouped} == {1: 0.02, 7: 1.0}
